"""`edgepack trial`: how a release on trial does, and an end to it."""

from __future__ import annotations

import argparse
from functools import partial

from edgepack.cli.console import Console
from edgepack.cli.options import TESTING_S, add_device, add_release, ask_device


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "action",
        choices=("status", "stop", "activate", "resume"),
        help="print how it goes; end it without a decision; end it and activate the release; or "
        "continue it after a reboot",
    )
    add_release(parser)
    add_device(parser, timeout_s=TESTING_S)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Do it, and print the trial."""
    from edgepack.deploy import remote_tool

    answer, _ = ask_device(args, console, partial(remote_tool.trial, action=args.action))
    console.data(answer.document, "\n".join(answer.lines()))
    return 0
