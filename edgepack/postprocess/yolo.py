"""The heads of YOLO v5 to v11: with anchors, without, and with the suppression in the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from edgepack.base.tables import Table
from edgepack.postprocess.base import Floats, Shapes, sigmoid, take_count
from edgepack.postprocess.boxes import (
    MOST_POINTS,
    Boxes,
    Candidates,
    best_class,
    cells,
    from_centres,
    read_boxes,
)

HEADS = ("v8", "v5", "end2end")
UNITS = ("pixels", "relative")
MOST_BINS = 64
_MOST_ANCHORS = 1024
_MOST_SIDE = 1e6


@dataclass(frozen=True, kw_only=True)
class Yolo(Boxes):
    """Boxes of one of `HEADS`.

    "v8" (v8, v9, v11): one tensor (1, 4 + classes + 3 * points, N) of centre, size and a score for
    each class; or maps (1, 4 * bins + classes, H, W) as they are before that, where each distance
    from a cell's centre to a side is the mean of `bins` logits' distribution (`bins` 1: the
    distance itself), in cells, and the classes are logits.
    "v5" (v5, v7): one tensor (1, N, 5 + classes) of centre, size, a score that anything is there,
    and one for each class; or, with `anchors`, maps (1, A * (5 + classes), H, W) or (1, A, H, W,
    5 + classes) of logits. `anchors` are width and height of the first map's A boxes, in pixels,
    then those of the second map's, and so on.
    "end2end" (v10, and exports with nms=True): rows (1, N, 6 + 3 * points) of left, top, right,
    bottom, score and class; none is compared with another.

    `units` "relative" are coordinates from 0 to 1 of the input's size, where the outputs are not
    maps. Each of `points` key points is x, y and how visible it is, which is left out.
    """

    kind: ClassVar[str] = "yolo"

    head: str = "v8"
    anchors: tuple[float, ...] = ()
    bins: int = 16
    units: str = "pixels"
    points: int = 0

    @classmethod
    def read(cls, table: Table) -> Self:
        head = table.take_choice("head", HEADS, "v8")
        spec = cls(
            **read_boxes(table),
            head=head,
            anchors=_read_anchors(table),
            bins=take_count(table, "bins", 16, 1, MOST_BINS),
            units=table.take_choice("units", UNITS, "pixels"),
            points=take_count(table, "points", 0, 0, MOST_POINTS),
        )
        if spec.anchors and head != "v5":
            raise table.fail("anchors", f"cannot be used with head = {head!r}")
        if spec.points and head == "v5":
            raise table.fail("points", "cannot be used with head = 'v5'")
        return spec

    def classes(self, shapes: Shapes) -> int | None:
        if any(len(shape) < 3 or shape[0] != 1 for shape in shapes):
            raise ValueError("it takes one image, in three dimensions or more")
        if self.head == "end2end":
            if len(shapes) != 1 or len(shapes[0]) != 3 or shapes[0][2] != 6 + 3 * self.points:
                raise ValueError(f"head 'end2end' takes rows of {6 + 3 * self.points} numbers")
            return None
        counts = {self._classes_of(shape, len(shapes)) for shape in shapes}
        if len(shapes[0]) == 3 and len(shapes) != 1:
            raise ValueError("boxes come in one output")
        if len(counts) != 1 or min(counts) < 1:
            raise ValueError("they do not hold the same number of classes, one or more")
        return counts.pop()

    def _classes_of(self, shape: Sequence[int], maps: int) -> int:
        """Of one output of several. Raises `ValueError`."""
        if self.head == "v8":
            if len(shape) == 3:
                return shape[1] - 4 - 3 * self.points
            if len(shape) != 4 or self.points:
                raise ValueError("head 'v8' takes (1, C, N), or maps (1, C, H, W) without points")
            return shape[1] - 4 * self.bins
        if len(shape) == 3 and not self.anchors:
            return shape[2] - 5
        if not self.anchors:
            raise ValueError("maps of head 'v5' need anchors")
        count, over = divmod(len(self.anchors), 2 * maps)
        if over or not count:
            raise ValueError(f"{len(self.anchors)} numbers of anchors are not for {maps} maps")
        if len(shape) == 4 and shape[1] % count == 0:
            return shape[1] // count - 5
        if len(shape) == 5 and shape[1] == count:
            return shape[4] - 5
        raise ValueError(f"maps with {count} anchors are (1, {count} * C, H, W)")

    def candidates(self, tensors: Sequence[Floats]) -> Candidates:
        if self.head == "end2end":
            return self._rows(tensors[0][0])
        if tensors[0].ndim == 3:
            return self._v8(tensors[0][0].T) if self.head == "v8" else self._v5(tensors[0][0])
        if self.head == "v8":
            return Candidates.joined([self._v8_map(tensor[0]) for tensor in tensors])
        anchors = np.array(self.anchors).reshape(len(tensors), -1, 2)
        return Candidates.joined(
            [self._v5_map(tensor[0], own) for tensor, own in zip(tensors, anchors, strict=True)]
        )

    @property
    def _unit(self) -> tuple[float, float]:
        """What x and y are multiplied by."""
        assert self.size is not None
        return (1.0, 1.0) if self.units == "pixels" else (float(self.size[1]), float(self.size[0]))

    def _points(self, columns: Floats) -> Floats:
        x, y = self._unit
        return columns.reshape(len(columns), self.points, 3)[:, :, :2] * (x, y)

    def _rows(self, rows: Floats) -> Candidates:
        x, y = self._unit
        classes = rows[:, 5]
        good = (classes >= 0) & (classes < 2**31)
        return Candidates(
            boxes=rows[:, :4] * (x, y, x, y),
            scores=np.where(good, rows[:, 4], np.nan),
            classes=np.where(good, classes, 0).astype(np.int64),
            points=self._points(rows[:, 6:]),
        )

    def _kept(self, found: Candidates, order: np.ndarray) -> list[int]:
        if self.head == "end2end":
            return [int(i) for i in order[: self.max_boxes]]
        return super()._kept(found, order)

    def _v8(self, rows: Floats) -> Candidates:
        x, y = self._unit
        end = rows.shape[1] - 3 * self.points
        scores, classes = best_class(rows[:, 4:end])
        return Candidates(
            boxes=from_centres(*(rows[:, :4] * (x, y, x, y)).T),
            scores=scores,
            classes=classes,
            points=self._points(rows[:, end:]),
        )

    def _v5(self, rows: Floats) -> Candidates:
        x, y = self._unit
        scores, classes = best_class(rows[:, 5:])
        return Candidates(
            boxes=from_centres(*(rows[:, :4] * (x, y, x, y)).T),
            scores=rows[:, 4] * scores,
            classes=classes,
            points=np.zeros((len(rows), 0, 2)),
        )

    def _v8_map(self, tensor: Floats) -> Candidates:
        assert self.size is not None
        channels, height, width = tensor.shape
        stride_x, stride_y = self.size[1] / width, self.size[0] / height
        x, y = cells(height, width)
        rows = tensor.reshape(channels, -1)
        sides = [self._distance(rows[self.bins * i : self.bins * (i + 1)]) for i in range(4)]
        scores, classes = best_class(rows[4 * self.bins :].T)
        boxes = (
            (x + 0.5 - sides[0]) * stride_x,
            (y + 0.5 - sides[1]) * stride_y,
            (x + 0.5 + sides[2]) * stride_x,
            (y + 0.5 + sides[3]) * stride_y,
        )
        return Candidates(
            boxes=np.stack(boxes, 1),
            scores=sigmoid(scores),
            classes=classes,
            points=np.zeros((len(x), 0, 2)),
        )

    def _distance(self, logits: Floats) -> Floats:
        """(bins, N) -> (N,)."""
        if self.bins == 1:
            return np.asarray(logits[0])
        weights = np.exp(logits - logits.max(0))
        # One after the other, as in C++: numpy's own sum has another order.
        total, mean = np.zeros(weights.shape[1]), np.zeros(weights.shape[1])
        for at, weight in enumerate(weights):
            total, mean = total + weight, mean + at * weight
        return np.asarray(mean / total)

    def _v5_map(self, tensor: Floats, anchors: Floats) -> Candidates:
        assert self.size is not None
        if tensor.ndim == 3:
            _, height, width = tensor.shape
            tensor = tensor.reshape(len(anchors), -1, height, width).transpose(0, 2, 3, 1)
        count, height, width, _ = tensor.shape
        stride_x, stride_y = self.size[1] / width, self.size[0] / height
        x, y = (np.tile(values, count) for values in cells(height, width))
        anchor_x, anchor_y = (np.repeat(sides, height * width) for sides in anchors.T)
        rows = tensor.reshape(count * height * width, -1)
        scores, classes = best_class(rows[:, 5:])
        first = sigmoid(rows[:, :5])
        wide, high = first[:, 2] * 2, first[:, 3] * 2
        return Candidates(
            boxes=from_centres(
                (first[:, 0] * 2 - 0.5 + x) * stride_x,
                (first[:, 1] * 2 - 0.5 + y) * stride_y,
                wide * wide * anchor_x,
                high * high * anchor_y,
            ),
            scores=first[:, 4] * sigmoid(scores),
            classes=classes,
            points=np.zeros((len(rows), 0, 2)),
        )


def _read_anchors(table: Table) -> tuple[float, ...]:
    numbers = table.take_list("anchors", float, ())
    if len(numbers) % 2 or len(numbers) > _MOST_ANCHORS:
        raise table.fail("anchors", f"{len(numbers)} numbers are not widths and heights")
    if not all(0 < one < _MOST_SIDE for one in numbers):
        raise table.fail(
            "anchors", f"{list(numbers)} holds what is not a width or height in pixels"
        )
    return numbers
