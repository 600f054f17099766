"""Key points as maps of where each of them is, as in pose networks that look at one person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from edgepack.base.tables import Table
from edgepack.postprocess.base import (
    Array,
    PostprocessSpec,
    Shapes,
    label_of,
    map_count,
    maps_of,
    sigmoid,
    take_fraction,
)
from edgepack.postprocess.results import Mark, Results
from edgepack.preprocess.geometry import Geometry
from edgepack.preprocess.spec import LAYOUTS

SCORES = ("raw", "sigmoid")


@dataclass(frozen=True, kw_only=True)
class Keypoints(PostprocessSpec):
    """One point in each map of an output (1, points, H, W): the highest cell, the first of equals.
    With `layout` "NHWC" it is (1, H, W, points), as TensorFlow has it.

    Its score is that cell's, as `scores` has it; a point of less than `score` is left out. `shift`
    moves it, in cells, towards the higher of the cell's neighbours in each direction: 0.25 in
    Simple Baselines and HRNet. `centre` is where in a cell its value belongs: 0.5 is the middle;
    0 the corner, as those two have it.
    """

    kind: ClassVar[str] = "keypoints"
    takes_all: ClassVar[bool] = False

    layout: str = "NCHW"
    scores: str = "raw"
    score: float = 0.2
    shift: float = 0.25
    centre: float = 0.5

    @classmethod
    def read(cls, table: Table) -> Self:
        return cls(
            layout=table.take_choice("layout", LAYOUTS, "NCHW"),
            scores=table.take_choice("scores", SCORES, "raw"),
            score=take_fraction(table, "score", 0.2),
            shift=take_fraction(table, "shift", 0.25),
            centre=take_fraction(table, "centre", 0.5),
        )

    def classes(self, shapes: Shapes) -> int:
        return map_count(shapes, self.layout)

    def run(
        self, tensors: Sequence[Array], geometry: Geometry | None, labels: Sequence[str] = ()
    ) -> Results:
        assert self.size is not None
        geometry = geometry or Geometry.same(*self.size)
        marks = []
        for index, values in enumerate(maps_of(tensors[0], self.layout)):
            height, width = values.shape
            y, x = divmod(int(np.argmax(np.where(np.isnan(values), -np.inf, values))), width)
            score = float(sigmoid(values[y, x]) if self.scores == "sigmoid" else values[y, x])
            if not np.isfinite(score) or score < self.score:
                continue
            column = x + self.centre + self.shift * _towards(values[y], x)
            row = y + self.centre + self.shift * _towards(values[:, x], y)
            point = geometry.point(column * self.size[1] / width, row * self.size[0] / height)
            marks.append(Mark(index=index, label=label_of(index, labels), score=score, point=point))
        return Results(keypoints=tuple(marks))


def _towards(line: Array, at: int) -> int:
    """1 if the next one of a line is above the one before, -1 if below; 0 at the ends."""
    if not 0 < at < len(line) - 1:
        return 0
    return int(line[at + 1] > line[at - 1]) - int(line[at + 1] < line[at - 1])
