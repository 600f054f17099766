"""Outputs whose rows are sorted by a score: equal but for the order of what is nearly equal.

A detector that ends in a TopK gives its rows best first. Two scores that differ by less than
rounding come in either order, and of two around the last place either one comes at all, on any
device that does not round as the reference does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Scores change places that are so many times as close as those of one place are to each other; or
# as a few last bits of the largest one.
_SWAPPED, _LAST_BITS = 4.0, 2.0**-20
# At most so many of the rows are others than the reference's.
_OTHERS = 0.1


def in_order_of(
    got: Sequence[Array], reference: Sequence[Array], limits: Sequence[float]
) -> list[Array] | None:
    """The reference's outputs, their rows in the order that `got` has them.

    Rows are along the first axis of more than one element; outputs of as many rows belong
    together. They must be sorted by a column of floats that is equal in both, place by place, and
    each row must be one of the reference's whose score is as good as equal, within `limits`, one
    for each output. A few may be others, and stay as they were got, where scores are as good as
    that of the last row or of two others: a suppression then may have kept another one. None if
    they are not the same in this sense, or not sorted.
    """
    made = [array.copy() for array in reference]
    groups: dict[int, list[int]] = {}
    for number, (one, other) in enumerate(zip(got, reference, strict=True)):
        if one.shape != other.shape:
            return None
        axis = _row_axis(other)
        if axis is not None:
            groups.setdefault(other.shape[axis], []).append(number)
    for members in groups.values():
        if all(_is_close(got[i], reference[i], limits[i]) for i in members):
            continue
        found = _matched(
            np.concatenate([_rows(got[i], limits[i]) for i in members], 1),
            np.concatenate([_rows(reference[i], limits[i]) for i in members], 1),
            [i for i in members for _ in range(_rows(reference[i], 1.0).shape[1])],
            {i for i in members if reference[i].dtype.kind == "f"},
        )
        if found is None:
            return None
        for i in members:
            axis = _row_axis(reference[i]) or 0
            own, theirs = np.moveaxis(got[i], axis, 0), np.moveaxis(reference[i], axis, 0)
            rows = [own[at] if of < 0 else theirs[of] for at, of in enumerate(found)]
            made[i] = np.moveaxis(np.stack(rows), 0, axis).astype(reference[i].dtype)
    return made


def is_drawn(got: Sequence[Array], reference: Sequence[Array], limits: Sequence[float]) -> bool:
    """Whether all rows have one score, in both, so that which of more come is anyone's guess.

    A softmax of large numbers gives 1 or the float before it for hundreds of boxes.
    """
    for one, other, limit in zip(got, reference, limits, strict=True):
        if one.shape != other.shape or other.dtype.kind != "f" or _row_axis(other) is None:
            continue
        rows, due = _rows(one, limit), _rows(other, limit)
        least = np.abs(due).min(0) > 1
        even = np.ptp(due, 0) <= _LAST_BITS * np.abs(due).max(0)
        if (least & even & (np.abs(rows - due).max(0) <= 1)).any():
            return True
    return False


def _row_axis(array: Array) -> int | None:
    """The first axis of more than one element."""
    return next((axis for axis, extent in enumerate(array.shape) if extent > 1), None)


def _rows(array: Array, limit: float) -> npt.NDArray[np.float64]:
    """A matrix of rows, in units of what a value may be off."""
    axis = _row_axis(array) or 0
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1).astype(np.float64)
    # Integers are labels: they are equal or not.
    return rows / limit if array.dtype.kind == "f" else rows * 2


def _is_close(got: Array, reference: Array, limit: float) -> bool:
    return bool((np.abs(_rows(got, limit) - _rows(reference, limit)) <= 1).all())


def _matched(
    got: npt.NDArray[np.float64],
    reference: npt.NDArray[np.float64],
    output_of: Sequence[int],
    floats: set[int],
) -> list[int] | None:
    """For each row which one of the reference it is, -1 for one that the reference left out."""
    if not np.isfinite(got).all() or not np.isfinite(reference).all():
        return None
    for column in range(reference.shape[1]):
        score = reference[:, column]
        steps = np.diff(score)
        is_sorted = bool((steps <= 0).all() or (steps >= 0).all()) and bool(steps.any())
        off = np.abs(got[:, column] - score)
        if output_of[column] in floats and is_sorted and (off <= 1).all():
            least = _LAST_BITS * float(np.abs(score).max())
            found = _assigned(got, reference, column, max(least, _SWAPPED * float(off.max())))
            if found is not None:
                return found
    return None


def _assigned(
    got: npt.NDArray[np.float64],
    reference: npt.NDArray[np.float64],
    column: int,
    window: float,
) -> list[int] | None:
    scores, last = reference[:, column], reference[-1, column]
    free = np.ones(len(reference), bool)
    found = []
    for at, row in enumerate(got):
        near_score = np.abs(scores - row[column]) <= window
        (candidates,) = np.nonzero(free & near_score)
        apart = np.abs(reference[candidates] - row).max(1, initial=0.0)
        candidates = candidates[apart <= 1]
        if len(candidates):
            best = int(candidates[np.argmin(np.abs(candidates - at))])
            free[best] = False
            found.append(best)
        elif abs(row[column] - last) <= window or np.count_nonzero(near_score) > 1:
            found.append(-1)
        else:
            return None
    return found if found.count(-1) <= max(1, _OTHERS * len(found)) else None
