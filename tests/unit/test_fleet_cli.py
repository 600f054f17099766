"""`edgepack fleet` without a device: plans, options, reports, and builds that fail."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from edgepack.base import process
from edgepack.base.apart import describe, error_of, prefix_error
from edgepack.base.errors import BundleError, ModelError, UsageError
from edgepack.boards import load_boards
from edgepack.cli import main
from edgepack.cli.fleet_run import stop_on_signal
from edgepack.fleet import FleetDevice, Journal, Stop, load_fleet
from edgepack.fleet.build import build_bundles, open_bundles
from edgepack.fleet.shard import Shard
from edgepack.flow.project import load_project
from edgepack.gate.gate import GateError, Problem
from tests.bundles import small_bundle

FLEET = """
[defaults]
board = "rasp3b"
[groups.lab]
devices = ["bench"]
[groups.shops]
devices = ["shop[01:20]"]
"""


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_plan(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "fleet", "plan", fleet)
    assert code == 0
    assert out == (
        "fleet: 21 devices, 21 to do\n"
        "boards    rasp3b 21\n"
        "WAVE    DEVICES  TO DO  WHICH\n"
        "canary  1        1      bench\n"
        "wave 1  3        3      shop01 ... shop03\n"
        "wave 2  17       17     shop04 ... shop20\n"
    )
    flags = ["--canary", "lab", "--waves", "15,2", "--limit", "lab", "--limit", "shop*"]
    code, out, _ = run(capsys, "fleet", "plan", fleet, "--json", *flags)
    plan = json.loads(out)
    assert [(wave["wave"], wave["devices"]) for wave in plan["waves"]] == [
        ("canary", 1), ("wave 1", 15), ("wave 2", 2), ("wave 3", 2), ("wave 4", 1),
    ]  # fmt: skip
    assert plan["list"][0] == {
        "device": "bench", "address": "bench", "board": "rasp3b", "jump": [], "groups": ["lab"],
        "labels": {}, "wave": "canary",
    }  # fmt: skip
    assert not (Path(fleet).parent / ".edgepack").exists()


def test_an_inventory_gets_its_board_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("[shops]\nshop[1:3]\n")
    code, _, err = run(capsys, "fleet", "plan", str(hosts))
    assert code == 2
    assert "shop1 has no board" in err
    code, out, _ = run(capsys, "fleet", "plan", str(hosts), "--board", "pynq")
    assert code == 0
    assert "pynq 3" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--limit", "shopz"], "--limit: no group, device or label"),
        (["--canary", "shopz"], "--canary: 'shopz' is neither a number of devices nor a group"),
        (["--waves", "5,,"], "--waves: '' is not a number of devices"),
        (["--waves", "0"], "--waves: each wave must have a device"),
        (["--max-failures", "101%"], "--max-failures: '101%'"),
        (["--max-failures-total", "x"], "--max-failures-total: 'x'"),
        (["--soak", "nan"], "--soak: nan is not a number of seconds"),
        (["--keep-trying", "24"], "--keep-trying: '24' is no time"),
        (["--keep-trying", "0h"], "--keep-trying: '0h' is no time"),
        (["--keep-trying", "366d"], "--keep-trying: '366d' is no time of at most 365 days"),
        (["--window", "22-4"], "'22-4' is no window such as 22:00-04:00"),
        (["--shard", "6/5"], "'6/5' is no part such as 2/5"),
        (["--board", "rasp3c"], "bench: unknown board: rasp3c"),
    ],
)
def test_flags_that_make_no_sense(
    flags: list[str], message: str, fleet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--board" in flags:
        Path(fleet).write_text(FLEET.replace('board = "rasp3b"', ""))
    code, _, err = run(capsys, "fleet", "plan", fleet, *flags)
    assert code == 2
    assert message in err


def test_a_dry_run_leaves_nothing_behind(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = small_bundle(tmp_path, board="rasp3b")
    journal = Path(fleet).parent / ".edgepack" / "fleet" / "tiny.jsonl"
    command = ["fleet", "deploy", fleet, "--bundle", str(bundle.path), "--dry-run"]
    code, out, err = run(capsys, *command)
    # The gate refuses a bundle whose app is no program.
    assert (code, out) == (5, "")
    assert "edgepack-run" in err
    assert not journal.exists()


@pytest.mark.parametrize(
    "flags", [["m.onnx"], ["--project", "p.toml"], ["--release-version", "3"], ["--sign", "key"]]
)
def test_a_bundle_is_made_already(
    flags: list[str], fleet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "fleet", "deploy", fleet, *flags, "--bundle", "b")
    assert code == 2
    assert "--bundle goes without " in err


def test_bundles_must_fit_the_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgepack.fleet.build.check_bundle", lambda *_: None)
    boards = load_boards()
    first = small_bundle(tmp_path / "a", board="rasp3b").path
    second = small_bundle(tmp_path / "b", board="rasp3b").path
    other = small_bundle(tmp_path / "c", board="pynq", name="other").path
    assert open_bundles([first], boards, {"rasp3b"}).keys() == {"rasp3b"}
    with pytest.raises(UsageError, match="no bundle for pynq, rasp4b"):
        open_bundles([first], boards, {"rasp4b", "pynq", "rasp3b"})
    with pytest.raises(UsageError, match="two bundles for rasp3b"):
        open_bundles([first, second], boards, {"rasp3b"})
    with pytest.raises(UsageError, match="several models: other, tiny"):
        open_bundles([first, other], boards, {"rasp3b"})
    with pytest.raises(BundleError, match="no such bundle"):
        open_bundles([tmp_path / "none"], boards, set())


def test_a_build_that_fails_is_that_error(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"no model")
    project = load_project(None, {"model": model})
    with pytest.raises(ModelError, match=r"rasp3b: .*model\.onnx") as caught:
        build_bundles(project, [load_boards()["rasp3b"]])
    assert caught.value.exit_code == 3


def test_errors_cross_processes_by_the_name_of_their_class() -> None:
    problem = Problem(file="model.so", text="too new", hint="package it again")
    error = GateError("net-rasp3b-0123456789ab", "rasp3b", [problem])
    back = prefix_error(error_of(json.loads(json.dumps(describe(error)))), "rasp3b: ")
    assert type(back) is GateError
    assert (back.message, back.hint) == (f"rasp3b: {error.message}", error.hint)

    class HereOnlyError(BundleError):
        """Of a module that the other process has not loaded."""

    described = describe(HereOnlyError("x", hint="y"))
    assert type(error_of(described)) is BundleError


def test_a_report_needs_a_rollout(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "fleet", "report", fleet, "--name", "m")
    assert code == 12
    assert "no rollout of m to fleet yet" in err


def test_a_rollback_needs_a_deploy(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "fleet", "rollback", fleet)
    assert (code, "which deployed model?" in err) == (2, True)
    code, _, err = run(capsys, "fleet", "rollback", fleet, "--name", "m", "--dry-run")
    assert code == 12
    assert "m.jsonl: no device has had a deploy to go back from" in err
    assert "--again" in err
    code, out, _ = run(capsys, "fleet", "rollback", fleet, "--name", "m", "--dry-run", "--again")
    assert (code, out.splitlines()[0]) == (0, "fleet: 21 devices, 21 to do")


def test_what_a_rollback_leaves_alone(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that no deploy was tried on, and those that have gone back already."""

    def line(device: str, action: str, *, ok: bool = True) -> dict[str, object]:
        return {
            "device": device, "address": device, "action": action, "ok": ok, "release": "0" * 12,
        }  # fmt: skip

    with Journal(tmp_path / ".edgepack" / "fleet" / "m.jsonl") as journal:
        journal.write(
            line("shop01", "deploy"), line("shop02", "deploy", ok=False),
            line("shop03", "deploy"), line("shop03", "rollback"),
            line("shop04", "deploy"), line("shop04", "rollback", ok=False),
        )  # fmt: skip
    command = ["fleet", "rollback", fleet, "--name", "m", "--dry-run", "--json"]
    code, out, _ = run(capsys, *command)
    assert code == 0
    plan = json.loads(out)
    assert [row["device"] for row in plan["list"]] == ["shop01", "shop02", "shop03", "shop04"]
    assert [name for wave in plan["waves"] for name in wave["todo"]] == [
        "shop01", "shop02", "shop04",
    ]  # fmt: skip


