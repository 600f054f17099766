"""`edgepack evaluate`: labelled photos, here and on the device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.errors import UsageError
from edgepack.base.text import counted
from edgepack.cli.console import Console, table
from edgepack.cli.options import (
    add_device,
    add_model,
    fraction,
    open_release,
    parse_constants,
    parse_shapes,
    parse_states,
    project_file,
)
from edgepack.cli.pages import add_html, boxes_page, check_html, evaluate_page, save

if TYPE_CHECKING:
    from edgepack.device.base import Device
    from edgepack.flow.evaluate import Evaluation
    from edgepack.flow.evaluate_boxes import BoxEvaluation
    from edgepack.flow.project import Project

_SHOWN = 20


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model(parser)
    parser.add_argument(
        "--images",
        type=Path,
        required=True,
        metavar="DIR",
        help="a folder for each class (its label or number), or a CSV file of path,class; for a "
        "detector COCO's JSON file, YOLO's data.yaml, or a folder as Roboflow exports it",
    )
    parser.add_argument(
        "--split", metavar="NAME", help="of a detector's data set (default: val, test, train)"
    )
    parser.add_argument(
        "--score",
        type=fraction,
        metavar="S",
        help="a detector's boxes below it are left out (default: 0.001)",
    )
    parser.add_argument("--board", metavar="NAME", help="board profile, for --device virtual")
    parser.add_argument("--name", help="name of the deployed bundle (default: the project's)")
    # Without it, only the reference on this machine judges.
    add_device(parser)
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Judge all photos, and print how often each side is right, and where they differ."""
    from edgepack.flow.project import load_project

    check_html(args)
    flags = {
        "name": args.name,
        "model": args.model,
        "shapes": parse_shapes(args.shape),
        "constants": parse_constants(args.set),
        "states": parse_states(args.state),
    }
    project = load_project(project_file(args), flags)
    judge = _judge(args, project, console)
    if args.device is None:
        found = judge(None, "")
    else:
        args.name = project.name
        device, root = open_release(args, console)
        try:
            found = judge(device, root)
        finally:
            device.close()
    from edgepack.flow.evaluate_boxes import BoxEvaluation

    if isinstance(found, BoxEvaluation):
        save(args, console, boxes_page(found))
        console.data(found.to_dict(), "\n".join(_box_lines(found)))
    else:
        save(args, console, evaluate_page(found))
        console.data(found.to_dict(), "\n".join(_lines(found)))
    return 0


def _judge(
    args: argparse.Namespace, project: Project, console: Console
) -> Callable[[Device | None, str], Evaluation | BoxEvaluation]:
    """What judges the photos, here and on a device: by classes, or by boxes."""
    from edgepack.flow.evaluate import evaluate
    from edgepack.flow.evaluate_boxes import SCORE, evaluate_boxes
    from edgepack.postprocess.boxes import Boxes

    if isinstance(project.postprocess, Boxes):
        score = SCORE if args.score is None else args.score
        return lambda device, root: evaluate_boxes(
            project,
            args.images,
            split=args.split,
            score=score,
            device=device,
            root=root,
            progress=console,
        )
    for option, value in (("--split", args.split), ("--score", args.score)):
        if value is not None:
            raise UsageError(
                f"{option}: only for a detector", hint="whose boxes [postprocess] describes"
            )
    return lambda device, root: evaluate(
        project, args.images, device=device, root=root, progress=console
    )


def _box_lines(found: BoxEvaluation) -> list[str]:
    sides = [("reference", found.reference)]
    if found.on_device is not None:
        sides.append(("device", found.on_device))
    lines = [f"photos     {found.photos}, with {counted(found.objects, 'object')}"]
    for name, side in sides:
        sizes = ", ".join(f"{size} {_share(value)}" for size, value in side.by_size.items())
        lines.append(
            f"{name:<10} mAP 50-95 {_share(side.map)}, mAP 50 {_share(side.map50)} (50-95: {sizes})"
        )
    rows = [
        (
            found.label(one.index),
            one.objects,
            *(_share(value) for side in (one, other) if side for value in (side.ap, side.ap50)),
        )
        for one, other in found.pairs()
        if one.objects
    ]
    header: tuple[str, ...] = ("CLASS", "OBJECTS", "AP 50-95", "AP 50")
    if found.on_device is not None:
        header = (*header[:2], "AP 50-95", "AP 50", "ON DEVICE 50-95", "50")
    return [*lines, "", table(rows, header)] if rows else lines


def _share(value: float | None) -> str:
    """An average precision; "-" where there is nothing to find."""
    return "-" if value is None else f"{value:.4f}"


def _lines(found: Evaluation) -> list[str]:
    lines = [f"photos     {len(found.judged)}", _right(found, "reference", on_device=False)]
    if found.device is not None:
        lines.append(_right(found, "device", on_device=True))
        lines.append(f"differ     {counted(len(found.differing), 'photo')}")
        rows = [
            (
                one.photo.name,
                *(found.label(index) for index in (one.photo.expected, one.reference[0])),
                found.label(one.device[0]) if one.device else "-",
            )
            for one in found.differing
        ]
        if rows:
            header = ("PHOTO", "EXPECTED", "REFERENCE", "DEVICE")
            lines += ["", table(rows[:_SHOWN], header), *_more(len(rows))]
    wrong = [
        (found.label(expected), found.label(seen), count)
        for expected, seen, count in found.confusion()
        if expected != seen
    ]
    if wrong:
        confused = table(wrong[:_SHOWN], ("EXPECTED", "SEEN AS", "PHOTOS"))
        lines += ["", confused, *_more(len(wrong))]
    return lines


def _right(found: Evaluation, name: str, *, on_device: bool) -> str:
    one, five = (
        found.hits(lambda it: (it.device or ()) if on_device else it.reference, k) for k in (1, 5)
    )
    count = len(found.judged)
    return f"{name:<10} top-1 {one / count:.1%} ({one}), top-5 {five / count:.1%} ({five})"


def _more(count: int) -> list[str]:
    return [f"and {count - _SHOWN} more: --json has all"] * (count > _SHOWN)
