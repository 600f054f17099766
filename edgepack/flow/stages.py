"""Models in a row: what later ones are given and say, by the reference.

cpp_runtime/app/src/stages.cc does the same on the device; what a stage is given is equal
to the byte where boxes are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import ConfigError, ImageError, UsageError, perhaps
from edgepack.bundle.sinks import SinkTables
from edgepack.flow.gallery_check import check_gallery, maker_of
from edgepack.flow.project import Project, read_labels
from edgepack.flow.reference import Array, Reference, start_of
from edgepack.flow.stage_tables import Stage
from edgepack.model import LoadedModel, ModelSpec, batch_of, check_model, read_model
from edgepack.model.errors import StateError
from edgepack.model.meanings import as_meant
from edgepack.postprocess.base import PostprocessSpec
from edgepack.postprocess.classes import Classes
from edgepack.postprocess.embedding import Embedding
from edgepack.postprocess.results import Box, Results, StageCount
from edgepack.postprocess.yolo import Yolo
from edgepack.preprocess.image import Pixels, load_image
from edgepack.preprocess.spec import PreprocessSpec
from edgepack.preprocess.warp import (
    FACE_POINTS,
    FACE_SIDE,
    Warp,
    warp_by_corners,
    warp_by_face,
)

BOX_KINDS = ("yolo", "centernet", "ssd", "text-lines")
"""Kinds of [postprocess] that give boxes."""


def gives_boxes(postprocess: PostprocessSpec | None) -> bool:
    """Whether it is of such a kind."""
    return postprocess is not None and postprocess.kind in BOX_KINDS


@dataclass(frozen=True, kw_only=True)
class OpenStage:
    """A stage whose model was read: `classes` are numbers of the first model's, none of them: all;
    `turned` is the class of an earlier stage's that says of a crop that it stands upside down, with
    that stage's number. The specs are for the model."""

    stage: Stage
    model: LoadedModel
    classes: tuple[int, ...]
    turned: tuple[int, int] | None
    preprocess: PreprocessSpec
    postprocess: PostprocessSpec
    labels: tuple[str, ...]

    @property
    def made_by(self) -> str:
        """What the stage's embeddings depend on: see `maker_of`."""
        crop = {"padding": self.stage.padding, **self.how_to_align()}
        return maker_of(self.model, self.preprocess, self.postprocess.outputs, crop)

    @property
    def side(self) -> int:
        """Of an aligned face, in pixels."""
        return max(self.preprocess.size or (FACE_SIDE,))

    def how_to_align(self) -> dict[str, Any]:
        """What stages.json says of how crops are straightened."""
        stage, turn = self.stage, None
        if stage.align == "face":
            return {"align": stage.align, "side": self.side}
        if stage.align == "box":
            return {"align": stage.align}
        if stage.turned_by is not None and self.turned is not None:
            number, index = self.turned
            turn = {"stage": number, "class": index, "score": stage.turned_by.score}
        return {"align": stage.align, "tall": stage.tall, "turn": turn}


def open_stages(
    project: Project,
    model: LoadedModel,
    postprocess: PostprocessSpec | None,
    labels: Sequence[str] | None,
) -> tuple[OpenStage, ...]:
    """The project's stages; `model` is its own, `postprocess` for that.

    Raises ConfigError for what could not work on any device: a first model that gives no boxes or
    takes several photos, a class that it does not have, a stage that does not take one image; and
    what reading models and labels raises.
    """
    if not project.stages:
        return ()
    first = project.stages[0]
    if postprocess is None or postprocess.kind not in BOX_KINDS:
        said = f"kind '{postprocess.kind}' of [postprocess]" if postprocess else "no [postprocess]"
        raise ConfigError(
            f"{first.where}: there are no boxes to look at: the project's model has {said}",
            hint=f"kinds that give boxes: {', '.join(BOX_KINDS)} (docs/guides/detectors.md)",
        )
    if project.preprocess is None:
        raise ConfigError(
            f"{first.where}: a stage is given pixels of a photo, and there is no [preprocess]",
            hint="add a [preprocess] table: `edgepack init` writes one",
        )
    if batch_of(model.inputs) != 1:
        raise ConfigError(
            f"{first.where}: the project's model takes {batch_of(model.inputs)} photos at a time",
            hint="export it for one: stages look at the boxes of one photo",
        )
    shapes = {
        info.name: [one for one in info.shape if isinstance(one, int)] for info in model.outputs
    }
    points = postprocess.count_points([shapes[name] for name in postprocess.outputs])
    opened: list[OpenStage] = []
    for stage in project.stages:
        needed = _POINTS[stage.align]
        if needed not in (0, points):
            raise ConfigError(
                f"{stage.where}.align: '{stage.align}' is by {needed} points of a box, and the "
                f"boxes of the project's model have {points}",
                hint="lines of text and rotated boxes have four corners, CenterFace's faces five "
                "points; else leave `align` out",
            )
        opened.append(_open_stage(stage, labels, opened))
    return tuple(opened)


