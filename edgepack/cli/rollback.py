"""`edgepack rollback`: back to an earlier release."""

from __future__ import annotations

import argparse
from functools import partial

from edgepack.cli.console import Console
from edgepack.cli.options import TESTING_S, add_device, add_release, ask_device


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser, timeout_s=TESTING_S)
    parser.add_argument(
        "--to", metavar="ID", help="release to activate (default: the previous one)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Activate it, have it tested there, and say what is current now."""
    from edgepack.deploy import remote_tool

    answer, where = ask_device(args, console, partial(remote_tool.rollback, to=args.to))
    console.data(answer.document, f"{where}: release {answer.release} is current again")
    return 0
