"""Options of `edgepack fleet`, and the settings that they change."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepack.base.errors import UsageError
from edgepack.base.paths import default_root
from edgepack.cli.options import positive
from edgepack.fleet import Fleet, FleetDevice, Settings, Share, select
from edgepack.fleet.shard import MAX_SHARDS, Shard
from edgepack.fleet.window import DailyHours


def add_fleet(parser: argparse.ArgumentParser) -> None:
    """Which devices."""
    parser.add_argument("fleet", type=Path, help="a fleet.toml file or an Ansible inventory")
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="WHAT",
        help="select only this group, device or label (site=berlin); * and ? are "
        "wildcards, !WHAT excludes (repeatable)",
    )
    parser.add_argument(
        "--shard",
        type=_shard,
        metavar="N/M",
        help="select only part N of M of the devices, by their names; other machines can work on "
        "the other parts at the same time",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which deployed model."""
    parser.add_argument(
        "--project",
        type=Path,
        metavar="FILE",
        help="project file (default: edgepack.toml in the current folder, unless --name is given)",
    )
    parser.add_argument("--name", help="name of the deployed bundle")
    add_board(parser)


def add_board(parser: argparse.ArgumentParser) -> None:
    """For inventories that know nothing of boards."""
    parser.add_argument(
        "--board",
        metavar="NAME",
        help="board profile of devices for which the fleet's file has none",
    )


def add_parallel(parser: argparse.ArgumentParser) -> None:
    """How many at once, and where the result goes."""
    parser.add_argument(
        "--parallel",
        type=positive,
        metavar="N",
        help="number of devices to deploy to at once (default: 10)",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write the result as an HTML page"
    )


def add_waves(parser: argparse.ArgumentParser) -> None:
    """How a rollout goes through the devices; each overrides fleet.toml's [rollout]."""
    parser.add_argument(
        "--canary",
        metavar="N|N%|GROUP",
        help="first wave: a number of devices of each board, or a group; 0 for none (default: 1)",
    )
    parser.add_argument(
        "--waves",
        metavar="N,N%,...",
        help="sizes of the waves; the last size repeats (default: 10%%,100%%)",
    )
    parser.add_argument(
        "--max-failures",
        metavar="N|N%",
        help="stop if more than this number or share of a wave fails (default: 10%%)",
    )
    parser.add_argument(
        "--max-failures-total",
        metavar="N|N%",
        help="stop if more than this number or share of the fleet fails (default: 10%%)",
    )
    parser.add_argument(
        "--ignore-unreachable",
        action="store_true",
        help="do not count unreachable devices as failures, except for canaries",
    )
    parser.add_argument("--soak", type=float, metavar="S", help="seconds to wait between two waves")
    parser.add_argument(
        "--keep-trying",
        type=duration,
        metavar="TIME",
        help="keep trying unreachable devices for this time: 90m, 24h, 2d",
    )
    parser.add_argument(
        "--window",
        type=_window,
        metavar="HH:MM-HH:MM",
        help="start devices only in these hours of this machine's clock, for example 22:00-04:00",
    )


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_DAYS = 365


def duration(text: str) -> float:
    """Seconds of a time such as 90m, 24h or 2d."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_DAYS * _UNITS_S["d"]:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time of at most {_LONGEST_DAYS} days such as 90m, 24h or 2d"
        )
    return float(seconds)


def _shard(text: str) -> Shard:
    shard = Shard.parse(text)
    if shard is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no part such as 2/5, of {MAX_SHARDS} at most"
        )
    return shard


def _window(text: str) -> DailyHours:
    window = DailyHours.parse(text)
    if window is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no window such as 22:00-04:00")
    return window


def choose(args: argparse.Namespace, fleet: Fleet) -> tuple[FleetDevice, ...]:
    """The devices that `add_fleet`'s options leave. Raises UsageError if that is none."""
    chosen = select(fleet.devices, args.limit, file=fleet.file)
    if args.shard is None:
        return chosen
    left: tuple[FleetDevice, ...] = args.shard.take(chosen)
    if not left:
        raise UsageError(f"--shard {args.shard}: none of {len(chosen)} devices is in it")
    if hasattr(args, "canary"):
        canary = settings_of(args, fleet).canary
        if isinstance(canary, str) and not any(canary in device.groups for device in left):
            raise UsageError(
                f"--shard {args.shard}: no device of the canary group {canary} is in it, so its "
                "first wave would be no canary",
                hint=f"--limit {canary} without --shard first; then each shard with --canary 1",
            )
    return left


def add_journal(parser: argparse.ArgumentParser) -> None:
    """What is remembered of earlier runs."""
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="DIR",
        help="folder of the journal (default: .edgepack beside the fleet's file)",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="also deploy to devices that are done according to the journal",
    )


@dataclass(frozen=True, kw_only=True)
class FleetRelease:
    """A deployed model: its bundle's name, its folder, and the board of devices that name none."""

    name: str
    root: str
    board: str | None


def release_of(args: argparse.Namespace) -> FleetRelease:
    """What `add_model`'s options say; raises UsageError if that is no model."""
    from edgepack.flow.project import PROJECT_FILE, load_project

    path = args.project
    if path is None and args.name is None and Path(PROJECT_FILE).exists():
        path = Path(PROJECT_FILE)
    project = load_project(path) if path is not None else None
    name = args.name or (project.name if project else None)
    if name is None:
        raise UsageError("which deployed model?", hint="give --project FILE or --name NAME")
    root = getattr(args, "root", None) or (project.root if project else None) or default_root(name)
    return FleetRelease(
        name=name, root=root, board=args.board or (project.board if project else None)
    )


def settings_of(args: argparse.Namespace, fleet: Fleet) -> Settings:
    """The fleet's settings with the flags over them; raises UsageError."""
    changes: dict[str, Any] = {}
    if args.parallel is not None:
        changes["parallel"] = args.parallel
    if getattr(args, "waves", None) is not None:
        changes["waves"] = tuple(_share("--waves", word) for word in args.waves.split(","))
        if not all(share.value for share in changes["waves"]):
            raise UsageError("--waves: each wave must have a device at least")
    for name in ("max_failures", "max_failures_total"):
        if getattr(args, name, None) is not None:
            changes[name] = _share(f"--{name.replace('_', '-')}", getattr(args, name))
    if getattr(args, "canary", None) is not None:
        groups = {group for device in fleet.devices for group in device.groups}
        is_group = args.canary in groups
        changes["canary"] = args.canary if is_group else _share("--canary", args.canary)
    if getattr(args, "ignore_unreachable", False):
        changes["count_unreachable"] = False
    if getattr(args, "soak", None) is not None:
        if not 0 <= args.soak < math.inf:
            raise UsageError(f"--soak: {args.soak} is not a number of seconds")
        changes["soak_s"] = args.soak
    if getattr(args, "keep_trying", None) is not None:
        changes["keep_trying_s"] = args.keep_trying
    if getattr(args, "window", None) is not None:
        changes["window"] = args.window
    return replace(fleet.settings, **changes)


def _share(option: str, text: str) -> Share:
    share = Share.parse(text)
    if share is None:
        raise UsageError(
            f"{option}: {text!r} is neither a number of devices nor a group"
            if option == "--canary"
            else f"{option}: {text!r} is not a number of devices",
            hint='for example 5, or "5%"',
        )
    return share
