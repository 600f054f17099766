"""`edgepack deploy`: from a model, or a bundle made before, to a tested release on a device."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.boards import get_board
from edgepack.bundle import Bundle, open_bundle
from edgepack.cli.console import Console
from edgepack.cli.options import (
    add_device,
    add_job,
    board_files,
    default_root,
    positive,
    project_of,
    ssh_options,
)
from edgepack.cli.report import deploy_lines
from edgepack.deploy import KEEP_RELEASES, deploy_bundle, preview
from edgepack.device import open_device
from edgepack.errors import UsageError
from edgepack.gate import check_bundle
from edgepack.job import make_job, package_job
from edgepack.paths import cache_dir


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "deploy", help="compile, package, upload, activate and test: the main command"
    )
    add_job(parser)
    add_device(parser)
    parser.add_argument(
        "--bundle", type=Path, metavar="PATH", help="deploy this folder or tarball instead"
    )
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="print the plan; nothing is written there"
    )
    parser.add_argument(
        "--keep",
        type=positive,
        default=KEEP_RELEASES,
        metavar="N",
        help=f"releases that stay on the device (default: {KEEP_RELEASES})",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Deploy and print what was done and what the smoke test gave."""
    if args.bundle is not None:
        if args.model is not None or args.project is not None:
            raise UsageError("--bundle goes without a model and without --project")
        if args.name is not None or args.toolchain is not None or args.shape:
            raise UsageError("--bundle goes without --name, --toolchain and --shape: it is made")
        if args.device is None:
            raise UsageError("no device given", hint="add --device user@address")
        bundle = open_bundle(args.bundle)
        board = get_board(args.board or bundle.manifest.board, board_files(args))
        check_bundle(bundle, board)
        spec: str = args.device
        root = args.root or default_root(bundle.manifest.name)
    else:
        project = project_of(args)
        spec = project.need_device()
        job = make_job(project)
        board = job.board
        root = project.root or default_root(project.name)
        bundle = package_job(job, cache_dir() / "made" / board.name, progress=console)
    device = open_device(spec, board, options=ssh_options(args), progress=console)
    try:
        if args.dry_run:
            steps = preview(bundle, device, root, keep=args.keep)
            console.data(steps.to_dict(), _plan_text(bundle, device.name, steps.lines()))
            return 0
        report = deploy_bundle(bundle, device, root, keep=args.keep, progress=console)
    finally:
        device.close()
    console.data(report.to_dict(), "\n".join(deploy_lines(report, bundle.manifest.name)))
    return 0


def _plan_text(bundle: Bundle, device: str, lines: list[str]) -> str:
    head = f"{bundle.manifest.name}, release {bundle.manifest.release}, to {device}:"
    return "\n".join([head, *lines] if lines else [head, "nothing to do"])
