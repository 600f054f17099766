"""How far a quantised model agrees with its float model, by what the outputs are for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from edgepack.flow.average_precision import Guess, Thing, average_precision
from edgepack.flow.job import bound_postprocess, class_output
from edgepack.flow.project import Project, labels_of
from edgepack.flow.reference import Array, of_first
from edgepack.model import LoadedModel, TensorInfo, batch_of
from edgepack.postprocess.base import maps_of
from edgepack.postprocess.boxes import Boxes
from edgepack.postprocess.classes import Classes
from edgepack.postprocess.masks import Segmentation
from edgepack.quantization.quantize import Agreement, Judge, agreement, snr, values_only

# Boxes of less count for the curve of precision over recall, not as what was to be found.
_LEAST_SCORE = 0.001


def judge_for(project: Project, model: LoadedModel) -> Judge:
    """What judges by the project's task.

    By the overlap of areas (mIoU) or the precision of boxes (mAP), if [postprocess] says that the
    outputs are these; by classes if the first output has one score for each; else by the error of
    the values only. Raises what the labels and [postprocess] raise.
    """
    labels = labels_of(project)
    spec = bound_postprocess(project, model, labels)
    rows = _PhotoOutputs(model.outputs, batch_of(model.inputs))
    if isinstance(spec, Segmentation):
        return lambda exact, made: dataclasses.replace(
            values_only(exact, made), miou=_miou(spec, rows, exact, made)
        )
    if isinstance(spec, Boxes) and not getattr(spec, "rotated", False):
        return lambda exact, made: dataclasses.replace(
            values_only(exact, made), map=_map(spec, rows, exact, made)
        )
    if spec is None or isinstance(spec, Classes):
        index = class_output(model, spec)
        if index is not None and _is_vector(model.outputs[index]):
            return lambda exact, made: _classes(index, exact, made)
    return values_only


def _is_vector(output: TensorInfo) -> bool:
    """Whether an output has one score for each class."""
    sizes = [size for size in output.shape[1:] if size != 1]
    return len(sizes) == 1 and isinstance(sizes[0], int)


def _classes(index: int, exact: Sequence[Array], made: Sequence[Array]) -> Agreement:
    found = agreement([exact[index]], [made[index]])
    return dataclasses.replace(found, snr_db=snr(exact, made))


@dataclasses.dataclass(frozen=True)
class _PhotoOutputs:
    """Outputs of photos, each of which is a row of numbers."""

    outputs: Sequence[TensorInfo]
    batch: int

    def of(self, rows: Sequence[Array], photo: int, names: Sequence[str]) -> list[Array]:
        """The tensors called `names` of one photo."""
        known = {info.name: index for index, info in enumerate(self.outputs)}
        shapes = [
            tuple(int(size or 1) for size in self.outputs[known[name]].shape) for name in names
        ]
        return [
            of_first(rows[known[name]][photo].reshape(shape), self.batch)
            for name, shape in zip(names, shapes, strict=True)
        ]


def _miou(
    spec: Segmentation, rows: _PhotoOutputs, exact: Sequence[Array], made: Sequence[Array]
) -> float | None:
    """The intersection of the areas of a class over their union, all photos together; the mean over
    classes that either model sees, of which what belongs to none is one."""
    same: dict[int, int] = {}
    union: dict[int, int] = {}
    for photo in range(len(exact[0])):
        one, other = (
            spec.classes_of(maps_of(rows.of(side, photo, spec.outputs)[0], spec.layout))
            for side in (exact, made)
        )
        for index in np.union1d(one, other).tolist():
            both, either = (one == index) & (other == index), (one == index) | (other == index)
            same[index] = same.get(index, 0) + int(both.sum())
            union[index] = union.get(index, 0) + int(either.sum())
    return float(np.mean([same[index] / union[index] for index in union])) if union else None


def _map(
    spec: Boxes, rows: _PhotoOutputs, exact: Sequence[Array], made: Sequence[Array]
) -> float | None:
    """The mean average precision, 50-95, of the quantised model's boxes; float32's are the truth.

    None if float32 sees nothing.
    """
    spec = spec.without_masks()  # which are not compared
    all_of_them = dataclasses.replace(spec, score=min(spec.score, _LEAST_SCORE))
    things, guesses = [], []
    for photo in range(len(exact[0])):
        truth = spec.run(rows.of(exact, photo, spec.outputs), None).boxes or ()
        found = all_of_them.run(rows.of(made, photo, spec.outputs), None).boxes or ()
        boxes = [(one.index, _corner_and_size(one.box)) for one in truth]
        things.append([Thing(index=index, box=box, area=box[2] * box[3]) for index, box in boxes])
        guesses.append(
            [
                Guess(index=one.index, score=one.score, box=_corner_and_size(one.box))
                for one in found
            ]
        )
    classes = sorted({thing.index for photo in things for thing in photo})
    return average_precision(things, guesses, classes).map


def _corner_and_size(box: Sequence[float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = box
    return left, top, right - left, bottom - top
