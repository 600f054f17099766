"""Boxes as differences from anchors, as SSD's heads have them, and what was built after it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from edgepack.base.tables import Table
from edgepack.postprocess.base import Floats, Shapes, sigmoid
from edgepack.postprocess.boxes import (
    MOST_POINTS,
    Boxes,
    Candidates,
    best_class,
    cells,
    from_centres,
    read_boxes,
)

SCORES = ("softmax", "sigmoid", "raw")
BACKGROUNDS = ("first", "last", "none")
ORDERS = ("xywh", "yxhw")
SIZES = ("exp", "linear")
UNITS = ("relative", "pixels")
STYLES = ("tf", "ssd")
MOST_MAPS = 64
MOST_CELLS = 65_535
MOST_ANCHORS = 1024
_MOST_SIDE = 1e6
_MOST_VARIANCE = 1e3


@dataclass(frozen=True, kw_only=True)
class Ssd(Boxes):
    """Outputs: boxes (1, N, 4) and scores (1, N, classes), and perhaps points (1, N, 2 * points),
    which can also be more columns of the boxes.

    N anchors: of map after map, row by row, in each cell the map's own of `anchors`: `counts` says
    how many of them (width, height) each map has. `maps` are height and width of each, which cover
    the input; or `strides` are the pixels from cell to cell of each, which covers the input and
    perhaps more. An anchor's centre is that of its cell.

    A box is x and y of its centre, as differences from the anchor's in its size times the first of
    `variances`, and its width and height over the anchor's: their logarithms times the second
    (`sizes` "exp"), or themselves ("linear"). `order` says which comes first. Points are as the
    centre. Without anchors boxes are left, top, right, bottom (top first with "yxhw").
    `units` are those of anchors, or of boxes without: "relative" to the input's size.

    `scores` makes scores of the elements of each box, of which the best counts that is not the
    `background`'s; classes are numbered with it.
    """

    kind: ClassVar[str] = "ssd"

    anchors: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    maps: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    units: str = "relative"
    variances: tuple[float, ...] = (0.1, 0.2)
    order: str = "xywh"
    sizes: str = "exp"
    scores: str = "softmax"
    background: str = "first"

    @classmethod
    def read(cls, table: Table) -> Self:
        maps = _read_whole(table, "maps", 2 * MOST_MAPS, MOST_CELLS)
        strides = _read_whole(table, "strides", MOST_MAPS, MOST_CELLS)
        if len(maps) % 2:
            raise table.fail("maps", f"{list(maps)} are not heights and widths")
        if maps and strides:
            raise table.fail("strides", "cannot be used with maps")
        count = len(maps) // 2 or len(strides)
        made = _generated(table, count)
        anchors, counts = made or (_read_anchors(table), ())
        counts = counts or _read_whole(table, "counts", MOST_MAPS, MOST_ANCHORS)
        if 2 * sum(counts) != len(anchors) or len(counts) != count:
            raise table.fail(
                "counts",
                f"{list(counts)} do not give {len(anchors) // 2} anchors to {count} maps",
                hint="one number for each map, whose sum is that of the anchors",
            )
        variances = table.take_list("variances", float, (0.1, 0.2))
        if len(variances) != 2 or not all(0 < one <= _MOST_VARIANCE for one in variances):
            raise table.fail("variances", f"{list(variances)} are not two numbers above 0")
        return cls(
            **read_boxes(table),
            anchors=anchors,
            counts=counts,
            maps=maps,
            strides=strides,
            units=table.take_choice("units", UNITS, "relative"),
            variances=variances,
            order=table.take_choice("order", ORDERS, "xywh"),
            sizes=table.take_choice("sizes", SIZES, "exp"),
            scores=table.take_choice("scores", SCORES, "softmax"),
            background=table.take_choice("background", BACKGROUNDS, "first"),
        )

    def classes(self, shapes: Shapes) -> int:
        if not 2 <= len(shapes) <= 3 or any(len(shape) != 3 or shape[0] != 1 for shape in shapes):
            raise ValueError("it takes boxes (1, N, 4), scores (1, N, classes), and perhaps points")
        boxes, scores, *points = shapes
        if len({shape[1] for shape in shapes}) != 1:
            raise ValueError("they do not hold the same number of boxes")
        columns = [boxes[2] - 4, *(shape[2] for shape in points)]
        if any(not 0 <= one <= 2 * MOST_POINTS or one % 2 for one in columns) or (
            points and columns[0]
        ):
            raise ValueError("a box is four numbers, points are two each")
        if scores[2] < 1 + (self.background != "none"):
            raise ValueError("scores have no class beside the background")
        anchors = sum(one * h * w for one, (h, w) in zip(self.counts, self._maps(), strict=True))
        if self.counts and anchors != boxes[1]:
            raise ValueError(f"the maps have {anchors} anchors")
        return scores[2]

    def count_points(self, shapes: Shapes) -> int:
        boxes, _, *points = shapes
        return points[0][2] // 2 if points else (boxes[2] - 4) // 2

    def _maps(self) -> list[tuple[int, int]]:
        """(height, width) of each."""
        if self.maps:
            return list(zip(self.maps[::2], self.maps[1::2], strict=True))
        assert self.size is not None
        high, wide = self.size
        return [(-(-high // one), -(-wide // one)) for one in self.strides]

    def _anchors(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Centres' x and y, widths and heights, in pixels."""
        assert self.size is not None
        unit = (1, 1) if self.units == "pixels" else self.size[::-1]
        pairs = iter(np.array(self.anchors).reshape(-1, 2) * unit)
        parts = []
        strides: Sequence[int | None] = self.strides or (None,) * len(self.counts)
        for (height, width), count, stride in zip(self._maps(), self.counts, strides, strict=True):
            own = np.array(list(itertools.islice(pairs, count)))
            x, y = cells(height, width)
            centre_x = (x + 0.5) * (stride or self.size[1] / width)
            centre_y = (y + 0.5) * (stride or self.size[0] / height)
            each = (np.repeat(centre_x, count), np.repeat(centre_y, count))
            parts.append((*each, np.tile(own[:, 0], len(x)), np.tile(own[:, 1], len(x))))
        x, y, wide, high = (np.concatenate(part) for part in zip(*parts, strict=True))
        return x, y, wide, high

    def candidates(self, tensors: Sequence[Floats]) -> Candidates:
        assert self.size is not None
        rows, scores = tensors[0][0], tensors[1][0]
        marks = tensors[2][0] if len(tensors) == 3 else rows[:, 4:]
        marks = marks.reshape(len(rows), -1, 2)
        first, second, third, fourth = rows[:, :4].T
        if self.order == "yxhw":
            first, second, third, fourth = second, first, fourth, third
            marks = marks[:, :, ::-1]
        if not self.anchors:
            unit = (1, 1) if self.units == "pixels" else self.size[::-1]
            boxes = np.stack((first, second, third, fourth), 1) * (*unit, *unit)
            points = marks * unit
        else:
            x, y, wide, high = self._anchors()
            near, far = self.variances
            width, height = third * far, fourth * far
            if self.sizes == "exp":
                width, height = np.exp(width), np.exp(height)
            boxes = from_centres(
                x + first * near * wide, y + second * near * high, width * wide, height * high
            )
            points = (
                np.stack((x, y), 1)[:, np.newaxis]
                + marks * near * np.stack((wide, high), 1)[:, np.newaxis]
            )
        best, classes = self._best(scores)
        return Candidates(boxes=boxes, scores=best, classes=classes, points=points)

    def _best(self, scores: Floats) -> tuple[Floats, np.ndarray]:
        """The score of each row's best class, and its number."""
        begin = int(self.background == "first")
        best, classes = best_class(scores[:, begin : len(scores[0]) - (self.background == "last")])
        if self.scores == "softmax":
            # One after the other, as in C++.
            weights = np.exp(scores - best[:, np.newaxis])
            best = 1 / np.add.accumulate(weights, 1)[:, -1]
        elif self.scores == "sigmoid":
            best = sigmoid(best)
        return best, classes + begin


