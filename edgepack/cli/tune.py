"""`edgepack tune`: find faster kernels for a model, on the device."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.base.errors import UsageError
from edgepack.cli.console import Console, table
from edgepack.cli.options import (
    MEASURING_S,
    add_device,
    add_job,
    check_writable,
    positive,
    project_file,
    project_of,
    ssh_options,
)
from edgepack.cli.pages import add_html, check_html, save
from edgepack.cli.pages.tune import tune_page
from edgepack.deploy.app_answers import emulated_mark

if TYPE_CHECKING:
    from edgepack.flow.job import Job
    from edgepack.tuning.session import Tuned


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_job(parser)
    add_device(parser, timeout_s=MEASURING_S)
    parser.add_argument(
        "--minutes",
        type=positive,
        default=10,
        metavar="N",
        help="time limit in minutes (default: 10)",
    )
    parser.add_argument(
        "--trials", type=positive, metavar="N", help="maximum number of trials (default: no limit)"
    )
    parser.add_argument(
        "--emulated",
        action="store_true",
        help="for a virtual board: compare kernels by the emulator's time instead of "
        "estimated cycles. This only demonstrates tuning; the records suit no real "
        "CPU",
    )
    parser.add_argument(
        "--fit",
        nargs="+",
        type=Path,
        default=[],
        metavar="OTHER",
        help="do not tune: fit the CPU model's parameters to the records of the OTHER "
        "models' kernels, and print whether they rank MODEL's kernels better than "
        "the present parameters",
    )
    parser.add_argument(
        "--stage",
        metavar="NAME",
        help="tune only the model of this [[stage]], on its part of the smoke-test photo, or the "
        "first model by the project's name (default: all, which share the minutes)",
    )
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Try, write down what was found, and print what it is worth."""
    from edgepack.flow.job import make_job, stage_job
    from edgepack.flow.stages import chosen_models

    check_html(args)
    given = args.records
    own, read = _files(args)
    args.records = [path for path in read if path.exists()]
    project = project_of(args)
    if args.fit:
        if args.html or args.stage is not None:
            raise UsageError("--fit goes with neither --html nor --stage")
        return _fit(args, make_job(project), console)
    check_writable(own.parent, "--records")
    job = make_job(project)
    models = chosen_models(project, args.stage, html=args.html)
    said_of = []
    for name, stage in models:
        called = name if stage is None else f"{project.name}, stage '{name}'"
        with nullcontext(job) if stage is None else stage_job(job, stage) as one:
            values, lines = _tune(args, one, own, called, len(models), console)
        if values["kernels"] and given is None and project_file(args) is None:
            lines += ["", f"to use it: edgepack compile|package|deploy ... --records {own}"]
        said_of.append((name, values, "\n".join(lines)))
        if own not in args.records and own.exists():
            args.records.append(own)
    console.models(said_of)
    return 0


def _tune(
    args: argparse.Namespace, job: Job, own: Path, name: str, of: int, console: Console
) -> tuple[dict[str, Any], list[str]]:
    """Tune the job's model, one `of` so many, into the records `own`: the result for --json, and as
    lines."""
    from edgepack.tuning.run import is_estimated, tune_job

    estimated = is_estimated(job, emulated=args.emulated)
    try:
        found = tune_job(
            job,
            own,
            read=args.records,
            minutes=args.minutes / of,
            trials=args.trials,
            emulated=args.emulated,
            ssh=ssh_options(args),
            progress=console,
        )
    except KeyboardInterrupt:
        console.note(f"the measurements are in {own}: the same command continues from there")
        raise
    # What is not estimated of a virtual board took the emulator that long.
    emulated = args.emulated and is_estimated(job, emulated=False)
    lines = _lines(found, own, job, name, estimated=estimated, emulated=emulated)
    title = f"{name} for {job.board.name}, tuned"
    made = tune_page(found, own, title, estimated=estimated, mark=emulated_mark(emulated))
    save(args, console, made)
    return {"records": str(own), **found.to_dict()}, lines


