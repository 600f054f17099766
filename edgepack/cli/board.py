"""`edgepack board`: virtual boards."""

from __future__ import annotations

import argparse
import subprocess

from edgepack.base.errors import NothingThereError, UsageError
from edgepack.boards import SUITES, get_board, load_boards
from edgepack.cli.console import Console, table
from edgepack.cli.options import add_common, board_files, positive
from edgepack.virtual import down, list_running, scp_command, ssh_command, ssh_config, up


def add(parser: argparse.ArgumentParser) -> None:
    """The command's actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    start = actions.add_parser("up", help="start a board, unless it is running")
    start.add_argument("name", help="name of a board profile, listed by `edgepack boards`")
    start.add_argument(
        "--suite",
        choices=SUITES,
        help="Debian release of the root file system, or none: a system without libraries",
    )
    start.add_argument(
        "--kind",
        choices=("auto", "light", "system"),
        default="auto",
        help="light: namespaces and user-mode emulation; system: emulation of a whole machine",
    )
    start.add_argument(
        "--disk-mb", type=positive, metavar="N", help="size of the board's disk in MiB"
    )
    start.add_argument(
        "--opencl", action="store_true", help="with an OpenCL driver that computes on the CPU"
    )
    stop = actions.add_parser("down", help="stop a board and delete its files")
    stop.add_argument("name", help="name of a running board")
    actions.add_parser("list", help="list the running boards")
    enter = actions.add_parser("ssh", help="log in to a board, or run a command on it")
    enter.add_argument("name", help="name of a running board")
    enter.add_argument(
        "remote", nargs="*", metavar="COMMAND", help="command to run on the board, after `--`"
    )
    config = actions.add_parser("ssh-config", help="print a board's block for ~/.ssh/config")
    config.add_argument("name", help="name of a running board")
    copy = actions.add_parser("cp", help="copy files or folders to or from a board")
    copy.add_argument("name", help="name of a running board")
    copy.add_argument("source", help="a local path, or a path on the board, which begins with `:`")
    copy.add_argument("target", help="a local path, or a path on the board, which begins with `:`")
    for action in actions.choices.values():
        add_common(action)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Start, stop, list or enter a virtual board."""
    if args.action == "list":
        running = list_running()
        rows = [(vb.name, vb.kind, vb.suite, f"{vb.user}@{vb.host}:{vb.port}") for vb in running]
        console.data(
            [vb.to_dict() for vb in running], table(rows, ("NAME", "KIND", "SUITE", "ADDRESS"))
        )
        return 0
    if args.action == "down":
        if not down(args.name) and args.name not in load_boards(board_files(args)):
            raise NothingThereError(
                f"no virtual board is running under this name: {args.name}",
                hint="`edgepack board list` lists those that run",
            )
        console.data({"name": args.name, "running": False}, f"{args.name} is down")
        return 0
    if args.action in ("ssh", "ssh-config", "cp"):
        return _reach(args, console)
    board = get_board(args.name, board_files(args))
    vb = up(
        board,
        suite=args.suite,
        kind=args.kind,
        disk_mb=args.disk_mb,
        opencl=args.opencl,
        progress=console,
    )
    console.data(
        vb.to_dict(), f"{vb.name} is up ({vb.kind}, {vb.suite}): {vb.user}@{vb.host}:{vb.port}"
    )
    return 0


def _reach(args: argparse.Namespace, console: Console) -> int:
    """Log in to a board that runs, copy to it or from it, or say how."""
    found = [vb for vb in list_running() if vb.name == args.name]
    if not found:
        raise NothingThereError(
            f"no virtual board is running under this name: {args.name}",
            hint=f"edgepack board up {args.name}",
        )
    if args.action == "ssh-config":
        text = ssh_config(found[0])
        console.data({"name": args.name, "ssh_config": text}, text)
        return 0
    if args.action == "ssh":
        words = [*ssh_command(found[0]), *args.remote]
    elif args.source.startswith(":") == args.target.startswith(":"):
        raise UsageError(
            "one of both paths is the board's: it begins with `:`",
            hint=f"edgepack board cp {args.name} photo.jpg :photos/",
        )
    else:
        words = scp_command(found[0], args.source, args.target)
    return subprocess.run(words, check=False).returncode
