"""`edgepack evaluate`: labelled photos, or rows of a table, here and on the device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.errors import UsageError
from edgepack.base.page import Html
from edgepack.base.text import format_count
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
from edgepack.cli.pages import add_html, check_html, save
from edgepack.cli.pages.evaluate import boxes_page, evaluate_page, rows_page, text_page

if TYPE_CHECKING:
    from edgepack.device.base import Device
    from edgepack.flow.evaluate import Evaluation
    from edgepack.flow.evaluate_boxes import BoxEvaluation
    from edgepack.flow.evaluate_rows import JudgedRow, Number, RowEvaluation
    from edgepack.flow.evaluate_text import ErrorRates, TextEvaluation
    from edgepack.flow.project import Project

_SHOWN = 20


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model(parser)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="labelled photos. Classifier: a folder for each class (its label or "
        "number), or a CSV file of path,class. Detector: COCO's JSON file, YOLO's "
        "data.yaml, or a folder as Roboflow exports it. Text reader: a folder of "
        "photos, each with a .txt file of the same name",
    )
    given.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="a CSV file with an input in each row, for models of tables",
    )
    parser.add_argument(
        "--text",
        action="store_true",
        help="evaluate the text that a stage reads, not the boxes of the detector before it",
    )
    parser.add_argument(
        "--target",
        metavar="COLUMN",
        help="column of --rows with the correct answers, which is not an input",
    )
    parser.add_argument(
        "--split",
        metavar="NAME",
        help="split of a detector's data set (default: val, test or train, whichever exists first)",
    )
    parser.add_argument(
        "--score",
        type=fraction,
        metavar="S",
        help="ignore a detector's boxes with a lower score (default: 0.001)",
    )
    parser.add_argument("--board", metavar="NAME", help="board profile, for --device virtual")
    parser.add_argument("--name", help="name of the deployed bundle (default: the project's)")
    # Without it, only the reference on this machine judges.
    add_device(parser)
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Judge all photos or rows, and print how often each side is right, and where they differ."""
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
    from edgepack.flow.evaluate_rows import RowEvaluation
    from edgepack.flow.evaluate_text import TextEvaluation

    if isinstance(found, TextEvaluation):
        save(args, console, text_page(found))
        console.data(found.to_dict(), "\n".join(_text_lines(found)))
    elif isinstance(found, RowEvaluation):
        save(args, console, _rows_page(found))
        console.data(found.to_dict(), "\n".join(_row_lines(found)))
    elif isinstance(found, BoxEvaluation):
        save(args, console, boxes_page(found))
        console.data(found.to_dict(), "\n".join(_box_lines(found)))
    else:
        save(args, console, evaluate_page(found))
        console.data(found.to_dict(), "\n".join(_lines(found)))
    return 0


def _judge(
    args: argparse.Namespace, project: Project, console: Console
) -> Callable[[Device | None, str], Evaluation | BoxEvaluation | RowEvaluation | TextEvaluation]:
    """What judges, here and on a device: photos by classes, boxes or text, or rows."""
    from edgepack.flow.evaluate import evaluate
    from edgepack.flow.evaluate_boxes import SCORE, evaluate_boxes
    from edgepack.flow.evaluate_rows import evaluate_rows
    from edgepack.flow.evaluate_text import evaluate_text, reads_text
    from edgepack.postprocess.boxes import Boxes

    target = args.target
    if (args.rows is None) != (target is None):
        raise UsageError(
            "--rows and --target go together",
            hint="--target names the column of --rows with the right answers",
        )
    is_text = target is None and reads_text(project, asked=args.text)
    if target is None and isinstance(project.postprocess, Boxes) and not is_text:
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
    if is_text:
        return lambda device, root: evaluate_text(
            project, args.images, device=device, root=root, progress=console
        )
    if target is not None:
        return lambda device, root: evaluate_rows(
            project, args.rows, target, device=device, root=root, progress=console
        )
    return lambda device, root: evaluate(
        project, args.images, device=device, root=root, progress=console
    )


def _box_lines(found: BoxEvaluation) -> list[str]:
    lines = [f"photos     {found.photos}, with {format_count(found.objects, 'object')}"]
    for name, side in found.sides():
        sizes = ", ".join(f"{size} {_share(value)}" for size, value in side.by_size.items())
        lines.append(
            f"{name:<10} mAP 50-95 {_share(side.map)}, mAP 50 {_share(side.map50)} (50-95: {sizes})"
        )
    if found.without_masks:
        lines.append(f"masks      not measured: {found.without_masks}")
    rows = [
        (
            found.label(sides[0].index),
            sides[0].objects,
            *(_share(value) for side in sides if side for value in (side.ap, side.ap50)),
        )
        for sides in found.of_classes()
        if sides[0].objects
    ]
    header = ("CLASS", "OBJECTS", *_box_header(found))
    return [*lines, "", table(rows, header)] if rows else lines


