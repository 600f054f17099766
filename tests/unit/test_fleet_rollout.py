from __future__ import annotations

import _thread
import base64
import hashlib
import json
import re
import threading
from collections.abc import Sequence
from datetime import time as clock_time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import ConfigError, EdgepackError, RemoteError
from edgepack.device import (
    AuthError,
    ChangedHostKeyError,
    ConnectionLostError,
    ProxyError,
    UnknownHostKeyError,
    UnreachableError,
)
from edgepack.fleet import (
    FleetDevice,
    Journal,
    Outcome,
    RolloutResult,
    Settings,
    Share,
    Stop,
    make_plan,
    roll_out,
    rollout,
)
from edgepack.fleet.journal import BusyError
from edgepack.fleet.plan import first_wave
from edgepack.fleet.report import FleetReport
from edgepack.fleet.rollout import Work
from edgepack.fleet.shard import Shard
from edgepack.fleet.window import DailyHours
from tests.schemas import check_output
from tests.scripted_fleet import FakeWork, Log, devices

TENTH = Share(value=10, percent=True)


def sizes(found: Sequence[FleetDevice], settings: Settings) -> list[tuple[str, int]]:
    return [(wave.name, wave.total) for wave in make_plan(found, settings).waves]


# Plan


def test_the_default_is_a_canary_a_tenth_and_the_rest() -> None:
    expected = [("canary", 1), ("wave 1", 10), ("wave 2", 89)]
    assert sizes(devices(100), Settings()) == expected
    assert sizes(devices(1), Settings()) == [("canary", 1)]
    assert sizes(devices(2), Settings()) == [("canary", 1), ("wave 1", 1)]


@pytest.mark.parametrize(
    ("canary", "waves", "expected"),
    [
        (Share(value=0), ("4",), [("wave 1", 4), ("wave 2", 4), ("wave 3", 2)]),
        (Share(value=2), ("3", "50%"), [("canary", 2), ("wave 1", 3), ("wave 2", 5)]),
        # 5 % of ten devices is one, not none.
        (Share(value=5, percent=True), ("100%",), [("canary", 1), ("wave 1", 9)]),
        (Share(value=99), ("1",), [("canary", 10)]),
        ("lab", ("100%",), [("wave 1", 10)]),
    ],
)
def test_sizes_of_waves(
    canary: Share | str, waves: tuple[str, ...], expected: list[tuple[str, int]]
) -> None:
    shares = tuple(share for text in waves if (share := Share.parse(text)))
    assert sizes(devices(10), Settings(canary=canary, waves=shares)) == expected


def test_every_board_has_a_canary() -> None:
    plan = make_plan(devices(9, boards=("a", "b", "c")), Settings())
    assert sorted(str(device.board) for device in plan.waves[0].members) == ["a", "b", "c"]
    assert plan.boards() == {"a": 3, "b": 3, "c": 3}


def test_what_is_done_changes_no_wave() -> None:
    found = devices(30)
    done = {device.name for device in found[:5]}
    whole = make_plan(found, Settings())
    rest = make_plan(found, Settings(), lambda device: device.name in done)
    assert [wave.members for wave in rest.waves] == [wave.members for wave in whole.waves]
    assert rest.todo == 25
    assert rest.waves[0].devices == ()
    assert [device.name for device in rest.waves[1].devices] == []
    assert rest.waves[2].devices[0].name == "d00006"


def test_a_trial_has_the_canaries_and_the_first_wave() -> None:
    plan = make_plan(devices(30), Settings(), lambda device: device.name == "d00002")
    part = first_wave(plan)
    assert [wave.name for wave in part.waves] == ["canary", "wave 1"]
    assert (part.total, part.todo) == (4, 3)
    part = first_wave(make_plan(devices(30), Settings(canary=Share(value=0))))
    assert [(wave.name, wave.total) for wave in part.waves] == [("wave 1", 3)]


