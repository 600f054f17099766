"""A detector on photos with boxes, by the reference and by what is deployed: average precision.

A device gives its outputs, of which boxes are made here, since those that it deploys with have a
threshold: precision is measured over boxes of all scores. `package` has compared its own
postprocessing with this one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from edgepack.base.errors import ConfigError
from edgepack.base.page import Tabular
from edgepack.base.paths import locked
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.text import format_count
from edgepack.compiler.frontend.float16 import widen
from edgepack.compiler.frontend.load import load_model
from edgepack.device.base import Device
from edgepack.device.limit import limited
from edgepack.flow.average_precision import AveragePrecision, Guess, Thing, average_precision
from edgepack.flow.data_sets import BoxedPhoto, find_data_set
from edgepack.flow.evaluate import (
    SeenJournal,
    current_release,
    outputs_there,
    photos_budget_s,
)
from edgepack.flow.job import bound_postprocess, spec_of
from edgepack.flow.project import Project, read_labels
from edgepack.flow.reference import Reference
from edgepack.model import LoadedModel, batch_of
from edgepack.model.meanings import as_meant
from edgepack.postprocess.boxes import Boxes
from edgepack.preprocess.image import load_image
from edgepack.preprocess.photos import read_photo
from edgepack.preprocess.spec import PreprocessSpec

SCORE = 0.001
"""Boxes below it are left out, and so are others than the best `_MOST_BOXES` of a photo: as
ultralytics does when it measures (ultralytics.cfg.default.yaml: conf, max_det)."""
_MOST_BOXES = 300
# Numbers of a box in the journal: class, score, left, top, right, bottom.
_ROW = tuple[int, float, float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class BoxEvaluation(Tabular):
    """How good the boxes in all photos are, of the reference and of the device, if any.

    `labels` are empty if the project has none, `device` is its name.
    """

    photos: int
    reference: AveragePrecision
    on_device: AveragePrecision | None
    labels: tuple[str, ...]
    device: str | None

    @property
    def objects(self) -> int:
        """Those that are no crowds."""
        return sum(one.objects for one in self.reference.classes)

    def label(self, index: int) -> str:
        """A class in words, or its number."""
        return self.labels[index] if index < len(self.labels) else str(index)

    def rows(self) -> list[dict[str, Any]]:
        """The classes, and the precision of their boxes."""
        return [
            {
                "class": self.label(one.index),
                "objects": one.objects,
                "ap50": one.ap50,
                "ap": one.ap,
                "device_ap50": other.ap50 if other else None,
                "device_ap": other.ap if other else None,
            }
            for one, other in self.pairs()
        ]

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        there = self.on_device
        return {
            "photos": self.photos,
            "objects": self.objects,
            "reference": self.reference.to_dict(),
            "device": there.to_dict() if there else None,
            "device_name": self.device,
            "classes": [
                {
                    "index": one.index,
                    "label": self.label(one.index),
                    "objects": one.objects,
                    "reference": {"ap50": one.ap50, "ap": one.ap},
                    "device": {"ap50": other.ap50, "ap": other.ap} if other else None,
                }
                for one, other in self.pairs()
            ],
            "labels": list(self.labels),
        }

    def pairs(self) -> Iterable[tuple[Any, Any]]:
        """Each class by the reference, and by the device or None."""
        others = self.on_device.classes if self.on_device else [None] * len(self.reference.classes)
        return zip(self.reference.classes, others, strict=True)


def evaluate_boxes(
    project: Project,
    images: Path,
    *,
    split: str | None = None,
    score: float = SCORE,
    device: Device | None = None,
    root: str = "",
    progress: Progress = NO_PROGRESS,
) -> BoxEvaluation:
    """Average precision in the photos that `images` names (`find_data_set`), of boxes of `score` or
    more.

    What was seen before, of the same content, model, tables and release, is not again. Raises
    UsageError if the release that is current below `root` is of another model, and for data sets
    that cannot be read or do not fit the model; what `load_model`, the preprocessing and the
    photos raise, and what `ask_app` raises.
    """
    model = load_model(spec_of(project))
    labels = read_labels(project.labels) if project.labels else ()
    finder = _Finder.of(project, model, labels, score)
    data = find_data_set(images, split)
    classes = data.classes(labels, finder.count)
    release = None if device is None else current_release(device, root, model.sha256)
    journal = SeenJournal(
        [
            *(model.sha256, finder.preprocess.to_json(), finder.postprocess.to_json()),
            *(device.name if device else None, root, release),
        ]
    )
    things: list[list[Thing]] = []
    seen: list[tuple[Sequence[_ROW], Sequence[_ROW] | None]] = []
    count = format_count(len(data.photos), "photo")
    budget = photos_budget_s([photo.path for photo in data.photos])
    limit = limited(device, budget, count) if device else contextlib.nullcontext()
    with limit, locked(journal.path), progress.bar(count, len(data.photos)) as bar:
        for photo in data.photos:
            size = finder.size_of(photo)
            things.append(_renamed(photo.things_in(*size), classes))
            digest = hashlib.sha256(read_photo(photo.path)).hexdigest()
            found = journal.known.get(digest)
            if found is None:
                here = finder.here(photo.path, size)
                there = None if device is None else finder.there(device, root, photo.path, size)
                found = journal.add(digest, here, there)
            seen.append(found)
            bar.update(1)
    wanted = sorted(set(classes.values()))
    return BoxEvaluation(
        photos=len(data.photos),
        reference=average_precision(things, [_guesses(one) for one, _ in seen], wanted),
        on_device=None
        if device is None
        else average_precision(things, [_guesses(one or ()) for _, one in seen], wanted),
        labels=tuple(labels),
        device=device.name if device else None,
    )


def _renamed(things: Sequence[Thing], classes: Mapping[int, int]) -> list[Thing]:
    """Objects with the model's numbers of classes."""
    return [dataclasses.replace(thing, index=classes[thing.index]) for thing in things]


