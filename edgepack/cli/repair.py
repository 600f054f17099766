"""`edgepack repair`: what a rotten card damaged on a device is brought back, or named."""

from __future__ import annotations

import argparse

from edgepack.base.errors import BundleError
from edgepack.cli.console import Console
from edgepack.cli.options import TESTING_S, add_device, add_release, ask_device


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser, timeout_s=TESTING_S)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Have the device mend its releases; 5 if something is lost that only a command brings back."""
    from edgepack.deploy.repair import repair

    answer, where = ask_device(
        args, console, lambda device, root: repair(device, root, progress=console)
    )
    lines = [f"mended: {line}" for line in answer.mended]
    lines += [f"lost: {line}" for line in answer.lost]
    console.data(answer.document, "\n".join([f"{where}:", *(lines or ["all is whole"])]))
    return BundleError.exit_code if answer.lost else 0
