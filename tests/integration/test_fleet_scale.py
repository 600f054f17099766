"""Ten thousand devices in one rollout: order, bounds, memory, and going on after a kill.

The devices are a scripted transport (tests.fleet_operator); all else is what a user runs, in
a process of its own.
"""

from __future__ import annotations

import fnmatch
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle.bundle import Bundle
from tests.bundles import FakeTool
from tests.fake_app import fake_bundle

ROOT = Path(__file__).parents[2]
COUNT = 10_000
PARALLEL = 32
RSS_LIMIT_KB = 300 * 1000

FLEET = f"""
[rollout]
parallel = {PARALLEL}
waves = ["10%", "50%", "100%"]
max_failures = "2%"

[defaults]
user = "pi"
jump = ["ops@gate.example.org"]

[groups.a]
devices = ["a[0001:5000]"]
board = "rasp3b"

[groups.b]
devices = ["b[0001:5000]"]
board = "rasp3b-64"
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    # Nobody runs it here.
    tool = FakeTool(path=folder / "tool")
    tool.path.write_bytes(b"the tool\n")
    return [fake_bundle(folder / name, board=name, tool=tool) for name in ("rasp3b", "rasp3b-64")]


def command(
    folder: Path, bundles: Sequence[Bundle], *words: str, broken: str = "", pause_ms: float = 0
) -> list[str]:
    (folder / "fleet.toml").write_text(FLEET)
    paths = [word for bundle in bundles for word in ("--bundle", str(bundle.path))]
    operator = [sys.executable, "-m", "tests.fleet_operator"]
    facts = str(folder / "facts.json")
    deploy = ["fleet", "deploy", str(folder / "fleet.toml"), "--json", "-q", *paths, *words]
    return [*operator, facts, broken, str(pause_ms), *deploy]


def operate(
    folder: Path, bundles: Sequence[Bundle], *words: str, broken: str = "", pause_ms: float = 5
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Exit code, the JSON that was printed, and what the transport saw."""
    done = subprocess.run(
        command(folder, bundles, *words, broken=broken, pause_ms=pause_ms),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), json.loads((folder / "facts.json").read_text())


def begun(facts: dict[str, Any]) -> list[str]:
    return [name for sign, name in facts["events"] if sign == "+"]


def journal(folder: Path) -> list[dict[str, Any]]:
    """Its whole lines about devices."""
    text = (folder / ".edgepack" / "fleet" / "tiny.jsonl").read_text()
    entries = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [entry for entry in entries if "device" in entry]


