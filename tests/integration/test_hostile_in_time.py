"""Devices that never come to an end and keep to the limits of each step: here a shell says what
one would, over the pipes of a real process.
"""

from __future__ import annotations

import shlex
import threading
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.base.errors import TimeLimitError
from edgepack.base.progress import attach_listener
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import DEVICE_TOOL, Health
from edgepack.deploy import deploy as module
from edgepack.deploy import remote_service
from edgepack.deploy.deploy import DeployOptions, conversation_s, deploy_bundle, preview
from edgepack.deploy.remote_service import Site, log_of
from edgepack.device import Address, LocalDevice, SshOptions, limit, ssh
from edgepack.device.errors import ConnectionLostError, TooSlowError
from edgepack.device.limit import Limit, limited
from edgepack.fleet import FleetDevice, Settings, Share, make_plan, roll_out, rollout
from edgepack.fleet.work import Deploy
from tests.bundles import small_bundle
from tests.integration import sshd_server
from tests.scripted_fleet import FakeWork, Log, devices

ROOT = "edgepack/tiny"
OPTIONS = DeployOptions(answer_s=1.5, wait_s=0, retries=2)
STATE = '{"event": "state", "current": null, "previous": null, "unchanged": false, "remove": []'
STEP = '{"event": "step", "name": "verify"}'
DRIP = "while :; do echo {}; sleep 0.1; done"
STEPS = DRIP.format(f"'{STEP}'")

# What the login's shell says to each command: before it would say what the device is.
SHELLS = {
    "nonsense, then nothing": "echo 'Wer bist du?'; sleep 1000",
    "a line now and then": DRIP.format("still here"),
    "a byte now and then": "while :; do printf x; sleep 0.1; done",
}
# What the device tool does: after a sane start.
TOOLS = {
    "no state, but steps": STEPS,
    "no state, but noise": DRIP.format("noise"),
    "no report, but steps": f"echo '{STATE}, \"needs\": []}}'; {STEPS}",
    "takes no byte": f"echo '{STATE}, \"needs\": [NEED]}}'; sleep 1000",
    "takes a byte now and then": f"echo '{STATE}, \"needs\": [NEED]}}'; "
    "while :; do dd bs=1 count=1 2>/dev/null; sleep 0.1; done >/dev/null",
}


class Shell(LocalDevice):
    """Its login shell does not run what it is told, but `script`."""

    def __init__(self, home: Path, script: str) -> None:
        super().__init__(home)
        self.script = script

    def _start(self, command: str, timeout_s: float | None, *, interactive: bool) -> Any:
        return super()._start(self.script or command, timeout_s, interactive=interactive)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """For no device in particular, with parameters that fill any pipe."""
    monkeypatch.setattr(module.gate, "check_device", lambda *_, **__: None)
    monkeypatch.setattr(module, "UPLOAD_S", 1.0)
    params = np.random.default_rng(1).bytes(1 << 21)
    return small_bundle(tmp_path / "bundle", params=params, health=Health(timeout_s=0.5))


def tool(home: Path, bundle: Bundle, script: str) -> LocalDevice:
    """A device whose tool is `script`, once it has taken the request."""
    files = bundle.manifest.files
    digest, size = max((entry.sha256, entry.size) for entry in files.values() if entry.size > 10**6)
    need = f'{{"sha256": "{digest}", "size": {size}, "have": 0, "base": null}}'
    path = home / ROOT / DEVICE_TOOL
    path.parent.mkdir(parents=True)
    path.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo edgepack-device 1 protocol 1; exit; }\n'
        f"read -r request\n{script.replace('NEED', need)}\n"
    )
    path.chmod(0o755)
    return LocalDevice(home)


