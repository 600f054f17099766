"""`edgepack board`: virtual boards."""

from __future__ import annotations

import argparse
import subprocess

from edgepack.boards import get_board
from edgepack.cli.console import Console, table
from edgepack.cli.options import board_files
from edgepack.errors import UsageError
from edgepack.virtual import down, list_running, ssh_command, up


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command and its four actions."""
    parser = commands.add_parser("board", help="virtual boards: up, down, list, ssh")
    parser.add_argument("action", choices=("up", "down", "list", "ssh"))
    parser.add_argument("name", nargs="?", help="board profile (up), or running board")
    parser.add_argument(
        "remote", nargs=argparse.REMAINDER, metavar="COMMAND", help="for ssh: run this command"
    )
    parser.add_argument("--suite", help="Debian release of its root file system (up)")
    parser.add_argument(
        "--kind",
        choices=("auto", "light", "system"),
        default="auto",
        help="light: namespaces and user-mode emulation; system: a whole emulated machine",
    )
    parser.add_argument("--disk-mb", type=int, help="size of its disk (up)")
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
    if args.name is None:
        raise UsageError(f"board {args.action} needs a name", hint="see `edgepack boards`")
    if args.action == "down":
        down(args.name)
        console.data({"name": args.name, "running": False}, f"{args.name} is down")
        return 0
    if args.action == "ssh":
        found = [vb for vb in list_running() if vb.name == args.name]
        if not found:
            raise UsageError(
                f"no virtual board is running under this name: {args.name}",
                hint=f"edgepack board up {args.name}",
            )
        remote = args.remote[1:] if args.remote[:1] == ["--"] else args.remote
        return subprocess.run([*ssh_command(found[0]), *remote], check=False).returncode
    board = get_board(args.name, board_files(args))
    vb = up(board, suite=args.suite, kind=args.kind, disk_mb=args.disk_mb, progress=console)
    console.data(
        vb.to_dict(), f"{vb.name} is up ({vb.kind}, {vb.suite}): {vb.user}@{vb.host}:{vb.port}"
    )
    return 0
