"""`edgepack fleet`: one model on many devices, wave by wave."""

from __future__ import annotations

import argparse
import getpass
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from edgepack.boards import load_boards
from edgepack.cli.console import Console, table
from edgepack.cli.fleet_options import (
    add_fleet,
    add_journal,
    add_parallel,
    add_waves,
    settings_of,
)
from edgepack.cli.options import (
    add_common,
    add_job,
    add_ssh,
    board_files,
    check_writable,
    default_root,
    positive,
    project_of,
    ssh_options,
)
from edgepack.deploy import KEEP_RELEASES
from edgepack.errors import RemoteError, UsageError
from edgepack.fleet import (
    Fleet,
    FleetDevice,
    Journal,
    Outcome,
    Result,
    RolloutPlan,
    Settings,
    Wave,
    Work,
    load_fleet,
    make_plan,
    roll_out,
    select,
    with_boards,
)
from edgepack.fleet.build import build_bundles, open_bundles
from edgepack.fleet.limits import allow_parallel
from edgepack.fleet.report import FleetReport
from edgepack.fleet.work import Connector, Deploy

INTERRUPTED = 130
# More rows than this are for --html and --json.
_SHOWN_ROWS = 60


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command and its actions."""
    parser = commands.add_parser("fleet", help="many devices, in waves: plan, deploy, report")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    planner = actions.add_parser("plan", help="list devices and waves; nothing is built or asked")
    add_fleet(planner)
    planner.add_argument("--board", metavar="NAME", help="of devices that name none")
    add_waves(planner)
    planner.set_defaults(parallel=None)

    deployer = actions.add_parser("deploy", help="a canary, then wave after wave")
    add_fleet(deployer)
    add_job(deployer)
    deployer.add_argument(
        "--bundle",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="deploy this folder or tarball instead of a model: one for each board (repeatable)",
    )
    deployer.add_argument(
        "-n", "--dry-run", action="store_true", help="build, print the plan, ask no device"
    )
    deployer.add_argument(
        "--keep",
        type=positive,
        default=KEEP_RELEASES,
        metavar="N",
        help=f"releases that stay on each device (default: {KEEP_RELEASES})",
    )
    for add_options in (add_waves, add_parallel, add_journal, add_ssh):
        add_options(deployer)

    reporter = actions.add_parser("report", help="the last rollout again, from its journal")
    add_fleet(reporter)
    reporter.add_argument("--board", metavar="NAME", help="of devices that name none")
    reporter.add_argument("--name", required=True, help="name of the deployed bundle")
    reporter.add_argument("--journal", type=Path, metavar="DIR", help="see `fleet deploy`")
    reporter.add_argument("--html", type=Path, metavar="FILE", help="write it as a page, too")

    for action in actions.choices.values():
        add_common(action)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, deploy or report."""
    actions: dict[str, Callable[[argparse.Namespace, Console], int]] = {
        "plan": _plan,
        "deploy": _deploy,
        "report": _report,
    }
    return actions[args.action](args, console)


def _plan(args: argparse.Namespace, console: Console) -> int:
    fleet = load_fleet(args.fleet)
    boards = load_boards(board_files(args))
    devices = with_boards(select(fleet.devices, args.limit, file=fleet.file), boards, args.board)
    plan = make_plan(devices, settings_of(args, fleet))
    rows = [
        {**device.to_dict(), "wave": wave.name} for wave in plan.waves for device in wave.members
    ]
    console.data(
        {"fleet": fleet.name, **plan.to_dict(), "list": rows}, "\n".join(_plan_lines(fleet, plan))
    )
    return 0


