"""`edgepack boards`: the profiles."""

from __future__ import annotations

import argparse
from typing import Any

from edgepack.base.errors import ConfigError, perhaps
from edgepack.boards import Board, load_boards
from edgepack.cli.console import Console, table
from edgepack.cli.options import board_files
from edgepack.flow.doctor import cost_model


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("name", nargs="?", help="print the whole profile of this board")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print every board, or all of one."""
    boards = load_boards(board_files(args))
    if args.name is not None:
        if args.name not in boards:
            raise ConfigError(f"unknown board: {args.name}", hint=perhaps(args.name, boards))
        values = describe_board(boards[args.name])
        console.data(
            values, "\n".join(f"{key:<10} {_text(value)}".rstrip() for key, value in values.items())
        )
        return 0
    rows = [
        (
            *(board.name, board.cpu, cost_model(board) or "none", board.cores),
            *(board.triple, board.glibc or "none", board.title),
        )
        for board in boards.values()
    ]
    console.data(
        [describe_board(board) for board in boards.values()],
        table(rows, ("BOARD", "CPU", "COST MODEL", "CORES", "TRIPLE", "GLIBC", "")),
    )
    return 0


def describe_board(board: Board) -> dict[str, Any]:
    """The profile, and by whose figures its kernels are chosen; null: it has none of its own."""
    return {**board.to_dict(), "cost_model": cost_model(board)}


def _text(value: object) -> str:
    """A value of a profile for a person."""
    match value:
        case None:
            return "none"
        case dict():
            return ", ".join(f"{key} {_text(item)}" for key, item in value.items() if item != "")
        case list():
            separator = "; " if value and isinstance(value[0], dict) else " "
            return separator.join(_text(item) for item in value) or "none"
        case _:
            return str(value)
