"""`edgepack package`: a bundle as a folder, and as what the device's update system takes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from edgepack import formats
from edgepack.base.errors import UsageError
from edgepack.base.text import megabytes
from edgepack.cli.console import Console
from edgepack.cli.options import (
    add_job,
    add_release_version,
    add_sign,
    check_writable,
    of_memory,
    project_of,
)


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_job(parser)
    add_release_version(parser)
    add_sign(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("dist"),
        metavar="DIR",
        help="output folder (default: dist)",
    )
    parser.add_argument(
        "--format",
        choices=tuple(formats.FORMATS),
        default="tar",
        help="format of the file to install (default: tar)",
    )
    parser.add_argument(
        "--pem-key", type=Path, metavar="FILE", help="private key that signs for mender or rauc"
    )
    parser.add_argument(
        "--pem-cert", type=Path, metavar="FILE", help="certificate of that key, for rauc"
    )
    parser.add_argument(
        "--compatible",
        metavar="NAME",
        help="device type for mender, or compatible string for rauc (default: the board's name)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the bundle's folder and the file in the chosen format."""
    from edgepack.bundle.signing import check_version, note_version, sign_folder
    from edgepack.flow.job import board_of, make_job, package_job

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "0")
    if not epoch.isdecimal():
        raise UsageError(f"SOURCE_DATE_EPOCH: not a number of seconds: {epoch!r}")
    check_writable(args.out, "--out")
    options = formats.Options(
        epoch=int(epoch), key=args.pem_key, cert=args.pem_cert, compatible=args.compatible
    )
    formats.check(args.format, options)
    project = project_of(args)
    formats.check_board(args.format, board_of(project))
    job = make_job(project)
    bundle = package_job(job, args.out, progress=console)
    if args.sign is not None:
        check_version(bundle, args.sign)
        sign_folder(bundle, args.sign)
        note_version(bundle, args.sign)
    package = formats.write_package(args.format, bundle, job.board, args.out, options)
    model = bundle.manifest.model
    console.data(
        {
            "bundle": str(bundle.path),
            "format": package.format,
            "package": str(package.path),
            "package_sha256": package.sha256,
            "package_bytes": package.size_bytes,
            "release": bundle.manifest.release,
            "board": job.board.name,
            "arena_bytes": model.arena_bytes,
            "params_bytes": model.params_bytes,
        },
        f"bundle   {bundle.path}\n"
        f"{package.format:<8} {package.path} "
        f"({megabytes(package.size_bytes)}, sha256 {package.sha256})\n"
        f"memory   weights {megabytes(model.params_bytes)}, "
        f"activations {megabytes(model.arena_bytes)}"
        f"{of_memory(job.board, model.params_bytes + model.arena_bytes)}\n"
        f"next     {package.use}",
    )
    return 0