@pytest.mark.parametrize("name", SHELLS)
def test_a_login_that_never_says_what_it_is(bundle: Bundle, tmp_path: Path, name: str) -> None:
    """And what may pass meanwhile is said: one who waits knows for how long at most."""
    said: list[str] = []

    class Listener:
        def now(self, text: str, _done: int, _total: int) -> None:
            said.append(text)

        def ended(self) -> None:
            pass

    patient = DeployOptions(answer_s=1.5, wait_s=60, retries=2)
    with attach_listener(Listener()), pytest.raises(TooSlowError, match="what it is") as caught:
        deploy_bundle(bundle, Shell(tmp_path, SHELLS[name]), ROOT, options=patient)
    assert caught.value.exit_code == TimeLimitError.exit_code
    assert any(text.endswith(" at most") for text in said)
    with pytest.raises(TooSlowError):
        preview(bundle, Shell(tmp_path, SHELLS[name]), ROOT, options=OPTIONS)


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_that_never_ends(bundle: Bundle, tmp_path: Path, name: str) -> None:
    with pytest.raises(TooSlowError):
        deploy_bundle(bundle, tool(tmp_path, bundle, TOOLS[name]), ROOT, options=OPTIONS)


def test_twenty_of_them(bundle: Bundle, tmp_path: Path) -> None:
    """A rollout ends, with a failure of each, and no more than the budget of each is waited."""
    everything = Share(value=100, percent=True)
    settings = Settings(
        canary=Share(value=0), waves=(everything,), parallel=20, max_failures=everything,
        max_failures_total=everything,
    )  # fmt: skip
    scripts = list(SHELLS.values())

    def connect(device: FleetDevice) -> Any:
        return Shell(tmp_path, scripts[int(device.name[1:]) % len(scripts)])

    work = Deploy(connect=connect, root=ROOT, bundles={"rasp3b": bundle}, options=OPTIONS)
    log = Log()
    result = roll_out(make_plan(devices(20), settings), settings, work, log)
    assert result.outcomes == {"failed": 20}
    assert {outcome.exit_code for outcome in log.outcomes} == {TimeLimitError.exit_code}
    budget_s = work.budget_s(devices(1)[0])
    assert all(outcome.seconds < budget_s for outcome in log.outcomes)


def test_one_that_hangs_where_no_limit_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary in a name's look-up, say: it counts as failed, and what it does later not at all."""
    monkeypatch.setattr(rollout, "_GRACE_S", 0.1)
    go_on = threading.Event()
    work = FakeWork(budget=0.2, before_end=lambda _: go_on.wait(60))
    log = Log()
    try:
        result = roll_out(make_plan(devices(20), Settings()), Settings(), work, log)
    finally:
        go_on.set()
    assert (result.status, result.outcomes) == ("stopped", {"failed": 1})
    assert "no end after" in str(log.outcomes[0].error)
    assert log.outcomes[0].exit_code == TimeLimitError.exit_code


def test_bytes_that_move_give_more_time(tmp_path: Path) -> None:
    """An upload at a tenth of what a step may be silent for is none of the slow."""
    with limited(LocalDevice(tmp_path), 0.3, "it") as all_of_it:
        for _ in range(20):
            LocalDevice(tmp_path).run("sleep 0.05")
            all_of_it.moved(1000, slowest_bytes_s=5000)
    assert not all_of_it.expired


def test_what_is_done_at_the_end_of_its_time_is_done(tmp_path: Path) -> None:
    ended: list[str] = []
    late = Limit(lambda: ended.append("expired"), 0.01)
    late._thread.join(60)
    late.end()
    assert ended == ["expired"]
    device = LocalDevice(tmp_path)
    with (
        pytest.raises(TooSlowError, match="local: it takes longer than"),
        limited(device, 0.2, "it"),
    ):
        while True:
            device.run("sleep 0.05")  # each is in time
    with pytest.raises(ConnectionLostError):
        device.run("true")
    device.reconnect()
    assert device.run("echo well").stdout == "well\n"


def test_a_budget_is_finite_and_known(bundle: Bundle) -> None:
    """Of a bundle as it is: minutes, and what its bytes take on the slowest link there is."""
    options = DeployOptions()
    upload_s = 2 * bundle.manifest.total_bytes / limit.SLOWEST_BYTES_S
    assert conversation_s(bundle, options, upload=True) < 3600 + upload_s
    assert conversation_s(bundle, DeployOptions(limit_bytes_s=1000), upload=True) > 4 * upload_s