def test_ten_thousand_devices(bundles: list[Bundle], tmp_path: Path) -> None:
    code, printed, facts = operate(tmp_path, bundles)
    assert code == 0
    assert printed["outcomes"] == {"deployed": COUNT}
    assert len(printed["devices"]) == COUNT
    assert printed["releases"] == {
        bundle.manifest.board: {bundle.manifest.release: COUNT // 2} for bundle in bundles
    }
    print(f"\n{COUNT} devices: peak {facts['peak_rss_kb'] / 1000:.0f} MB of the operator's process")
    assert facts["peak_rss_kb"] < RSS_LIMIT_KB
    assert 1 < facts["most_open"] <= PARALLEL
    assert facts["threads_left"] == 1
    # The canaries, then wave after wave: the last of one ends before the first of the next.
    expected = [(wave["wave"], wave["devices"]) for wave in printed["waves"]]
    assert expected == [("canary", 2), ("wave 1", 1000), ("wave 2", 5000), ("wave 3", 3998)]
    at = 0
    for name, size in expected:
        events = facts["events"][2 * at : 2 * (at + size)]
        members = {row["device"] for row in printed["devices"] if row["wave"] == name}
        assert {device for _, device in events} == members
        assert len(members) == size
        at += size
    assert set(begun(facts)[:2]) == {"a0001", "b0001"}
    assert len(journal(tmp_path)) == COUNT

    # All is done: nothing is touched again.
    code, printed, facts = operate(tmp_path, bundles)
    assert (code, facts["events"]) == (0, [])
    assert printed["outcomes"] == {"deployed": COUNT}


def test_failures_stop_it_and_it_goes_on_from_there(bundles: list[Bundle], tmp_path: Path) -> None:
    # 200 devices, all but one in wave 2; 2 % of its 5000 devices may fail.
    broken = "a1*[12]"
    code, printed, facts = operate(tmp_path, bundles, broken=broken)
    assert code == 7
    assert printed["status"] == "stopped"
    failed = printed["outcomes"]["failed"]
    assert 100 < failed <= 100 + PARALLEL
    assert printed["reason"].endswith("of 5000 devices of wave 2 failed, allowed are 2%")
    first = journal(tmp_path)
    assert all(entry["ok"] != fnmatch.fnmatch(entry["device"], broken) for entry in first)
    assert printed["outcomes"]["waiting"] == COUNT - len(first)

    finished = {entry["device"] for entry in first if entry["ok"]}
    code, printed, facts = operate(tmp_path, bundles)
    assert code == 0
    assert set(begun(facts)) == {row["device"] for row in printed["devices"]} - finished
    assert len(begun(facts)) == COUNT - len(finished)
    # The one of an earlier wave comes first.
    assert begun(facts)[0] == next(entry["device"] for entry in first if not entry["ok"])
    assert printed["outcomes"] == {"deployed": COUNT}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_the_operator_nothing_is_lost(
    bundles: list[Bundle], tmp_path: Path, number: signal.Signals
) -> None:
    file = tmp_path / ".edgepack" / "fleet" / "tiny.jsonl"
    limit = ("--limit", "a000*", "--limit", "b000*", "--parallel", "4")
    # Not all of the 18 devices come to an end before the signal has arrived.
    hold = tmp_path / "hold"
    hold.touch()
    words = command(tmp_path, bundles, *limit)
    words.remove("-q")
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as operator:
        assert operator.stderr is not None
        while not file.exists() or file.read_bytes().count(b"\n") < 9:
            assert operator.poll() is None
            time.sleep(0.01)
        operator.send_signal(number)
        if number == signal.SIGINT:
            while not operator.stderr.readline().startswith("stopping: "):
                assert operator.poll() is None
        else:
            operator.wait()
        hold.unlink()
        out, _ = operator.communicate()
    if number == signal.SIGKILL:
        assert operator.returncode == -signal.SIGKILL
    elif number == signal.SIGTERM:
        assert operator.returncode == 130
    else:
        assert operator.returncode == 130
        printed = json.loads(out)
        assert printed["status"] == "interrupted"
        # Those under way were waited for: what was begun is in the journal.
        facts = json.loads((tmp_path / "facts.json").read_text())
        assert set(begun(facts)) == {entry["device"] for entry in journal(tmp_path)}
    finished = {entry["device"] for entry in journal(tmp_path)}
    assert 8 <= len(finished) < 18

    code, printed, facts = operate(tmp_path, bundles, *limit)
    assert code == 0
    everything = {f"{letter}000{n}" for letter in "ab" for n in range(1, 10)}
    assert set(begun(facts)) == everything - finished
    assert len(begun(facts)) == len(everything - finished)
    assert printed["outcomes"] == {"deployed": 18}


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,)])
def test_who_does_not_wait_leaves_those_under_way(
    bundles: list[Bundle], tmp_path: Path, numbers: tuple[signal.Signals, ...]
) -> None:
    limit = ("--limit", "a000*", "--canary", "0", "--parallel", "4")
    hour = command(tmp_path, bundles, *limit, pause_ms=3_600_000)
    hour.remove("-q")
    with subprocess.Popen(
        hour, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as operator:
        assert operator.stderr is not None
        while not (tmp_path / "begun").exists():
            assert operator.poll() is None
            time.sleep(0.01)
        for number in numbers[:-1]:
            operator.send_signal(number)
            while not operator.stderr.readline().startswith("stopping: waiting for the devices"):
                assert operator.poll() is None
        operator.send_signal(numbers[-1])
        _, errors = operator.communicate(timeout=600)
    assert operator.returncode == 130
    assert "Traceback" not in errors
    assert journal(tmp_path) == []
    code, printed, _ = operate(tmp_path, bundles, *limit)
    assert (code, printed["outcomes"]) == (0, {"deployed": 9})
