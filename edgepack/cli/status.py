"""`edgepack status`: what runs on a device."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import asdict

from edgepack.base.errors import NothingThereError
from edgepack.cli.console import Console
from edgepack.cli.options import ASKING_S, add_device, add_release, open_release
from edgepack.cli.result_lines import status_lines


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser, timeout_s=ASKING_S)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Ask and print."""
    from edgepack.deploy import remote_tool
    from edgepack.device.base import is_emulated

    device, root = open_release(args, console)
    with contextlib.closing(device):
        answer = remote_tool.status_with_source(device, root)
    where = f"{root} on {device.name}"
    lines = status_lines(answer, where, emulated=is_emulated(device), source=answer.source)
    document = {**answer.document, "source": asdict(answer.source) if answer.source else None}
    console.data(document, "\n".join(lines))
    return 0 if answer.current else NothingThereError.exit_code
