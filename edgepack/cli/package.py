"""`edgepack package`: a bundle, as a folder and as a tarball for devices without a network."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from edgepack.bundle import write_tarball
from edgepack.cli.console import Console, megabytes
from edgepack.cli.options import add_job, check_writable, project_of
from edgepack.errors import UsageError
from edgepack.job import make_job, package_job


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser("package", help="make a bundle and its tarball")
    add_job(parser)
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("dist"), metavar="DIR", help="default: dist"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the bundle's folder and the same as a tarball."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not epoch.isdecimal():
        raise UsageError(f"SOURCE_DATE_EPOCH: not a number of seconds: {epoch!r}")
    check_writable(args.out, "--out")
    job = make_job(project_of(args))
    bundle = package_job(job, args.out, progress=console)
    tarball = args.out / f"{bundle.path.name}.tar.gz"
    digest = write_tarball(bundle, tarball, mtime=int(epoch))
    model = bundle.manifest.model
    console.data(
        {
            "bundle": str(bundle.path),
            "tarball": str(tarball),
            "tarball_sha256": digest,
            "tarball_bytes": tarball.stat().st_size,
            "release": bundle.manifest.release,
            "board": job.board.name,
            "arena_bytes": model.arena_bytes,
            "params_bytes": model.params_bytes,
        },
        f"bundle   {bundle.path}\n"
        f"tarball  {tarball} ({megabytes(tarball.stat().st_size)}, sha256 {digest})\n"
        f"memory   weights {megabytes(model.params_bytes)}, arena {megabytes(model.arena_bytes)}\n"
        f"on the board: tar xf {tarball.name} && {bundle.path.name}/bin/edgepack-run --golden",
    )
    return 0