@pytest.mark.parametrize("text", ["", "x", "-1", "5 %", "101%", "1.5"])
def test_what_is_no_share(text: str) -> None:
    assert Share.parse(text) is None


# Rollout


def test_canary_first_then_waves_and_never_more_at_once() -> None:
    work, log = FakeWork(pause_s=0.002), Log()
    plan = make_plan(devices(40), Settings())
    result = roll_out(plan, Settings(parallel=4), work, log)
    assert (result.status, result.outcomes) == ("complete", {"deployed": 40})
    assert 1 < work.most_at_once <= 4
    # All of a wave end before the next one begins.
    waves = [event for event in log.events if isinstance(event, str)]
    assert waves == ["canary", "wave 1", "wave 2"]
    at = 0
    for wave in plan.waves:
        assert log.events[at] == wave.name
        ended = log.events[at + 1 : at + 1 + wave.total]
        assert {outcome.device for outcome in ended if isinstance(outcome, Outcome)} == {
            device.name for device in wave.devices
        }
        at += 1 + wave.total
    assert work.begun[0] == "d00001"


def test_a_failed_canary_stops_everything() -> None:
    work, log = FakeWork(broken={"d00001"}), Log()
    result = roll_out(make_plan(devices(50), Settings()), Settings(), work, log)
    assert (result.status, result.reason) == ("stopped", "1 of 1 canaries failed")
    assert work.begun == ["d00001"]
    (outcome,) = log.outcomes
    assert (outcome.ok, outcome.outcome, outcome.release) == (False, "failed", work.release)
    assert (outcome.error, outcome.hint, outcome.exit_code) == ("it broke", "mend it", 7)


def test_a_wave_stops_at_the_first_failure_too_many() -> None:
    settings = Settings(canary=Share(value=0), waves=(Share(value=20),), parallel=1)
    settings = Settings(
        canary=settings.canary, waves=settings.waves, parallel=1, max_failures=TENTH,
        max_failures_total=Share(value=100, percent=True),
    )  # fmt: skip
    work = FakeWork(broken={"d00003", "d00005", "d00007"})
    result = roll_out(make_plan(devices(60), settings), settings, work, Log())
    # Two of twenty are a tenth; the third is more.
    assert work.begun == [f"d{n:05}" for n in range(1, 8)]
    assert result.reason == "3 of 20 devices of wave 1 failed, allowed are 10%"


def test_failures_of_all_waves_add_up() -> None:
    settings = Settings(
        canary=Share(value=0), waves=(Share(value=10),), parallel=1,
        max_failures=Share(value=1), max_failures_total=Share(value=2),
    )  # fmt: skip
    work = FakeWork(broken={"d00002", "d00012", "d00022", "d00032"})
    result = roll_out(make_plan(devices(60), settings), settings, work, Log())
    assert work.begun[-1] == "d00022"
    assert result.reason == "3 of 60 devices failed, allowed are 2"
    assert result.outcomes == {"deployed": 19, "failed": 3}


@pytest.mark.parametrize(("counted", "status"), [(True, "stopped"), (False, "complete")])
def test_devices_that_are_off(counted: bool, status: str) -> None:
    settings = Settings(count_unreachable=counted, parallel=1)
    work = FakeWork(broken={f"d{n:05}" for n in range(2, 9)}, error=UnreachableError("off"))
    result = roll_out(make_plan(devices(10), settings), settings, work, Log())
    assert result.status == status
    assert result.outcomes["unreachable"] == (1 if counted else 7)
    # A canary that is off proves nothing.
    work = FakeWork(broken={"d00001"}, error=UnreachableError("off"))
    assert roll_out(make_plan(devices(9), settings), settings, work, Log()).status == "stopped"