def _guesses(rows: Sequence[_ROW]) -> list[Guess]:
    return [
        Guess(index=index, score=score, box=(left, top, right - left, bottom - top))
        for index, score, left, top, right, bottom in rows
    ]


@dataclass(kw_only=True)
class _Finder:
    """Finds boxes in photos. `count` is how many classes the model has, if that is known."""

    model: LoadedModel
    preprocess: PreprocessSpec
    postprocess: Boxes
    count: int | None
    reference: Reference | None = None

    @classmethod
    def of(
        cls, project: Project, model: LoadedModel, labels: Sequence[str], score: float
    ) -> _Finder:
        """Raises `ConfigError` for a project that gives no upright boxes of a photo."""
        if project.preprocess is None or len(model.inputs) != 1 or batch_of(model.inputs) != 1:
            raise ConfigError(
                f"{project.model}: photos need preprocessing, and a model of one input, which is "
                "one photo",
                hint="add a [preprocess] table: `edgepack init` writes one",
            )
        bound = bound_postprocess(project, model, labels or None)
        if not isinstance(bound, Boxes):
            kind = bound.kind if bound is not None else "none"
            raise ConfigError(f"{project.origins['postprocess']}: kind {kind!r} gives no boxes")
        if getattr(bound, "rotated", False):
            raise ConfigError(
                f"{project.origins['postprocess']}: rotated boxes: their precision is not measured",
                hint="that of the upright boxes around them would be a number of another kind",
            )
        if getattr(bound, "masks", 0):
            # Masks take a second or more for each photo, and are not measured.
            bound = dataclasses.replace(bound, outputs=bound.outputs[:1])
        names = [info.name for info in model.outputs]
        shapes = [
            [one for one in model.outputs[names.index(name)].shape if isinstance(one, int)]
            for name in bound.outputs
        ]
        return cls(
            model=model,
            preprocess=project.preprocess.for_inputs(model.given),
            postprocess=dataclasses.replace(bound, score=score, max_boxes=_MOST_BOXES),
            count=bound.classes(shapes),
        )

    def size_of(self, photo: BoxedPhoto) -> tuple[int, int]:
        """Height and width of a photo, upright."""
        height, width = load_image(photo.path, accept=self.preprocess.accepted).shape[:2]
        return height, width

    def here(self, photo: Path, size: tuple[int, int]) -> tuple[_ROW, ...]:
        """What the reference finds."""
        if self.reference is None:
            self.reference = Reference(widen(as_meant(self.model.proto)))
        return self._boxes(self.reference.run([self.preprocess.load(photo)]), size)

    def there(
        self, device: Device, root: str, photo: Path, size: tuple[int, int]
    ) -> tuple[_ROW, ...]:
        """What is in the outputs of the device."""
        outputs = outputs_there(self.model, device, root, image=photo)
        return self._boxes(outputs, size)

    def _boxes(
        self, outputs: Sequence[npt.NDArray[Any]], size: tuple[int, int]
    ) -> tuple[_ROW, ...]:
        names = [info.name for info in self.model.outputs]
        tensors = [outputs[names.index(name)] for name in self.postprocess.outputs]
        found = self.postprocess.run(tensors, self.preprocess.geometry(*size)).boxes
        return tuple((one.index, one.score, *one.box) for one in found or ())
