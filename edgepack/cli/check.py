"""`edgepack check`: what the reference sees, before there is a board."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from edgepack.cli.console import Console
from edgepack.cli.options import parse_shapes, positive


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("model", nargs="?", type=Path, help="ONNX model (or from the project file)")
    parser.add_argument(
        "--project",
        type=Path,
        metavar="FILE",
        help="project file (default: edgepack.toml if it is here and no model is given)",
    )
    parser.add_argument(
        "--image",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="a photo (repeatable; default: the project's golden image)",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="shape of an input that has dynamic dimensions (repeatable)",
    )
    parser.add_argument(
        "--top", type=positive, default=5, metavar="K", help="classes to print (default: 5)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the classes; fail if the golden image is not what it should be."""
    from edgepack.cli.report import score_line
    from edgepack.flow.check import check_project
    from edgepack.flow.project import PROJECT_FILE, load_project

    path = args.project
    if path is None and args.model is None and Path(PROJECT_FILE).exists():
        path = Path(PROJECT_FILE)
    project = load_project(path, {"model": args.model, "shapes": parse_shapes(args.shape)})
    checked = check_project(project, args.image, top=args.top)
    lines = []
    for seen in checked.seen:
        lines.append(f"{seen.image or 'random inputs'}:")
        lines += [score_line(one.score, one.index, one.label) for one in seen.top]
    console.data(
        {
            "model": str(project.model),
            "inputs": [asdict(info) for info in checked.inputs],
            "outputs": [asdict(info) for info in checked.outputs],
            "preprocess": checked.preprocess is not None,
            "seen": [
                {
                    "image": str(seen.image) if seen.image else None,
                    "top": [asdict(one) for one in seen.top],
                }
                for seen in checked.seen
            ],
            "expected": checked.expected,
        },
        "\n".join(lines),
    )
    checked.check_expected()
    return 0
