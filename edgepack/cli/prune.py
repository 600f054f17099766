"""`edgepack prune`: room on a device."""

from __future__ import annotations

import argparse
from functools import partial

from edgepack.cli.console import Console
from edgepack.cli.options import add_device, add_release, ask_device, positive
from edgepack.deploy.options import KEEP_RELEASES


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser)
    parser.add_argument(
        "--keep",
        type=positive,
        default=KEEP_RELEASES,
        metavar="N",
        help=f"number of releases to keep (default: {KEEP_RELEASES}); current and "
        "previous are always kept",
    )
    parser.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="print what would be removed, and remove nothing",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Remove, and say what went."""
    from edgepack.deploy import remote_tool

    ask = partial(remote_tool.prune, keep=args.keep, dry_run=args.dry_run)
    answer, where = ask_device(args, console, ask)
    verb = "would remove" if args.dry_run else "removed"
    console.data(answer.document, f"{where}: {verb} {', '.join(answer.removed) or 'nothing'}")
    return 0
