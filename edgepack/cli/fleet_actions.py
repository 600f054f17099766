"""What `edgepack fleet` does; its options are in `edgepack.cli.fleet`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from edgepack.base.errors import NothingThereError, UsageError
from edgepack.base.paths import default_root
from edgepack.boards import load_boards
from edgepack.cli.console import Console
from edgepack.cli.fleet_options import (
    choose,
    release_of,
    settings_of,
)
from edgepack.cli.fleet_run import Rollout, carry_out, print_plan, print_report, stop_on_signal
from edgepack.cli.options import (
    board_files,
    check_writable,
    project_of,
    ssh_options,
)
from edgepack.cli.transfer import deploy_options, refuse_job
from edgepack.cli.trial_options import trial_rules
from edgepack.cli.trust import read_signers
from edgepack.deploy import remote_service
from edgepack.deploy.split import check_split
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
    with_boards,
)
from edgepack.fleet.build import build_bundles, open_bundles
from edgepack.fleet.journals import JournalsRead, shards_of
from edgepack.fleet.limits import allow_parallel
from edgepack.fleet.report import FleetReport
from edgepack.fleet.work import (
    AskStatus,
    BeginTrial,
    Connector,
    Deploy,
    Rollback,
    SetTrust,
    check_aliases,
)

_ALL = Share(value=100, percent=True)
_READ_EVERY_S = 0.5
# One wave of all, whatever comes of any.
_AT_ONCE = Settings(
    canary=Share(value=0), waves=(_ALL,), max_failures=_ALL, max_failures_total=_ALL
)


def _plan(args: argparse.Namespace, console: Console) -> int:
    fleet = load_fleet(args.fleet)
    boards = load_boards(board_files(args))
    devices = with_boards(choose(args, fleet), boards, args.board)
    print_plan(fleet, make_plan(devices, settings_of(args, fleet)), console)
    return 0


def _deploy(args: argparse.Namespace, console: Console) -> int:
    fleet, settings = _begin(args)
    options = dataclasses.replace(deploy_options(args), trial=trial_rules(args))
    chosen = choose(args, fleet)
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
    if options.trial and options.trial.split:
        for bundle in bundles.values():
            check_split(bundle)
    work = (BeginTrial if options.trial else Deploy)(
        bundles=bundles,
        connect=Connector(boards=boards, options=ssh_options(args)),
        root=root or default_root(model),
        options=options,
        service=args.service,
    )
    with Journal(fleet.journal(model, args.journal, args.shard), write=not args.dry_run) as journal:
        if not args.again:
            tried = journal.tried if options.trial is None else work.tried
            work = dataclasses.replace(work, known=journal.identity, tried=tried)
        rollout = Rollout(fleet=fleet, settings=settings, devices=devices, work=work, model=model)
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
    if args.source is not None:
        return _from_prometheus(args, console)
    fleet, given = _begin(args)
    settings = dataclasses.replace(_AT_ONCE, parallel=given.parallel)
    return _once(args, fleet, settings, AskStatus, console)


def _from_prometheus(args: argparse.Namespace, console: Console) -> int:
    from edgepack.fleet.from_prometheus import LookUp, ask_prometheus

    kind, url = args.source
    if kind != "prometheus":
        raise UsageError(f"--from: unknown source: {kind}", hint="--from prometheus URL")
    fleet = load_fleet(args.fleet)
    known = ask_prometheus(url, release_of(args).name)
    settings = dataclasses.replace(_AT_ONCE, parallel=10)
    return _once(args, fleet, settings, lambda **_: LookUp(known=known), console)


def _metrics(args: argparse.Namespace, console: Console) -> int:
    from edgepack.cli.fleet_metrics import tell

    fleet = load_fleet(args.fleet)
    settings = dataclasses.replace(_AT_ONCE, parallel=settings_of(args, fleet).parallel)
    allow_parallel(settings.parallel)
    check_aliases(fleet.file, fleet.devices, ssh_options(args))
    release = release_of(args)
    devices, connect = _reach(args, fleet, release.board)
    return tell(args, settings, devices, connect=connect, root=release.root, console=console)


def _rules(args: argparse.Namespace, console: Console) -> int:
    from edgepack.cli.fleet_metrics import write_rules

    return write_rules(args.folder, console)


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
    with Journal(
        fleet.journal(release.name, args.journal, args.shard), write=not args.dry_run
    ) as journal:
        leave: dict[str, str] = {}
        if not args.again:
            leave = {
                device.name: deployed
                for device in devices
                if (deployed := journal.deployed(device)) is not None
            }
            devices = tuple(device for device in devices if device.name in leave)
        if not devices:
            raise NothingThereError(
                f"{journal.path}: no device has had a deploy to go back from",
                hint="--again goes back on every device, whatever it has",
            )
        work = Rollback(connect=connect, root=release.root, leave=leave)
        if not args.again:
            work = dataclasses.replace(work, known=journal.identity, tried=journal.tried)
        rollout = Rollout(
            fleet=fleet, settings=settings, devices=devices, work=work, model=release.name
        )
        return _carry_out(args, rollout, journal, console)


def _reach(
    args: argparse.Namespace, fleet: Fleet, board: str | None
) -> tuple[tuple[FleetDevice, ...], Connector]:
    """The devices that are meant, and what connects to them."""
    boards = load_boards(board_files(args))
    chosen = choose(args, fleet)
    return with_boards(chosen, boards, board), Connector(boards=boards, options=ssh_options(args))


def _report(args: argparse.Namespace, console: Console) -> int:
    fleet = load_fleet(args.fleet)
    release = release_of(args)
    boards = load_boards(board_files(args))
    chosen = choose(args, fleet)
    devices = with_boards(chosen, boards, release.board)
    path = fleet.journal(release.name, args.journal, args.shard)
    # Those of shards lie beside that of all, wherever they were written.
    paths = [path] if args.shard else [path, *shards_of(path)]
    with JournalsRead(paths) as journals:
        if journals.action is None:
            raise NothingThereError(
                f"no rollout of {release.name} to {fleet.name} yet: {path}",
                hint="edgepack fleet deploy",
            )
        report = FleetReport(
            fleet=fleet.name,
            model=release.name,
            action=journals.action,
            plan=make_plan(devices, fleet.settings),
            journal=journals,
            wanted=lambda device: journals.releases.get(str(device.board)),
            result=RolloutResult(**journals.end()),
        )
        print_report(report, console, args.html)
    return 0


def _watch(args: argparse.Namespace, console: Console) -> int:
    """Serve the page until Ctrl-C or SIGTERM."""
    from edgepack.fleet.watch import watch_page
    from edgepack.fleet.watched import Watched

    fleet = load_fleet(args.fleet)
    release = release_of(args)
    boards = load_boards(board_files(args))
    devices = with_boards(choose(args, fleet), boards, release.board)
    path = fleet.journal(release.name, args.journal, args.shard)
    paths = [path] if args.shard else [path, *shards_of(path)]
    watched = Watched(make_plan(devices, fleet.settings), paths)
    title = f"{release.name} to {fleet.name}"
    with stop_on_signal() as stop, watch_page(args.port, title, watched) as where:
        console.data({"address": where}, where)
        while not stop.asked:
            watched.read()
            time.sleep(_READ_EVERY_S)
    return 0


ACTIONS: dict[str, Callable[[argparse.Namespace, Console], int]] = {
    "plan": _plan,
    "deploy": _deploy,
    "status": _status,
    "rollback": _rollback,
    "trust": _trust,
    "metrics": _metrics,
    "rules": _rules,
    "report": _report,
    "watch": _watch,
}