def test_who_was_off_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "_FIRST_PAUSE_S", 0.001)
    off = {f"d{n:05}" for n in range(2, 9)}
    work, log = FakeWork(broken=set(off), error=UnreachableError("off")), Log()
    comes_back = iter(sorted(off))

    class Patient(Log):
        def waiting(self, devices: int, seconds: float) -> None:
            super().waiting(devices, seconds)
            for name in (next(comes_back), next(comes_back, "")):
                work.broken -= {name}

    log, settings = Patient(), Settings(parallel=3, keep_trying_s=3600)
    with Journal(tmp_path / "journal") as journal:
        result = roll_out(make_plan(devices(10), settings), settings, work, log, journal=journal)
        assert all(journal.is_done(one, "deploy", work.release) for one in devices(10))
    assert (result.status, result.outcomes) == ("complete", {"deployed": 10})
    waits = [event[1] for event in log.events if isinstance(event, tuple)]
    assert waits == [7, 5, 3, 1]
    # One line about each time that it was off, and one when it was there.
    assert len(log.outcomes) == 10 + 7
    assert {outcome.wave for outcome in log.outcomes if outcome.device in off} == {
        "wave 1", "wave 2", "late wave",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("window", "is_open", "is_closed"),
    [
        ("22:00-04:00", ["22:00", "23:59", "00:00", "03:59"], ["04:00", "12:00", "21:59"]),
        ("08:30-17:00", ["08:30", "16:59"], ["08:29", "17:00", "00:00"]),
        ("00:00-23:59", ["00:00", "23:58"], ["23:59"]),
    ],
)
def test_windows(window: str, is_open: list[str], is_closed: list[str]) -> None:
    parsed = DailyHours.parse(window)
    assert parsed is not None and str(parsed) == window
    assert all(parsed.is_open(clock_time.fromisoformat(text)) for text in is_open)
    assert not any(parsed.is_open(clock_time.fromisoformat(text)) for text in is_closed)


@pytest.mark.parametrize(
    "text", ["", "22-04", "22:00-22:00", "24:00-04:00", "22:60-04:00", "22:00", "٢٢:00-04:00"]
)
def test_what_is_no_window(text: str) -> None:
    assert DailyHours.parse(text) is None


def clock(monkeypatch: pytest.MonkeyPatch, *times: str) -> None:
    """A clock on the wall that goes on to the next of `times` when somebody looks at it."""
    left = [clock_time.fromisoformat(text) for text in times]
    monkeypatch.setattr(rollout, "_time_of_day", lambda: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(rollout, "_LONGEST_WAIT_S", 0.001)


def test_no_device_is_begun_outside_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = DailyHours.parse("22:00-04:00")
    # Open for three devices, then closed until the next evening.
    clock(monkeypatch, "23:00", "23:00", "03:59", "04:00", "12:00", "21:59", "22:00")
    log, work = Log(), FakeWork()
    settings = Settings(
        canary=Share(value=0), parallel=2, waves=(Share(value=100, percent=True),), window=window
    )
    with Journal(tmp_path / "journal") as journal:
        plan = make_plan(devices(6), settings)
        result = roll_out(plan, settings, work, log, journal=journal)
        assert result.status == "complete"
        assert all(journal.is_done(device, "deploy", work.release) for device in devices(6))
    at = log.events.index(window)
    before, after = (
        [event.device for event in part if isinstance(event, Outcome)]
        for part in (log.events[:at], log.events[at:])
    )
    # Those under way when it closes are not cut off.
    assert len(before) <= 3 and set(before) | set(after[:3]) >= {"d00001", "d00002", "d00003"}
    assert sorted(before + after) == work.begun == [device.name for device in devices(6)]
    assert log.events.count(window) == 1


def test_a_stop_ends_the_wait_for_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, "12:00")
    stop = Stop()

    class Stopper(Log):
        def window_closed(self, window: DailyHours) -> None:
            super().window_closed(window)
            stop.asked = True

    work = FakeWork()
    settings = Settings(window=DailyHours.parse("22:00-04:00"))
    result = roll_out(make_plan(devices(3), settings), settings, work, Stopper(), stop=stop)
    assert (result.status, work.begun) == ("interrupted", [])