def _deploy(args: argparse.Namespace, console: Console) -> int:
    fleet = load_fleet(args.fleet)
    settings = settings_of(args, fleet)
    if args.html is not None:
        check_writable(args.html.parent, "--html")
    allow_parallel(settings.parallel)
    chosen = select(fleet.devices, args.limit, file=fleet.file)
    if args.bundle:
        if args.model is not None or args.project is not None:
            raise UsageError("--bundle goes without a model and without --project")
        boards = load_boards(board_files(args))
        devices = with_boards(chosen, boards, args.board)
        bundles = open_bundles(args.bundle, boards, {str(device.board) for device in devices})
        root = args.root
    else:
        project = project_of(args)
        boards = load_boards(project.boards)
        devices = with_boards(chosen, boards, project.board)
        names = sorted({str(device.board) for device in devices})
        bundles = build_bundles(
            _job_words(args), [boards[name] for name in names], progress=console
        )
        root = project.root
    model = next(iter(bundles.values())).manifest.name
    work = Deploy(
        bundles=bundles,
        connect=Connector(boards=boards, options=ssh_options(args)),
        root=root or default_root(model),
        keep=args.keep,
    )
    return _roll_out(args, console, fleet, settings, devices, work, model)


def _job_words(args: argparse.Namespace) -> list[str]:
    """The options of `add_job` again, but --board, for `edgepack package`."""
    words = [] if args.model is None else [str(args.model)]
    for option in ("project", "toolchain", "name"):
        if getattr(args, option) is not None:
            words += [f"--{option}", str(getattr(args, option))]
    for shape in args.shape:
        words += ["--shape", shape]
    for file in args.boards:
        words += ["--boards", str(file)]
    return words


def _roll_out(
    args: argparse.Namespace,
    console: Console,
    fleet: Fleet,
    settings: Settings,
    devices: Sequence[FleetDevice],
    work: Work,
    model: str,
) -> int:
    """Do `work` on those of `devices` that are not done yet, and report on all of them."""
    journal_file = fleet.journal(model, args.journal)
    with Journal(journal_file, write=not args.dry_run) as journal:

        def is_done(device: FleetDevice) -> bool:
            return not args.again and journal.is_done(device, work.action, work.wanted(device))

        plan = make_plan(devices, settings, is_done)
        if args.dry_run:
            console.data(
                {"fleet": fleet.name, **plan.to_dict()}, "\n".join(_plan_lines(fleet, plan))
            )
            return 0
        releases = {str(device.board): work.wanted(device) for device in devices}
        journal.write(
            {
                "event": "begin",
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "by": f"{getpass.getuser()}@{socket.gethostname()}",
                "action": work.action,
                "releases": releases,
                "todo": plan.todo,
                "settings": settings.to_dict(),
            }
        )
        recorder = _Recorder(journal, console)
        with _stop_on_signal(console) as stop:
            result = roll_out(plan, settings, work, recorder, stop=stop)
        journal.write({"event": "end", **result.to_dict()})
        report = FleetReport(
            fleet=fleet.name,
            model=model,
            action=work.action,
            plan=plan,
            journal=journal,
            wanted=work.wanted,
            result=result,
        )
        _print_report(args, console, report)
    if result.status == "interrupted":
        return INTERRUPTED
    return recorder.exit_code()


class _Recorder:
    """Writes each outcome to the journal first, then to the console."""

    def __init__(self, journal: Journal, console: Console) -> None:
        self._journal, self._console = journal, console
        self._codes: set[int] = set()

    def wave_begins(self, wave: Wave) -> None:
        done = wave.total - len(wave.devices)
        text = f"{wave.name}: {len(wave.devices)} devices"
        self._console.step(text + (f", {done} more are done" if done else ""))

    def devices_end(self, outcomes: Sequence[Outcome]) -> None:
        self._journal.write(*(outcome.to_dict() for outcome in outcomes))
        for outcome in outcomes:
            if not outcome.ok:
                self._codes.add(outcome.exit_code)
            reason = f": {outcome.error}" if outcome.error else ""
            self._console.note(f"    {outcome.device} {outcome.outcome}{reason}")

    def soaking(self, seconds: float) -> None:
        self._console.step(f"waiting for {seconds:g} s before the next wave")

    def exit_code(self) -> int:
        """0, the one code of all failures, or that of a failed command if they differ."""
        if len(self._codes) > 1:
            return RemoteError.exit_code
        return next(iter(self._codes), 0)


