"""Going through the waves of a plan: never more devices at once than allowed, and stop in time.

At any moment there is one thread for each device that is being worked on, and nothing for
the others: memory and open files are bounded by `Settings.parallel`, not by the fleet.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from datetime import time as datetime_time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from edgepack.base.errors import ConnectError, EdgepackError, RefusedError, TimeLimitError
from edgepack.deploy.options import ON_TRIAL
from edgepack.deploy.trial import TrialDroppedError, TrialRunsError
from edgepack.device.errors import ChangedHostKeyError, OtherDeviceError, UnknownHostKeyError
from edgepack.fleet.inventory import FleetDevice
from edgepack.fleet.journal import Journal
from edgepack.fleet.plan import CANARY, LATE, RolloutPlan, Settings, Wave
from edgepack.fleet.window import DailyHours

FAILED = "failed"
UNREACHABLE = "unreachable"
REFUSED = "refused"
UNTRUSTED = "untrusted"
DROPPED = "dropped"
LOST = "lost"
_INTERRUPTED = "interrupted"
# Nobody wakes who waits when `Stop` changes, and Python sees a signal that comes just before a
# wait only after it: so none is longer.
_LONGEST_WAIT_S = 0.5
# Between two rounds of trying again: the first pause, and the longest, each twice the one before.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 30.0, 600.0
# Who is over its own limits by so much has hung where none of them looks.
_GRACE_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What came of the work on one device: `outcome` in a word, `release` as it is there now."""

    outcome: str
    release: str | None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A device's line in the journal and in the report.

    `outcome` is that of `Done`, "failed", "unreachable", "refused" (it answers, and does not let us
    in), "untrusted" (its host key is not the one it is known by, or it is another device),
    "dropped" or "on trial" (its trial of the release ended so, or has not ended), or "lost": it was
    well, and is not any more after the soak time. `release` is what was wanted if it failed. `at`
    is when it ended (UTC), `seconds` how long it took.
    """

    device: str
    address: str
    board: str | None
    wave: str
    action: str
    ok: bool
    outcome: str
    release: str | None
    at: str
    seconds: float
    error: str | None = None
    hint: str | None = None
    exit_code: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For the journal."""
        return {key: value for key, value in asdict(self).items() if value not in (None, {})} | {
            "release": self.release
        }


class Work(Protocol):
    """What is done with each device, in a thread of its own."""

    @property
    def action(self) -> str:
        """What it is called in the journal."""

    def wanted(self, device: FleetDevice) -> str | None:
        """The release that `device` should have afterwards, if that is known."""

    def __call__(self, device: FleetDevice) -> Done:
        """Do it. Raises EdgepackError if it fails."""

    def check(self, device: FleetDevice) -> None:
        """After the soak time: raise EdgepackError unless it is as `__call__` left it."""

    def budget_s(self, device: FleetDevice) -> float:
        """How long either of them may take, by all limits of its own; then it is given up."""


class Watcher(Protocol):
    """Is told what happens, from the thread that called `roll_out`."""

    def wave_begins(self, wave: Wave) -> None: ...

    def devices_end(self, outcomes: Sequence[Outcome]) -> None: ...

    def soaking(self, seconds: float) -> None: ...

    def waiting(self, devices: int, seconds: float) -> None:
        """So many could not be reached, and are tried again after that time."""

    def window_closed(self, window: DailyHours) -> None:
        """No device is begun until it opens."""

    def stopping(self) -> None: ...


