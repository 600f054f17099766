"""`edgepack quantize`: a float model made one on 8-bit integers, calibrated on photos."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.errors import UsageError
from edgepack.base.text import format_count, megabytes
from edgepack.cli.console import Console, table
from edgepack.cli.options import (
    add_model,
    check_writable,
    parse_constants,
    parse_shapes,
    parse_states,
    project_file,
)
from edgepack.cli.pages import add_html, check_html, save
from edgepack.cli.pages.quantize import quantize_page

if TYPE_CHECKING:
    from edgepack.quantization.quantize import Agreement, Result

_SHOWN = 10
_NAMED = 3
_NAME = 24
"""Layers that are named of one operator, and the characters of a name."""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model(parser)
    parser.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="folder with photos for calibration, also in its subfolders",
    )
    parser.add_argument(
        "--judge",
        type=Path,
        metavar="DIR",
        help="folder with photos for validation (default: one in four of --images, not "
        "used for calibration)",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write (default: <model>.int8.onnx beside the model)",
    )
    parser.add_argument(
        "--snr",
        type=float,
        metavar="DB",
        help="keep tensors in float until the outputs reach this signal-to-noise ratio",
    )
    parser.add_argument(
        "--budget",
        type=float,
        metavar="PERCENT",
        help="extra work that --snr may cause, in percent of an integer-only model's (default: 10)",
    )
    parser.add_argument(
        "--stage",
        metavar="NAME",
        help="quantise only the model of this [[stage]], or the first one by the project's name "
        "(default: all; a stage is calibrated on what it would be given of the photos)",
    )
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the quantised model, and print how good it is."""
    from edgepack.flow.project import Quantizing, load_project
    from edgepack.flow.quantize import quantize_project
    from edgepack.flow.stages import chosen_models, find_stage

    check_html(args)
    flags = {
        "model": args.model,
        "shapes": parse_shapes(args.shape),
        "constants": parse_constants(args.set),
        "states": parse_states(args.state),
    }
    project = load_project(project_file(args), flags)
    models = chosen_models(project, args.stage, out=args.out, html=args.html)
    said = project.quantize or Quantizing()
    images = args.images or said.images
    if images is None:
        raise UsageError("no photos given", hint="--images DIR, or images in [quantize]")
    budget = said.budget if args.budget is None else args.budget / 100
    if not 0 <= budget <= 1:
        raise UsageError(f"--budget: {args.budget} is not between 0 and 100")
    files = {
        stage: project.model if stage is None else find_stage(project, stage).model
        for _, stage in models
    }
    outs = {stage: args.out or path.with_suffix(".int8.onnx") for stage, path in files.items()}
    for out in outs.values():
        check_writable(out.parent, "--out")
    said_of = []
    for name, stage in models:
        out = outs[stage]
        found = quantize_project(
            project,
            images,
            out,
            stage=stage,
            judge=args.judge or said.judge,
            snr_db=said.snr_db if args.snr is None else args.snr,
            budget=budget,
            progress=console,
        )
        save(args, console, quantize_page(found, f"{out.name}, made of {files[stage].name}"))
        values = {"file": str(out), "bytes": out.stat().st_size, **document(found)}
        lines = _lines(found, out, "photo" if stage is None else "crop")
        said_of.append((name, values, "\n".join(lines)))
    console.models(said_of)
    return 0


def document(found: Result) -> dict[str, object]:
    """For --json: all but the models."""
    values = {k: v for k, v in vars(found).items() if k not in ("model", "whole", "ranges")}
    for key in ("agreement", "all_int8"):
        values[key] = asdict(values[key])
    for key in ("in_float", "layers"):
        values[key] = [asdict(item) for item in values[key]]
    values["untouched"] = [
        {"layer": layer, "operator": operator} for layer, operator in found.untouched
    ]
    return {**values, "warning": found.warning}


def _lines(found: Result, out: Path, of: str) -> list[str]:
    lines = [
        f"{out}: {megabytes(out.stat().st_size)}",
        f"calibrated on {format_count(found.calibrated, of)}, validated on "
        f"{format_count(found.judged, f'held-out {of}')} against float32",
        _said("integers", found.all_int8),
    ]
    if found.in_float:
        lines.append(_said("mixed", found.agreement) + f", for {found.cost:.1%} more work")
        rows = [
            (short_name(one.tensor), f"{one.noise:.1%}", f"{one.cost:.1%}")
            for one in found.in_float
        ]
        lines += ["", table(rows, ("LEFT IN FLOAT", "OF ALL NOISE", "COSTS"))]
    if found.untouched:
        lines += ["", table(_in_float(found.untouched), ("STAYS FLOAT", "LAYERS", "WHICH"))]
    worst = sorted(found.layers, key=lambda one: one.snr_db)[:_SHOWN]
    rows = [(short_name(one.tensor), one.operator, f"{one.snr_db:.1f}") for one in worst]
    lines += ["", table(rows, ("WORST TENSORS", "OPERATOR", "SNR DB"))]
    if found.warning:
        lines += ["", found.warning]
    return lines


def _in_float(untouched: Sequence[tuple[str, str]]) -> list[tuple[str, int, str]]:
    """Operators that stay float, the most frequent first, with their layers' own names."""
    layers: dict[str, list[str]] = {}
    for layer, operator in untouched:
        layers.setdefault(operator, []).append(short_name(layer))
    rows = sorted(layers.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        (operator, len(names), ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED))
        for operator, names in rows
    ]


def short_name(layer: str) -> str:
    """The end of a name of exporters', which tells layers apart: at most 24 characters of whole
    parts."""
    if len(layer) <= _NAME:
        return layer
    parts = re.split(r"(?<=[/.:])", layer)
    name = parts.pop()
    while parts and len(parts[-1]) + len(name) < _NAME - 3:
        name = parts.pop() + name
    return f"...{name[-(_NAME - 3) :]}"


def _said(name: str, found: Agreement) -> str:
    return f"{name:<10} {agreement_text(found)}"


def agreement_text(found: Agreement) -> str:
    """How far a quantised model agrees with float32, by the task."""
    parts = []
    if found.top1 is not None:
        parts.append(f"top-1 {found.top1:.1%} the same")
    if found.top5 is not None:
        parts.append(f"{found.top5:.1%} among the first five")
    if found.miou is not None:
        parts.append(f"mIoU {found.miou:.3f} with float32's areas")
    if found.map is not None:
        parts.append(f"mAP 50-95 {found.map:.3f} of float32's boxes")
    return ", ".join([*parts, f"{found.snr_db:.1f} dB above the error"])
