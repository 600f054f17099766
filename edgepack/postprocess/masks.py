"""Maps of the whole photo: which class each pixel is of, and lines of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import cv2
import numpy as np

from edgepack.base.tables import Table
from edgepack.postprocess.base import (
    Array,
    Floats,
    PostprocessSpec,
    Shapes,
    as_numbers,
    label_of,
    map_count,
    maps_of,
    sigmoid,
    take_count,
    take_fraction,
)
from edgepack.postprocess.results import Area, Box, Mask, Results
from edgepack.preprocess.geometry import Geometry
from edgepack.preprocess.spec import LAYOUTS

SCORES = ("raw", "sigmoid")
MOST_LINES = 10_000
_MOST_RATIO = 10.0


@dataclass(frozen=True, kw_only=True)
class Segmentation(PostprocessSpec):
    """Which pixels of the photo are of which class.

    One output: a score for each class (1, classes, H, W), of which the highest counts, the first of
    equals; or one map (1, 1, H, W), where a pixel of `score` or more is of class 0. `scores` says
    what makes scores of that one map. With `layout` "NHWC" classes come last, as TensorFlow has
    them. Pixels of class `background` are left out (-1: none are), as
    are those of the photo that are not in the tensor.
    """

    kind: ClassVar[str] = "segmentation"
    takes_all: ClassVar[bool] = False

    layout: str = "NCHW"
    scores: str = "raw"
    score: float = 0.5
    background: int = 0

    @classmethod
    def read(cls, table: Table) -> Self:
        return cls(
            layout=table.take_choice("layout", LAYOUTS, "NCHW"),
            scores=table.take_choice("scores", SCORES, "raw"),
            score=take_fraction(table, "score", 0.5),
            background=take_count(table, "background", 0, -1, 65535),
        )

    def classes(self, shapes: Shapes) -> int:
        return map_count(shapes, self.layout)

    def run(
        self, tensors: Sequence[Array], geometry: Geometry | None, labels: Sequence[str] = ()
    ) -> Results:
        assert self.size is not None
        geometry = geometry or Geometry.same(*self.size)
        seen = self.classes_of(maps_of(tensors[0], self.layout))
        rows = _cells(
            geometry.height, geometry.scaled_height, geometry.top, self.size[0], seen.shape[0]
        )
        columns = _cells(
            geometry.width, geometry.scaled_width, geometry.left, self.size[1], seen.shape[1]
        )
        whole = seen[rows][:, columns]
        whole[rows < 0] = -1
        whole[:, columns < 0] = -1
        flat = whole.ravel()
        areas = []
        for index in np.unique(flat[flat >= 0]).tolist():
            inside = np.concatenate([[False], flat == index, [False]])
            starts, ends = np.nonzero(np.diff(inside.astype(np.int8)))[0].reshape(-1, 2).T
            runs = np.stack([starts, ends - starts], 1)
            areas.append(
                Area(
                    index=index,
                    label=label_of(index, labels),
                    pixels=int((ends - starts).sum()),
                    runs=tuple(runs.ravel().tolist()),
                )
            )
        return Results(mask=Mask(size=(geometry.height, geometry.width), areas=tuple(areas)))

    def classes_of(self, scores: Floats) -> Array:
        """(C, H, W) -> (H, W) of classes; -1 for none."""
        if len(scores) == 1:
            made = sigmoid(scores[0]) if self.scores == "sigmoid" else scores[0]
            return np.where(made >= self.score, 0, -1)
        best = np.argmax(np.where(np.isnan(scores), -np.inf, scores), 0)
        return np.where(best == self.background, -1, best)


def _cells(side: int, scaled: int, start: int, size: int, cells: int) -> Array:
    """Which of `cells` in a row each of `side` pixels of the photo lies in; -1 for none."""
    pixels = np.arange(side) + 0.5
    found = np.floor((pixels * scaled / side - start) * cells / size)
    return np.where((found >= 0) & (found < cells), found, -1).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class TextLines(PostprocessSpec):
    """Lines of text in a map of how sure each pixel is part of one (1, 1, H, W), as DBNet's.

    Pixels above `threshold` that touch, also by a corner, are a line, if their mean is `score` or
    more. Around their centres goes the rectangle, turned in any way, of the smallest area; it is
    enlarged on each side by `unclip` times its area over its circumference, for the maps are of
    lines made thinner by that. One whose shorter side was below `least` pixels of the map is left
    out. Lines come in the order of their first pixel, row by row, at most `max_boxes`, as boxes of
    class 0 with four points: clockwise from the one nearest the photo's upper left corner.
    """

    kind: ClassVar[str] = "text-lines"
    takes_all: ClassVar[bool] = False

    threshold: float = 0.3
    score: float = 0.5
    unclip: float = 1.6
    least: float = 3.0
    max_boxes: int = 1000

    @classmethod
    def read(cls, table: Table) -> Self:
        numbers = {
            "unclip": table.take("unclip", float, 1.6),
            "least": table.take("least", float, 3.0),
        }
        for key, value in numbers.items():
            if not 0 <= value <= _MOST_RATIO:
                raise table.fail(key, f"{value} is not from 0 to {_MOST_RATIO:g}")
        return cls(
            threshold=take_fraction(table, "threshold", 0.3),
            score=take_fraction(table, "score", 0.5),
            unclip=numbers["unclip"],
            least=numbers["least"],
            max_boxes=take_count(table, "max_boxes", 1000, 1, MOST_LINES),
        )

    def classes(self, shapes: Shapes) -> int:
        (first, *others) = shapes
        if others or len(first) != 4 or first[:2] != [1, 1] or 0 in first:
            raise ValueError("it takes one output, a map of one image (1, 1, H, W)")
        return 1

    def count_points(self, shapes: Shapes) -> int:
        return 4

    def run(
        self, tensors: Sequence[Array], geometry: Geometry | None, labels: Sequence[str] = ()
    ) -> Results:
        assert self.size is not None
        geometry = geometry or Geometry.same(*self.size)
        sure = as_numbers(tensors[0])[0, 0]
        height, width = sure.shape
        stride_x, stride_y = self.size[1] / width, self.size[0] / height
        count, named = cv2.connectedComponents((sure > self.threshold).astype(np.uint8))
        flat = named.ravel()
        order = np.argsort(flat, kind="stable")  # pixels of each line, in their own order
        ends = np.searchsorted(flat[order], np.arange(count + 1))
        lines = [order[ends[i] : ends[i + 1]] for i in range(1, count)]
        boxes: list[Box] = []
        for pixels in sorted(lines, key=lambda one: int(one[0])):
            values = sure.ravel()[pixels]
            score = float(np.add.accumulate(values)[-1]) / len(pixels)
            corners = self._corners(pixels, width)
            if (
                not score >= self.score
                or not math.isfinite(score)
                or corners is None
                or len(boxes) == self.max_boxes
            ):
                continue
            points = [geometry.point(x * stride_x, y * stride_y) for x, y in corners]
            first = min(range(4), key=lambda i: (points[i][0] + points[i][1], i))
            xs, ys = zip(*points, strict=True)
            if min(xs) < max(xs) and min(ys) < max(ys):
                boxes.append(
                    Box(
                        index=0,
                        label=label_of(0, labels),
                        score=score,
                        box=(min(xs), min(ys), max(xs), max(ys)),
                        points=tuple(points[first:] + points[:first]),
                    )
                )
        return Results(boxes=tuple(boxes))

    def _corners(self, pixels: Array, width: int) -> list[tuple[float, float]] | None:
        """The corners of a line in the map, clockwise; None if it is too small."""
        hull = _hull([(int(i) % width, int(i) // width) for i in pixels])
        best: tuple[float, ...] = ()
        for (x, y), (to_x, to_y) in zip(hull, hull[1:] + hull[:1], strict=True):
            length = math.sqrt((to_x - x) ** 2 + (to_y - y) ** 2)
            along = ((to_x - x) / length, (to_y - y) / length) if len(hull) > 1 else (1.0, 0.0)
            u = [along[0] * (px - x) + along[1] * (py - y) for px, py in hull]
            v = [along[0] * (py - y) - along[1] * (px - x) for px, py in hull]
            area = (max(u) - min(u)) * (max(v) - min(v))
            if not best or area < best[0]:
                best = (area, *along, x, y, min(u), max(u), min(v), max(v))
        area, along_x, along_y, start_x, start_y, u0, u1, v0, v1 = best
        wide, high = u1 - u0, v1 - v0
        if min(wide, high) < self.least:
            return None
        more = area * self.unclip / (2 * (wide + high)) if area > 0 else 0.0
        u0, u1, v0, v1 = u0 - more, u1 + more, v0 - more, v1 + more
        return [
            (
                start_x + 0.5 + u * along_x - v * along_y,
                start_y + 0.5 + u * along_y + v * along_x,
            )
            for u, v in ((u0, v0), (u1, v0), (u1, v1), (u0, v1))
        ]


def _hull(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The corners of the convex hull (Andrew's monotone chain), clockwise where y goes down."""

    def chain(ordered: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        kept: list[tuple[int, int]] = []
        for x, y in ordered:
            while len(kept) > 1:
                (ax, ay), (bx, by) = kept[-2:]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                kept.pop()
            kept.append((x, y))
        return kept[:-1]

    ordered = sorted(set(points))
    return chain(ordered) + chain(ordered[::-1]) if len(ordered) > 1 else ordered