def test_shards_are_a_stable_division() -> None:
    found = devices(5000)
    parts = [Shard(number=number, of=5) for number in range(1, 6)]
    assert Shard.parse("2/5") == parts[1]
    taken = [part.take(found) for part in parts]
    assert sorted(device.name for part in taken for device in part) == [d.name for d in found]
    # A fifth of 5000, and four standard deviations of a fair choice.
    assert all(abs(len(part) - 1000) < 4 * (5000 * 0.2 * 0.8) ** 0.5 for part in taken)
    # By the name alone: `printf d00001 | sha256sum` begins with 226cbabfb8d8462e.
    assert Shard(number=0x226CBABFB8D8462E % 5 + 1, of=5).has("d00001")


@pytest.mark.parametrize("text", ["0/5", "6/5", "1", "1/0", "a/b", "1/10001", "-1/5", "1/5/5"])
def test_what_is_no_shard(text: str) -> None:
    assert Shard.parse(text) is None


def test_trying_again_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "_FIRST_PAUSE_S", 0.001)
    work = FakeWork(broken={"d00002", "d00005"}, error=UnreachableError("off"))
    settings = Settings(parallel=2, keep_trying_s=0.1)
    plan = make_plan(devices(9), settings)
    result = roll_out(plan, settings, work, Log())
    assert (result.status, result.outcomes) == ("complete", {"deployed": 7, "unreachable": 2})
    assert work.begun.count("d00005") > 1
    # What fails when it is there again counts, and stops it.
    work = FakeWork(broken={"d00002", "d00005"}, error=UnreachableError("off"))

    class Worse(Log):
        def waiting(self, devices: int, seconds: float) -> None:
            work.error = RemoteError("it broke")

    settings = Settings(parallel=1, keep_trying_s=3600)
    result = roll_out(plan, settings, work, Worse())
    assert result.outcomes == {"deployed": 7, "unreachable": 1, "failed": 1}
    assert result.reason == "1 of 2 devices of late wave failed, allowed are 10%"

    class Impatient(Log):
        def waiting(self, devices: int, seconds: float) -> None:
            stop.asked = True

    stop = Stop()
    work = FakeWork(broken={"d00002"}, error=UnreachableError("off"))
    result = roll_out(plan, settings, work, Impatient(), stop=stop)
    assert (result.status, result.outcomes) == ("interrupted", {"deployed": 8, "unreachable": 1})


def test_who_is_off_is_not_lost_after_the_soak_time() -> None:
    settings = Settings(count_unreachable=False, soak_s=0.001)
    work = FakeWork(broken={"d00002"}, error=UnreachableError("off"), lost={"d00002"})
    result = roll_out(make_plan(devices(20), settings), settings, work, Log())
    assert (result.status, result.outcomes) == ("complete", {"deployed": 19, "unreachable": 1})
    assert "d00002" not in work.checked


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (AuthError("refuses pi"), "refused"),
        (ProxyError("its ProxyCommand nc is not there"), "refused"),
        (ChangedHostKeyError("another key"), "untrusted"),
        (UnknownHostKeyError("no key"), "untrusted"),
        (ConnectionLostError("cut"), "unreachable"),
    ],
)
def test_only_devices_that_are_off_are_excused(error: EdgepackError, outcome: str) -> None:
    settings = Settings(count_unreachable=False, parallel=1)
    work = FakeWork(broken={f"d{n:05}" for n in range(2, 9)}, error=error)
    result = roll_out(make_plan(devices(10), settings), settings, work, Log())
    assert (result.status == "complete") == (outcome == "unreachable")
    assert result.outcomes[outcome] == (7 if outcome == "unreachable" else 1)


def test_a_bug_is_raised_after_those_under_way_have_ended() -> None:
    work, log = FakeWork(broken={"d00003"}, error=ZeroDivisionError(), pause_s=0.01), Log()
    settings = Settings(canary=Share(value=0), parallel=3)
    with pytest.raises(ZeroDivisionError):
        roll_out(make_plan(devices(100), settings), settings, work, log)
    assert work.running == 0
    assert len(log.outcomes) == len(work.begun) - 1 < 10