def _read_whole(table: Table, key: str, most: int, largest: int) -> tuple[int, ...]:
    numbers = table.take_list(key, int, ())
    if len(numbers) > most or not all(1 <= one <= largest for one in numbers):
        raise table.fail(key, f"{list(numbers)} are too many, or one is not from 1 to {largest}")
    return numbers


def _read_anchors(table: Table) -> tuple[float, ...]:
    numbers = table.take_list("anchors", float, ())
    if len(numbers) % 2 or len(numbers) > MOST_ANCHORS:
        raise table.fail("anchors", f"{len(numbers)} numbers are not widths and heights")
    if not all(0 < one < _MOST_SIDE for one in numbers):
        raise table.fail("anchors", f"{list(numbers)} holds what is not a width or height")
    return numbers


def _generated(table: Table, maps: int) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
    """Anchors and counts by the rule in `generate`, which only a project file has."""
    if not table.has("generate"):
        return None
    if table.has("anchors") or table.has("counts"):
        raise table.fail("generate", "cannot be used with anchors and counts")
    rule = table.take_table("generate")
    assert rule is not None
    if not maps:
        raise table.fail("generate", "needs maps or strides")
    style = rule.take_choice("style", STYLES)
    made = _tf_anchors(rule, maps) if style == "tf" else _ssd_anchors(rule, maps)
    rule.finish()
    sides = [
        (scale * math.sqrt(ratio), scale / math.sqrt(ratio)) for own in made for scale, ratio in own
    ]
    if len(sides) > MOST_ANCHORS // 2 or not all(
        0 < one < _MOST_SIDE for two in sides for one in two
    ):
        raise table.fail("generate", "makes too many anchors, or one without a size")
    return tuple(itertools.chain(*sides)), tuple(len(own) for own in made)


