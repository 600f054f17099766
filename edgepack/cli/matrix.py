"""`edgepack matrix`: the jobs of a CI, one for each board that a project is made for."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.errors import UsageError, perhaps
from edgepack.boards import load_boards
from edgepack.cli.console import Console
from edgepack.cli.options import board_files

if TYPE_CHECKING:
    from edgepack.boards import Board

# GitHub runs no matrix of more.
_MOST_JOBS = 256


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "projects",
        nargs="*",
        type=Path,
        metavar="PROJECT",
        help="project files (default: edgepack.toml)",
    )
    parser.add_argument(
        "--fleet",
        type=Path,
        metavar="FILE",
        help="use the boards of the devices in this fleet.toml file or Ansible inventory",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="WHAT",
        help="select only this group, device or label of --fleet (repeatable)",
    )
    parser.add_argument(
        "--board",
        action="append",
        default=[],
        metavar="NAME",
        help="board profile (repeatable; default: the project's); with --fleet: of "
        "devices for which the file has none",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print {"include": [...]} on one line, as the jobs of a GitHub workflow take it."""
    from edgepack.flow.project import load_project

    if args.limit and args.fleet is None:
        raise UsageError("--limit: only with --fleet", hint="--fleet names the file of devices")
    boards = load_boards(board_files(args))
    names = _boards(args, boards)
    jobs = []
    for file in args.projects or [Path("edgepack.toml")]:
        project = load_project(file)
        own = [project.board] if project.board else []
        if not (names or own):
            raise UsageError(
                f"{file}: no board is named",
                hint="--board NAME, --fleet FILE, or board in [project]",
            )
        for name in names or own:
            if name not in boards:
                raise UsageError(f"unknown board: {name}", hint=perhaps(name, boards))
            board = boards[name]
            jobs.append(
                {
                    "project": str(file),
                    "name": project.name,
                    "board": name,
                    "triple": board.triple,
                    "debian_arch": board.debian_arch,
                }
            )
    if len(jobs) > _MOST_JOBS:
        raise UsageError(
            f"{len(jobs)} jobs; a CI takes at most {_MOST_JOBS}",
            hint="split the projects, or --limit the fleet",
        )
    matrix = {"include": jobs}
    console.data(matrix, json.dumps(matrix))
    return 0


def _boards(args: argparse.Namespace, boards: dict[str, Board]) -> list[str]:
    """Those that were named, or those of the fleet's devices by name; each once."""
    if args.fleet is None:
        return list(dict.fromkeys(args.board))
    if len(args.board) > 1:
        raise UsageError("--board: of a fleet's devices that name none there is one board")
    from edgepack.fleet import load_fleet, select
    from edgepack.fleet.plan import with_boards

    fleet = load_fleet(args.fleet)
    chosen = select(fleet.devices, args.limit, file=fleet.file)
    devices = with_boards(chosen, boards, next(iter(args.board), None))
    return sorted({device.board for device in devices if device.board})
