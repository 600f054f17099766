"""`edgepack bench`: how fast the deployed model is, on the device."""

from __future__ import annotations

import argparse
import re
import statistics
from dataclasses import asdict, replace
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.text import megabytes, milliseconds
from edgepack.cli.console import Console
from edgepack.cli.options import (
    MEASURING_S,
    add_device,
    add_release,
    open_release,
    runs,
    runs_or_none,
    threads,
)
from edgepack.cli.pages import add_html, check_html, save
from edgepack.cli.pages.bench import bench_page
from edgepack.cli.result_lines import (
    answer_lines,
    bench_lines,
    profile_lines,
    stage_time_lines,
)
from edgepack.deploy import remote_tool
from edgepack.deploy.ab_timing import AbTiming, time_in_turns
from edgepack.deploy.answers import Release, SenselessError
from edgepack.deploy.app_answers import emulated_mark
from edgepack.deploy.conditions import Conditions, read_conditions
from edgepack.deploy.processor_timing import PROCESSORS, ProcessorTiming, time_processors
from edgepack.deploy.remote_app import RunRequest, ask_app
from edgepack.deploy.stage_times import time_stages


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_release(parser)
    add_device(parser, timeout_s=MEASURING_S)
    parser.add_argument(
        "-n",
        "--runs",
        type=runs,
        default=20,
        metavar="N",
        help="number of timed runs (default: 20)",
    )
    parser.add_argument(
        "--warmup",
        type=runs_or_none,
        default=3,
        metavar="N",
        help="runs before them that are not timed (default: 3)",
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
    parser.add_argument(
        "--profile", action="store_true", help="also time each layer, in N extra runs"
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="time releases A and B on the device in turns, N runs of each in ten "
        "rounds, and print how much faster B is; with `cpu gpu` the current release on both "
        'processors, if it was deployed with --compute "gpu, else cpu"',
    )
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Run the golden input `--runs` times; of a release with stages, its photo through all, too."""
    check_html(args)
    more = ["--warmup", str(args.warmup)]
    for name in ("threads", "affinity"):
        if (value := getattr(args, name)) is not None:
            more += [f"--{name}", str(value)]
    if args.compare:
        return _compare(args, more, console)
    options = ["--bench", str(args.runs), *more]
    if args.profile:
        options.append("--profile")
    device, root = open_release(args, console)
    try:
        # First what only the page has: a link that is lost then costs no measurement.
        release = remote_tool.status(device, root).current if args.html else None
        photo = _photo_of(args, release)
        frame = ask_app(device, root, RunRequest(image=photo)) if photo else None
        console.step(f"{args.warmup} + {args.runs} runs on {device.name}")
        before = read_conditions(device)
        answer = ask_app(device, root, RunRequest(golden=True, options=tuple(options)))
        stages = time_stages(
            device, root, more, runs=args.runs, profile=args.profile, progress=console
        )
        after = read_conditions(device)
    finally:
        device.close()
    if answer.bench is None or (args.profile and answer.profile is None):
        raise SenselessError(f"{device.name}: edgepack-run measured nothing")
    lines = bench_lines(answer.bench) + answer_lines(replace(answer, top=()))
    if stages:
        lines += stage_time_lines(stages)
    lines += _conditions(before, after)
    if answer.profile:
        of_first = ["layers of the first model:"] if stages else []
        lines += ["", *of_first, *profile_lines(answer.profile)]
    title = f"{root} on {device.name}"
    made = bench_page(
        answer, title, release=release, conditions=(before, after), frame=frame, stages=stages
    )
    save(args, console, made)
    conditions = {"before": asdict(before), "after": asdict(after)}
    data = {**answer.to_dict(), "conditions": conditions}
    if stages:
        data["stage_times"] = stages.to_dict()
    console.data(data, "\n".join(lines))
    return 0


def _photo_of(args: argparse.Namespace, release: Release | None) -> Path | None:
    """The photo of the release's own project, for the page: the golden input needs no decoding."""
    from edgepack.flow.project import PROJECT_FILE, load_project

    # As in `open_release`: what names a release does not ask the folder that one is in.
    file = args.project or (None if args.name or args.root else Path(PROJECT_FILE))
    if release is None or file is None or not args.html:
        return None
    project = load_project(file)
    photo = project.golden_image
    is_its_own = project.name == release.name and project.preprocess is not None
    return photo if is_its_own and photo is not None and photo.is_file() else None


def _compare(args: argparse.Namespace, options: list[str], console: Console) -> int:
    if args.profile or args.html:
        raise UsageError("--compare goes with neither --profile nor --html")
    if sorted(args.compare) == list(PROCESSORS):
        return _compare_processors(args, options, console)
    for release in args.compare:
        if not re.fullmatch("[0-9a-f]{12}", release):
            raise UsageError(
                f"--compare: {release!r} is not 12 hex digits",
                hint="edgepack status --json lists the releases there",
            )
    if args.compare[0] == args.compare[1]:
        raise UsageError("--compare: that is one release twice")
    device, root = open_release(args, console)
    try:
        releases = (args.compare[0], args.compare[1])
        found = time_in_turns(device, root, releases, options, runs=args.runs, progress=console)
    finally:
        device.close()
    console.data(found.to_dict(), "\n".join(_duel_lines(found)))
    return 0


def _compare_processors(args: argparse.Namespace, options: list[str], console: Console) -> int:
    device, root = open_release(args, console)
    order = (args.compare[0], args.compare[1])
    try:
        found = time_processors(device, root, order, options, runs=args.runs, progress=console)
    finally:
        device.close()
    console.data(found.to_dict(), "\n".join(_processor_lines(found)))
    return 0


def _processor_lines(found: ProcessorTiming) -> list[str]:
    timing = found.timing
    mark = emulated_mark(timing.emulated)
    lines = []
    for name, times in ((timing.a, timing.a_ms), (timing.b, timing.b_ms)):
        use = found.uses[name]
        lines.append(
            f"{name.upper()}       {statistics.median(times):.2f} ms{mark}, load "
            f"{milliseconds(use.load_ms)}, first result after {milliseconds(use.first_ms)}; "
            f"memory peak {megabytes(use.rss_peak_bytes)}"
            + (f", and {megabytes(use.gpu_bytes)} of the GPU's" if use.gpu_bytes else "")
            + (f" ({found.gpu})" if name == "gpu" else "")
        )
    head = f"{timing.b} / {timing.a}".upper()
    return [*lines, f"{head} {_ratio(timing)}", *_conditions(timing.before, timing.after)]


def _ratio(found: AbTiming) -> str:
    rounds = f"{len(found.a_ms)} rounds in turns"
    return f"{found.ratio:.3f}, with 95 % confidence {found.low:.3f} to {found.high:.3f}, " + (
        rounds if found.told else f"{rounds}: no difference that can be told"
    )


def _duel_lines(found: AbTiming) -> list[str]:
    mark = emulated_mark(found.emulated)
    return [
        f"A         {found.a}: {statistics.median(found.a_ms):.2f} ms{mark}",
        f"B         {found.b}: {statistics.median(found.b_ms):.2f} ms{mark}",
        f"B / A     {_ratio(found)}",
        *_conditions(found.before, found.after),
    ]


def _conditions(before: Conditions, after: Conditions) -> list[str]:
    """Of the device, if it tells any."""
    if str(before) == str(after) == str(Conditions()):
        return []
    return [f"before    {before}", f"after     {after}"]
