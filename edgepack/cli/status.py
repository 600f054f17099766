"""`edgepack status`: what runs on a device."""

from __future__ import annotations

import argparse

from edgepack.cli.console import Console
from edgepack.cli.options import add_device, add_release, call_tool
from edgepack.cli.report import status_lines


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Ask and print."""
    answer, where = call_tool(args, console, "status")
    console.data(answer, "\n".join(status_lines(answer, where)))
    return 0
