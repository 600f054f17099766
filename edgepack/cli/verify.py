"""`edgepack verify`: whether a bundle is whole, whose, and how it was compared."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from edgepack.base.paths import write_atomic
from edgepack.cli.console import Console
from edgepack.cli.options import check_writable


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("bundle", type=Path, help="bundle: a folder or .tar.gz")
    parser.add_argument(
        "--signers",
        type=Path,
        metavar="FILE",
        help="a file of allowed signers as in ssh-keygen(1); one of them must have "
        "signed the bundle",
    )
    parser.add_argument(
        "--sbom",
        type=Path,
        metavar="FILE",
        help="write the bundle's components, with hashes and licences, to FILE "
        "(CycloneDX 1.6, JSON)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print what was found; whatever is wrong is an error."""
    from edgepack.bundle import sbom, signing

    if args.sbom is not None:
        check_writable(args.sbom.parent, "--sbom")
    verdict = signing.verify(args.bundle, args.signers)
    if args.sbom is not None:
        write_atomic(args.sbom, sbom.to_bytes(verdict.bundle))
    manifest = verdict.bundle.manifest
    if verdict.key is None:
        signer = "nobody: not signed"
    elif verdict.principal is None:
        signer = f"{verdict.key.fingerprint}, compared with no list (--signers)"
    else:
        signer = f"{verdict.principal}, {verdict.key.fingerprint}"
    compared = verdict.bundle.verified
    console.data(
        {
            "bundle": str(args.bundle),
            "release": manifest.release,
            "files": len(manifest.files),
            "bytes": manifest.total_bytes,
            "fingerprint": verdict.key.fingerprint if verdict.key else None,
            "principal": verdict.principal,
            "compared": asdict(compared) if compared else None,
        },
        f"bundle   {manifest.folder_name}\n"
        f"files    {len(manifest.files)}, all as the manifest says\n"
        f"signer   {signer}\n"
        f"compared {compared or 'not recorded'}",
    )
    return 0