def test_stop_waits_for_those_under_way() -> None:
    stop = Stop()
    work, log = FakeWork(pause_s=0.01), Log()
    begun: list[int] = []

    def ask(device: FleetDevice) -> None:
        if device.name == "d00004":
            stop.asked = True
            begun.append(len(work.begun))

    work.before_end = ask
    settings = Settings(canary=Share(value=0), parallel=3)
    result = roll_out(make_plan(devices(100), settings), settings, work, log, stop=stop)
    assert (result.status, result.reason) == ("interrupted", "interrupted")
    assert log.events.count("stopping") == 1
    assert work.running == 0
    assert {outcome.device for outcome in log.outcomes} == set(work.begun)
    # Each of the three may have been on its way to one more.
    assert len(work.begun) <= begun[0] + 3


def test_a_stop_that_comes_too_late_changes_nothing() -> None:
    stop, work = Stop(), FakeWork()
    work.before_end = lambda device: setattr(stop, "asked", stop.asked or device.name == "d00002")
    result = roll_out(make_plan(devices(2), Settings()), Settings(), work, Log(), stop=stop)
    assert (result.status, result.outcomes) == ("complete", {"deployed": 2})


def test_soaking_between_waves_ends_when_stopped() -> None:
    settings = Settings(canary=Share(value=1), soak_s=0.001)
    log = Log()
    roll_out(make_plan(devices(5), settings), settings, FakeWork(), log)
    assert [event for event in log.events if not isinstance(event, Outcome)] == [
        "canary", 0.001, "wave 1", 0.001, "wave 2",
    ]  # fmt: skip

    class Impatient(Log):
        def soaking(self, seconds: float) -> None:
            stop.asked = True

    stop, work = Stop(), FakeWork()
    settings = Settings(canary=Share(value=1), soak_s=3600.0)
    result = roll_out(make_plan(devices(5), settings), settings, work, Impatient(), stop=stop)
    assert (result.status, work.begun) == ("interrupted", ["d00001"])


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("soaking", [False, True])
def test_what_wakes_nobody_is_seen(soaking: bool, at_once: bool) -> None:
    # A signal that raises an exception may come between Python's last look for signals and the
    # system call that waits: that moment cannot be hit on command.
    stop = Stop()
    signalled = threading.Timer(
        0.1, lambda: setattr(stop, "at_once", True) if at_once else _thread.interrupt_main()
    )
    too_late = threading.Event()
    released = threading.Timer(20, too_late.set)

    def end(_device: FleetDevice) -> None:
        too_late.wait(0 if soaking else 60)

    work = FakeWork(before_end=end)
    settings = Settings(canary=Share(value=1), soak_s=20.0)
    for timer in (signalled, released):
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        roll_out(make_plan(devices(2), settings), settings, work, Log(), stop=stop)
    assert not too_late.is_set()
    assert work.begun == ["d00001"]
    released.cancel()
    too_late.set()


def test_who_is_lost_while_soaking_has_failed() -> None:
    settings = Settings(soak_s=0.001, max_failures=Share(value=0))
    work, log = FakeWork(lost={"d00003"}), Log()
    result = roll_out(make_plan(devices(30), settings), settings, work, log)
    assert result.reason == "1 of 3 devices of wave 1 failed, allowed are 0"
    assert sorted(work.begun) == sorted(work.checked) == [f"d{n:05}" for n in range(1, 5)]
    last = log.outcomes[-1]
    assert (last.device, last.outcome, last.ok) == ("d00003", "lost", False)
    assert (last.error, last.release) == ("it broke", work.release)
    # Those that failed before need no second look.
    settings = Settings(soak_s=0.001, max_failures=Share(value=1))
    work = FakeWork(broken={"d00003"})
    roll_out(make_plan(devices(30), settings), settings, work, Log())
    assert sorted(work.checked) == ["d00001", "d00002", "d00004"]


# Journal


