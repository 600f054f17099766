"""How good a detector is: average precision by COCO's definition, as pycocotools computes it.

Boxes of a class, or masks, the best first, take the object that they overlap most and that no
better one has taken, if the overlap is a threshold or more. Precision at each of 101 recalls is the
best one at that recall or above; its mean is the average precision. Objects that are crowds may be
taken by any number of boxes, and neither they nor those boxes count. That is pycocotools 2.0.11,
but for one thing: there, an annotation whose id is 0 is never found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.flow.outlines import Outline

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

MOST_BOXES = 100
"""As many boxes of each class count in a photo."""
THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
_ALL = (0.0, 1e10)
SIZES: Mapping[str, tuple[float, float]] = {
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""Areas of objects in pixels of the photo, by COCO."""
# An overlap of 1, less what rounding takes from it.
_WHOLE = 1 - 1e-10


@dataclass(frozen=True, kw_only=True)
class Thing:
    """An object in a photo, as a data set has it: left, top, width, height in pixels.

    `area` is that of its outline, if the data set knows it, else of the box. `outline` is there
    where it was asked for, and the data set has it.
    """

    index: int
    box: tuple[float, float, float, float]
    area: float
    crowd: bool = False
    outline: Outline | None = None


@dataclass(frozen=True, kw_only=True)
class MaskFit:
    """How a box's mask lies in its photo: its `area` in pixels, and its `overlaps` with objects of
    its class that are above 0, each as the object's position among the photo's and the overlap."""

    area: int
    overlaps: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A box that a detector gives: left, top, width, height in pixels; and its mask, if any."""

    index: int
    score: float
    box: tuple[float, float, float, float]
    mask: MaskFit | None = None


@dataclass(frozen=True, kw_only=True)
class ClassPrecision:
    """Of one class: its objects that are no crowds, and its average precision with an overlap of
    0.5 or more, and as the mean over `THRESHOLDS`; None if there are no objects. `precisions` are
    those with an overlap of 0.5 at each of `RECALLS`.
    """

    index: int
    objects: int
    ap50: float | None
    ap: float | None
    precisions: tuple[float, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class AveragePrecision:
    """The means over all classes that have objects; None if none has. `by_size` has that of
    objects of `SIZES` only."""

    map50: float | None
    map: float | None
    by_size: Mapping[str, float | None]
    classes: tuple[ClassPrecision, ...]

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {"map50": self.map50, "map": self.map, "by_size": dict(self.by_size)}


def average_precision(
    things: Sequence[Sequence[Thing]],
    guesses: Sequence[Sequence[Guess]],
    classes: Sequence[int],
    *,
    of_masks: bool = False,
) -> AveragePrecision:
    """That of `guesses`, photo by photo, of which `things` has the objects; by their masks, which
    then all have, or by their boxes.

    Of boxes with equal scores the one of an earlier photo comes first, then the one given first.
    Boxes and objects of other classes than `classes` are passed over.
    """
    photos = [_by_class(of, given) for of, given in zip(things, guesses, strict=True)]
    pair_of = _Pair.of_masks if of_masks else _Pair.of_boxes
    found = {}
    tables: dict[str, list[Floats]] = {name: [] for name in ("all", *SIZES)}
    for index in classes:
        own = [one[index] for one in photos if index in one]
        pairs = [pair_of(things, guesses) for things, guesses in own]
        for name, (low, high) in {"all": _ALL, **SIZES}.items():
            table, objects = _precisions(pairs, low, high)
            if table is not None:
                tables[name].append(table)
            if name == "all":
                found[index] = ClassPrecision(
                    index=index,
                    objects=objects,
                    ap50=None if table is None else float(table[0].mean()),
                    ap=None if table is None else float(table.mean()),
                    precisions=() if table is None else tuple(table[0].tolist()),
                )
    means = {name: _mean(kept) for name, kept in tables.items()}
    return AveragePrecision(
        map50=_mean([table[0] for table in tables["all"]]),
        map=means.pop("all"),
        by_size=means,
        classes=tuple(found[index] for index in classes),
    )


def _mean(tables: Sequence[Floats]) -> float | None:
    return float(np.mean(tables)) if tables else None


def _by_class(
    things: Sequence[Thing], guesses: Sequence[Guess]
) -> dict[int, tuple[dict[int, Thing], list[Guess]]]:
    """The objects of each class in a photo by their positions, and the boxes."""
    found: dict[int, tuple[dict[int, Thing], list[Guess]]] = {}
    for at, thing in enumerate(things):
        found.setdefault(thing.index, ({}, []))[0][at] = thing
    for guess in guesses:
        found.setdefault(guess.index, ({}, []))[1].append(guess)
    return found


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Objects and boxes or masks, the best first, of one class in one photo: `overlaps` (boxes,
    objects)."""

    scores: Floats
    box_areas: Floats
    areas: Floats
    crowds: Booleans
    overlaps: Floats

    @classmethod
    def of_boxes(cls, things: Mapping[int, Thing], guesses: Sequence[Guess]) -> _Pair:
        best = _best(guesses)
        boxes = np.array([guess.box for guess in best], np.float64).reshape(-1, 4)
        objects = np.array([thing.box for thing in things.values()], np.float64).reshape(-1, 4)
        crowds = np.array([thing.crowd for thing in things.values()], np.bool_)
        areas = boxes[:, 2] * boxes[:, 3]
        return cls._of(things, best, areas, _overlaps(boxes, objects, crowds))

    @classmethod
    def of_masks(cls, things: Mapping[int, Thing], guesses: Sequence[Guess]) -> _Pair:
        best = _best(guesses)
        places = {at: column for column, at in enumerate(things)}
        areas, overlaps = np.zeros(len(best)), np.zeros((len(best), len(things)))
        for row, guess in enumerate(best):
            assert guess.mask is not None
            areas[row] = guess.mask.area
            for at, overlap in guess.mask.overlaps:
                overlaps[row, places[at]] = overlap
        return cls._of(things, best, areas, overlaps)

    @classmethod
    def _of(
        cls, things: Mapping[int, Thing], best: Sequence[Guess], areas: Floats, overlaps: Floats
    ) -> _Pair:
        return cls(
            scores=np.array([guess.score for guess in best], np.float64),
            box_areas=areas,
            areas=np.array([thing.area for thing in things.values()], np.float64),
            crowds=np.array([thing.crowd for thing in things.values()], np.bool_),
            overlaps=overlaps,
        )


