"""`edgepack bench`: how fast the deployed model is, on the device."""

from __future__ import annotations

import argparse
from dataclasses import replace

from edgepack.cli.console import Console
from edgepack.cli.options import add_device, add_release, open_release, positive
from edgepack.cli.pages import add_html, bench_page, check_html, save
from edgepack.cli.report import answer_lines, bench_lines, profile_lines
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.remote_app import RunRequest, ask_app


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser, timeout_s=None)
    parser.add_argument("-n", "--runs", type=positive, default=20, metavar="N", help="default: 20")
    parser.add_argument("--warmup", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--threads", type=int, metavar="N", help="default: the fastest cluster")
    parser.add_argument(
        "--affinity", metavar="CPUS", help="big, little, all, none or a list such as 0,2-3"
    )
    parser.add_argument(
        "--profile", action="store_true", help="time each layer too, in N runs of their own"
    )
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Run the golden input `--runs` times."""
    check_html(args)
    options = ["--bench", str(args.runs), "--warmup", str(args.warmup)]
    for name in ("threads", "affinity"):
        if (value := getattr(args, name)) is not None:
            options += [f"--{name}", str(value)]
    if args.profile:
        options.append("--profile")
    device, root = open_release(args, console)
    try:
        console.step(f"{args.warmup} + {args.runs} runs on {device.name}")
        answer = ask_app(device, root, RunRequest(golden=True, options=tuple(options)))
    finally:
        device.close()
    if answer.bench is None or (args.profile and answer.profile is None):
        raise SenselessError(f"{device.name}: edgepack-run measured nothing")
    lines = bench_lines(answer.bench) + answer_lines(replace(answer, top=()))
    if answer.profile:
        lines += ["", *profile_lines(answer.profile)]
    save(args, console, bench_page(answer, f"{root} on {device.name}"))
    console.data(answer.document, "\n".join(lines))
    return 0
