"""`edgepack evaluate`: labelled photos, here and on the device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.text import counted
from edgepack.cli.console import Console, table
from edgepack.cli.options import (
    add_device,
    add_model,
    open_release,
    parse_constants,
    parse_shapes,
    parse_states,
    project_file,
)
from edgepack.cli.pages import add_html, check_html, evaluate_page, save

if TYPE_CHECKING:
    from edgepack.flow.evaluate import Evaluation

_SHOWN = 20


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model(parser)
    parser.add_argument(
        "--images",
        type=Path,
        required=True,
        metavar="DIR",
        help="a folder for each class (its label or number), or a CSV file of path,class",
    )
    parser.add_argument("--board", metavar="NAME", help="board profile, for --device virtual")
    parser.add_argument("--name", help="name of the deployed bundle (default: the project's)")
    # Without it, only the reference on this machine judges.
    add_device(parser)
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Judge all photos, and print how often each side is right, and where they differ."""
    from edgepack.flow.evaluate import evaluate
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
    if args.device is None:
        found = evaluate(project, args.images, progress=console)
    else:
        args.name = project.name
        device, root = open_release(args, console)
        try:
            found = evaluate(project, args.images, device=device, root=root, progress=console)
        finally:
            device.close()
    save(args, console, evaluate_page(found))
    console.data(found.to_dict(), "\n".join(_lines(found)))
    return 0


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