def _fit(args: argparse.Namespace, job: Job, console: Console) -> int:
    """Print figures beside those in use, and what they are worth."""
    from edgepack.compiler import cpu_key
    from edgepack.compiler.limited import limits_for, within
    from edgepack.compiler.variants import survey_with_figures
    from edgepack.flow.job import settings_of
    from edgepack.flow.records import RecordsError, read_records, trials_of
    from edgepack.kernels.choices import maker
    from edgepack.model import ModelSpec, read_model
    from edgepack.tuning.fit import Surveyor, fit

    def surveyor(spec: ModelSpec) -> Surveyor:
        limits = limits_for(read_model(spec))
        return lambda figures: within(
            spec.path,
            limits.scaled(cpu=1 + len(figures) // 4),
            survey_with_figures,
            spec,
            job.board,
            [dict(some) for some in figures],
            settings=settings_of(job),
            progress=console,
        )

    if job.model.path in args.fit:
        raise UsageError(f"--fit: {job.model.path} is the model to judge by", hint="name others")
    cpu = cpu_key(job.board)
    trials = trials_of(read_records(args.records), cpu=cpu, compiler=maker())
    if not trials:
        raise RecordsError(
            f"no records of this CPU and compiler: {cpu}",
            hint="tune the models first, into the files of --records",
        )
    others = [ModelSpec(path=path) for path in args.fit]
    found = fit(trials, [surveyor(spec) for spec in others], surveyor(job.spec))
    rows = [
        (name, f"{value:.3g}", f"{found.fitted[name]:.3g}") for name, value in found.in_use.items()
    ]
    said = "proposed" if found.is_proposed else "not proposed: no better than before"
    lines = [
        table(rows, ("FIGURE", "IN USE", "FITTED")),
        "",
        f"fitted to {found.fitted_before.pairs} pairs of ways: in the order measured "
        f"{found.fitted_before.share:.1%} of them before, {found.fitted_after.share:.1%} after",
        f"{job.project.name}, not fitted, {found.before.pairs} pairs: {found.before.share:.1%} "
        f"before, {found.after.share:.1%} after; {said}",
    ]
    console.data({"cpu": cpu, "model": job.project.name, **found.to_dict()}, "\n".join(lines))
    return 0


def _files(args: argparse.Namespace) -> tuple[Path, list[Path]]:
    """The file that is written, and those that are read: of several the first is written."""
    from edgepack.flow.project import read_record_files
    from edgepack.flow.records import RECORDS_FILE

    if args.records is not None:
        if not args.records:
            raise UsageError("--no-records: the results have to be written somewhere")
        return args.records[0], args.records
    project = project_file(args)
    read = list(read_record_files(project)) if project is not None else []
    default = (project.parent if project is not None else Path()) / RECORDS_FILE
    own = read[0] if read else default
    return own, read or [own]


def _lines(
    found: Tuned, own: Path, job: Job, name: str, *, estimated: bool, emulated: bool = False
) -> list[str]:
    whole = found.confirmation
    mark = emulated_mark(emulated)
    lines = [
        f"{found.trials} trials, {found.known} known before"
        + (f", {found.left} left for another time" if found.left else "")
        + f": {own}"
    ]
    if found.wrong:
        lines.append(
            f"{found.wrong} of them in variants whose outputs are not the reference's: please "
            "report it with the model"
        )
    if estimated:
        lines.append(
            f"times are estimated cycles of one {job.board.cpu}; from and to are "
            "what they come to by all assumptions"
        )
    elif found.noise is not None:
        lines.append(
            f"equal runs differed by {found.noise:.1%}"
            + (": the device is too noisy to tell small gains" if found.is_noisy else "")
            + (f"; {found.repeated} blocks were repeated" if found.repeated else "")
        )
    if found.conditions and not estimated:
        before, *_, after = found.conditions
        lines += [f"before    {before}", f"after     {after}"]
    if whole is None:
        lines.append(f"{name}: no kernel was found that is faster by more than the noise")
        return lines
    lines.append(
        f"{name}: {whole.default_ms:.2f} ms{mark} untuned, {whole.ms:.2f} ms{mark} tuned: "
        f"{whole.ratio:.3f}, "
        + ("from " if estimated else "with 95 % confidence ")
        + f"{whole.low:.3f} to {whole.high:.3f}"
        + ("" if whole.kept else "; nothing is kept")
    )
    rows = [
        (
            str(trial.choice),
            f"{trial.default_ms:.3f}",
            f"{trial.ms:.3f}",
            f"{trial.ratio:.3f}",
            kernel,
        )
        for kernel, trial in sorted(
            found.kernels.items(),
            key=lambda item: item[1].default_ms * (item[1].ratio - 1),
        )
    ]
    unit = f"MS{mark.upper()}"
    header = ("CHOICE", f"{unit} BEFORE", unit, "RATIO", "KERNEL")
    if rows:
        lines += ["", table(rows, header)]
    return lines