_Made = list[list[tuple[float, float]]]
"""Scale and ratio (width over height) of the anchors of each map."""


def _tf_anchors(rule: Table, maps: int) -> _Made:
    """As `ssd_anchor_generator` in TensorFlow's object detection API."""
    low = _take_positive(rule, "min_scale", 0.2)
    high = _take_positive(rule, "max_scale", 0.95)
    ratios = _ratios(rule, rule.take_list("ratios", float, (1.0, 2.0, 0.5, 3.0, 0.3333)))
    reduced = rule.take("reduce_first", bool, True)
    scales = [low + (high - low) * i / max(maps - 1, 1) for i in range(maps)] + [1.0]
    made = [
        [*((scale, ratio) for ratio in ratios), (math.sqrt(scale * after), 1.0)]
        for scale, after in itertools.pairwise(scales)
    ]
    if reduced:
        made[0] = [(0.1, 1.0), (low, 2.0), (low, 0.5)]
    return made


def _ssd_anchors(rule: Table, maps: int) -> _Made:
    """As the paper's, in Caffe and in torchvision's `DefaultBoxGenerator`."""
    scales = rule.take_list("scales", float)
    if len(scales) != maps + 1 or not all(0 < one < _MOST_SIDE for one in scales):
        raise rule.fail("scales", f"{list(scales)} are not {maps + 1} numbers above 0")
    kind: Any = float | list
    given: list[Any] = list(rule.take_list("ratios", kind))
    if not all(isinstance(one, list) for one in given):
        given = [given] * maps
    if len(given) != maps:
        raise rule.fail("ratios", f"{len(given)} lists for {maps} maps")
    made = []
    for (scale, after), own in zip(itertools.pairwise(scales), given, strict=True):
        anchors = [(scale, 1.0), (math.sqrt(scale * after), 1.0)]
        for ratio in _ratios(rule, own):
            anchors += [(scale, ratio), (scale, 1 / ratio)]
        made.append(anchors)
    return made


def _ratios(rule: Table, given: Sequence[Any]) -> tuple[float, ...]:
    for one in given:
        if isinstance(one, bool) or not isinstance(one, int | float) or not 1e-3 <= one <= 1e3:
            raise rule.fail("ratios", f"{one!r} is not a ratio of width and height")
    return tuple(float(one) for one in given)


def _take_positive(rule: Table, key: str, default: float) -> float:
    value = rule.take(key, float, default)
    if not 0 < value < _MOST_SIDE:
        raise rule.fail(key, f"{value} is not above 0")
    return value
