"""`edgepack check`: what the reference sees, before there is a board."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.base.errors import UsageError
from edgepack.cli.console import Console
from edgepack.cli.options import (
    add_model,
    parse_constants,
    parse_shapes,
    parse_states,
    positive,
    project_file,
)
from edgepack.cli.pages import add_html, check_html, save
from edgepack.cli.pages.check import check_page

if TYPE_CHECKING:
    from edgepack.flow.check import Checked, OutputRange
    from edgepack.flow.project import Project


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model(parser)
    parser.add_argument(
        "--image",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="a photo (repeatable; default: the project's smoke-test photo, golden_image)",
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="a CSV file with an input in each row, for models of tables",
    )
    parser.add_argument(
        "--target",
        metavar="COLUMN",
        help="column of --rows with the correct answers, which is not an input",
    )
    parser.add_argument(
        "--top",
        type=positive,
        default=5,
        metavar="K",
        help="number of classes to print (default: 5)",
    )
    parser.add_argument(
        "--changed",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="for pre-commit: check each project that uses one of these files, and each "
        "model among them that no project uses",
    )
    add_html(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the classes; fail if the golden image is not what it should be."""
    from edgepack.cli.result_lines import result_lines, score_line
    from edgepack.flow.check import check_project, check_rows
    from edgepack.flow.project import load_project

    if args.changed is not None:
        return _check_changed(args, console)
    check_html(args)
    flags = {
        "model": args.model,
        "shapes": parse_shapes(args.shape),
        "constants": parse_constants(args.set),
        "states": parse_states(args.state),
    }
    project = load_project(project_file(args), flags)
    if args.rows is not None:
        if args.image:
            raise UsageError("--rows and --image: a model takes rows or photos")
        checked = check_rows(project, args.rows, args.target)
        save(args, console, check_page(checked, project.name, project.model.name))
        return _print_rows(project, checked, console)
    if args.target is not None:
        raise UsageError("--target is a column of --rows")
    checked = check_project(project, args.image, top=args.top)
    save(args, console, check_page(checked, project.name, project.model.name))
    lines = []
    for seen in checked.seen:
        tensors = ", ".join(map(str, project.golden_input))
        lines.append(f"{seen.image or tensors or 'random inputs'}:")
        results = seen.results
        top = seen.top if results is None else results.top or ()
        lines += [score_line(one.score, one.index, one.label) for one in top]
        lines += result_lines(results) if results else []
        lines += map(_range_line, seen.ranges)
    if checked.hint:
        lines += ["", f"not one score per class: {checked.hint}"]
    console.data(_data(project, checked), "\n".join(lines))
    checked.check_expected()
    return 0


def _data(project: Project, checked: Checked) -> dict[str, Any]:
    return {
        "model": str(project.model),
        "inputs": [asdict(info) for info in checked.inputs],
        "outputs": [asdict(info) for info in checked.outputs],
        "preprocess": checked.preprocess is not None,
        "seen": [
            {
                "image": str(seen.image) if seen.image else None,
                "top": [asdict(one) for one in seen.top],
                **(seen.results.to_dict() if seen.results else {}),
                **({"ranges": [asdict(one) for one in seen.ranges]} if seen.ranges else {}),
                **({} if seen.line is None else {"line": seen.line, "target": seen.target}),
            }
            for seen in checked.seen
        ],
        "expected": checked.expected,
        **({"agreement": asdict(checked.agreement)} if checked.agreement else {}),
        **({"senseless": checked.senseless.message} if checked.senseless else {}),
    }


def _print_rows(project: Project, checked: Checked, console: Console) -> int:
    """Each row's outputs, and how often the answer is right."""
    lines = []
    found = checked.agreement
    for seen in checked.seen:
        said = "; ".join(_range_text(one) for one in seen.ranges)
        lines.append(f"line {seen.line}: {said}" + (f"; due: {seen.target}" if found else ""))
    if found is not None and found.right is not None:
        lines.append(f"'{found.output}' is right in {found.right} of {found.total} rows")
    elif found is not None:
        mean = "no finite number" if found.mean_error is None else f"{found.mean_error:.6g}"
        lines.append(f"'{found.output}' differs by {mean} on average, in {found.total} rows")
    console.data(_data(project, checked), "\n".join(lines))
    return 0


def _check_changed(args: argparse.Namespace, console: Console) -> int:
    """Check what files belong to, all of it; raise what is wrong."""
    from edgepack.flow.changed import ProjectsError, check_files, projects_of

    others = (args.model, args.project, args.image, args.shape, args.set, args.state)
    if any((*others, args.rows, args.target, args.html)):
        raise UsageError(
            "--changed goes without a model, --project, --image, --rows, --html and shapes"
        )
    results = list(check_files(projects_of(args.changed)))
    wrong = [(file, error) for file, error in results if error is not None]
    console.data(
        [
            {"project": str(file), "problem": None if error is None else error.message}
            for file, error in results
        ],
        "\n".join(f"{file}: {'ok' if error is None else 'failed'}" for file, error in results),
    )
    if len(wrong) == 1:
        raise wrong[0][1]
    if wrong:
        raise ProjectsError(
            f"{len(wrong)} of {len(results)} checks failed:\n"
            + "\n".join(f"{file}: {error.message}" for file, error in wrong),
            hint=f"edgepack check --changed {shlex.quote(str(wrong[0][0]))} says more of the first",
        )
    return 0


def _range_text(one: OutputRange) -> str:
    if one.values:
        return f"{one.name} {' '.join('-' if v is None else f'{v:.6g}' for v in one.values)}"
    return _range_line(one).strip()


def _range_line(one: OutputRange) -> str:
    if one.values:
        return f"  {_range_text(one)}"
    if one.least is None:
        return f"  {one.name} {one.shape}: no finite value"
    return f"  {one.name} {one.shape}: from {one.least:.6g} to {one.most:.6g}, mean {one.mean:.6g}"
