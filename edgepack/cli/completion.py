"""`edgepack completion`: what a shell needs to complete this command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from edgepack.boards import load_boards
from edgepack.cli.console import Console
from edgepack.cli.options import board_files

SHELLS = ("bash", "fish", "zsh")


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("shell", choices=SHELLS)
    parser.epilog = "For zsh, save the output in a folder of $fpath."
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the script."""
    script = script_for(args.shell, list(load_boards(board_files(args))))
    console.data({"shell": args.shell, "script": script}, script)
    return 0


def script_for(shell: str, boards: list[str]) -> str:
    """The script for `shell`, made from the parser; options that name a board know `boards`."""
    import shtab

    from edgepack.cli import make_parser

    parser = make_parser()
    for command, action in _actions(parser, "edgepack"):
        if action.dest == "board" or (action.dest == "name" and command == "edgepack board up"):
            action.choices = boards
        elif action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell)
    return script


def _actions(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.Action]]:
    """All options and arguments, each with the command that takes it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield from _actions(command, f"{name} {word}")
        else:
            yield name, action
