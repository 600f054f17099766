"""Objects as points: a map of where their centres are, and maps of how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from edgepack.base.tables import Table
from edgepack.postprocess.base import Floats, Shapes, sigmoid
from edgepack.postprocess.boxes import (
    Boxes,
    Candidates,
    best_class,
    cells,
    from_centres,
    read_boxes,
)

HEADS = ("centernet", "centerface")
SCORES = ("raw", "sigmoid")


@dataclass(frozen=True, kw_only=True)
class CenterNet(Boxes):
    """Outputs: where centres are (1, classes, H, W), sizes (1, 2, H, W), and offsets of the centres
    within their cells (1, 2, H, W).

    "centernet" (Zhou et al., Objects as Points): sizes are width and height, offsets x and y, in
    cells; a centre is a cell that no neighbour is above. "centerface" (Xu et al.): sizes are the
    logarithms of height and width, offsets y and x from the cell's middle; every cell is a centre,
    boxes end at the input's edge, and a fourth output (1, 2 * points, H, W) has points as y and x
    within the box. `scores` says what makes scores of the first output.
    """

    kind: ClassVar[str] = "centernet"

    head: str = "centernet"
    scores: str = "raw"

    @classmethod
    def read(cls, table: Table) -> Self:
        head = table.take_choice("head", HEADS, "centernet")
        # Neighbours of a centre are none: what overlaps is another object.
        boxes = read_boxes(table, iou=1.0) if head == "centernet" else read_boxes(table, iou=0.3)
        return cls(**boxes, head=head, scores=table.take_choice("scores", SCORES, "raw"))

    def classes(self, shapes: Shapes) -> int:
        most = 4 if self.head == "centerface" else 3
        if not 3 <= len(shapes) <= most:
            raise ValueError("it takes centres, sizes and offsets, in this order")
        if any(len(shape) != 4 or shape[0] != 1 or 0 in shape for shape in shapes):
            raise ValueError("it takes maps of one image, (1, C, H, W)")
        if any(shape[2:] != shapes[0][2:] for shape in shapes):
            raise ValueError("the maps are not of one size")
        if shapes[1][1] != 2 or shapes[2][1] != 2 or shapes[-1][1] % 2 != 0:
            raise ValueError("sizes and offsets are of two numbers each, points of two or more")
        return shapes[0][1]

    def count_points(self, shapes: Shapes) -> int:
        return shapes[3][1] // 2 if len(shapes) > 3 else 0

    def candidates(self, tensors: Sequence[Floats]) -> Candidates:
        assert self.size is not None
        centres = tensors[0][0]
        classes_, height, width = centres.shape
        stride_x, stride_y = self.size[1] / width, self.size[0] / height
        x, y = cells(height, width)
        sizes, offsets = (tensor[0].reshape(2, -1) for tensor in tensors[1:3])
        made = sigmoid(centres) if self.scores == "sigmoid" else centres
        if self.head == "centernet":
            # Each class has its own centres.
            found = (made >= self.score) & np.array([_is_peak(one) for one in centres])
            classes, at = np.nonzero(found.reshape(classes_, -1))
            middle_x = ((x + offsets[0]) * stride_x)[at]
            middle_y = ((y + offsets[1]) * stride_y)[at]
            wide, high = (sizes[0] * stride_x)[at], (sizes[1] * stride_y)[at]
            return Candidates(
                boxes=from_centres(middle_x, middle_y, wide, high),
                scores=made.reshape(classes_, -1)[classes, at],
                classes=classes,
                points=np.zeros((len(at), 0, 2)),
            )
        scores, classes = best_class(made.reshape(classes_, -1).T)
        wide, high = np.exp(sizes[1]) * stride_x, np.exp(sizes[0]) * stride_y
        left = (x + offsets[1] + 0.5) * stride_x - wide / 2
        top = (y + offsets[0] + 0.5) * stride_y - high / 2
        left, top = np.clip(left, 0, self.size[1]), np.clip(top, 0, self.size[0])
        right = np.minimum(left + wide, self.size[1])
        bottom = np.minimum(top + high, self.size[0])
        points = np.zeros((len(x), 0, 2))
        if len(tensors) == 4:
            by_point = tensors[3][0].reshape(-1, 2, len(x))  # y, x
            points = np.stack((by_point[:, 1] * wide + left, by_point[:, 0] * high + top), 2)
            points = points.transpose(1, 0, 2)
        return Candidates(
            boxes=np.stack((left, top, right, bottom), 1),
            scores=scores,
            classes=classes,
            points=points,
        )


def _is_peak(scores: Floats) -> np.ndarray:
    """Where no neighbour of a cell, of eight, is above it."""
    height, width = scores.shape
    wide = np.pad(np.where(np.isnan(scores), -np.inf, scores), 1, constant_values=-np.inf)
    around = [wide[y : y + height, x : x + width] for y in range(3) for x in range(3)]
    return np.asarray(np.maximum.reduce(around) <= scores)
