"""What `deploy` and `fleet deploy` share: how bundles get to devices, and what those shall take."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.cli.options import TRANSFER, count, option_group, positive
from edgepack.deploy.options import DEFAULT_OPTIONS, DeployOptions
from edgepack.device.patience import parse_rate


def add_transfer(parser: argparse.ArgumentParser) -> None:
    """How the bundle gets there, and what the device shall take."""
    group = option_group(parser, TRANSFER)
    group.add_argument(
        "--keep",
        type=positive,
        default=DEFAULT_OPTIONS.keep,
        metavar="N",
        help=f"number of releases to keep on the device (default: {DEFAULT_OPTIONS.keep})",
    )
    group.add_argument(
        "--signers",
        type=Path,
        metavar="FILE",
        help="signers to pin on a device that has none yet: a file of allowed signers as "
        "in ssh-keygen(1)",
    )
    group.add_argument(
        "--allow-downgrade",
        action="store_true",
        help="accept a lower version than the device's highest, although it has pinned signers",
    )
    group.add_argument(
        "--replace",
        action="store_true",
        help="replace a different model under the same name",
    )
    group.add_argument(
        "--limit-rate",
        type=rate,
        metavar="BYTES",
        help="limit of the transfer in bytes per second, for example 200k or 1M",
    )
    group.add_argument(
        "--retries",
        type=count,
        default=DEFAULT_OPTIONS.retries,
        metavar="N",
        help="attempts to restore a lost link without progress (default: "
        f"{DEFAULT_OPTIONS.retries})",
    )
    group.add_argument(
        "--wait",
        type=count,
        default=int(DEFAULT_OPTIONS.wait_s),
        metavar="S",
        help="seconds to wait for another deploy to the same folder "
        f"(default: {DEFAULT_OPTIONS.wait_s:.0f})",
    )
    parser.add_argument(
        "--service",
        action="store_true",
        help="then run the release now and at each boot, as the project's [service] "
        "table says: see `edgepack service install`",
    )


def rate(text: str) -> float:
    """The type of --limit-rate."""
    value = parse_rate(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate such as 200k or 1.5M")
    return value


def deploy_options(args: argparse.Namespace) -> DeployOptions:
    """What `add_transfer`'s options say; raises UsageError for a file that is not there."""
    if args.signers is not None and not args.signers.is_file():
        raise UsageError(f"--signers: no such file: {args.signers}")
    return DeployOptions(
        keep=args.keep,
        wait_s=args.wait,
        retries=args.retries,
        answer_s=args.device_timeout,
        limit_bytes_s=args.limit_rate,
        allow_downgrade=args.allow_downgrade,
        new_version=getattr(args, "sign", None) is not None,
        replace_model=args.replace,
        signers=args.signers,
    )


def refuse_job(args: argparse.Namespace) -> None:
    """Raise UsageError for options that make a bundle, beside --bundle."""
    if args.model is not None or args.project is not None:
        raise UsageError("--bundle goes without a model and without --project")
    made_with = (
        "name",
        "toolchain",
        "static",
        "optimize",
        "precision",
        "quantized",
        "compute",
        "shape",
        "set",
        "state",
        "release_version",
        "valid_until",
        "verify",
        "compile_memory_mb",
        "compile_cpu_s",
    )
    if any(getattr(args, name) not in (None, []) for name in made_with):
        raise UsageError(
            "--bundle goes without --name, --toolchain, --static, --optimize, --precision, "
            "--quantized, --compute, --shape, --set, --state, --release-version, --valid-until, "
            "--verify and "
            "--compile-...: it is made"
        )
    if args.sign is not None:
        raise UsageError("--bundle goes without --sign", hint="edgepack sign BUNDLE --key KEY")
