"""The heads of YOLO v5 to v26: with anchors, without, and with the suppression in the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from edgepack.base.tables import Table
from edgepack.postprocess.base import Array, Floats, Shapes, as_numbers, sigmoid, take_count
from edgepack.postprocess.boxes import (
    MOST_POINTS,
    Boxes,
    Candidates,
    best_class,
    cells,
    from_centres,
    read_boxes,
)
from edgepack.postprocess.instances import Prototypes
from edgepack.preprocess.geometry import Geometry

HEADS = ("v8", "v5", "end2end")
UNITS = ("pixels", "relative")
MOST_BINS = 64
MOST_MASKS = 1024
_MOST_ANCHORS = 1024
_MOST_SIDE = 1e6
_WITH_PROTOTYPES = 2  # outputs


@dataclass(frozen=True, kw_only=True)
class Yolo(Boxes):
    """Boxes of one of `HEADS`.

    "v8" (v8, v9, v11): one tensor (1, 4 + classes + more, N) of centre, size and a score for each
    class; or maps (1, 4 * bins + classes, H, W) as they are before that, where each distance
    from a cell's centre to a side is the mean of `bins` logits' distribution (`bins` 1: the
    distance itself), in cells, and the classes are logits.
    "v5" (v5, v7): one tensor (1, N, 5 + classes) of centre, size, a score that anything is there,
    and one for each class; or, with `anchors`, maps (1, A * (5 + classes), H, W) or (1, A, H, W,
    5 + classes) of logits. `anchors` are width and height of the first map's A boxes, in pixels,
    then those of the second map's, and so on.
    "end2end" (v10, v26, and exports with nms=True): rows (1, N, 6 + more) of left, top, right,
    bottom, score and class; none is compared with another.

    `units` "relative" are coordinates from 0 to 1 of the input's size, where the outputs are not
    maps. More numbers of a box follow, of one of three kinds: `points` key points, each of
    `point_size` numbers: x, y and, if there are three, how visible it is, which is left out;
    `masks` coefficients of its mask, of which a second output has the prototypes (1, masks, H, W):
    without it there are boxes only; or, if it is `rotated`, its angle in radians, clockwise. A
    rotated box is centre and size in rows, too. Its corners are its points: the upper left one of
    the box before it is turned, then the others, clockwise.

    The overlap of two rotated boxes is that of two normal distributions of their centres and
    spreads: 1 less the Hellinger distance, as in Murrugarra-Llerena et al., "Gaussian Bounding
    Boxes and Probabilistic Intersection-over-Union" (2021), and in ultralytics.
    """

    kind: ClassVar[str] = "yolo"

    head: str = "v8"
    anchors: tuple[float, ...] = ()
    bins: int = 16
    units: str = "pixels"
    points: int = 0
    point_size: int = 3
    masks: int = 0
    rotated: bool = False

    @property
    def is_rotated(self) -> bool:
        return self.rotated

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
            point_size=take_count(table, "point_size", 3, 2, 3),
            masks=take_count(table, "masks", 0, 0, MOST_MASKS),
            rotated=table.take("rotated", bool, False),
        )
        if spec.anchors and head != "v5":
            raise table.fail("anchors", f"cannot be used with head = {head!r}")
        more = {"points": spec.points, "masks": spec.masks, "rotated": spec.rotated}
        used = [key for key, value in more.items() if value]
        if used and head == "v5":
            raise table.fail(used[0], "cannot be used with head = 'v5'")
        if len(used) > 1:
            raise table.fail(used[1], f"cannot be used with {used[0]}")
        return spec

    @property
    def _more(self) -> int:
        """How many numbers of a box there are after its classes."""
        return self.points * self.point_size + self.masks + self.rotated

    def count_points(self, shapes: Shapes) -> int:
        return 4 if self.rotated else self.points

    def classes(self, shapes: Shapes) -> int | None:
        if any(len(shape) < 3 or shape[0] != 1 for shape in shapes):
            raise ValueError("it takes one image, in three dimensions or more")
        if self.masks and len(shapes) == _WITH_PROTOTYPES:
            shape = shapes[1]
            if len(shape) != 4 or shape[1] != self.masks or 0 in shape:
                raise ValueError(f"the second output has to be prototypes (1, {self.masks}, H, W)")
            shapes = shapes[:1]
        if self.head == "end2end":
            if len(shapes) != 1 or len(shapes[0]) != 3 or shapes[0][2] != 6 + self._more:
                raise ValueError(f"head 'end2end' takes rows of {6 + self._more} numbers")
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
                return shape[1] - 4 - self._more
            if len(shape) != 4 or self._more:
                raise ValueError(
                    "head 'v8' takes (1, C, N), or maps (1, C, H, W) of nothing but boxes"
                )
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
    def makes_masks(self) -> bool:
        return self.masks > 0 and len(self.outputs) == _WITH_PROTOTYPES

    def without_masks(self) -> Self:
        return replace(self, outputs=self.outputs[:1]) if self.makes_masks else self

    def prototypes(self, tensors: Sequence[Array], geometry: Geometry) -> Prototypes | None:
        if not self.makes_masks:
            return None
        assert self.size is not None
        return Prototypes(maps=as_numbers(tensors[1])[0], size=self.size, geometry=geometry)

    def coefficients(self, tensors: Sequence[Array], candidate: int) -> Floats:
        first = tensors[0][0]
        row = first[candidate] if self.head == "end2end" else first[:, candidate]
        return as_numbers(row[len(row) - self.masks :])

    @property
    def _unit(self) -> tuple[float, float]:
        """What x and y are multiplied by."""
        assert self.size is not None
        return (1.0, 1.0) if self.units == "pixels" else (float(self.size[1]), float(self.size[0]))

    def _points(self, columns: Floats) -> Floats:
        columns = columns[:, : self.points * self.point_size]
        found = columns.reshape(len(columns), self.points, self.point_size)
        return found[:, :, :2] * self._unit

    def _boxes(self, centres: Floats, columns: Floats) -> tuple[Floats, Floats]:
        """Boxes and points by centres and sizes (N, 4), and the numbers after the classes."""
        x, y = self._unit
        centres = centres * (x, y, x, y)
        if not self.rotated:
            return from_centres(*centres.T), self._points(columns)
        centre_x, centre_y, wide, high = centres.T
        corners = _turned(centre_x, centre_y, wide, high, columns[:, 0])
        return np.concatenate([corners.min(1), corners.max(1)], 1), corners

    def _rows(self, rows: Floats) -> Candidates:
        x, y = self._unit
        classes = rows[:, 5]
        good = (classes >= 0) & (classes < 2**31)
        boxes, points = rows[:, :4] * (x, y, x, y), self._points(rows[:, 6:])
        if self.rotated:
            boxes, points = self._boxes(rows[:, :4], rows[:, 6:])
        return Candidates(
            boxes=boxes,
            scores=np.where(good, rows[:, 4], np.nan),
            classes=np.where(good, classes, 0).astype(np.int64),
            points=points,
        )

    def overlaps(self, found: Candidates, best: int, others: Array) -> Floats:
        if self.rotated:
            return _spread_overlaps(found.points[best], found.points[others])
        return super().overlaps(found, best, others)

    def _kept(self, found: Candidates, order: np.ndarray) -> list[int]:
        if self.head == "end2end":
            return [int(i) for i in order[: self.max_boxes]]
        return super()._kept(found, order)

    def _v8(self, rows: Floats) -> Candidates:
        end = rows.shape[1] - self._more
        scores, classes = best_class(rows[:, 4:end])
        boxes, points = self._boxes(rows[:, :4], rows[:, end:])
        return Candidates(boxes=boxes, scores=scores, classes=classes, points=points)

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


def _turned(x: Floats, y: Floats, width: Floats, height: Floats, angle: Floats) -> Floats:
    """The corners (N, 4, 2) of boxes that are turned around their centres."""
    cos, sin = np.cos(angle) / 2, np.sin(angle) / 2
    wide, high = np.stack([width * cos, width * sin]), np.stack([-height * sin, height * cos])
    centre = np.stack([x, y])
    corners = (centre - wide - high, centre + wide - high, centre + wide + high)
    return np.stack([*corners, centre - wide + high]).transpose(2, 0, 1)


# As in ultralytics.utils.metrics.batch_probiou.
_LITTLE, _FAR = 1e-7, 100.0


def _spread_overlaps(corners: Floats, others: Floats) -> Floats:
    """The overlap of the rotated box `corners` (4, 2) with each of `others` (N, 4, 2)."""
    x1, y1, a1, b1, c1 = _spread(corners[np.newaxis])
    x2, y2, a2, b2, c2 = _spread(others)
    a, b, c = a1 + a2, b1 + b2, c1 + c2
    x, y = x1 - x2, y1 - y2
    whole = a * b - c * c
    far = (a * y * y + b * x * x) / (whole + _LITTLE) / 4 - c * x * y / (whole + _LITTLE) / 2
    own = np.maximum(a1 * b1 - c1 * c1, 0) * np.maximum(a2 * b2 - c2 * c2, 0)
    with np.errstate(all="ignore"):
        shape = np.log(whole / (4 * np.sqrt(own) + _LITTLE) + _LITTLE) / 2
    # The Bhattacharyya distance, then Hellinger's. What is no number is far.
    distance = far + shape
    near = np.where(np.isnan(distance), _FAR, np.clip(distance, _LITTLE, _FAR))
    return np.asarray(1 - np.sqrt(1 - np.exp(-near) + _LITTLE))


def _spread(corners: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Centre x, y, and the covariance xx, yy, xy of a point anywhere in boxes (N, 4, 2)."""
    (x, y), (wide_x, wide_y), (high_x, high_y) = (
        one.T
        for one in (
            (corners[:, 0] + corners[:, 2]) / 2,
            corners[:, 1] - corners[:, 0],
            corners[:, 3] - corners[:, 0],
        )
    )
    xx, yy = wide_x * wide_x + high_x * high_x, wide_y * wide_y + high_y * high_y
    return x, y, xx / 12, yy / 12, (wide_x * wide_y + high_x * high_y) / 12


def _read_anchors(table: Table) -> tuple[float, ...]:
    numbers = table.take_list("anchors", float, ())
    if len(numbers) % 2 or len(numbers) > _MOST_ANCHORS:
        raise table.fail("anchors", f"{len(numbers)} numbers are not widths and heights")
    if not all(0 < one < _MOST_SIDE for one in numbers):
        raise table.fail(
            "anchors", f"{list(numbers)} holds what is not a width or height in pixels"
        )
    return numbers
