"""`edgepack sign`: a signature over a bundle."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.cli.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("bundle", type=Path, help="bundle: a folder or .tar.gz")
    parser.add_argument(
        "--key",
        type=Path,
        required=True,
        help="private key (a file, or the stub of a hardware key), or the .pub file of a "
        "key in ssh-agent",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep the signatures of other keys, for devices that require several",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Sign the bundle."""
    from edgepack.bundle import signing

    verdict = signing.sign(args.bundle, args.key, add=args.add, check=True)
    assert verdict.key is not None
    manifest = verdict.bundle.manifest
    console.data(
        {
            "bundle": str(args.bundle),
            "release": manifest.release,
            "fingerprint": verdict.key.fingerprint,
        },
        f"signed   {manifest.folder_name} by {verdict.key.fingerprint}",
    )
    return 0
