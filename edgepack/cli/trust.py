"""`edgepack trust`: whose bundles a device takes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.tables import read_text
from edgepack.cli.console import Console
from edgepack.cli.options import LOCKING_S, add_device, add_release, open_release


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("action", choices=("show", "set"))
    add_signers(parser, nargs="?")
    add_release(parser)
    add_device(parser, timeout_s=LOCKING_S)
    parser.set_defaults(run=run)


def add_signers(parser: argparse.ArgumentParser, *, nargs: str | None = None) -> None:
    """The list to replace a device's with."""
    parser.add_argument(
        "signers",
        nargs=nargs,
        type=Path,
        metavar="FILE",
        help="the new list, which replaces the old one: a file of allowed signers as in "
        "ssh-keygen(1)",
    )


def read_signers(path: Path) -> bytes:
    """The list in `path`; the device says whether it is one. Raises UsageError."""
    return read_text(path, error=UsageError).encode()


def run(args: argparse.Namespace, console: Console) -> int:
    """Show or replace the list."""
    from edgepack.deploy import remote_tool

    if (args.action == "set") != (args.signers is not None):
        raise UsageError("trust takes `show`, or `set` and a file")
    signers = read_signers(args.signers) if args.signers is not None else None
    device, root = open_release(args, console)
    try:
        if signers is None:
            answer = remote_tool.trust(device, root)
            text = answer.list or "no signers are pinned: unsigned bundles are taken"
        else:
            before = remote_tool.trust(device, root).signers
            answer = remote_tool.set_signers(device, root, signers)
            text = "\n".join(_changes(f"{root} on {device.name}", before, answer.signers))
    finally:
        device.close()
    console.data(answer.document, text.rstrip("\n"))
    return 0


def _changes(where: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    marks = {name: "    " if name in before else "new " for name in after}
    marks |= {name: "gone" for name in before if name not in after}
    return [f"{where} takes bundles of", *(f"{mark} {name}" for name, mark in marks.items())]
