"""`edgepack status`: what runs on a device."""

from __future__ import annotations

import argparse

from edgepack.cli.console import Console
from edgepack.cli.options import ASKING_S, add_device, add_release, ask_device
from edgepack.cli.report import status_lines


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser, timeout_s=ASKING_S)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Ask and print."""
    from edgepack.deploy import remote_tool

    answer, where = ask_device(args, console, remote_tool.status)
    console.data(answer.document, "\n".join(status_lines(answer, where)))
    return 0
