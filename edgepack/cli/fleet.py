"""`edgepack fleet`: one model on many devices, wave by wave."""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.paths import default_root
from edgepack.boards import load_boards
from edgepack.cli.console import Console
from edgepack.cli.deploy import add_transfer, deploy_options, refuse_job
from edgepack.cli.fleet_options import (
    add_board,
    add_fleet,
    add_journal,
    add_model,
    add_parallel,
    add_waves,
    release_of,
    settings_of,
)
from edgepack.cli.fleet_run import Rollout, carry_out, print_plan, print_report
from edgepack.cli.options import (
    ASKING_S,
    LOCKING_S,
    TESTING_S,
    add_common,
    add_job,
    add_release_version,
    add_sign,
    add_ssh,
    board_files,
    check_writable,
    project_of,
    ssh_options,
)
from edgepack.cli.trust import add_signers, read_signers
from edgepack.deploy import remote_service
from edgepack.fleet import (
    Fleet,
    FleetDevice,
    Journal,
    RolloutResult,
    Settings,
    Share,
    Work,
    load_fleet,
    make_plan,
    select,
    with_boards,
)
from edgepack.fleet.build import build_bundles, open_bundles
from edgepack.fleet.limits import allow_parallel
from edgepack.fleet.report import FleetReport
from edgepack.fleet.work import AskStatus, Connector, Deploy, Rollback, SetTrust, check_aliases

_ALL = Share(value=100, percent=True)