# What a crop is straightened by.
_POINTS = {"box": 0, "corners": 4, "face": len(FACE_POINTS)}


def _open_stage(
    stage: Stage, labels: Sequence[str] | None, before: Sequence[OpenStage]
) -> OpenStage:
    try:
        model = read_model(
            ModelSpec(path=stage.model, shapes=stage.shapes, constants={}, states=stage.states)
        )
    except StateError as error:
        raise ConfigError(f"{stage.where}.states: {error.message}", hint=error.hint) from None
    check_model(model)
    if len(model.given) != 1:
        names = ", ".join(info.name for info in model.given)
        raise ConfigError(
            f"{stage.where}.model: {stage.model} has {len(model.given)} inputs: {names}",
            hint="a stage is given one image; inputs that keep an output of the frame before are "
            f"named in its `states`: edgepack inspect {stage.model.name} proposes them",
        )
    if batch_of(model.inputs) != 1:
        raise ConfigError(
            f"{stage.where}.model: {stage.model} takes {batch_of(model.inputs)} images at a time",
            hint="export it for one",
        )
    spec = stage.postprocess or Classes(scores=stage.scores)
    if stage.labels and spec.own_labels is not None:
        raise ConfigError(
            f"{stage.where}.labels: {stage.labels}: the labels are the gallery's",
            hint="leave it out",
        )
    own_labels = read_labels(stage.labels) if stage.labels else spec.own_labels
    if spec.kind == "segmentation" or (isinstance(spec, Yolo) and spec.masks > 0):
        raise ConfigError(
            f"{stage.where}.postprocess: masks are those of a whole photo, which a stage does not "
            "see",
            hint="a stage gives classes, boxes, key points, text or tensors",
        )
    try:
        preprocess = stage.preprocess.for_inputs(model.given)
        postprocess = spec.for_model(
            model.inputs, model.outputs, size=preprocess.size, labels=own_labels
        )
    except ConfigError as error:
        raise type(error)(f"{stage.where}: {error.message}", hint=error.hint) from None
    opened = OpenStage(
        stage=stage,
        model=model,
        classes=tuple(_class_number(stage, name, labels) for name in stage.classes),
        turned=_turned(stage, before),
        preprocess=dataclasses.replace(preprocess, max_pixels=_MOST_RESIZED_PIXELS),
        postprocess=postprocess,
        labels=own_labels or (),
    )
    check_gallery(postprocess, opened.made_by, f"{stage.where}.postprocess.gallery")
    return opened


def _turned(stage: Stage, before: Sequence[OpenStage]) -> tuple[int, int] | None:
    """The number of the stage that says of a crop that it stands upside down, and which class it
    says then."""
    if stage.turned_by is None:
        return None
    by, label = stage.turned_by.stage, stage.turned_by.label
    names = [opened.stage.name for opened in before]
    if by not in names:
        raise ConfigError(
            f"{stage.where}.turned_by.stage: no stage before this one is called '{by}'",
            hint=perhaps(by, names)
            if names
            else "put the table of the stage that says it before this one",
        )
    number = names.index(by)
    opened = before[number]
    if not isinstance(opened.postprocess, Classes):
        raise ConfigError(
            f"{stage.where}.turned_by: stage '{by}' gives no classes",
            hint=f"give it no postprocess, or one of kind '{Classes.kind}'",
        )
    index = _number_of(label, opened.labels)
    if index is None:
        raise ConfigError(
            f"{stage.where}.turned_by.class: the labels of stage '{by}' have no class '{label}'",
            hint=perhaps(label, opened.labels) or "give the number of the class, as text",
        )
    return number, index


