"""`edgepack deploy`: from a model, or a bundle made before, to a tested release on a device."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.cli.console import Console
from edgepack.cli.options import (
    COMPILING,
    DEVICE,
    MODEL,
    RELEASE,
    TRANSFER,
    add_device,
    add_job,
    add_release_version,
    add_sign,
    option_group,
)
from edgepack.cli.pages import add_html
from edgepack.cli.transfer import add_transfer
from edgepack.cli.trial_options import add_trial


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options, the common ones first."""
    for title in (MODEL, DEVICE, TRANSFER, RELEASE, COMPILING):
        option_group(parser, title)
    add_job(parser)
    add_release_version(parser)
    add_sign(parser)
    add_device(parser)
    parser.add_argument(
        "--bundle",
        type=Path,
        metavar="PATH",
        help="deploy this bundle, a folder or tarball, instead of a model",
    )
    parser.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="read the device's state and print the plan; build nothing and change "
        "nothing on the device",
    )
    add_transfer(parser)
    add_trial(parser)
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Deploy and print what was done and what the smoke test gave."""
    from edgepack.cli.deploy_run import run_deploy

    return run_deploy(args, console)
