"""`edgepack trial`: how a release on trial does, and an end to it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.errors import UsageError
from edgepack.base.text import format_count
from edgepack.cli.console import Console
from edgepack.cli.options import TESTING_S, add_device, add_release, ask_device

if TYPE_CHECKING:
    from edgepack.deploy.trial import TrialStatus
    from edgepack.device import Device


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "action",
        choices=("status", "stop", "activate", "resume"),
        help="print how it goes; end it without a decision; end it and activate the release; or "
        "continue it after a reboot",
    )
    parser.add_argument(
        "--pictures",
        type=Path,
        metavar="DIR",
        help="with `status`: also copy the pictures that --keep-disagreements kept, and both "
        "answers to each, to this folder",
    )
    add_release(parser)
    add_device(parser, timeout_s=TESTING_S)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Do it, and print the trial."""
    from edgepack.deploy import remote_tool
    from edgepack.deploy.remote_pictures import fetch_pictures

    if args.pictures is not None and args.action != "status":
        raise UsageError("--pictures goes with `trial status`")

    def ask(device: Device, root: str) -> TrialStatus:
        answer = remote_tool.trial(device, root, args.action)
        if args.pictures is not None:
            pictures = fetch_pictures(device, root, answer, args.pictures)
            console.note(f"{format_count(len(pictures), 'picture')}: {args.pictures}")
        return answer

    answer, _ = ask_device(args, console, ask)
    console.data(answer.document, "\n".join(answer.lines()))
    return 0
