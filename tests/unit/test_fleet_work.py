"""What is asked of one device, with a scripted device tool."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgepack.base.errors import ConnectError, RemoteError
from edgepack.deploy import act
from edgepack.deploy.deploy import DeployOptions
from edgepack.deploy.other_model import OtherModelError
from edgepack.deploy.trial import TrialDroppedError, TrialRunsError
from edgepack.fleet import FleetDevice, work
from edgepack.fleet.work import AskStatus, BeginTrial, Deploy, Rollback
from tests.bundles import small_bundle
from tests.scripted_tool import NEW, OLD, RELEASE, STATUS, TRIAL, ScriptedDevice

DEVICE = FleetDevice(name="a", address="a", board="rasp3b")


class FakeTool:
    """Instead of edgepack-device on a device: two releases, NEW is current."""

    def __init__(self) -> None:
        self.current: str | None = NEW
        self.previous: object = STATUS["previous"]
        self.pending: dict[str, str] | None = None
        self.source = ""
        self.trial: dict[str, Any] | None = None
        self.calls: list[str] = []
        self.open = 0

    def connect(self, device: FleetDevice) -> Any:
        self.open += 1
        scripted = ScriptedDevice(device.name, self._answer)
        scripted.close = self._close  # type: ignore[method-assign]
        return scripted

    def _close(self) -> None:
        self.open -= 1

    def _answer(self, command: str) -> str:
        if "current/source.json" in command:
            return self.source
        self.calls.append(command)
        if command.endswith((" trial status", " trial stop")):
            if self.trial is None:
                return json.dumps({"error": {"kind": "no-trial", "message": "there was no trial"}})
            if command.endswith("stop"):
                self.trial |= {"phase": "stopped"}
            return json.dumps({"runs": self.trial["phase"] == "running", "trial": self.trial})
        if command.endswith(" rollback"):
            self.current = OLD if self.current == NEW else NEW
            return json.dumps({"release": self.current, "before": None})
        current = self.current and {**RELEASE, "release": self.current}
        now = {"current": current, "previous": self.previous, "pending": self.pending}
        return json.dumps({**STATUS, **now})


@pytest.fixture
def tool() -> FakeTool:
    return FakeTool()


def test_status(tool: FakeTool, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = AskStatus(connect=tool.connect, root="edgepack/m")
    done = ask(DEVICE)
    assert (done.outcome, done.release) == ("ok", NEW)
    assert done.details["by"] == "me@here"
    assert (done.details["latency_ms"], done.details["emulated"]) == (4.5, False)
    monkeypatch.setattr(ScriptedDevice, "is_emulated", True, raising=False)
    assert ask(DEVICE).details["emulated"]
    assert done.details["source"] is None
    tool.source = '{"uri": "models:/flowers/3", "run_id": "53488b6e"}'
    assert ask(DEVICE).details["source"] == "models:/flowers/3, run 53488b6e"
    assert (done.details["trial"], done.details["trial_phase"]) == (None, None)
    tool.trial = {**TRIAL["trial"]}
    assert ask(DEVICE).details["trial"] == f"{NEW} dropped: why"
    tool.trial |= {"phase": "running", "reason": "", "elapsed_s": 60.2}
    assert ask(DEVICE).details["trial"] == f"{NEW} running, 60 of 7200 s"
    tool.trial |= {"release": "2" * 12, "before": "3" * 12}  # it is about neither, and is history
    assert ask(DEVICE).details["trial"] is None
    tool.pending = {"release": NEW}
    assert ask(DEVICE).outcome == "testing"
    tool.current = None
    assert (ask(DEVICE).outcome, ask(DEVICE).release) == ("empty", None)
    assert tool.open == 0


def test_a_device_that_has_had_one_release_is_no_failure(tool: FakeTool) -> None:
    """It stays as it is, and a rollout goes on with the next device."""
    tool.previous = None
    done = Rollback(connect=tool.connect, root="edgepack/m", leave={"a": NEW})(DEVICE)
    assert (done.outcome, done.release) == ("no earlier release", NEW)
    assert not [command for command in tool.calls if command.endswith(" rollback")]


def test_a_rollback_is_done_once(tool: FakeTool) -> None:
    back = Rollback(connect=tool.connect, root="edgepack/m", leave={"a": NEW})
    assert (back(DEVICE).outcome, tool.current) == ("rolled back", OLD)
    # Done again, it would go forward.
    done = back(DEVICE)
    assert (done.outcome, done.release, tool.current) == ("unchanged", OLD, OLD)
    anything = Rollback(connect=tool.connect, root="edgepack/m", leave={})
    assert (anything(DEVICE).outcome, tool.current) == ("rolled back", NEW)
    assert tool.open == 0


def test_the_look_after_the_soak_time(tool: FakeTool) -> None:
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(release=NEW))
    deploy = Deploy(connect=tool.connect, root="edgepack/m", bundles={"rasp3b": bundle})
    deploy.check(DEVICE)
    tool.pending = {"release": NEW}
    with pytest.raises(RemoteError, match="is being tested again"):
        deploy.check(DEVICE)
    tool.pending, tool.current = None, OLD
    with pytest.raises(RemoteError, match=f"release {NEW} is not current any more, but {OLD}"):
        deploy.check(DEVICE)
    assert tool.open == 0


def test_a_trial_after_the_soak_time(tool: FakeTool) -> None:
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(release=NEW))
    begin = BeginTrial(connect=tool.connect, root="edgepack/m", bundles={"rasp3b": bundle})
    begin.check(DEVICE)  # current before: there was nothing to try
    tool.current = OLD
    with pytest.raises(RemoteError, match=f"release {NEW} is not current any more"):
        begin.check(DEVICE)
    tool.trial = {**TRIAL["trial"], "phase": "running"}
    begin.check(DEVICE)
    tool.trial |= {"phase": "dropped"}
    with pytest.raises(RemoteError, match=f"a: the trial of {NEW} dropped: why"):
        begin.check(DEVICE)
    tool.trial |= {"phase": "activated"}
    tool.current = NEW
    begin.check(DEVICE)


def test_a_deploy_waits_for_the_trial_of_its_release(
    tool: FakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(release=NEW, name="m"))
    deployed: list[str] = []

    def deploy_and_start(_bundle: Any, device: Any, *_: Any, **__: Any) -> Any:
        deployed.append(device.name)
        raise RemoteError("enough")

    monkeypatch.setattr(work, "deploy_and_start", deploy_and_start)
    monkeypatch.setattr(Deploy, "_options", lambda *_: DeployOptions())
    deploy = Deploy(
        connect=tool.connect, root="edgepack/m", bundles={"rasp3b": bundle}, tried=lambda _: NEW
    )
    tool.trial = {**TRIAL["trial"], "phase": "running"}
    with pytest.raises(TrialRunsError, match=f"a: the trial of release {NEW} has not ended"):
        deploy(DEVICE)
    tool.trial |= {"phase": "dropped"}
    with pytest.raises(TrialDroppedError, match=f"a: its trial dropped release {NEW}: why"):
        deploy(DEVICE)
    assert deployed == []
    # One without a decision says nothing, and one of another release is none of it.
    for change in ({"phase": "stopped"}, {"phase": "dropped", "release": OLD}):
        tool.trial |= change
        with pytest.raises(RemoteError, match="enough"):
            deploy(DEVICE)
    assert deployed == ["a", "a"]
    assert tool.open == 0


def test_a_rollback_ends_a_trial_that_runs(tool: FakeTool) -> None:
    tool.current, tool.trial = OLD, {**TRIAL["trial"], "phase": "running"}
    leave = {"a": NEW}
    back = Rollback(connect=tool.connect, root="edgepack/m", leave=leave, tried=lambda _: NEW)
    assert (back(DEVICE).outcome, tool.trial["phase"]) == ("trial stopped", "stopped")
    assert (back(DEVICE).outcome, tool.current) == ("unchanged", OLD)
    # One that nobody of this fleet began is left alone.
    tool.trial |= {"phase": "running"}
    assert Rollback(connect=tool.connect, root="edgepack/m", leave=leave)(DEVICE).release == OLD
    assert tool.trial["phase"] == "running"


def test_a_release_of_another_model_stays(
    tool: FakeTool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there, own = small_bundle(tmp_path / "a"), small_bundle(tmp_path / "b")
    outputs = (replace(own.manifest.model.outputs[0], name="boxes"),)
    model = replace(own.manifest.model, sha256="cd" * 32, outputs=outputs)
    own = replace(own, manifest=replace(own.manifest, model=model))
    manifest = there.file("manifest.json").read_text()
    monkeypatch.setattr(tool, "_answer", lambda _: manifest)
    monkeypatch.setattr(act, "deploy_bundle", lambda *_, **__: pytest.fail("it was deployed"))
    deploy = Deploy(connect=tool.connect, root="edgepack/m", bundles={"rasp3b": own})
    with pytest.raises(OtherModelError, match="is another model"):
        deploy(DEVICE)
    assert tool.open == 0


def test_a_deploy_with_a_service(tool: FakeTool, monkeypatch: pytest.MonkeyPatch) -> None:
    table = object()
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(name="m", release=NEW, service=table))
    report = SimpleNamespace(
        sent_bytes=7,
        before=OLD,
        outcome="deployed",
        release=NEW,
        facts=SimpleNamespace(machine_id=""),
    )
    asked: list[tuple[str, str]] = []

    def install(device: Any, root: str, *, wanted: Any) -> dict[str, str]:
        assert wanted is table  # not what the device says
        asked.append((device.name, root))
        return {"kind": "systemd"}

    monkeypatch.setattr(act, "deploy_bundle", lambda *_, **__: report)
    monkeypatch.setattr(act.remote_service, "install", install)
    options = DeployOptions(replace_model=True)
    bundles = {"rasp3b": bundle}
    deploy = Deploy(connect=tool.connect, root="edgepack/m", bundles=bundles, options=options)
    assert deploy(DEVICE).details == {"sent_bytes": 7, "before": OLD}
    assert asked == []
    done = replace(deploy, service=True)(DEVICE)
    assert (done.outcome, done.details["service"]) == ("deployed", "systemd")
    assert asked == [("a", "edgepack/m")]
    assert tool.open == 0


def test_the_rate_of_a_device_counts_before_that_of_the_rollout(
    tool: FakeTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(release=NEW))
    report = SimpleNamespace(
        sent_bytes=7,
        before=OLD,
        outcome="deployed",
        release=NEW,
        facts=SimpleNamespace(machine_id=""),
    )
    rates: list[float | None] = []

    def deploy_bundle(*_: Any, options: DeployOptions, **__: Any) -> Any:
        rates.append(options.limit_bytes_s)
        return report

    monkeypatch.setattr(act, "deploy_bundle", deploy_bundle)
    for rate in (None, 5e5):
        options = DeployOptions(limit_bytes_s=rate, replace_model=True)
        deploy = Deploy(connect=tool.connect, root="r", bundles={"rasp3b": bundle}, options=options)
        deploy(DEVICE)
        deploy(replace(DEVICE, limit_bytes_s=2e5))
    assert rates == [None, 2e5, 5e5, 2e5]


def test_a_device_with_a_folder_of_its_own(tool: FakeTool) -> None:
    AskStatus(connect=tool.connect, root="edgepack/m")(
        FleetDevice(name="a", address="a", board="rasp3b", root="/srv/m")
    )
    call, _ = tool.calls
    assert call.startswith("[ -e /srv/m ] || ")
    assert call.endswith('exec "$r/bin/edgepack-device" --root /srv/m --json status')


def test_a_connection_that_fails_needs_no_closing() -> None:
    def refuse(_device: FleetDevice) -> Any:
        raise ConnectError("no")

    with pytest.raises(ConnectError):
        AskStatus(connect=refuse, root="r")(DEVICE)
