"""`edgepack compare`: the deployed model layer by layer, beside the reference."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.base.errors import MismatchError, UsageError
from edgepack.cli.console import Console, table
from edgepack.cli.options import MEASURING_S, add_device, add_job, open_release, project_of
from edgepack.cli.pages import add_html, check_html, save
from edgepack.cli.pages.compare import compare_page

if TYPE_CHECKING:
    import numpy.typing as npt

    from edgepack.flow.compare import Changed, Compared, LayerError

_SHOWN = 12


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_job(parser)
    add_device(parser, timeout_s=MEASURING_S)
    parser.add_argument(
        "--input",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="a .npy file for each input of the model, in its order (default: the smoke "
        "test's inputs)",
    )
    parser.add_argument(
        "--release",
        metavar="ID",
        help="compare the results of this release on the device with the current release's instead",
    )
    parser.add_argument("--all", action="store_true", help="print all layers, not only the worst")
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Compare, and name the first layer that diverges."""
    from edgepack.flow.compare import (
        compare_layers,
        compare_releases,
        compare_stage_releases,
        compare_stages,
    )
    from edgepack.flow.job import make_job

    if args.release is not None and not re.fullmatch("[0-9a-f]{12}", args.release):
        raise UsageError(
            f"--release: {args.release!r} is not 12 hex digits",
            hint="edgepack status --json lists the releases there",
        )
    if args.release is not None and args.html is not None:
        raise UsageError("--html is a page of layers, but --release compares none of them")
    check_html(args)
    project = project_of(args)
    job = make_job(project)
    inputs = [_load(path) for path in args.input]
    args.name, args.board = project.name, job.board.name
    args.device, args.root = project.device, project.root
    device, root = open_release(args, console)
    try:
        if args.release is not None:
            changed = compare_releases(
                job, device, root, args.release, inputs=inputs, progress=console
            )
            stage_changes = (
                {}
                if inputs
                else compare_stage_releases(job, device, root, args.release, progress=console)
            )
            console.data(*_changed(changed, stage_changes))
            return 0
        found = compare_layers(job, device, root, inputs=inputs, progress=console)
        # What a stage is given hangs on the golden photo, not on tensors of one's own.
        stages = {} if inputs else compare_stages(job, device, root, progress=console)
        where = f"{root} on {device.name}"
    finally:
        device.close()
    save(args, console, compare_page(found, where))
    lines = _lines(found, where, every=args.all)
    for name, one in stages.items():
        lines += ["", *_lines(one, f"stage '{name}'", every=args.all)]
    first = next((name for name, one in {"": found, **stages}.items() if one.first), None)
    if stages and first is not None:
        what = f"stage '{first}'" if first else "the first model"
        lines += ["", f"{what} is the first to diverge"]
    data = found.to_dict()
    if stages:
        data["stages"] = [{"stage": name, **one.to_dict()} for name, one in stages.items()]
    console.data(data, "\n".join(lines))
    return 0 if first is None else MismatchError.exit_code


def _load(path: Path) -> npt.NDArray[Any]:
    import numpy as np

    try:
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"--input: cannot read {path}: {error}") from None
    return array


def _lines(found: Compared, where: str, *, every: bool) -> list[str]:
    lines = [
        f"{where}: {len(found.layers)} of {found.calls} calls compared with the reference, "
        f"limit {found.tolerance:.0e} of a layer's largest value"
    ]
    if not found.same_plan:
        lines.append("its graph.json is not what this project compiles to: deployed from another?")
    first = found.first
    shown = list(found.layers)
    if not every:
        shown = sorted(found.layers, key=lambda layer: -layer.relative)[:_SHOWN]
        shown = sorted({*shown, *([first] if first else [])}, key=lambda layer: layer.call)
    rows = [_row(layer) for layer in shown]
    lines += ["", table(rows, ("CALL", "NODE", "OPERATOR", "RULE", "SHAPE", "ERROR", "OF MAX", ""))]
    if len(shown) < len(found.layers):
        lines.append(f"the {len(shown)} worst of {len(found.layers)}: --all prints every one")
    lines.append("")
    if first is None:
        lines.append("no layer diverges")
    else:
        lines.append(
            f"first to diverge: call {first.call}, {first.operator} '{first.layer}', which makes "
            f"'{first.value}' {_shape(first)}, by rule {first.rule} for {found.cpu}"
        )
    return lines


def _changed(found: Changed, stages: dict[str, Changed | None]) -> tuple[dict[str, Any], str]:
    """For --json, and for a person."""
    lines = [f"release {found.current}, current, beside {found.other}:", *_changes(found)]
    data = found.to_dict()
    if stages:
        data["stages"] = [
            {"stage": name, "changed": None if one is None else one.to_dict()}
            for name, one in stages.items()
        ]
    for name, one in stages.items():
        said = ["is not in both releases"] if one is None else _changes(one)
        lines += ["", f"stage '{name}':", *said]
    if stages:
        models = {"the first model": found, **{f"stage '{k}'": one for k, one in stages.items()}}
        first = next((k for k, one in models.items() if one is None or one.differs), None)
        lines += ["", f"{first} is the first to differ" if first else "no model differs"]
    return data, "\n".join(lines)


def _changes(found: Changed) -> list[str]:
    lines = [f"{name:<10} {was} -> {now}" for name, now, was in found.facts]
    lines.append(f"files      {', '.join(found.files) or 'all the same'}")
    output = found.output
    if output.max_abs_error == 0:
        lines.append("output     the same, bit for bit")
    else:
        lines.append(
            f"output     differs by {output.max_abs_error:.2g} where the largest value was "
            f"{output.max_abs_reference:.2g}"
        )
    first = found.first
    if not found.layers:
        lines.append("layers     not compared: their plans are not what this project compiles to")
    elif first is None:
        lines.append("layers     all the same, bit for bit")
    else:
        lines.append(
            f"layers     the first that differs is call {first.call}, {first.operator} "
            f"'{first.layer}', by {first.max_abs_error:.2g} of {first.max_abs_reference:.2g}"
        )
    return lines


def _row(layer: LayerError) -> tuple[object, ...]:
    return (
        layer.call,
        layer.layer,
        layer.operator,
        layer.rule,
        _shape(layer),
        f"{layer.max_abs_error:.2g}",
        f"{layer.relative:.1e}",
        "" if layer.ok else "diverges",
    )


def _shape(layer: LayerError) -> str:
    return "x".join(map(str, layer.shape)) or "scalar"