class _stop_on_signal:  # noqa: N801 - used like a function
    """An event that Ctrl-C and SIGTERM set; the second time they do what they always do."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._event = threading.Event()
        self._numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = [signal.getsignal(number) for number in self._numbers]

    def __enter__(self) -> threading.Event:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                signal.signal(number, self._handle)
        return self._event

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._event.set()
        self._restore()
        self._console.note("stopping: waiting for the devices under way; press again to leave them")

    def _restore(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, before in zip(self._numbers, self._before, strict=True):
                signal.signal(number, before)


def _report(args: argparse.Namespace, console: Console) -> int:
    fleet = load_fleet(args.fleet)
    boards = load_boards(board_files(args))
    devices = with_boards(select(fleet.devices, args.limit, file=fleet.file), boards, args.board)
    path = fleet.journal(args.name, args.journal)
    with Journal(path, write=False) as journal:
        if journal.run is None:
            raise UsageError(
                f"no rollout of {args.name} to {fleet.name} yet: {path}",
                hint="edgepack fleet deploy",
            )
        releases = journal.run["releases"]
        end = journal.end or {
            "status": "interrupted",
            "reason": "it was killed, or is under way",
            "outcomes": {},
            "seconds": 0.0,
        }
        report = FleetReport(
            fleet=fleet.name,
            model=args.name,
            action=journal.run["action"],
            plan=make_plan(devices, fleet.settings),
            journal=journal,
            wanted=lambda device: releases.get(device.board),
            result=Result(**{key: value for key, value in end.items() if key != "event"}),
        )
        _print_report(args, console, report)
    return 0


def _print_report(args: argparse.Namespace, console: Console, report: FleetReport) -> None:
    if args.html is not None:
        report.write_html(args.html)
        console.note(f"report: {args.html}")
    console.lines(report.json_lines() if console.as_json else _report_lines(report))


def _report_lines(report: FleetReport) -> list[str]:
    summary = report.summary()
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in summary["outcomes"].items())
    lines = [
        f"{summary['model']} to {summary['fleet']}: {summary['action']} {summary['status']}"
        + (f": {summary['reason']}" if summary["reason"] else ""),
        f"devices   {summary['devices_ok']} of {summary['devices_total']} well: {outcomes}",
    ]
    lines += [f"release   {release} ({board})" for board, release in summary["releases"].items()]
    columns = ("device", "wave", "board", "release", "outcome", "seconds", "error")
    shown: list[list[str]] = []
    hidden = 0
    for row in report.rows():
        wanted = summary["devices_total"] <= _SHOWN_ROWS or row["error"]
        if wanted and len(shown) < _SHOWN_ROWS:
            shown.append([_one_line(row[name]) for name in columns])
        else:
            hidden += 1
    if shown:
        lines.append(table(shown, [name.upper() for name in columns]))
    if hidden:
        lines.append(f"and {hidden} more: --html FILE or --json has all")
    return lines


def _one_line(cell: object) -> str:
    return "" if cell is None else " ".join(str(cell).split())


def _plan_lines(fleet: Fleet, plan: RolloutPlan) -> list[str]:
    boards = ", ".join(f"{board} {count}" for board, count in sorted(plan.boards().items()))
    rows = []
    for wave in plan.waves:
        first, last = (wave.members[place].name for place in (0, -1))
        names = first if wave.total == 1 else f"{first} ... {last}"
        rows.append((wave.name, wave.total, len(wave.devices), names))
    return [
        f"{fleet.name}: {plan.total} devices, {plan.todo} to do",
        f"boards    {boards or 'none to do'}",
        table(rows, ("WAVE", "DEVICES", "TO DO", "WHICH")),
    ]