@dataclass(kw_only=True, slots=True)
class Stop:
    """What a signal handler asks of a rollout that is under way.

    Attributes and no `threading.Event`: a handler interrupts the very thread that waits, which
    may hold the event's lock. For the same reason it raises nothing: an exception in the middle
    of the code of Python's own locks leaves them in disorder.
    """

    asked: bool = False
    """Begin no further device."""

    at_once: bool = False
    """Do not wait for those under way either."""

    file: Path | None = None
    """Stop when there is a file at this path: so another process asks for it."""


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """How a rollout ended: `status` is "complete", "stopped" or "interrupted".

    `outcomes` counts the devices that were worked on now, by outcome; one that was lost in the
    soak time has two, one that was tried again its last.
    """

    status: str
    reason: str
    outcomes: Mapping[str, int]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For --json and the journal."""
        return asdict(self)


def roll_out(
    plan: RolloutPlan,
    settings: Settings,
    work: Work,
    watcher: Watcher,
    *,
    journal: Journal | None = None,
    stop: Stop | None = None,
) -> RolloutResult:
    """Do `work` on every device of `plan`, wave by wave, and return the results.

    A wave starts when the wave before has ended within the limits of `Settings`. As soon as the
    limits are exceeded, or `stop` is set, no further device starts; running devices get the time
    of `Work.budget_s`, and a moment more. No device starts outside of the window. Unreachable
    devices are tried again after the waves, for the time in `Settings`. The result of a device
    is in the `journal` before the next device starts. An exception that is not an EdgepackError
    is a bug; it is raised when all running devices have ended. If `stop` demands an immediate
    end, KeyboardInterrupt is raised while devices still run.
    """
    run = _Run(plan, settings, work, watcher, journal, stop or Stop())
    started = time.monotonic()
    reason = run.waves()
    if reason == _INTERRUPTED and sum(run.outcomes.values()) >= plan.todo and not run.away:
        reason = ""  # too late to change anything
    return RolloutResult(
        status="interrupted" if reason == _INTERRUPTED else "stopped" if reason else "complete",
        reason=reason,
        outcomes=dict(run.outcomes),
        seconds=round(time.monotonic() - started, 3),
    )


def _kind_of(error: EdgepackError) -> str:
    """The outcome of a device that `error` came from."""
    if isinstance(error, RefusedError):
        return REFUSED
    if isinstance(error, ChangedHostKeyError | OtherDeviceError | UnknownHostKeyError):
        return UNTRUSTED
    if isinstance(error, TrialDroppedError | TrialRunsError):
        return DROPPED if isinstance(error, TrialDroppedError) else ON_TRIAL
    return UNREACHABLE if isinstance(error, ConnectError) else FAILED


def _time_of_day() -> datetime_time:
    """By the clock on the wall, as people name hours."""
    return datetime.now().time()


_Result = tuple[threading.Thread, "Outcome | BaseException | None"]


class _Begun(NamedTuple):
    """A device that is being worked on; times are of the monotonic clock."""

    device: FleetDevice
    wave: str
    since: float
    deadline: float


# What is done in a thread: on a device, of the wave of this name; None is not worth a line.
_Job = Callable[[FleetDevice, str], Outcome | None]


class _Run:
    def __init__(
        self,
        plan: RolloutPlan,
        settings: Settings,
        work: Work,
        watcher: Watcher,
        journal: Journal | None,
        stop: Stop,
    ) -> None:
        self._plan, self._settings, self._work = plan, settings, work
        self._watcher, self._journal, self._stop = watcher, journal, stop
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        self._under_way: dict[threading.Thread, _Begun] = {}
        self.outcomes: Counter[str] = Counter()
        self._failed = 0
        self._failed_in_wave: set[str] = set()
        self._excused_in_wave: set[str] = set()
        self._until = time.monotonic() + settings.keep_trying_s
        self.away: dict[str, FleetDevice] = {}  # those that are tried again
        self._bug: BaseException | None = None
        self._told = False

    def waves(self) -> str:
        """Go through all waves; the reason for stopping before the end, or ""."""
        waves = [wave for wave in self._plan.waves if wave.devices]
        for number, wave in enumerate(waves):
            self._watcher.wave_begins(wave)
            self._failed_in_wave, self._excused_in_wave = set(), set()
            self._each(wave, wave.devices, self._attempt)
            if reason := self._too_many(wave):
                return reason
            if self._settings.soak_s and number + 1 < len(waves):
                self._watcher.soaking(self._settings.soak_s)
                if self._pause(self._settings.soak_s):
                    return _INTERRUPTED
                unwell = self._failed_in_wave | self._excused_in_wave
                well = [device for device in wave.devices if device.name not in unwell]
                self._each(wave, well, self._check)
                if reason := self._too_many(wave):
                    return reason
        return self._late()

    def _late(self) -> str:
        """Try those again that could not be reached, until all are or the time is up; the reason
        for stopping before, or ""."""
        pause = _FIRST_PAUSE_S
        while self.away and (left := self._until - time.monotonic()) > 0:
            self._watcher.waiting(len(self.away), min(pause, left))
            if self._pause(min(pause, left)):
                return _INTERRUPTED
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            devices = tuple(self.away.values())
            wave = Wave(name=LATE, devices=devices, members=devices)
            self._failed_in_wave = set()
            self._each(wave, devices, self._attempt_again)
            if reason := self._too_many(wave):
                return reason
        return ""

    def _pause(self, seconds: float) -> bool:
        """Wait so long; whether `stop` was set meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._is_stopped():
                return True
            time.sleep(min(left, _LONGEST_WAIT_S))
        return self._is_stopped()

    def _is_stopped(self) -> bool:
        if self._stop.at_once:
            raise KeyboardInterrupt
        if self._stop.file is not None and self._stop.file.exists():
            self._stop.asked = True
        if self._stop.asked and not self._told:
            self._told = True
            self._watcher.stopping()
        return self._stop.asked

    def _each(self, wave: Wave, devices: Iterable[FleetDevice], job: _Job) -> None:
        """Do `job` on `devices` until they end, or too many have failed."""
        for device in devices:
            while len(self._under_way) >= self._settings.parallel:
                self._collect()
            if job != self._check:  # which changes nothing there
                self._wait_for_window(wave)
            if self._too_many(wave):
                break
            # A daemon: who leaves at once does not wait for it.
            thread = threading.Thread(
                target=self._run, args=(job, device, wave.name), name=device.name, daemon=True
            )
            now = time.monotonic()
            deadline = now + self._work.budget_s(device) + _GRACE_S
            self._under_way[thread] = _Begun(device, wave.name, now, deadline)
            thread.start()
        self._finish()

    def _wait_for_window(self, wave: Wave) -> None:
        """Wait until a device may be begun, or none may be any more; those under way end."""
        window = self._settings.window
        told = False
        while window is not None and not window.is_open(_time_of_day()):
            if self._too_many(wave):
                return
            if not told:
                self._watcher.window_closed(window)
                told = True
            if self._under_way:
                self._collect()
            else:
                time.sleep(_LONGEST_WAIT_S)

    def _finish(self) -> None:
        """Wait for what is under way."""
        while self._under_way:
            self._collect()
        if self._bug is not None:
            raise self._bug

    def _run(self, job: _Job, device: FleetDevice, wave: str) -> None:
        """In a thread: what comes of `job`, or the bug that it has, goes to the queue."""
        thread = threading.current_thread()
        try:
            self._results.put((thread, job(device, wave)))
        except BaseException as bug:
            self._results.put((thread, bug))

    def _attempt(self, device: FleetDevice, wave: str) -> Outcome:
        started = time.monotonic()
        try:
            done = self._work(device)
        except EdgepackError as error:
            return self._outcome(device, wave, _kind_of(error), started, error=error)
        return self._outcome(device, wave, done.outcome, started, done=done)

    def _attempt_again(self, device: FleetDevice, wave: str) -> Outcome | None:
        """None if it is as it was: one line about it is enough."""
        outcome = self._attempt(device, wave)
        return None if outcome.outcome == UNREACHABLE else outcome

    def _check(self, device: FleetDevice, wave: str) -> Outcome | None:
        started = time.monotonic()
        try:
            self._work.check(device)
        except EdgepackError as error:
            return self._outcome(device, wave, LOST, started, error=error)
        return None

    def _outcome(
        self,
        device: FleetDevice,
        wave: str,
        outcome: str,
        started: float,
        *,
        done: Done | None = None,
        error: EdgepackError | None = None,
    ) -> Outcome:
        return Outcome(
            device=device.name,
            address=device.where,
            board=device.board,
            wave=wave,
            action=self._work.action,
            ok=error is None,
            outcome=outcome,
            release=done.release if done else self._work.wanted(device),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - started, 3),
            error=error.message if error else None,
            hint=error.hint if error else None,
            exit_code=error.exit_code if error else 0,
            details=done.details if done else {},
        )

    def _collect(self) -> None:
        """Take what has come, at least one; the watcher gets all of it at once."""
        arrived = self._next()
        while not self._results.empty():
            arrived.append(self._results.get())
        outcomes = []
        for thread, result in arrived:
            begun = self._under_way.pop(thread, None)
            if begun is None:
                continue  # it was given up
            if isinstance(result, Outcome):
                outcomes.append(result)
                self._count(result, begun.device)
            elif result is not None:
                self._bug = result
        if self._journal is not None:
            self._journal.write(*(outcome.to_dict() for outcome in outcomes))
        self._watcher.devices_end(outcomes)

    def _next(self) -> list[_Result]:
        while True:
            try:
                return [self._results.get(timeout=_LONGEST_WAIT_S)]
            except queue.Empty:
                self._is_stopped()
            if given_up := self._given_up():
                return given_up

    def _given_up(self) -> list[_Result]:
        """Failures of those that have hung: their threads are not waited for any more."""
        now = time.monotonic()
        late = [(thread, one) for thread, one in self._under_way.items() if now > one.deadline]
        return [(thread, self._hung(begun)) for thread, begun in late]

    def _hung(self, begun: _Begun) -> Outcome:
        seconds = begun.deadline - begun.since
        error = TimeLimitError(
            f"{begun.device.name}: no end after {seconds:.0f} s, and it is given up",
            hint="look what happens there, then run the command again",
        )
        return self._outcome(begun.device, begun.wave, FAILED, begun.since, error=error)

    def _count(self, outcome: Outcome, device: FleetDevice) -> None:
        self.outcomes[outcome.outcome] += 1
        if self.away.pop(outcome.device, None) is not None:
            self.outcomes -= Counter({UNREACHABLE: 1})
        keeps_trying = self._settings.keep_trying_s > 0
        excused = (
            outcome.outcome == UNREACHABLE
            and outcome.wave != CANARY
            and (keeps_trying or not self._settings.count_unreachable)
        )
        if excused:
            self._excused_in_wave.add(outcome.device)
            if keeps_trying:
                self.away[outcome.device] = device
        if not outcome.ok and not excused:
            self._failed += 1
            self._failed_in_wave.add(outcome.device)

    def _too_many(self, wave: Wave) -> str:
        """Why nothing more may be begun, or ""."""
        if self._bug is not None:
            return "a bug in edgepack"
        if self._is_stopped():
            return _INTERRUPTED
        limits, failed = self._settings, len(self._failed_in_wave)
        if wave.is_canary and failed:
            return f"{failed} of {wave.total} canaries failed"
        if limits.max_failures.is_exceeded(failed, wave.total):
            return (
                f"{failed} of {wave.total} devices of {wave.name} failed, allowed are "
                f"{limits.max_failures}"
            )
        if limits.max_failures_total.is_exceeded(self._failed, self._plan.total):
            return (
                f"{self._failed} of {self._plan.total} devices failed, allowed are "
                f"{limits.max_failures_total}"
            )
        return ""