def _best(guesses: Sequence[Guess]) -> list[Guess]:
    order = np.argsort([-guess.score for guess in guesses], kind="stable")[:MOST_BOXES]
    return [guesses[i] for i in order]


def _overlaps(boxes: Floats, objects: Floats, crowds: Booleans) -> Floats:
    """Intersection over union (boxes, objects); over the box alone where the object is a crowd."""
    low = np.maximum(boxes[:, np.newaxis, :2], objects[np.newaxis, :, :2])
    ends = boxes[:, np.newaxis, :2] + boxes[:, np.newaxis, 2:]
    high = np.minimum(ends, objects[np.newaxis, :, :2] + objects[np.newaxis, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), 2)
    own = (boxes[:, 2] * boxes[:, 3])[:, np.newaxis]
    union = own + (objects[:, 2] * objects[:, 3])[np.newaxis] - shared
    whole = np.where(crowds[np.newaxis], own, union)
    # An empty box overlaps nothing.
    return np.asarray(np.divide(shared, whole, out=np.zeros_like(shared), where=shared > 0))


def _precisions(pairs: Sequence[_Pair], low: float, high: float) -> tuple[Floats | None, int]:
    """Precision (thresholds, recalls) over all photos, and how many objects of an area from `low`
    to `high` there are that are no crowds; None if there are none."""
    ignored = [pair.crowds | (pair.areas < low) | (pair.areas > high) for pair in pairs]
    count = sum(int((~one).sum()) for one in ignored)
    if count == 0:
        return None, 0
    judged = [_judge(pair, own, low, high) for pair, own in zip(pairs, ignored, strict=True)]
    scores = np.concatenate([pair.scores for pair in pairs])
    order = np.argsort(-scores, kind="stable")
    right = np.concatenate([one[0] for one in judged], 1)[:, order]
    wrong = np.concatenate([one[1] for one in judged], 1)[:, order]
    hits, misses = np.cumsum(right, 1, dtype=np.float64), np.cumsum(wrong, 1, dtype=np.float64)
    recalls = hits / count
    precisions = hits / (hits + misses + np.spacing(1))
    # The best at that recall or above.
    precisions = np.maximum.accumulate(precisions[:, ::-1], 1)[:, ::-1]
    table = np.zeros((len(THRESHOLDS), len(RECALLS)))
    for row, (recall, precision) in enumerate(zip(recalls, precisions, strict=True)):
        at = np.searchsorted(recall, RECALLS, side="left")
        table[row, at < len(precision)] = precision[at[at < len(precision)]]
    return table, count


def _judge(pair: _Pair, ignored: Booleans, low: float, high: float) -> tuple[Booleans, Booleans]:
    """Which boxes are right and which are wrong (thresholds, boxes); some are neither."""
    limits = np.minimum(THRESHOLDS, _WHOLE)
    taken = np.zeros((len(limits), len(ignored)), np.bool_)
    right = np.zeros((len(limits), len(pair.scores)), np.bool_)
    wrong = np.zeros_like(right)
    outside = (pair.box_areas < low) | (pair.box_areas > high)
    rows = np.arange(len(limits))
    for number, overlaps in enumerate(pair.overlaps):
        near = (overlaps >= limits[:, np.newaxis]) & (~taken | pair.crowds)
        # One that counts goes before one that does not, whatever they overlap.
        best, counts = _last_best(overlaps, near & ~ignored)
        spare, is_spare = _last_best(overlaps, near & ignored)
        at = np.where(counts, best, spare)
        found = counts | is_spare
        taken[rows[found], at[found]] = True
        right[:, number] = counts
        wrong[:, number] = ~found & ~outside[number]
    return right, wrong


def _last_best(overlaps: Floats, allowed: Booleans) -> tuple[npt.NDArray[np.intp], Booleans]:
    """Of each row of `allowed` (rows, objects) the one of the largest overlap, of equals the last;
    and whether there is any."""
    if not overlaps.size:
        return np.zeros(len(allowed), np.intp), np.zeros(len(allowed), np.bool_)
    values = np.where(allowed, overlaps, -1.0)
    return overlaps.size - 1 - np.argmax(values[:, ::-1], 1), np.asarray(allowed.any(1))