def add(parser: argparse.ArgumentParser) -> None:
    """The command's actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    planner = actions.add_parser("plan", help="list devices and waves; nothing is built or asked")
    add_fleet(planner)
    add_board(planner)
    add_waves(planner)
    planner.set_defaults(parallel=None)

    deployer = actions.add_parser("deploy", help="a canary, then wave after wave")
    add_fleet(deployer)
    add_job(deployer)
    add_release_version(deployer)
    add_sign(deployer)
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
    for add_options in (add_transfer, add_waves, add_parallel, add_journal, add_ssh):
        add_options(deployer)

    asker = actions.add_parser("status", help="which model runs where, since when, and its health")
    goer_back = actions.add_parser("rollback", help="back from what `fleet deploy` brought")
    truster = actions.add_parser("trust", help="replace whose signatures the devices take")
    for action, timeout_s in ((asker, ASKING_S), (goer_back, TESTING_S), (truster, LOCKING_S)):
        add_fleet(action)
        add_model(action)
        add_parallel(action)
        add_ssh(action, timeout_s=timeout_s)
    goer_back.add_argument(
        "-n", "--dry-run", action="store_true", help="print the plan, ask no device"
    )
    add_waves(goer_back)
    add_journal(goer_back)
    add_signers(truster)
    add_waves(truster)

    reporter = actions.add_parser("report", help="the last rollout again, from its journal")
    add_fleet(reporter)
    add_model(reporter)
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
        "status": _status,
        "rollback": _rollback,
        "trust": _trust,
        "report": _report,
    }
    return actions[args.action](args, console)


def _plan(args: argparse.Namespace, console: Console) -> int:
    fleet = load_fleet(args.fleet)
    boards = load_boards(board_files(args))
    devices = with_boards(select(fleet.devices, args.limit, file=fleet.file), boards, args.board)
    print_plan(fleet, make_plan(devices, settings_of(args, fleet)), console)
    return 0


def _deploy(args: argparse.Namespace, console: Console) -> int:
    fleet, settings = _begin(args)
    options = deploy_options(args)
    chosen = select(fleet.devices, args.limit, file=fleet.file)
    if args.bundle:
        refuse_job(args)
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
            project, [boards[name] for name in names], key=args.sign, progress=console
        )
        root = project.root
    model = next(iter(bundles.values())).manifest.name
    if args.service:
        for board, bundle in bundles.items():
            remote_service.need_service(bundle.manifest.service, f"bundle {model} for {board}")
    work = Deploy(
        bundles=bundles,
        connect=Connector(boards=boards, options=ssh_options(args)),
        root=root or default_root(model),
        options=options,
        service=args.service,
    )
    rollout = Rollout(fleet=fleet, settings=settings, devices=devices, work=work, model=model)
    with Journal(fleet.journal(model, args.journal), write=not args.dry_run) as journal:
        return _carry_out(args, rollout, journal, console)


def _begin(args: argparse.Namespace) -> tuple[Fleet, Settings]:
    """What can be refused before anything is built or asked."""
    fleet = load_fleet(args.fleet)
    settings = settings_of(args, fleet)
    if args.html is not None:
        check_writable(args.html.parent, "--html")
    allow_parallel(settings.parallel)
    check_aliases(fleet.file, fleet.devices, ssh_options(args))
    return fleet, settings


def _carry_out(
    args: argparse.Namespace, rollout: Rollout, journal: Journal, console: Console
) -> int:
    plan = rollout.plan(journal, again=args.again)
    if args.dry_run:
        print_plan(rollout.fleet, plan, console)
        return 0
    return carry_out(rollout, plan, journal, console, args.html)


def _status(args: argparse.Namespace, console: Console) -> int:
    fleet, given = _begin(args)
    settings = Settings(
        canary=Share(value=0),
        waves=(_ALL,),
        parallel=given.parallel,
        max_failures=_ALL,
        max_failures_total=_ALL,
    )
    return _once(args, fleet, settings, AskStatus, console)


def _trust(args: argparse.Namespace, console: Console) -> int:
    fleet, settings = _begin(args)
    work = functools.partial(SetTrust, signers=read_signers(args.signers))
    return _once(args, fleet, settings, work, console)


def _once(
    args: argparse.Namespace,
    fleet: Fleet,
    settings: Settings,
    make_work: Callable[..., Work],
    console: Console,
) -> int:
    """Work that is done each time anew, whatever was done before."""
    release = release_of(args)
    devices, connect = _reach(args, fleet, release.board)
    work = make_work(connect=connect, root=release.root)
    rollout = Rollout(
        fleet=fleet, settings=settings, devices=devices, work=work, model=release.name
    )
    # As large as the fleet, and of no use afterwards.
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "once") as journal:
        return carry_out(rollout, rollout.plan(journal), journal, console, args.html)


def _rollback(args: argparse.Namespace, console: Console) -> int:
    fleet, settings = _begin(args)
    release = release_of(args)
    devices, connect = _reach(args, fleet, release.board)
    with Journal(fleet.journal(release.name, args.journal), write=not args.dry_run) as journal:
        leave: dict[str, str] = {}
        if not args.again:
            leave = {
                device.name: deployed
                for device in devices
                if (deployed := journal.deployed(device)) is not None
            }
            devices = tuple(device for device in devices if device.name in leave)
        if not devices:
            raise UsageError(
                f"{journal.path}: no device has had a deploy to go back from",
                hint="--again goes back on every device, whatever it has",
            )
        work = Rollback(connect=connect, root=release.root, leave=leave)
        rollout = Rollout(
            fleet=fleet, settings=settings, devices=devices, work=work, model=release.name
        )
        return _carry_out(args, rollout, journal, console)


def _reach(
    args: argparse.Namespace, fleet: Fleet, board: str | None
) -> tuple[tuple[FleetDevice, ...], Connector]:
    """The devices that are meant, and what connects to them."""
    boards = load_boards(board_files(args))
    chosen = select(fleet.devices, args.limit, file=fleet.file)
    return with_boards(chosen, boards, board), Connector(boards=boards, options=ssh_options(args))


def _report(args: argparse.Namespace, console: Console) -> int:
    fleet = load_fleet(args.fleet)
    release = release_of(args)
    boards = load_boards(board_files(args))
    chosen = select(fleet.devices, args.limit, file=fleet.file)
    devices = with_boards(chosen, boards, release.board)
    path = fleet.journal(release.name, args.journal)
    with Journal(path, write=False) as journal:
        if journal.run is None:
            raise UsageError(
                f"no rollout of {release.name} to {fleet.name} yet: {path}",
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
            model=release.name,
            action=journal.run["action"],
            plan=make_plan(devices, fleet.settings),
            journal=journal,
            wanted=lambda device: releases.get(device.board),
            result=RolloutResult(**{key: value for key, value in end.items() if key != "event"}),
        )
        print_report(report, console, args.html)
    return 0
