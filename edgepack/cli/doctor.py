"""`edgepack doctor`: is everything here that a board needs?"""

from __future__ import annotations

import argparse

from edgepack.base.errors import ToolchainError
from edgepack.boards import get_board
from edgepack.cli.console import Console, table
from edgepack.cli.options import board_files
from edgepack.flow.doctor import check_board, find_missing


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--board", metavar="NAME", default="rasp3b", help="board profile (default: rasp3b)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print each tool with its version or the command that installs it."""
    board = get_board(args.board, board_files(args))
    checks = check_board(board)
    lost = find_missing(checks)
    rows = [
        (
            "ok" if check.version else "MISSING" if check.required else "not found",
            check.tool,
            check.version or check.install,
            check.purpose,
        )
        for check in checks
    ]
    console.data(
        {"board": board.name, "ok": not lost, "tools": [vars(check) for check in checks]},
        table(rows, ("", "TOOL", "VERSION OR HOW TO INSTALL", "FOR")),
    )
    return ToolchainError.exit_code if lost else 0
