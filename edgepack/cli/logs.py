"""`edgepack logs`: what a service on a device says."""

from __future__ import annotations

import argparse

from edgepack.cli.console import Console
from edgepack.cli.options import ASKING_S, add_device, add_release, open_release, positive

LINES = 50


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser, timeout_s=ASKING_S)
    parser.add_argument(
        "-n",
        "--lines",
        type=positive,
        default=LINES,
        metavar="N",
        help=f"number of lines to print, from the end (default: {LINES})",
    )
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="also print new lines, until Ctrl-C; with --json each line is a JSON object",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the last lines, and with --follow those that come."""
    from edgepack.deploy import remote_service

    device, root = open_release(args, console)
    try:
        with remote_service.log_of(device, root, count=args.lines, follow=args.follow) as log:
            if args.follow or not console.as_json:
                console.lines(log.lines, key="line")
            else:
                console.data(
                    {"service": log.service, "kind": log.kind, "lines": list(log.lines)}, ""
                )
    finally:
        device.close()
    return 0
