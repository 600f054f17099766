"""`edgepack init`: a project file for a model."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.errors import UsageError
from edgepack.cli.console import Console
from edgepack.cli.options import MODEL_HELP, board_files
from edgepack.preprocess.presets import PRESETS

if TYPE_CHECKING:
    from edgepack.flow.init import Draft


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    width = max(map(len, PRESETS))
    parser.epilog = "presets:\n" + "\n".join(
        f"  {name:<{width}}  {preset.title}" for name, preset in PRESETS.items()
    )
    parser.add_argument("model", type=Path, help=MODEL_HELP)
    parser.add_argument(
        "--preset", metavar="NAME", help="a preset of preprocessing, from the list below"
    )
    parser.add_argument(
        "--board", metavar="NAME", help="name of a board profile, listed by `edgepack boards`"
    )
    parser.add_argument(
        "--device",
        metavar="USER@HOST[:PORT]",
        help="SSH address of the device, or another name as for `deploy`",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="a file with one class name per line, or a list of classes in JSON, YAML or CSV",
    )
    parser.add_argument(
        "--image", type=Path, metavar="FILE", help="photo for the smoke test on the device"
    )
    parser.add_argument(
        "--expected", metavar="CLASS", help="expected class of the photo: its label or number"
    )
    parser.add_argument(
        "--photos",
        type=Path,
        metavar="DIR",
        help="a folder with a folder of photos for each class; init takes the labels and "
        "a smoke-test photo from it, and writes a list for `edgepack evaluate`",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write (default: edgepack.toml in the current folder)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.set_defaults(run=run, keeps_model=True)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the file, and say what in it is a guess."""
    from edgepack.base.errors import ConfigError, perhaps
    from edgepack.boards import load_boards
    from edgepack.flow.init import draft_project
    from edgepack.flow.photo_folders import EVALUATION, draft_with_photos
    from edgepack.flow.project import PROJECT_FILE, load_project
    from edgepack.model.sources import project_beside

    if args.is_fetched and (own := project_beside(args.model)) is not None:
        raise UsageError(
            f"{own} came with the model: there is nothing to write",
            hint=f"edgepack check --project {shlex.quote(str(own))}",
        )
    if args.preset is not None and args.preset not in PRESETS:
        raise UsageError(f"--preset: unknown: {args.preset}", hint=perhaps(args.preset, PRESETS))
    if args.board is not None and args.board not in (boards := load_boards(board_files(args))):
        raise ConfigError(f"unknown board: {args.board}", hint=perhaps(args.board, boards))
    for option, file in (("--image", args.image), ("--labels", args.labels)):
        if file is not None and not file.is_file():
            raise UsageError(f"{option}: no such file: {file}")
    if args.photos is not None and (args.image is not None or args.expected is not None):
        raise UsageError("--photos goes without --image and --expected: it finds both")
    options = {
        "preset": args.preset,
        "labels": args.labels,
        "board": args.board,
        "device": args.device,
        "overwrite": args.overwrite,
    }
    out = args.out or Path(PROJECT_FILE)
    if args.photos is not None:
        draft = draft_with_photos(args.model, out, args.photos, **options)
    else:
        draft = draft_project(args.model, out, image=args.image, expected=args.expected, **options)
    draft.write()
    load_project(draft.path)  # what was written is what the other commands read
    option = f" --project {draft.path}" if args.out else ""
    option += " --allow-outside" if draft.outside() else ""
    after = [f"edgepack check{option}{_given_to_check(draft)}"]
    if draft.lists:
        file = draft.path.parent / EVALUATION
        after.append(f"edgepack evaluate{option} --images {shlex.quote(str(file))}")
    if args.board is not None:
        device = "" if args.device else " --device virtual"
        after.append(f"edgepack deploy{option}{device}")
    beside = [file for file, _ in ((draft.labels,) if draft.labels else ()) + draft.lists]
    beside += [file for file, _ in draft.tensors]
    console.data(
        {
            "path": str(draft.path),
            "labels": str(draft.labels[0]) if draft.labels else None,
            "schema": str(draft.schema),
            "lists": [str(file) for file, _ in draft.lists],
            "tensors": [str(file) for file, _ in draft.tensors],
            "keys": [
                {"key": line.key, "value": line.value, "why": line.why, "guess": line.guessed}
                for line in draft.lines
            ],
            "open": list(draft.open),
            "next": after,
        },
        "\n".join(
            [
                draft.text.rstrip(),
                "",
                ", ".join(map(str, (f"written to {draft.path}", *beside, draft.schema))),
                *(f"open: {question}" for question in draft.open),
                *(f"next: {command}" for command in after),
            ]
        ),
    )
    return 0


def _given_to_check(draft: Draft) -> str:
    """What `check` is to look at, if the project does not say it: a photo or a table."""
    if any(line.key == "golden_image" for line in draft.lines):
        return ""
    return {"photo": " --image PHOTO", "rows": " --rows FILE.csv"}.get(draft.takes, "")