def _number_of(label: str, labels: Sequence[str] | None) -> int | None:
    if labels is not None and label in labels:
        return labels.index(label)
    is_number = label.isdecimal() and label.isascii() and int(label) <= _MOST_CLASS
    return int(label) if is_number else None


def _class_number(stage: Stage, name: str, labels: Sequence[str] | None) -> int:
    index = _number_of(name, labels)
    if index is not None:
        return index
    if labels is None:
        raise ConfigError(
            f"{stage.where}.classes: the project's model has no labels, so '{name}' is none of its "
            "classes",
            hint="name a file of `labels` in [project], or give the number of the class",
        )
    raise ConfigError(
        f"{stage.where}.classes: the labels of the project's model have no class '{name}'",
        hint=perhaps(name, labels),
    )


def find_stage(project: Project, name: str) -> Stage:
    """The project's stage of this name. Raises UsageError if there is none."""
    names = [stage.name for stage in project.stages]
    if name not in names:
        raise UsageError(
            f"--stage: the project has no stage '{name}'",
            hint=perhaps(name, names) if names else "it has one model: leave --stage out",
        )
    return project.stages[names.index(name)]


def chosen_models(
    project: Project, name: str | None, **only_one: object
) -> list[tuple[str, str | None]]:
    """The models that a command is for: what each is called, and the name of its stage; the first
    is of none, and called as the project. With a `name` it is that one, else all, a file that
    several name once. Raises UsageError for a name that there is not, and for options (their values
    by their names) that are `only_one`'s where there are several."""
    if name is not None and name != project.name:
        find_stage(project, name)
    if name is not None:
        is_stage = name in (stage.name for stage in project.stages)
        return [(name, name if is_stage else None)]
    files = [project.model, *(stage.model for stage in project.stages)]
    chosen: list[tuple[str, str | None]] = [(project.name, None)]
    for number, stage in enumerate(project.stages, 1):
        if stage.model not in files[:number]:
            chosen.append((stage.name, stage.name))
    for option, value in only_one.items():
        if value is not None and len(chosen) > 1:
            raise UsageError(
                f"--{option} is for one model, and the project has {len(chosen)}",
                hint=f"--stage NAME, one of {', '.join(called for called, _ in chosen)}",
            )
    return chosen


def labels_of_all(
    labels: Sequence[str] | None, stages: Sequence[OpenStage]
) -> tuple[str, ...] | None:
    """What a line of results may name: the labels of the first model and of the stages; None if
    there are none at all."""
    lists = [labels or (), *(opened.labels for opened in stages)]
    return tuple(dict.fromkeys(name for one in lists for name in one)) or None


_MOST_CLASS = 1_000_000
# Of a long thin crop; its bytes are memory that nothing else gives.
_MOST_RESIZED_PIXELS = 1 << 24


def project_of(project: Project, opened: OpenStage, golden: Path) -> Project:
    """The project that the stage would be if it were compiled alone, with a golden input."""
    stage = opened.stage
    return dataclasses.replace(
        project,
        model=stage.model,
        labels=stage.labels,
        scores=stage.scores,
        tolerance=stage.tolerance,
        golden_image=None,
        golden_input=(golden,),
        expected_class=None,
        precision=stage.precision,
        exact=False,
        bounded=(),
        shapes=stage.shapes,
        constants={},
        states=stage.states,
        preprocess=stage.preprocess,
        # Its gallery was checked with how crops are cut, which one model does not know.
        postprocess=dataclasses.replace(opened.postprocess, made_by="")
        if isinstance(opened.postprocess, Embedding)
        else opened.postprocess,
        stages=(),
        service=None,
        sinks=SinkTables(),
        quantize=None,
        monitor=None,
    )


