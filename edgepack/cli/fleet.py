"""`edgepack fleet`: one model on many devices, wave by wave."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.cli.console import Console
from edgepack.cli.fleet_options import (
    add_board,
    add_fleet,
    add_journal,
    add_model,
    add_parallel,
    add_waves,
)
from edgepack.cli.options import (
    ASKING_S,
    LOCKING_S,
    TESTING_S,
    add_common,
    add_job,
    add_release_version,
    add_sign,
    add_ssh,
    port_number,
    positive,
)
from edgepack.cli.transfer import add_transfer
from edgepack.cli.trial_options import add_trial
from edgepack.cli.trust import add_signers


def add(parser: argparse.ArgumentParser) -> None:
    """The command's actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    planner = actions.add_parser(
        "plan", help="list devices and waves, without building or connecting"
    )
    add_fleet(planner)
    add_board(planner)
    add_waves(planner)
    planner.set_defaults(parallel=None)

    deployer = actions.add_parser("deploy", help="deploy to a canary first, then wave after wave")
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
        help="deploy this bundle, a folder or tarball, instead of a model: one for each "
        "board (repeatable)",
    )
    deployer.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="build and print the plan, but connect to no device",
    )
    for add_options in (add_transfer, add_trial, add_waves, add_parallel, add_journal, add_ssh):
        add_options(deployer)

    asker = actions.add_parser(
        "status", help="show which model runs on each device, since when, and its health"
    )
    goer_back = actions.add_parser("rollback", help="undo the last `fleet deploy`")
    truster = actions.add_parser(
        "trust", help="replace the list of signers that the devices accept"
    )
    asker.add_argument(
        "--from",
        dest="source",
        nargs=2,
        metavar=("prometheus", "URL"),
        help="use the metrics of this Prometheus, instead of connecting to the devices",
    )
    teller = actions.add_parser(
        "metrics", help="collect the devices' metrics regularly, for a Prometheus on this machine"
    )
    teller.add_argument(
        "--port",
        type=port_number,
        default=9840,
        metavar="N",
        help="port on loopback (default: 9840)",
    )
    teller.add_argument(
        "--every",
        type=positive,
        default=60,
        metavar="S",
        help="seconds between two collections (default: 60)",
    )
    teller.add_argument("--once", action="store_true", help="collect once, and print the metrics")
    add_fleet(teller)
    add_model(teller)
    teller.add_argument(
        "--parallel",
        type=positive,
        metavar="N",
        help="number of devices to connect to at once (default: 10)",
    )
    add_ssh(teller, timeout_s=ASKING_S)
    ruler = actions.add_parser(
        "rules", help="write alert rules and configuration for Prometheus, and a Grafana dashboard"
    )
    ruler.add_argument("folder", type=Path, help="output folder; existing files are kept")
    for action, timeout_s in ((asker, ASKING_S), (goer_back, TESTING_S), (truster, LOCKING_S)):
        add_fleet(action)
        add_model(action)
        add_parallel(action)
        add_ssh(action, timeout_s=timeout_s)
    goer_back.add_argument(
        "-n", "--dry-run", action="store_true", help="print the plan, but connect to no device"
    )
    add_waves(goer_back)
    add_journal(goer_back)
    add_signers(truster)
    add_waves(truster)

    reporter = actions.add_parser(
        "report", help="print the report on the last rollout again, from its journal"
    )
    add_fleet(reporter)
    add_model(reporter)
    reporter.add_argument(
        "--journal", type=Path, metavar="DIR", help="folder of the journal: see `fleet deploy`"
    )
    reporter.add_argument(
        "--html", type=Path, metavar="FILE", help="also write the report as an HTML page"
    )

    watcher = actions.add_parser(
        "watch", help="show a rollout live, on a page that only this machine can open"
    )
    add_fleet(watcher)
    add_model(watcher)
    watcher.add_argument(
        "--journal", type=Path, metavar="DIR", help="the journal's folder: see `fleet deploy`"
    )
    watcher.add_argument(
        "--port", type=port_number, default=0, metavar="N", help="on loopback (default: any)"
    )

    for action in actions.choices.values():
        add_common(action)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, deploy or report."""
    from edgepack.cli.fleet_actions import ACTIONS

    return ACTIONS[args.action](args, console)