def run(
    path: Path, found: Sequence[FleetDevice], settings: Settings, work: FakeWork
) -> RolloutResult:
    with Journal(path) as journal:
        plan = make_plan(
            found, settings, lambda device: journal.is_done(device, "deploy", work.release)
        )
        return roll_out(plan, settings, work, Log(), journal=journal)


def test_a_rollout_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "m.jsonl"
    found, settings = devices(30), Settings(parallel=1, max_failures=Share(value=0))
    first = FakeWork(broken={"d00010"})
    assert run(path, found, settings, first).status == "stopped"
    assert first.begun == [f"d{n:05}" for n in range(1, 11)]

    again = FakeWork()
    assert run(path, found, settings, again).status == "complete"
    assert again.begun == [f"d{n:05}" for n in range(10, 31)]

    nothing = FakeWork()
    assert run(path, found, settings, nothing).outcomes == {}
    other = FakeWork(release="ba9876543210")
    run(path, found, settings, other)
    assert len(other.begun) == 30
    # The last thing that was done counts, not that it was done once.
    back = FakeWork()
    run(path, found, settings, back)
    assert len(back.begun) == 30


def test_a_device_that_moved_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    run(path, [FleetDevice(name="a", address="x", board="b")], Settings(), FakeWork())
    moved = FakeWork()
    run(path, [FleetDevice(name="a", address="y", board="b")], Settings(), moved)
    assert moved.begun == ["a"]


def test_a_line_cut_by_a_crash_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    run(path, devices(5), Settings(parallel=1), FakeWork())
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last + 1, len(whole)):
        path.write_bytes(whole[:cut])
        with Journal(path, write=False) as journal:
            assert sorted(journal.last) == [f"d{n:05}" for n in range(1, 5)]
    again = FakeWork()
    run(path, devices(5), Settings(), again)
    assert again.begun == ["d00005"]
    assert [json.loads(line)["device"] for line in path.read_text().splitlines()] == [
        f"d{n:05}" for n in range(1, 6)
    ]


def test_one_rollout_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with Journal(path), pytest.raises(BusyError, match=f"{path} is locked"):
        Journal(path)
    Journal(path).close()


def test_what_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    for text in ("hello\n", "[]\n", '{"device":"a"}\n'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="byte 0: not a line of a journal"):
            Journal(path)
        assert path.read_text() == text
    with pytest.raises(ConfigError, match=r"File exists|Not a directory"):
        Journal(path / "x")
    with Journal(tmp_path / "none.jsonl", write=False) as journal:
        assert journal.last == {}
    assert not (tmp_path / "none.jsonl").exists()


# Report