def crop_of(
    box: Sequence[float], padding: float, height: int, width: int
) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the pixels of a photo that a box touches once it is enlarged
    by `padding` of its sides: at least one pixel."""
    left, top, right, bottom = box
    across, down = padding * (right - left), padding * (bottom - top)
    x = _clipped(left - across, right + across, width)
    y = _clipped(top - down, bottom + down, height)
    return x[0], y[0], x[1], y[1]


def _clipped(low: float, high: float, size: int) -> tuple[int, int]:
    first = min(max(math.floor(low), 0), size - 1)
    return first, min(max(math.ceil(high), first + 1), size)


def choose(opened: OpenStage, boxes: Sequence[Box]) -> tuple[list[int], int]:
    """The boxes that the stage looks at, in their order, and how many others it should have."""
    wanted = [
        index
        for index, box in enumerate(boxes)
        if (not opened.classes or box.index in opened.classes) and all(map(math.isfinite, box.box))
    ]
    best = sorted(wanted, key=lambda index: (-boxes[index].score, index))[: opened.stage.most]
    return sorted(best), len(wanted) - len(best)


@dataclass(frozen=True, kw_only=True)
class PhotoCrop:
    """What is cut out of a photo (H, W, 3; uint8), and where: its upper left corner there if it is
    upright, else the warp."""

    pixels: Pixels
    corner: tuple[int, int] = (0, 0)
    warp: Warp | None = None

    def source(self, x: float, y: float) -> tuple[float, float]:
        """A point of the crop in the photo."""
        if self.warp is not None:
            return self.warp.source(x, y)
        return x + self.corner[0], y + self.corner[1]


def cut_out(opened: OpenStage, photo: Pixels, box: Box) -> PhotoCrop:
    """The crop that the stage looks at; what earlier stages said of the box may turn it. Raises
    `ImageError` for one that cannot be straightened."""
    stage = opened.stage
    if stage.align == "box":
        height, width = photo.shape[:2]
        left, top, right, bottom = crop_of(box.box, stage.padding, height, width)
        pixels = np.ascontiguousarray(photo[top:bottom, left:right])
        return PhotoCrop(pixels=pixels, corner=(left, top))
    if stage.align == "face":
        warp = warp_by_face(box.points, opened.side, padding=stage.padding)
    else:
        turned = _is_turned(opened, box)
        warp = warp_by_corners(box.points, padding=stage.padding, tall=stage.tall, turned=turned)
    return PhotoCrop(pixels=warp.pixels(photo), warp=warp)


def _is_turned(opened: OpenStage, box: Box) -> bool:
    by = opened.stage.turned_by
    if by is None or opened.turned is None:
        return False
    answer = box.answers.get(by.stage)
    if not isinstance(answer, Results) or not answer.top:
        return False
    return answer.top[0].index == opened.turned[1] and answer.top[0].score >= by.score


def crop_tensor(opened: OpenStage, photo: Pixels, box: Box) -> Array:
    """What the stage's model is given of a box. Raises `ImageError` for a crop that cannot be
    straightened, or that its preprocessing does not take."""
    crop = cut_out(opened, photo, box)
    return opened.preprocess.tensor(opened.preprocess.resized(crop.pixels))


class StageReferences:
    """The models of stages on the reference."""

    def __init__(self, stages: Sequence[OpenStage]) -> None:
        self._stages = stages
        self._references = [Reference(as_meant(opened.model.proto)) for opened in stages]

    def look(self, photo: Pixels, found: Results) -> Results:
        """What was found, with what the stages say of its boxes."""
        if not self._stages:
            return found
        boxes = list(found.boxes or ())
        answers: list[dict[str, Results | str]] = [{} for _ in boxes]
        counts = []
        for opened, reference in zip(self._stages, self._references, strict=True):
            chosen, dropped = choose(opened, boxes)
            failed = 0
            for index in chosen:
                box = dataclasses.replace(boxes[index], answers=answers[index])
                try:
                    answer: Results | str = _look(opened, reference, photo, box)
                except ImageError as error:
                    answer = error.message
                    failed += 1
                answers[index][opened.stage.name] = answer
            counts.append(
                StageCount(
                    stage=opened.stage.name, boxes=len(chosen), dropped=dropped, failed=failed
                )
            )
        seen = tuple(
            dataclasses.replace(box, answers=said) for box, said in zip(boxes, answers, strict=True)
        )
        return dataclasses.replace(found, boxes=seen, stages=tuple(counts))


def _look(opened: OpenStage, reference: Reference, photo: Pixels, box: Box) -> Results:
    crop = cut_out(opened, photo, box)
    tensor = opened.preprocess.tensor(opened.preprocess.resized(crop.pixels))
    # Of a photo by itself: states are what they begin with.
    outputs = reference.run(
        [
            start_of(opened.model, info) if info.name in opened.model.states else tensor
            for info in opened.model.inputs
        ]
    )
    by_name = dict(zip((info.name for info in opened.model.outputs), outputs, strict=True))
    tensors = [by_name[name] for name in opened.postprocess.outputs]
    geometry = opened.preprocess.geometry(*crop.pixels.shape[:2])
    return _moved(opened.postprocess.run(tensors, geometry, opened.labels), crop)


def _moved(found: Results, crop: PhotoCrop) -> Results:
    """Results in the pixels of a crop, in those of the photo."""

    def around(box: tuple[float, ...]) -> tuple[float, float, float, float]:
        left, top, right, bottom = box
        corners = [crop.source(x, y) for x in (left, right) for y in (top, bottom)]
        xs, ys = zip(*corners, strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    boxes = found.boxes and tuple(
        dataclasses.replace(
            box, box=around(box.box), points=tuple(crop.source(*point) for point in box.points)
        )
        for box in found.boxes
    )
    marks = found.keypoints and tuple(
        dataclasses.replace(mark, point=crop.source(*mark.point)) for mark in found.keypoints
    )
    return dataclasses.replace(found, boxes=boxes, keypoints=marks)


def crops_of(
    opened: OpenStage, before: StageReferences, photo: Pixels, found: Results
) -> list[Array]:
    """What a stage is given of a photo: a tensor for each box that it would look at. `before` are
    the stages before it, which may turn a crop; a crop that it cannot use is left out."""
    boxes = (before.look(photo, found) if opened.turned else found).boxes or ()
    tensors = []
    for index in choose(opened, boxes)[0]:
        with contextlib.suppress(ImageError):
            tensors.append(crop_tensor(opened, photo, boxes[index]))
    return tensors


def golden_crops(
    project: Project, stages: Sequence[OpenStage], found: Results
) -> Mapping[str, Array]:
    """What each stage is given of the golden photo: its likeliest box. `found` is what the
    reference sees there. Raises ConfigError for a stage that has nothing to look at."""
    if not stages:
        return {}
    if project.golden_image is None or project.preprocess is None:
        raise ConfigError(
            f"{stages[0].stage.where}: without a golden_image no stage can be tested",
            hint="name a photo in [project] that shows what the stages look at",
        )
    photo = load_image(project.golden_image, accept=project.preprocess.accepted)
    if any(opened.turned for opened in stages):
        found = StageReferences(stages).look(photo, found)
    boxes = found.boxes or ()
    crops = {}
    for opened in stages:
        chosen, _ = choose(opened, boxes)
        if not chosen:
            of = f" of {', '.join(opened.stage.classes)}" if opened.stage.classes else ""
            raise ConfigError(
                f"{opened.stage.where}: '{opened.stage.name}' would not be tested: the reference "
                f"finds no box{of} in {project.golden_image}",
                hint="give a golden_image that shows one; `edgepack check` says what is seen",
            )
        best = max(chosen, key=lambda index: (boxes[index].score, -index))
        try:
            crops[opened.stage.name] = crop_tensor(opened, photo, boxes[best])
        except ImageError as error:
            raise ConfigError(
                f"{opened.stage.where}: '{opened.stage.name}' would not be tested: of the box in "
                f"{project.golden_image} at {boxes[best].box}: {error.message}",
                hint="give a golden_image in which what it looks at is seen as a whole",
            ) from None
    return crops
