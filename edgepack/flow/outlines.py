"""Which pixels an object's outline covers, and how much masks overlap: by COCO's definition.

The pixels of polygons are those of pycocotools 2.0.11 (common/maskApi.c, rleFrPoly): an edge is
traced in steps of a fifth of a pixel, and where the trace crosses the middle of a column of pixels,
inside becomes outside. Several polygons of one object are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgepack.postprocess.box_mask import BoxMask

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STEPS = 5
_MIDDLE = _STEPS // 2
MOST_STEPS = 1 << 24
"""Of the edges of an object, in fifths of a pixel: a photo of 100 MP has a border of 200,000."""


@dataclass(frozen=True, kw_only=True)
class Outline:
    """Polygons, each x, y, x, y ..., in pixels of the photo; or a mask."""

    polygons: tuple[tuple[float, ...], ...] = ()
    mask: BoxMask | None = None

    def scaled(self, width: float, height: float) -> Outline:
        """With the polygons' x and y multiplied."""
        return Outline(
            polygons=tuple(
                tuple(
                    value * (height if at % 2 else width) for at, value in enumerate(polygon)
                )
                for polygon in self.polygons
            ),
            mask=self.mask,
        )  # fmt: skip

    def runs(self, size: tuple[int, int]) -> Ints:
        """(N, 2): where each run of pixels begins and ends, column by column of a photo of `size`
        (height, width). Raises `ValueError` for a mask of another size, or too long an outline."""
        if self.mask is not None:
            if self.mask.size != size:
                of = " x ".join(map(str, self.mask.size))
                raise ValueError(f"its mask is of {of} pixels, the photo is {size[0]} x {size[1]}")
            return self.mask.runs()
        return _joined([_polygon_runs(polygon, size) for polygon in self.polygons])


def count_of(runs: Ints) -> int:
    """How many pixels."""
    return int((runs[:, 1] - runs[:, 0]).sum())


def mask_overlap(mask: Ints, other: Ints, *, crowd: bool) -> float:
    """Intersection over union of the pixels in two sets of runs; over those of `mask` alone where
    `other` is a crowd."""
    shared = int((_before(other, mask[:, 1]) - _before(other, mask[:, 0])).sum())
    if not shared:
        return 0.0
    own = count_of(mask)
    return shared / (own if crowd else own + count_of(other) - shared)


def _before(runs: Ints, places: Ints) -> Ints:
    """How many pixels of the runs lie before each place."""
    if not len(runs):
        return np.zeros(len(places), np.int64)
    counts = np.concatenate([[0], np.cumsum(runs[:, 1] - runs[:, 0])])
    at = np.searchsorted(runs[:, 0], places, side="right") - 1
    last = np.maximum(at, 0)
    partly = np.minimum(places, runs[last, 1]) - runs[last, 0]
    return np.where(at < 0, 0, counts[last] + partly)


def _joined(parts: Sequence[Ints]) -> Ints:
    """Runs of the pixels that are in any of the parts."""
    runs = np.concatenate([np.zeros((0, 2), np.int64), *parts])
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    ends = np.maximum.accumulate(runs[:, 1])
    begins = np.ones(len(runs), np.bool_)
    begins[1:] = runs[1:, 0] > ends[:-1]
    (first,) = np.nonzero(begins)
    last = np.append(first[1:], len(runs))[: len(first)] - 1
    return np.stack([runs[first, 0], ends[last]], 1)


def _polygon_runs(polygon: Sequence[float], size: tuple[int, int]) -> Ints:
    height, width = size
    x, y = _trace(np.array(polygon, np.float64).reshape(-1, 2))
    (at,) = np.nonzero(x[1:] != x[:-1])
    before, after = x[at], x[at + 1]
    columns = np.where(after < before, after, after - 1)
    crossing = (columns % _STEPS == _MIDDLE) & (columns >= 0)
    columns, rows = columns[crossing] // _STEPS, np.minimum(y[at], y[at + 1])[crossing]
    rows = np.ceil(np.clip((rows + 0.5) / _STEPS - 0.5, 0, height)).astype(np.int64)
    inside = columns < width
    turns = np.sort(columns[inside] * height + rows[inside])
    if len(turns) % 2:
        turns = np.append(turns, height * width)
    runs = turns.reshape(-1, 2)
    # Places that two edges cross are no turn.
    return runs[runs[:, 0] < runs[:, 1]]


def _trace(points: Floats) -> tuple[Ints, Ints]:
    """x and y of the steps along the polygon's edges, in fifths of a pixel.

    Each step along an edge's longer side is one; the other coordinate is rounded as C does it,
    towards 0.
    """
    corners = np.trunc(points * _STEPS + 0.5)
    ends = np.roll(corners, -1, 0)
    spans = np.abs(ends - corners)
    longer = (spans[:, 0] < spans[:, 1]).astype(np.int64)  # of equals x
    edges = np.arange(len(corners))
    counts = spans[edges, longer] + 1
    if counts.sum() > MOST_STEPS:
        raise ValueError(f"its outline is longer than {MOST_STEPS // _STEPS} pixels")
    # An edge is traced from the lower end of its longer side, whichever way it goes.
    turned = corners[edges, longer] > ends[edges, longer]
    low = np.where(turned[:, np.newaxis], ends, corners)
    high = np.where(turned[:, np.newaxis], corners, ends)
    spread = high - low
    length = spread[edges, longer]
    slope = np.divide(
        spread[edges, 1 - longer], length, out=np.zeros_like(length), where=length > 0
    )
    counts = counts.astype(np.int64)
    edge = np.repeat(edges, counts)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
    step = np.where(turned[edge], counts[edge] - 1 - step, step)
    along = (low[edges, longer][edge] + step).astype(np.int64)
    across = np.trunc(low[edges, 1 - longer][edge] + slope[edge] * step + 0.5).astype(np.int64)
    upright = longer[edge] == 1
    return np.where(upright, across, along), np.where(upright, along, across)
