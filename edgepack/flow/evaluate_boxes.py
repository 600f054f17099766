"""A detector on photos with boxes, by the reference and by what is deployed: average precision.

A device gives its outputs, of which boxes and masks are made here, since those that it deploys with
have a threshold: precision is measured over boxes of all scores. `package` has compared its own
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

from edgepack.base.errors import ConfigError, UsageError
from edgepack.base.page import Tabular
from edgepack.base.paths import locked
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.text import format_count
from edgepack.device.base import Device
from edgepack.device.limit import limited
from edgepack.flow.average_precision import (
    AveragePrecision,
    ClassPrecision,
    Guess,
    MaskFit,
    Thing,
    average_precision,
)
from edgepack.flow.data_sets import BoxedPhoto, find_data_set
from edgepack.flow.evaluate import (
    SeenJournal,
    current_release,
    outputs_there,
    photos_budget_s,
)
from edgepack.flow.job import bound_postprocess, spec_of
from edgepack.flow.outlines import Ints, count_of, mask_overlap
from edgepack.flow.project import Project, labels_of
from edgepack.flow.reference import Reference
from edgepack.frontend.float16 import widen
from edgepack.frontend.load import load_model
from edgepack.model import LoadedModel, batch_of
from edgepack.model.meanings import as_meant
from edgepack.postprocess.box_mask import BoxMask
from edgepack.postprocess.boxes import Boxes
from edgepack.postprocess.instances import MOST_BYTES
from edgepack.preprocess.image import load_image
from edgepack.preprocess.photos import read_photo
from edgepack.preprocess.spec import PreprocessSpec

SCORE = 0.001
"""Boxes below it are left out, and so are others than the best `_MOST_BOXES` of a photo: as
ultralytics does when it measures (ultralytics.cfg.default.yaml: conf, max_det)."""
_MOST_BOXES = 300
# Of a box in the journal: class, score, left, top, right, bottom; and `MaskFit`, or None.
_ROW = tuple[int, float, float, float, float, float, Any]


@dataclass(frozen=True, kw_only=True)
class BoxEvaluation(Tabular):
    """How good the boxes in all photos are, of the reference and of the device, if any.

    `labels` are empty if the project has none, `device` is its name. `masks` and
    `masks_on_device` are those of a segmentation model's masks; None with a reason in
    `without_masks` if the data set has not the outline of each object.
    """

    photos: int
    reference: AveragePrecision
    on_device: AveragePrecision | None
    labels: tuple[str, ...]
    device: str | None
    masks: AveragePrecision | None = None
    masks_on_device: AveragePrecision | None = None
    without_masks: str = ""

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
            | ({"masks_ap50": mask.ap50, "masks_ap": mask.ap} if mask else {})
            | (
                {"device_masks_ap50": other_mask.ap50, "device_masks_ap": other_mask.ap}
                if other_mask
                else {}
            )
            for one, other, mask, other_mask in self.of_classes()
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
            "masks": self.masks.to_dict() if self.masks else None,
            "device_masks": self.masks_on_device.to_dict() if self.masks_on_device else None,
            "without_masks": self.without_masks or None,
            "classes": [
                {
                    "index": one.index,
                    "label": self.label(one.index),
                    "objects": one.objects,
                    "reference": _both(one),
                    "device": _both(other),
                    "masks": _both(mask),
                    "device_masks": _both(other_mask),
                }
                for one, other, mask, other_mask in self.of_classes()
            ],
            "labels": list(self.labels),
        }

    def sides(self) -> list[tuple[str, AveragePrecision]]:
        """What was measured: boxes and masks by the reference, and on the device if there is one.

        Each with a name.
        """
        named = [
            ("reference", self.reference),
            ("device", self.on_device),
            ("masks", self.masks),
            ("masks on device", self.masks_on_device),
        ]
        return [(name, side) for name, side in named if side is not None]

    def of_classes(
        self,
    ) -> Iterable[
        tuple[ClassPrecision, ClassPrecision | None, ClassPrecision | None, ClassPrecision | None]
    ]:
        """Each class by the reference, and on the device; its masks by both. None is for what was
        not measured."""
        none = [None] * len(self.reference.classes)
        others = (self.on_device, self.masks, self.masks_on_device)
        return zip(
            self.reference.classes, *(one.classes if one else none for one in others), strict=True
        )


def _both(one: ClassPrecision | None) -> dict[str, float | None] | None:
    return None if one is None else {"ap50": one.ap50, "ap": one.ap}


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
    more; and of their masks, if the model has some, and the data set the outline of each object.

    What was seen before, of the same content, model, tables and release, is not again. Raises
    UsageError if the release that is current below `root` is of another model, and for data sets
    that cannot be read or do not fit the model; what `load_model`, the preprocessing and the
    photos raise, and what `ask_app` raises.
    """
    model = load_model(spec_of(project))
    labels = labels_of(project) or ()
    finder = _Finder.of(project, model, labels, score)
    data = find_data_set(images, split, outlines=finder.masks)
    outlined = [thing.outline is not None for photo in data.photos for thing in photo.things]
    without_masks = ""
    if finder.masks and not all(outlined):
        without_masks = (
            f"{outlined.count(False)} of {format_count(len(outlined), 'object')} have no outline"
        )
        finder = finder.without_masks()
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
            objects = _Objects.of(photo, size, classes, outlines=finder.masks)
            things.append(objects.things)
            digest = hashlib.sha256(read_photo(photo.path) + objects.key).hexdigest()
            found = journal.known.get(digest)
            if found is None:
                here = finder.here(photo.path, objects)
                there = None if device is None else finder.there(device, root, photo.path, objects)
                found = journal.add(digest, here, there)
            seen.append(found)
            bar.update(1)
    wanted = sorted(set(classes.values()))
    guesses = [_guesses(one) for one, _ in seen]
    guesses_there = None if device is None else [_guesses(one or ()) for _, one in seen]

    def measured(
        guesses: Sequence[Sequence[Guess]] | None, *, of_masks: bool = False
    ) -> AveragePrecision | None:
        if guesses is None or (of_masks and not finder.masks):
            return None
        return average_precision(things, guesses, wanted, of_masks=of_masks)

    return BoxEvaluation(
        photos=len(data.photos),
        reference=average_precision(things, guesses, wanted),
        on_device=measured(guesses_there),
        labels=tuple(labels),
        device=device.name if device else None,
        masks=measured(guesses, of_masks=True),
        masks_on_device=measured(guesses_there, of_masks=True),
        without_masks=without_masks,
    )


