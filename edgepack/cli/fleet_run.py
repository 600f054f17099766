"""Carrying out a rollout: what a person sees of it, what stops it, and its exit code."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from edgepack.base.errors import NothingThereError, RemoteError
from edgepack.base.process import user_at_host
from edgepack.base.text import format_count, message, one_line
from edgepack.cli.console import Console, table
from edgepack.fleet import (
    Fleet,
    FleetDevice,
    Journal,
    Outcome,
    RolloutPlan,
    Settings,
    Stop,
    Wave,
    Work,
    make_plan,
    roll_out,
)
from edgepack.fleet.journal import TRIAL, stop_file
from edgepack.fleet.plan import first_wave
from edgepack.fleet.report import FleetReport, release_lines
from edgepack.fleet.window import DailyHours
from edgepack.fleet.work import NOTHING_BEFORE

INTERRUPTED = 130
# More rows than this are for --html and --json.
_SHOWN_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """`work` on those `devices` of `fleet` that are not done with it; `model` is a bundle."""

    fleet: Fleet
    settings: Settings
    devices: Sequence[FleetDevice]
    work: Work
    model: str

    def plan(self, journal: Journal, *, again: bool = False) -> RolloutPlan:
        """The waves; with `again`, nothing counts as done."""

        def is_done(device: FleetDevice) -> bool:
            wanted = self.work.wanted(device)
            return not again and journal.is_done(device, self.work.action, wanted)

        plan = make_plan(self.devices, self.settings, is_done)
        return first_wave(plan) if self.work.action == TRIAL else plan


def carry_out(
    rollout: Rollout, plan: RolloutPlan, journal: Journal, console: Console, html: Path | None
) -> int:
    """Do it, print the result, and return the exit code."""
    work = rollout.work
    journal.write(
        {
            "event": "begin",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "by": user_at_host(),
            "action": work.action,
            "releases": {str(device.board): work.wanted(device) for device in rollout.devices},
            "todo": plan.todo,
            "settings": rollout.settings.to_dict(),
        }
    )
    if not plan.todo:
        console.step(f"nothing to do: all {plan.total} devices are done")
    teller = _Teller(console)
    asks_to_stop = stop_file(journal.path)
    asks_to_stop.unlink(missing_ok=True)  # of a rollout that had ended by then
    with stop_on_signal() as stop:
        stop.file = asks_to_stop
        result = roll_out(plan, rollout.settings, work, teller, journal=journal, stop=stop)
    asks_to_stop.unlink(missing_ok=True)
    journal.write({"event": "end", **result.to_dict()})
    report = FleetReport(
        fleet=rollout.fleet.name,
        model=rollout.model,
        action=work.action,
        plan=plan,
        journal=journal,
        wanted=work.wanted,
        result=result,
    )
    print_report(report, console, html)
    if work.action == TRIAL and result.status == "complete":
        console.note(
            "the devices decide by themselves: `edgepack fleet status` shows how it goes; then "
            "`edgepack fleet deploy` without --shadow goes on with the others"
        )
    return INTERRUPTED if result.status == "interrupted" else teller.exit_code()


def print_plan(fleet: Fleet, plan: RolloutPlan, console: Console) -> None:
    """The plan, with all devices in it as JSON."""
    console.lines(_plan_json(fleet, plan) if console.as_json else _plan_lines(fleet, plan))


def _plan_json(fleet: Fleet, plan: RolloutPlan) -> Iterator[str]:
    """A JSON document line by line: of a million devices it is larger than they are."""
    head = {
        "fleet": fleet.name,
        "devices": plan.total,
        "todo": plan.todo,
        "boards": dict(plan.boards()),
    }
    yield json.dumps(head, indent=2)[:-2] + ',\n  "waves": ['
    for number, wave in enumerate(plan.waves):
        start = json.dumps({"wave": wave.name, "devices": wave.total})
        yield f'{", " if number else "    "}{start[:-1]}, "todo": ['
        yield from _separated(json.dumps(device.name) for device in wave.devices)
        yield "    ]}"
    yield '  ],\n  "list": ['
    yield from _separated(
        json.dumps({**device.to_dict(), "wave": wave.name})
        for wave in plan.waves
        for device in wave.members
    )
    yield "  ]\n}"


def _separated(lines: Iterable[str]) -> Iterator[str]:
    comma = "      "
    for line in lines:
        yield comma + line
        comma = "    , "


def print_report(report: FleetReport, console: Console, html: Path | None) -> None:
    """As a page in the file `html`, if there is one, and to stdout."""
    if html is not None:
        report.write_html(html)
        console.note(f"report: {html}")
    console.lines(report.json_lines() if console.as_json else _report_lines(report))


def _report_lines(report: FleetReport) -> list[str]:
    summary = report.summary()
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in summary["outcomes"].items())
    lines = [
        f"{summary['model']} to {summary['fleet']}: {summary['action']} {summary['status']}"
        + (f": {summary['reason']}" if summary["reason"] else ""),
        f"devices   {summary['devices_ok']} of {summary['devices_total']} done: {outcomes}",
    ]
    lines += [f"release   {line}" for line in release_lines(summary)]
    shown: list[list[str]] = []
    hidden = 0
    for row in report.rows():
        wanted = summary["devices_total"] <= _SHOWN_ROWS or row["error"]
        if wanted and len(shown) < _SHOWN_ROWS:
            shown.append([_cell(row.get(name)) for name in report.columns])
        else:
            hidden += 1
    if shown:
        lines.append(table(shown, [name.upper() for name in report.columns]))
    if hidden:
        lines.append(f"and {hidden} more: --json has all")
    return lines


def _cell(cell: object) -> str:
    return "" if cell is None else one_line(cell)


def _plan_lines(fleet: Fleet, plan: RolloutPlan) -> list[str]:
    boards = ", ".join(f"{board} {count}" for board, count in sorted(plan.boards().items()))
    rows = []
    for wave in plan.waves:
        first, last = (wave.members[place].name for place in (0, -1))
        names = first if wave.total == 1 else f"{first} ... {last}"
        rows.append((wave.name, wave.total, len(wave.devices), names))
    return [
        f"{fleet.name}: {format_count(plan.total, 'device')}, {plan.todo} to do",
        f"boards    {boards or 'none to do'}",
        table(rows, ("WAVE", "DEVICES", "TO DO", "WHICH")),
    ]


class _Teller:
    """Says what happens on the console, and knows the exit code in the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._codes: dict[str, int] = {}  # of devices whose last outcome is not as asked

    def wave_begins(self, wave: Wave) -> None:
        done = wave.total - len(wave.devices)
        text = f"{wave.name}: {format_count(len(wave.devices), 'device')}"
        self._console.step(text + (f", {done} more done before" if done else ""))

    def devices_end(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if not outcome.ok:
                self._codes[outcome.device] = outcome.exit_code
            elif outcome.outcome == NOTHING_BEFORE:
                self._codes[outcome.device] = NothingThereError.exit_code
            else:
                self._codes.pop(outcome.device, None)
            reason = f": {message(outcome.error)}" if outcome.error else ""
            self._console.note(f"    {outcome.device} {one_line(outcome.outcome)}{reason}")

    def soaking(self, seconds: float) -> None:
        self._console.step(f"waiting for {seconds:g} s before the next wave")

    def waiting(self, devices: int, seconds: float) -> None:
        self._console.step(
            f"{format_count(devices, 'device')} could not be reached: again in {seconds:.0f} s"
        )

    def window_closed(self, window: DailyHours) -> None:
        self._console.step(f"no device is begun before {window.start:%H:%M} (--window {window})")

    def stopping(self) -> None:
        self._console.note("stopping: waiting for the devices under way; press again to leave them")

    def exit_code(self) -> int:
        """0, the one code of all that did not go as asked, or a failed command's if they differ."""
        codes = set(self._codes.values())
        return RemoteError.exit_code if len(codes) > 1 else next(iter(codes), 0)


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """A `Stop` that Ctrl-C asks for. The second time it is at once, as it is after SIGTERM the
    first time: whoever sends that may not wait for a device that hangs. From then on signals do
    what they did before."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def heard(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and not stop.asked:
            stop.asked = True
        else:
            stop.asked = stop.at_once = True
            restore()

    for number in before:
        signal.signal(number, heard)
    try:
        yield stop
    finally:
        restore()