def _box_header(found: BoxEvaluation) -> list[str]:
    """Two columns for each side: its own name first, but for the reference's boxes."""
    names = [name.upper() for name, _ in found.sides()]
    return [
        *("AP 50-95", "AP 50"),
        *(column for name in names[1:] for column in (f"{name} 50-95", "50")),
    ]


def _text_lines(found: TextEvaluation) -> list[str]:
    lines = [f"photos     {len(found.photos)}", f"reference  {_rates(found.reference)}"]
    rows = [one for one in found.photos if one.expected != one.reference]
    if found.on_device is not None:
        lines.append(f"device     {_rates(found.on_device)}")
        lines.append(f"differ     {format_count(len(found.differing), 'photo')}")
        rows = [one for one in found.photos if {one.reference, one.device} != {one.expected}]
    for one in rows[:_SHOWN]:
        lines += [
            "",
            f"{one.name}",
            f"  expected   {one.expected}",
            f"  reference  {one.reference}",
        ]
        if one.device is not None and one.device != one.reference:
            lines.append(f"  device     {one.device}")
    return [*lines, *_more(len(rows))]


def _rates(rates: ErrorRates) -> str:
    return f"error rate of letters {rates.letters:.1%}, of words {rates.words:.1%}"


def _share(value: float | None) -> str:
    """An average precision; "-" where there is nothing to find."""
    return "-" if value is None else f"{value:.4f}"


def _row_sides(found: RowEvaluation) -> list[tuple[str, str]]:
    """The reference and the device, and how good each is."""
    sides = [("reference", _row_side(found, lambda one: one.reference))]
    if found.device is not None:
        sides.append(("device", _row_side(found, lambda one: one.device)))
    return sides


def _row_side(found: RowEvaluation, seen: Callable[[JudgedRow], Number | None]) -> str:
    if not found.answering.is_value:
        right = found.right(seen)
        return f"accuracy {right / len(found.judged):.1%} ({right})"
    errors = found.errors(seen)
    if errors.mae is None or errors.rmse is None:
        return "gives values that are not finite"
    return f"MAE {errors.mae:.6g}, RMSE {errors.rmse:.6g}"


def _row_difference(found: RowEvaluation) -> str:
    if not found.answering.is_value:
        return format_count(len(found.differing), "row")
    largest = found.largest_difference
    return "not finite on one side" if largest is None else f"by {largest:.3g} at most"


def _row_table(found: RowEvaluation) -> list[tuple[object, ...]]:
    """The rows on which the sides differ, or those whose class is wrong if there is one side."""
    if found.answering.is_value:
        return []
    rows = found.differing if found.device else [
        one for one in found.judged if one.reference != one.expected
    ]  # fmt: skip
    return [
        (
            one.line,
            found.label(one.expected),
            found.label(one.reference),
            *([] if one.device is None else [found.label(one.device)]),
        )
        for one in rows
    ]


def _row_header(found: RowEvaluation) -> tuple[str, ...]:
    return ("LINE", "EXPECTED", "REFERENCE", *(["DEVICE"] if found.device else []))


def _row_lines(found: RowEvaluation) -> list[str]:
    lines = [f"rows       {len(found.judged)}, '{found.answering.name}' against '{found.target}'"]
    lines += [f"{name:<10} {said}" for name, said in _row_sides(found)]
    if found.device is not None:
        lines.append(f"differ     {_row_difference(found)}")
    rows = _row_table(found)
    if rows:
        lines += ["", table(rows[:_SHOWN], _row_header(found)), *_more(len(rows))]
    return lines


def _rows_page(found: RowEvaluation) -> Html:
    said = {"output": found.answering.name, "target": found.target, **dict(_row_sides(found))}
    if found.device is not None:
        said["differ"] = _row_difference(found)
    header = [name.lower() for name in _row_header(found)]
    return rows_page(found, said, _row_table(found), header)


def _lines(found: Evaluation) -> list[str]:
    lines = [f"photos     {len(found.judged)}", _right(found, "reference", on_device=False)]
    if found.device is not None:
        lines.append(_right(found, "device", on_device=True))
        lines.append(f"differ     {format_count(len(found.differing), 'photo')}")
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
