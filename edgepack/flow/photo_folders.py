"""A project for a classifier from photos in a folder for each class.

The folders' names are the labels, where nobody says others, in alphabetical order, in which
trainings number them. Whether that is right the model itself says: a photo that it sees as its
class tests the device, and the share of such classes is told.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import UsageError
from edgepack.base.text import one_line
from edgepack.flow.init import Draft, draft_project, relative_to
from edgepack.flow.project import class_of_label, read_labels
from edgepack.flow.reference import golden_inputs, model_outputs, of_first
from edgepack.model import LoadedModel, batch_of
from edgepack.preprocess.photos import SUFFIXES, folders_in, photos_in
from edgepack.preprocess.spec import PreprocessSpec

GOLDEN, EVALUATION = "golden.csv", "evaluation.csv"
_OPTION = "--photos"
_TRIED = 3
"""Photos of each class, until one is seen as it."""
_MOST_TRIED = 256
_AT_ONCE = 16
_ONE_IN = 5


def draft_with_photos(model: Path, out: Path, photos: Path, **options: Any) -> Draft:
    """As `draft_project`, which takes the `options`, with labels, the golden photo, and two lists
    of photos beside it: one that is seen as it should be of each class, and one in five of the
    others, for `edgepack evaluate`.

    Raises what that raises, and `UsageError` for folders that are not the model's classes.
    """
    folders = _read_folders(photos)
    draft = draft_project(model, out, classes=tuple(folders), **options)
    if draft.model is None or draft.preprocess is None or not draft.tells_classes:
        raise UsageError(
            f"{_OPTION}: {model} tells no classes of a photo apart",
            hint="photos with boxes are for `edgepack evaluate`",
        )
    names = _names(draft)
    if not names:
        raise UsageError(
            f"{_OPTION}: {len(folders)} folders in {photos}, but the model has another number of "
            "classes",
            hint="name its labels, in the order of the output: --labels FILE",
        )
    classes = {folder: _class_of(folder, names, photos) for folder in folders}
    right, tried = _find_right(draft.model, draft.preprocess, folders, classes)
    if right:
        folder, photo = next(iter(right.items()))
        draft = draft_project(
            model,
            out,
            classes=tuple(folders),
            image=photo,
            expected=str(classes[folder]),
            **options,
        )
    missed = [folder for folder in folders if folder not in right]
    if missed:
        question = (
            f"{len(missed)} of {len(folders)} classes ({missed[0]}, ...) are seen in none of "
            f"{tried} photos: are order of labels and preprocessing those of the training?"
        )
        draft = replace(draft, open=(*draft.open, question))
    taken = set(right.values())
    rest = {
        folder: [one for one in found if one not in taken][::_ONE_IN]
        for folder, found in folders.items()
    }
    labels = {folder: names[index] for folder, index in classes.items()}
    lists = {
        out.parent / GOLDEN: {folder: [photo] for folder, photo in right.items()},
        out.parent / EVALUATION: rest,
    }
    if not options.get("overwrite"):
        for file in lists:
            if file.exists():
                raise UsageError(f"{file} is there already", hint="add --overwrite")
    texts = ((file, _csv(listed, labels, out)) for file, listed in lists.items())
    return replace(draft, lists=tuple(texts))


def _read_folders(photos: Path) -> dict[str, list[Path]]:
    """The photos in each folder."""
    if not photos.is_dir():
        raise UsageError(f"{_OPTION}: no such folder: {photos}")
    found = {one.name: photos_in(one, option=_OPTION) for one in folders_in(photos, option=_OPTION)}
    found = {name: own for name, own in found.items() if own}
    if len(found) < 2:
        raise UsageError(
            f"{_OPTION}: {len(found)} folders with photos in {photos}",
            hint=f"a folder for each class, with {', '.join(SUFFIXES)} in it",
        )
    for name in found:
        if not name.isprintable() or name != name.strip():
            raise UsageError(f"{_OPTION}: {one_line(ascii(name))} is no label: rename the folder")
    numbers = all(name.isdecimal() for name in found)
    return {name: found[name] for name in sorted(found, key=int if numbers else None)}


def _class_of(folder: str, names: Sequence[str], photos: Path) -> int:
    """By its label, or its number."""
    if folder.isdecimal() and folder not in names and int(folder) < len(names):
        return int(folder)
    return class_of_label(folder, names, origin=f"{_OPTION}: the folder", file=photos)


def _names(draft: Draft) -> tuple[str, ...]:
    if draft.labels is not None:
        return tuple(draft.labels[1].splitlines())
    named = [line.value for line in draft.lines if line.key == "labels"]
    return read_labels(draft.path.parent / named[0]) if named else ()


def _find_right(
    model: LoadedModel,
    preprocess: PreprocessSpec,
    folders: Mapping[str, Sequence[Path]],
    classes: Mapping[str, int],
) -> tuple[dict[str, Path], int]:
    """Of each class the first photo that the reference sees as it, if it does; and how many it was
    shown."""
    right: dict[str, Path] = {}
    tried = 0
    for turn in range(_TRIED):
        left = [name for name, own in folders.items() if name not in right and turn < len(own)]
        for begin in range(0, len(left), _AT_ONCE):
            some = left[begin : begin + _AT_ONCE][: _MOST_TRIED - tried]
            photos = [folders[name][turn] for name in some]
            cases = [golden_inputs(model, preprocess=preprocess, image=one) for one in photos]
            found = model_outputs(model.path, model.proto, cases) if cases else []
            for name, photo, outputs in zip(some, photos, found, strict=True):
                scores = of_first(outputs[0], batch_of(model.inputs))
                if int(np.argmax(scores)) == classes[name]:
                    right[name] = photo
            tried += len(photos)
    return {name: right[name] for name in folders if name in right}, tried


def _csv(listed: Mapping[str, Sequence[Path]], labels: Mapping[str, str], out: Path) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("image", "class"))
    for folder, photos in listed.items():
        rows.writerows((relative_to(photo, out), labels[folder]) for photo in photos)
    return text.getvalue()