class Page(HTMLParser):
    """The cells of an HTML page, and everything that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.loads: list[tuple[str, str | None]] = []
        self.tags: set[str] = set()
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [item for item in attrs if item[0] in ("src", "href", "onclick")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def report(journal: Journal, found: Sequence[FleetDevice], work: Work) -> FleetReport:
    settings = Settings(parallel=1, max_failures=Share(value=0))
    plan = make_plan(found, settings)
    result = roll_out(plan, settings, work, Log(), journal=journal)
    return FleetReport(
        fleet="shops", model="<m>", action="deploy", plan=plan, journal=journal,
        wanted=work.wanted, result=result,
    )  # fmt: skip


def test_the_three_forms_of_a_report(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script> & \udc80\n<img src=x onerror=y>'
    work = FakeWork(broken={"d00004"}, error=RemoteError(evil, hint="</td>"))
    with Journal(tmp_path / "m.jsonl") as journal:
        made = report(journal, devices(6), work)
        value: dict[str, Any] = json.loads("\n".join(made.json_lines()))
        made.write_html(tmp_path / "out" / "report.html")
    check_output("fleet deploy", value)
    assert value["status"] == "stopped"
    assert value["reason"] == "1 of 4 devices of wave 2 failed, allowed are 0"
    assert (value["devices_ok"], value["devices_total"]) == (3, 6)
    assert value["outcomes"] == {"deployed": 3, "failed": 1, "waiting": 2}
    assert value["releases"] == {"rasp3b": {work.release: 3}}
    assert [row["outcome"] for row in value["devices"]] == [
        "deployed", "deployed", "deployed", "failed", "waiting", "waiting",
    ]  # fmt: skip
    assert [row["wave"] for row in value["devices"]][:3] == ["canary", "wave 1", "wave 2"]
    assert value["devices"][3]["error"] == evil
    assert value["devices"][0]["sent_bytes"] == 7

    text = (tmp_path / "out" / "report.html").read_text()
    page = Page()
    page.feed(text)
    # One script, ours: the policy names it by its hash, and what is called <script> is text.
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in text
    assert "script" in page.tags
    assert "img" not in page.tags
    assert page.loads == []
    assert "default-src 'none'" in text
    header, *rows = page.rows
    assert [row[header.index("device")] for row in rows] == [f"d{n:05}" for n in range(1, 7)]
    assert rows[3][header.index("error")] == evil.replace("\udc80", r"\udc80")
    assert rows[3][header.index("hint")] == "</td>"
    assert rows[0][header.index("release")] == work.release
    assert page.rows[-1][header.index("outcome")] == "waiting"


def test_a_page_of_many_devices_is_a_summary(tmp_path: Path) -> None:
    """Not a hundred thousand rows, but all that failed, and which errors there were."""
    broken = {f"d{n:05}" for n in range(540, 2400, 300)}
    work = FakeWork(broken=broken, error=RemoteError("no space left"))
    everything = Share(value=100, percent=True)
    settings = Settings(parallel=1, max_failures=everything, canary=Share(value=100))
    found = devices(2400)
    plan = make_plan(found, settings)
    with Journal(tmp_path / "m.jsonl") as journal:
        result = roll_out(plan, settings, work, Log(), journal=journal)
        FleetReport(
            fleet="shops", model="m", action="deploy", plan=plan, journal=journal,
            wanted=work.wanted, result=result,
        ).write_html(tmp_path / "report.html")  # fmt: skip
    text = (tmp_path / "report.html").read_text()
    assert len(text) < 1_000_000
    page = Page()
    page.feed(text)
    header, *rows = page.rows
    assert len(rows) == 2000
    assert {row[header.index("device")] for row in rows[:7]} == broken
    assert {row[header.index("outcome")] for row in rows[7:]} == {"deployed"}
    assert "2393 of 2400 devices done" in text
    assert "and 400 devices more: --json has all" in text
    assert "7 devices</b>" in text  # had that error
    # A bar for each wave, and no square for each device.
    assert text.count("<svg") == len(plan.waves) == 3
    assert 'class="devices"' not in text
    assert "canary: 100 devices, 100 done" in text
    assert "wave 2: 2060 devices, 2053 done, 7 failed" in text


DAMAGE = (
    b"\x00" * 40, b"\xff\xfe", b'{"device": "d00002", "act', b"[]", b"7", b"{}", b"[" * 100_000,
    b'{"device": [], "action": 1}', b'{"event": "begin"}', b'{"event": "end", "status": 7}',
    b'{"device":"d00002","address":"d00002.lan","action":"deploy","ok":"yes","release":7}',
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_line_costs_that_line(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    found, settings, path = devices(3), Settings(parallel=1), tmp_path / "m.jsonl"
    assert run(path, found, settings, FakeWork()).status == "complete"
    lines = path.read_bytes().splitlines()
    at = next(n for n, line in enumerate(lines) if b'"d00002"' in line)
    lines[at] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    for _ in range(2):
        with caplog.at_level("WARNING"), Journal(path, write=False) as journal:
            assert sorted(journal.last) == ["d00001", "d00003"]
        assert f"1 damaged line is left out (byte {len(b'.'.join(lines[:at])) + (at > 0)})" in (
            caplog.text
        )
    again = FakeWork()
    assert run(path, found, settings, again).status == "complete"
    assert again.begun == ["d00002"]