def test_a_log_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(
        name="tiny", root=str(tmp_path), owner="pi", login="pi", kind="cron", rights="user",
        triple="", service=None,
    )  # fmt: skip
    monkeypatch.setattr(remote_service, "look", lambda *_: site)
    monkeypatch.setattr(remote_service, "_LOG_S", 0.5)
    monkeypatch.setattr(remote_service, "_ANSWER_S", 0.5)

    def hostile(script: str, *, follow: bool) -> None:
        text = f"echo cron; {script}"
        monkeypatch.setattr(remote_service, "_log_script", lambda *_: f"sh -c {shlex.quote(text)}")
        with log_of(LocalDevice(tmp_path), ROOT, follow=follow) as log:
            for _ in log.lines:
                pass

    with pytest.raises(ConnectionLostError):
        hostile(DRIP.format("more"), follow=False)
    with pytest.raises(ConnectionLostError):
        hostile("while :; do printf x; sleep 0.1; done", follow=True)
    hostile("sleep 1; echo 'it was quiet'", follow=True)


@pytest.mark.parametrize("name", SHELLS)
def test_a_login_over_ssh(bundle: Bundle, tmp_path: Path, name: str) -> None:
    """Of a real server: whoever waits for it, on the link as well, is let go of."""
    script = tmp_path / "shell"
    script.write_text(f"#!/bin/sh\n{SHELLS[name]}\n")
    script.chmod(0o755)
    server = sshd_server.start(tmp_path / "sshd", extra=f"ForceCommand {script}")
    try:
        device = over_ssh(server)
        with pytest.raises(TooSlowError, match="what it is"):
            deploy_bundle(bundle, device, ROOT, options=OPTIONS)
        device.close()
    finally:
        server.stop()


def test_files_over_ssh_that_go_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of SFTP that says nothing; then, as for adb, a shell that takes a byte at a time."""
    (tmp_path / "file").write_bytes(np.random.default_rng(1).bytes(1 << 23))
    for name, script in {
        "nothing": "sleep 100",
        # For a minute: nobody ends what goes on behind a connection that is gone.
        "bytes": "for _ in $(seq 600); do dd bs=1 count=1 2>/dev/null; sleep 0.1; done >/dev/null",
    }.items():
        server_program = tmp_path / name
        server_program.write_text(f"#!/bin/sh\n{script}\n")
        server_program.chmod(0o755)
        server = sshd_server.start(tmp_path / f"sshd-{name}", sftp=str(server_program))
        try:
            device = over_ssh(server)
            monkeypatch.setattr(ssh, "UPLOAD_S", 1.5)
            with pytest.raises(TooSlowError, match="the upload of x"):
                device.put(tmp_path / "file", "x")
            device.reconnect()
            assert device.run("echo well").stdout == "well\n"
            with pytest.raises(TooSlowError, match="the download of x"):
                device.get("x", tmp_path / "got")
            device.reconnect()
            stream = device.open(script)
            with pytest.raises(ConnectionLostError):
                monkeypatch.setattr(ssh, "SLOWEST_BYTES_S", 1e9)
                for _ in range(3):
                    stream.write((tmp_path / "file").read_bytes())
            device.close()
        finally:
            server.stop()


def over_ssh(server: sshd_server.Sshd) -> ssh.SshDevice:
    options = SshOptions(
        use_config=False,
        identity=server.key,
        identities_only=True,
        host_keys=(server.known_hosts_line,),
    )
    return ssh.SshDevice(
        Address(host="127.0.0.1", port=server.port, user=server.user), options=options
    )


def test_a_clock_that_jumps_in_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """By NTP, by a time zone or by hand: years ahead and back between any two looks at it. What is
    waited for, and for how long, is of another clock."""
    years = [0]

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Jumping:
            years[0] += 1
            return cls(2026 + (-1) ** years[0] * (years[0] % 50), 1, 1, tzinfo=tz)

    monkeypatch.setattr(rollout, "datetime", Jumping)
    monkeypatch.setattr(time, "time", lambda: float(Jumping.now().year))
    settings, log = Settings(soak_s=0.2), Log()
    result = roll_out(make_plan(devices(12), settings), settings, FakeWork(), log)
    assert (result.status, result.outcomes) == ("complete", {"deployed": 12})
    assert years[0] >= 12
    assert all(0 <= outcome.seconds < 60 for outcome in log.outcomes)