def test_what_a_journal_knows_of_trials(tmp_path: Path) -> None:
    device = FleetDevice(name="a", address="a", board="rasp3b")

    def line(action: str, release: str, *, ok: bool = True, address: str = "a") -> dict[str, Any]:
        return {
            "device": "a", "address": address, "action": action, "ok": ok, "release": release,
        }  # fmt: skip

    with Journal(tmp_path / "journal") as journal:
        for entry, tried, deployed in (
            (line("trial", "1", ok=False), None, "1"),
            (line("trial", "1"), "1", "1"),
            # A deploy that was refused does not forget it; one that went well does.
            (line("deploy", "1", ok=False), "1", "1"),
            (line("deploy", "1"), None, "1"),
            (line("trial", "2"), "2", "2"),
            (line("rollback", "1"), None, "2"),
            (line("trial", "3", address="b"), None, None),  # another device
        ):
            journal.write(entry)
            assert (journal.tried(device), journal.deployed(device)) == (tried, deployed), entry
        assert not journal.is_done(device, "deploy", "3")


def test_a_rollout_that_was_killed_is_reported(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = {
        "device": "bench", "address": "bench", "board": "rasp3b", "wave": "canary",
        "action": "deploy", "ok": True, "outcome": "deployed", "release": "0123456789ab",
        "at": "2026-01-01T00:00:00+00:00", "seconds": 1.5,
    }  # fmt: skip
    with Journal(tmp_path / ".edgepack" / "fleet" / "m.jsonl") as journal:
        journal.write(
            {"event": "begin", "action": "deploy", "releases": {"rasp3b": "0123456789ab"}}, done
        )
    page = tmp_path / "page.html"
    code, out, _ = run(capsys, "fleet", "report", fleet, "--name", "m", "--html", str(page))
    assert code == 0
    assert out.splitlines()[:3] == [
        "m to fleet: deploy interrupted: it was killed, or is under way",
        "devices   1 of 21 done: 1 deployed, 20 waiting",
        "release   0123456789ab on 1 rasp3b",
    ]
    assert page.read_text().count("<tr ") == 21


def test_the_journals_of_shards_are_read_as_one(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each as another machine wrote it, copied beside one another."""
    names = ["bench", *(f"shop{number:02}" for number in range(1, 21))]
    shards = [Shard(number=number, of=3) for number in (1, 2, 3)]
    ends = [("complete", ""), ("stopped", "9 of 9 devices failed"), None]
    folder = tmp_path / ".edgepack" / "fleet"

    def line(name: str, outcome: str, day: int = 1) -> dict[str, object]:
        return {
            "device": name, "address": name, "board": "rasp3b", "wave": "wave 1",
            "action": "deploy", "ok": outcome != "failed", "outcome": outcome,
            "release": "0123456789ab", "at": f"2026-01-0{day}T00:00:00+00:00", "seconds": 1.5,
        }  # fmt: skip

    expected = dict.fromkeys(names, "waiting")
    for shard, end in zip(shards, ends, strict=True):
        own = [name for name in names if shard.has(name)]
        outcome = "deployed" if shard.number == 1 else "failed"
        done = own if end else own[:1]
        expected |= dict.fromkeys(done, outcome)
        with Journal(folder / f"m@{shard.number}-of-3.jsonl") as journal:
            begin = {"event": "begin", "action": "deploy", "at": f"2026-01-01T00:0{shard.number}"}
            journal.write({**begin, "releases": {"rasp3b": "0123456789ab"}})
            journal.write(*(line(name, outcome) for name in done))
            if end:
                words = {"event": "end", "status": end[0], "reason": end[1], "seconds": 9.0}
                journal.write({**words, "outcomes": {outcome: len(done)}})
    # Of another model, whose name begins so.
    (folder / "m-2@1-of-3.jsonl").write_text("no journal\n")

    def report(*words: str) -> Any:
        code, out, _ = run(capsys, "fleet", "report", fleet, "--name", "m", "--json", *words)
        assert code == 0
        return json.loads(out)

    found = report()
    assert found["status"] == "interrupted"
    assert found["reason"] == "2/3: 9 of 9 devices failed; 3/3: it was killed, or is under way"
    assert {row["device"]: row["outcome"] for row in found["devices"]} == expected
    # One of them alone.
    found = report("--shard", "1/3")
    assert found["status"] == "complete"
    assert [row["device"] for row in found["devices"]] == [n for n in names if shards[0].has(n)]
    # A device that was done again, not by a shard: the newer line counts.
    with Journal(folder / "m.jsonl") as journal:
        journal.write(line("shop01", "unchanged", day=2))
    found = report()
    expected["shop01"] = "unchanged"
    assert {row["device"]: row["outcome"] for row in found["devices"]} == expected


def test_a_shard_has_a_journal_of_its_own(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = []
    for number in (1, 2):
        code, out, _ = run(capsys, "fleet", "plan", fleet, "--json", "--shard", f"{number}/2")
        assert code == 0
        devices += [row["device"] for row in json.loads(out)["list"]]
    assert len(devices) == len(set(devices)) == 21
    loaded = load_fleet(fleet)
    paths = {
        loaded.journal("m", None, shard) for shard in (None, *map(Shard.parse, ("1/2", "2/2")))
    }
    assert {path.name for path in paths} == {"m.jsonl", "m@1-of-2.jsonl", "m@2-of-2.jsonl"}
    # The canaries are in one of two parts: the other would begin without any.
    words = ["fleet", "plan", fleet, "--canary", "lab", "--shard"]
    codes = {text: run(capsys, *words, text)[0] for text in ("1/2", "2/2")}
    own = "1/2" if Shard(number=1, of=2).has("bench") else "2/2"
    assert codes == {"1/2": 2, "2/2": 2} | {own: 0}
    code, _, err = run(capsys, "fleet", "plan", fleet, "--limit", "lab", "--shard", "1/9999")
    assert code == 2
    assert "--shard 1/9999: none of 1 devices is in it" in err


_LIMITS = """
import resource
from edgepack.base.errors import UsageError
from edgepack.fleet.limits import allow_parallel
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
for parallel in (10, 100, 1000):
    try:
        allow_parallel(parallel)
        print(parallel, *resource.getrlimit(resource.RLIMIT_NOFILE))
    except UsageError as error:
        print(error.message, "/", error.hint)
"""


def test_open_files_are_asked_for_or_refused() -> None:
    # In a process of its own: who lowers the hard limit cannot raise it again.
    assert process.run([sys.executable, "-c", _LIMITS]).stdout.splitlines() == [
        "10 256 1024",
        "100 864 1024",
        "--parallel 1000 needs 8064 open files, 1024 are allowed here / "
        "--parallel 120, or raise the limit: ulimit -Hn",
    ]


def test_what_signals_ask_for() -> None:
    def ask(*numbers: signal.Signals) -> Stop:
        with stop_on_signal() as stop:
            for number in numbers:
                signal.raise_signal(number)
        return stop

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert ask() == Stop()
    assert ask(signal.SIGINT) == Stop(asked=True)
    assert ask(signal.SIGINT, signal.SIGINT) == Stop(asked=True, at_once=True)
    assert ask(signal.SIGINT, signal.SIGTERM) == Stop(asked=True, at_once=True)
    assert ask(signal.SIGTERM) == Stop(asked=True, at_once=True)
    # Who is asked a third time does what Python does.
    with pytest.raises(KeyboardInterrupt):
        ask(signal.SIGINT, signal.SIGINT, signal.SIGINT)
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
