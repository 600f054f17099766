"""Detectors: what all of them do with boxes once a head has made them of its tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from edgepack.base.tables import Table
from edgepack.postprocess.base import (
    Array,
    Floats,
    PostprocessSpec,
    as_numbers,
    label_of,
    take_count,
    take_fraction,
)
from edgepack.postprocess.instances import MOST_BYTES, Prototypes
from edgepack.postprocess.results import Box, Results
from edgepack.preprocess.geometry import Geometry

MOST_CANDIDATES = 10_000
"""As many, the best, are compared with each other: a board would take too long for more."""
MOST_BOXES = 10_000
MOST_POINTS = 1000


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """What a head found, before any of it is left out.

    `boxes` (N, 4) left, top, right, bottom and `points` (N, P, 2) x, y in pixels of the model's
    input; `scores` (N,), `classes` (N,).
    """

    boxes: Floats
    scores: Floats
    classes: Array
    points: Floats

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        """Those of several tensors, in their order."""
        return cls(
            boxes=np.concatenate([part.boxes for part in parts]),
            scores=np.concatenate([part.scores for part in parts]),
            classes=np.concatenate([part.classes for part in parts]),
            points=np.concatenate([part.points for part in parts]),
        )


@dataclass(frozen=True, kw_only=True)
class Boxes(PostprocessSpec):
    """Boxes of a `score` or more, of which none overlaps a better one by more than `iou`.

    The overlap of two is their intersection over their union. With `class_aware` only boxes of one
    class are compared. At most `max_boxes` are given, the best first, equal ones in the order of
    the tensors.
    """

    score: float = 0.25
    iou: float = 0.45
    max_boxes: int = 300
    class_aware: bool = True

    @property
    def makes_masks(self) -> bool:
        """Whether boxes have masks."""
        return False

    @property
    def is_rotated(self) -> bool:
        """Whether the points of boxes are their corners, which may lie beside the photo."""
        return False

    def without_masks(self) -> Self:
        """The same without them: they take a second or more for each photo."""
        return self

    @abstractmethod
    def candidates(self, tensors: Sequence[Floats]) -> Candidates:
        """What the tensors hold."""

    def run(
        self, tensors: Sequence[Array], geometry: Geometry | None, labels: Sequence[str] = ()
    ) -> Results:
        assert self.size is not None
        with np.errstate(all="ignore"):
            found = self.candidates([as_numbers(tensor) for tensor in tensors])
        finite = (
            np.isfinite(found.scores)
            & np.isfinite(found.boxes).all(1)
            & np.isfinite(found.points).all((1, 2))
        )
        (at,) = np.nonzero((found.scores >= self.score) & finite)
        order = at[np.argsort(-found.scores[at], kind="stable")][:MOST_CANDIDATES]
        geometry = geometry or Geometry.same(*self.size)
        place = geometry.place if self.is_rotated else geometry.point
        masks = self.prototypes(tensors, geometry)
        room = MOST_BYTES
        boxes = []
        for i in self._kept(found, order):
            left, top = geometry.point(*found.boxes[i, :2].tolist())
            right, bottom = geometry.point(*found.boxes[i, 2:].tolist())
            if left < right and top < bottom:  # else it lies beside the photo
                index = int(found.classes[i])
                mask = None
                if masks is not None and room > 0:
                    mask = masks.mask(self.coefficients(tensors, i), (left, top, right, bottom))
                    room -= len(mask.counts)
                boxes.append(
                    Box(
                        index=index,
                        label=label_of(index, labels),
                        score=float(found.scores[i]),
                        box=(left, top, right, bottom),
                        points=tuple(place(x, y) for x, y in found.points[i].tolist()),
                        mask=mask if room >= 0 else None,
                    )
                )
        return Results(boxes=tuple(boxes))

    def prototypes(self, tensors: Sequence[Array], geometry: Geometry) -> Prototypes | None:
        """What masks are made of, if the tensors hold it."""
        return None

    def coefficients(self, tensors: Sequence[Array], candidate: int) -> Floats:
        """Those of a candidate's mask."""
        raise NotImplementedError

    def overlaps(self, found: Candidates, best: int, others: Array) -> Floats:
        """How much each of `others` overlaps `best`, from 0 to 1."""
        return _iou(found.boxes[best], found.boxes[others])

    def _kept(self, found: Candidates, order: Array) -> list[int]:
        """Greedy: the best, then the best of those that do not overlap it, and so on."""
        kept: list[int] = []
        while order.size and len(kept) < self.max_boxes:
            best, order = int(order[0]), order[1:]
            kept.append(best)
            overlaps = self.overlaps(found, best, order) > self.iou
            if self.class_aware:
                overlaps &= found.classes[order] == found.classes[best]
            order = order[~overlaps]
        return kept


def _iou(box: Floats, others: Floats) -> Floats:
    """Intersection over union of `box` (4,) with each of `others` (N, 4); 0 if both are empty."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), 1)
    union = _area(box[np.newaxis]) + _area(others) - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(union), where=union > 0))


def _area(boxes: Floats) -> Floats:
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def read_boxes(table: Table, *, score: float = 0.25, iou: float = 0.45) -> dict[str, Any]:
    """The keys of `Boxes`."""
    return {
        "score": take_fraction(table, "score", score),
        "iou": take_fraction(table, "iou", iou),
        "max_boxes": take_count(table, "max_boxes", 300, 1, MOST_BOXES),
        "class_aware": table.take("class_aware", bool, True),
    }


def best_class(scores: Floats) -> tuple[Floats, Array]:
    """The highest of `scores` (N, C) in each row, and its column, the first of equals.

    NaN is below all others.
    """
    scores = np.where(np.isnan(scores), -np.inf, scores)
    classes = np.argmax(scores, 1)
    return np.take_along_axis(scores, classes[:, np.newaxis], 1)[:, 0], classes


def from_centres(centre_x: Floats, centre_y: Floats, width: Floats, height: Floats) -> Floats:
    """Boxes (N, 4) by their centres and sizes."""
    sides = (
        centre_x - width / 2,
        centre_y - height / 2,
        centre_x + width / 2,
        centre_y + height / 2,
    )
    return np.stack(sides, 1)


def cells(height: int, width: int) -> tuple[Floats, Floats]:
    """x and y of each cell of a map, row by row: (height * width,) each."""
    y, x = np.divmod(np.arange(height * width), width)
    return x.astype(np.float64), y.astype(np.float64)
