"""`edgepack prune`: room on a device."""

from __future__ import annotations

import argparse
from functools import partial

from edgepack.cli.console import Console
from edgepack.cli.options import add_device, add_release, ask_device, positive
from edgepack.deploy.deploy import KEEP_RELEASES


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser)
    parser.add_argument(
        "--keep",
        type=positive,
        default=KEEP_RELEASES,
        metavar="N",
        help=f"releases that stay (default: {KEEP_RELEASES}); current and previous always do",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Remove, and say what went."""
    from edgepack.deploy import remote_tool

    answer, where = ask_device(args, console, partial(remote_tool.prune, keep=args.keep))
    console.data(answer.document, f"{where}: removed {', '.join(answer.removed) or 'nothing'}")
    return 0
