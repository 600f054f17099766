"""`edgepack rollback`: back to an earlier release."""

from __future__ import annotations

import argparse

from edgepack.cli.console import Console
from edgepack.cli.options import add_device, add_release, call_tool


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser)
    parser.add_argument("--to", metavar="ID", help="this release (default: the previous one)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Activate it, have it tested there, and say what is current now."""
    words = ["--to", args.to] if args.to else []
    answer, where = call_tool(args, console, "rollback", *words)
    console.data(answer, f"{where}: release {answer['release']} is current again")
    return 0
