"""The `[[stage]]` tables of edgepack.toml: models that look at the boxes of the project's own.

[[stage]]
name = "breed"           what its answers are called
model = "breeds.onnx"
labels = "breeds.txt"
classes = ["dog"]        only boxes of these; by default of all
most = 4                 the likeliest of a photo; by default 8
padding = 0.1            of a box's width and height, on each side; by default 0
align = "corners"        straightened by a box's four corners, or "face"; by default "box": upright
tall = 1.5               of corners: turned a quarter if it is so many times as high as wide
turned_by = { stage = "direction", class = "180", score = 0.9 }   upside down, if that says so
states = { hidden = "hidden_next" }   what its model keeps of a track from frame to frame
[stage.preprocess]       from the crop to the model's input, as of a photo
[stage.postprocess]      by default the best classes
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepack.base.tables import Table
from edgepack.bundle.verified import DEFAULT_TOLERANCE
from edgepack.frontend.precision import PRECISIONS
from edgepack.postprocess.base import PostprocessSpec
from edgepack.postprocess.spec import read_postprocess
from edgepack.preprocess.spec import PreprocessSpec

MOST_STAGES = 8
MOST_BOXES = 1000
_MOST_CLASSES = 1000
_MOST_PADDING = 10.0
ALIGNS = ("box", "corners", "face")
_MOST_TALL = 1000.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SCORES = ("softmax", "raw")


@dataclass(frozen=True, kw_only=True)
class TurnedBy:
    """What an earlier `stage` says of a crop that stands upside down: the class with this label, or
    number as text, with this `score` at least."""

    stage: str
    label: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A model that looks at boxes of the first one, as the table at `where` in the file says it.

    `classes` are labels, or numbers as text, of the boxes; none of them: of all. `align` is one of
    `ALIGNS`; for `tall` see `warp_by_corners`. The other fields are as those of a project.
    """

    where: str
    name: str
    model: Path
    labels: Path | None
    classes: tuple[str, ...]
    most: int
    padding: float
    align: str
    tall: float
    turned_by: TurnedBy | None
    scores: str
    tolerance: float
    precision: str
    shapes: Mapping[str, tuple[int, ...]]
    states: Mapping[str, str]
    preprocess: PreprocessSpec
    postprocess: PostprocessSpec | None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it names."""
        return tuple(file for file in (self.model, self.labels) if file is not None)

    def line(self) -> str:
        """A line for a person about it."""
        of = f" of {', '.join(self.classes)}" if self.classes else ""
        by = f", enlarged by {self.padding:g}" if self.padding else ""
        count = "one box" if self.most == 1 else f"{self.most} boxes"
        how = {
            "box": "",
            "corners": ", straightened by their corners",
            "face": ", as aligned faces",
        }
        turned = f", turned by '{self.turned_by.stage}'" if self.turned_by else ""
        looks = f"{self.name}: {self.model.name} looks at up to {count}{of}{by}"
        return f"{looks}{how[self.align]}{turned}"


def take_stages(top: Table) -> tuple[Stage, ...]:
    """The stages of `top`. Raises ConfigError naming the key."""
    tables = top.take_list("stage", dict, ())
    if len(tables) > MOST_STAGES:
        raise top.fail("stage", f"{len(tables)} tables; at most {MOST_STAGES} are possible")
    stages = tuple(
        _take_stage(Table(values, file=top.file, path=f"stage[{index}]"))
        for index, values in enumerate(tables)
    )
    names = [stage.name for stage in stages]
    for name in names:
        if names.count(name) > 1:
            raise top.fail("stage", f"two are called '{name}'", hint="give each its own `name`")
    return stages


def _take_stage(table: Table) -> Stage:
    name = table.take("name", str)
    if not _NAME.fullmatch(name):
        raise table.fail("name", f"{name!r} is not letters, digits, - and _, at most 64")
    classes = table.take_list("classes", str, ())
    if len(classes) > _MOST_CLASSES or len(set(classes)) < len(classes):
        raise table.fail(
            "classes", f"{len(classes)} classes, or one twice; at most {_MOST_CLASSES}"
        )
    most = table.take("most", int, 8)
    if not 1 <= most <= MOST_BOXES:
        raise table.fail("most", f"{most} is not from 1 to {MOST_BOXES}")
    padding = table.take("padding", float, 0.0)
    if not 0 <= padding <= _MOST_PADDING:
        raise table.fail("padding", f"{padding} is not from 0 to {_MOST_PADDING:g}")
    align = table.take_choice("align", ALIGNS, "box")
    for key in ("tall", "turned_by"):
        if align != "corners" and table.has(key):
            raise table.fail(key, f"is for crops by their corners, and align is '{align}'")
    tall = table.take("tall", float, 0.0)
    if not 0 <= tall <= _MOST_TALL:
        raise table.fail("tall", f"{tall} is not from 0 to {_MOST_TALL:g}")
    tolerance = table.take("tolerance", float, DEFAULT_TOLERANCE)
    if not 0 < tolerance < 1:
        raise table.fail("tolerance", f"{tolerance} is not between 0 and 1")
    stage = Stage(
        where=f"{table.file}: {table.name('').rstrip('.')}",
        name=name,
        model=_take_file(table, "model", table.take("model", str)),
        labels=_take_file(table, "labels", table.take("labels", str, None)),
        classes=classes,
        most=most,
        padding=padding,
        align=align,
        tall=tall,
        turned_by=_take_turned_by(table),
        scores=table.take_choice("scores", _SCORES, "softmax"),
        tolerance=tolerance,
        precision=table.take_choice("precision", PRECISIONS[:2], "float32"),
        shapes=_take_shapes(table),
        states=_take_states(table),
        preprocess=_take_preprocess(table),
        postprocess=_take_postprocess(table),
    )
    table.finish()
    return stage


def _take_turned_by(table: Table) -> TurnedBy | None:
    values: dict[str, Any] | None = table.take("turned_by", dict, None)
    if values is None:
        return None
    own = Table(values, file=table.file, path=table.name("turned_by"))
    score = own.take("score", float, 0.5)
    if not 0 <= score <= 1:
        raise own.fail("score", f"{score} is not from 0 to 1")
    turned = TurnedBy(stage=own.take("stage", str), label=own.take("class", str), score=score)
    own.finish()
    return turned


def _take_file(table: Table, key: str, name: str | None) -> Any:
    if name is None:
        return None
    file = table.file_inside(key, name)
    if not file.is_file():
        raise table.fail(key, f"{'not a file' if file.exists() else 'no such file'}: {file}")
    return file


def _take_shapes(table: Table) -> dict[str, tuple[int, ...]]:
    names: dict[str, Any] = table.take("shapes", dict, {})
    own = Table(names, file=table.file, path=table.name("shapes"))
    shapes = {name: own.take_list(name, int) for name in names}
    for name, shape in shapes.items():
        if any(size < 1 for size in shape):
            raise own.fail(name, f"{list(shape)} holds a size below 1")
    return shapes


def _take_states(table: Table) -> dict[str, str]:
    names: dict[str, Any] = table.take("states", dict, {})
    own = Table(names, file=table.file, path=table.name("states"))
    return {name: own.take(name, str) for name in names}


def _take_preprocess(table: Table) -> PreprocessSpec:
    values: dict[str, Any] = table.take("preprocess", dict)
    path = table.name("preprocess")
    for key in ("decode", "accept", "max_pixels"):
        if key in values:
            raise table.fail(
                f"preprocess.{key}",
                "is about files, and a stage is given pixels of the photo",
                hint=f"leave it out; [preprocess] has the {key} of photos",
            )
    # A preset may have photos decoded smaller.
    spec = replace(PreprocessSpec.from_table(values, file=table.file, path=path), decode="full")
    if spec.size is None:
        raise table.fail(
            "preprocess",
            "crops are of any size, and it makes tensors of as many",
            hint='add a resize with mode = "exact" or "letterbox", or a crop after "shortest"',
        )
    return spec


def _take_postprocess(table: Table) -> PostprocessSpec | None:
    values: dict[str, Any] | None = table.take("postprocess", dict, None)
    if values is None:
        return None
    return read_postprocess(values, file=table.file, path=table.name("postprocess"))