@dataclass(frozen=True, kw_only=True)
class _Objects:
    """The objects in a photo of `size` (height, width), of the model's classes; and the pixels of
    each if they are asked for. `key` is what answers for the photo depend on of these."""

    size: tuple[int, int]
    things: list[Thing]
    pixels: list[Ints]
    key: bytes

    @classmethod
    def of(
        cls,
        photo: BoxedPhoto,
        size: tuple[int, int],
        classes: Mapping[int, int],
        *,
        outlines: bool,
    ) -> _Objects:
        """Raises `UsageError` if they do not fit the photo."""
        things = [
            dataclasses.replace(thing, index=classes[thing.index])
            for thing in photo.things_in(*size)
        ]
        pixels = []
        if outlines:
            for number, thing in enumerate(things):
                assert thing.outline is not None
                try:
                    pixels.append(thing.outline.runs(size))
                except ValueError as error:
                    raise UsageError(f"{photo.path}: object {number + 1}: {error}") from None
        return cls(
            size=size, things=things, pixels=pixels, key=repr(things).encode() if outlines else b""
        )

    def fit(self, mask: BoxMask, index: int) -> MaskFit:
        """How a mask of a class lies among them."""
        runs = mask.runs()
        overlaps = [
            (at, mask_overlap(runs, pixels, crowd=thing.crowd))
            for at, (thing, pixels) in enumerate(zip(self.things, self.pixels, strict=True))
            if thing.index == index
        ]
        return MaskFit(area=count_of(runs), overlaps=tuple(one for one in overlaps if one[1] > 0))


def _guesses(rows: Sequence[_ROW]) -> list[Guess]:
    return [
        Guess(
            index=index,
            score=score,
            box=(left, top, right - left, bottom - top),
            mask=None
            if fit is None
            else MaskFit(area=fit[0], overlaps=tuple((at, overlap) for at, overlap in fit[1])),
        )
        for index, score, left, top, right, bottom, fit in rows
    ]


@dataclass(kw_only=True)
class _Finder:
    """Finds boxes in photos, and their masks if `masks`. `count` is how many classes the model has,
    if that is known."""

    model: LoadedModel
    preprocess: PreprocessSpec
    postprocess: Boxes
    count: int | None
    masks: bool
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
            masks=bound.makes_masks,
        )

    def without_masks(self) -> _Finder:
        """One that does not make them."""
        return dataclasses.replace(self, postprocess=self.postprocess.without_masks(), masks=False)

    def size_of(self, photo: BoxedPhoto) -> tuple[int, int]:
        """Height and width of a photo, upright."""
        height, width = load_image(photo.path, accept=self.preprocess.accepted).shape[:2]
        return height, width

    def here(self, photo: Path, objects: _Objects) -> tuple[_ROW, ...]:
        """What the reference finds."""
        if self.reference is None:
            self.reference = Reference(widen(as_meant(self.model.proto)))
        outputs = self.reference.run([self.preprocess.load(photo)])
        return self._boxes(outputs, photo, objects)

    def there(self, device: Device, root: str, photo: Path, objects: _Objects) -> tuple[_ROW, ...]:
        """What is in the outputs of the device."""
        outputs = outputs_there(self.model, device, root, image=photo)
        return self._boxes(outputs, photo, objects)

    def _boxes(
        self, outputs: Sequence[npt.NDArray[Any]], photo: Path, objects: _Objects
    ) -> tuple[_ROW, ...]:
        names = [info.name for info in self.model.outputs]
        tensors = [outputs[names.index(name)] for name in self.postprocess.outputs]
        found = self.postprocess.run(tensors, self.preprocess.geometry(*objects.size)).boxes or ()
        if not self.masks:
            return tuple((one.index, one.score, *one.box, None) for one in found)
        rows = []
        for one in found:
            if one.mask is None:
                raise UsageError(
                    f"{photo}: masks of more than {MOST_BYTES >> 20} MB: some are missing",
                    hint="a higher --score leaves the worst boxes out",
                )
            fit = objects.fit(one.mask, one.index)
            rows.append((one.index, one.score, *one.box, (fit.area, fit.overlaps)))
        return tuple(rows)
