"""`edgepack keygen`: a key that signs bundles."""

from __future__ import annotations

import argparse
import getpass
import socket
from pathlib import Path

from edgepack.cli.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "key", type=Path, help="file for the private key; the public key goes to KEY.pub"
    )
    parser.add_argument(
        "--hardware", action="store_true", help="keep the private key in a FIDO2 token"
    )
    parser.add_argument(
        "--principal",
        metavar="NAME",
        help="name of the key's owner (default: user@host of this machine)",
    )
    parser.add_argument(
        "--signers",
        type=Path,
        metavar="FILE",
        help="also add the public key to this list of allowed signers",
    )
    parser.add_argument(
        "--no-passphrase",
        action="store_true",
        help="do not protect the key: anyone who has the file can sign (for CI)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Make the key and print what devices are to be told of it."""
    from edgepack.bundle import signing

    principal = args.principal or f"{getpass.getuser()}@{socket.gethostname()}"
    signing.check_principal(principal)
    if args.hardware:
        console.step("touch the key when it blinks")
    key = signing.make_key(
        args.key,
        hardware=args.hardware,
        comment=principal,
        passphrase=not args.no_passphrase,
    )
    line = key.allowed_signer(principal)
    if args.signers is not None:
        with args.signers.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    console.data(
        {
            "key": str(args.key),
            "public": f"{args.key}.pub",
            "fingerprint": key.fingerprint,
            "allowed_signer": line,
        },
        f"private  {args.key}\n"
        f"public   {args.key}.pub  {key.fingerprint}\n"
        f"signer   {line}\n"
        f"next     edgepack sign BUNDLE --key {args.key}",
    )
    return 0
