"""`edgepack run`: one image or input through what is deployed."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.cli.console import Console
from edgepack.cli.options import (
    MEASURING_S,
    add_device,
    add_release,
    check_writable,
    open_release,
    threads,
)
from edgepack.cli.pages import add_html, check_html, save
from edgepack.cli.pages.run import run_page
from edgepack.cli.result_lines import answer_lines
from edgepack.deploy.remote_app import TENSORS, RunRequest, ask_app


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser, timeout_s=MEASURING_S)
    parser.add_argument(
        "data",
        nargs="?",
        type=Path,
        metavar="PHOTO",
        help="a photo, or a .npy or .raw file for a model with one input",
    )
    parser.add_argument("--image", type=Path, metavar="FILE", help="a photo, like PHOTO")
    parser.add_argument(
        "--input",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="a .npy or .raw file for each input of the model, in its order",
    )
    parser.add_argument(
        "--golden",
        action="store_true",
        help="run the smoke test's input, and compare the result with the reference",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the output as .npy")
    parser.add_argument(
        "--expected", type=Path, metavar="FILE", help="compare the output with this .npy file"
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="T", help="tolerance of --expected and --golden"
    )
    parser.add_argument(
        "--top", type=int, metavar="K", help="number of classes to print (default: 5)"
    )
    parser.add_argument(
        "--threads",
        type=threads,
        metavar="N",
        help="number of threads (default: one per core of the fastest cluster)",
    )
    parser.add_argument(
        "--affinity",
        metavar="CPUS",
        help="cores to use: big, little, all, none or a list such as 0,2-3",
    )
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Upload, run, print."""
    if args.data is not None:
        if args.image is not None or args.input:
            raise UsageError(f"{args.data} goes with neither --image nor --input")
        if args.data.suffix.lower() in TENSORS:
            args.input = [args.data]
        else:
            args.image = args.data
    if sum((args.image is not None, bool(args.input), args.golden)) != 1:
        raise UsageError(
            "which input?", hint="edgepack run photo.jpg, or one of --image, --input and --golden"
        )
    check_html(args)
    if args.output is not None:
        check_writable(args.output.parent, "--output")
    options = [
        word
        for name in ("tolerance", "top", "threads", "affinity")
        if (value := getattr(args, name)) is not None
        for word in (f"--{name}", str(value))
    ]
    device, root = open_release(args, console)
    try:
        answer = ask_app(
            device,
            root,
            RunRequest(
                image=args.image,
                inputs=tuple(args.input),
                golden=args.golden,
                outputs=(args.output,) if args.output is not None else (),
                expected=args.expected,
                options=tuple(options),
            ),
        )
    finally:
        device.close()
    source = args.image or (args.input[0] if args.input else "smoke-test input")
    save(args, console, run_page(answer, f"{source} on {device.name}", args.image))
    lines = [f"{source} on {device.name}:", *answer_lines(answer)]
    console.data(answer.to_dict(), "\n".join(lines))
    return 0
