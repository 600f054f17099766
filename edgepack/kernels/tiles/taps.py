"""Four neighbouring pixels of a row at once: which of them the points of a window need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Pixels that a dot product adds up.
FOUR = 4
# Of each lane the window's column, or none.
Lanes = tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class FourPixels:
    """The four pixels of a row of inputs from `start` on, and by whom they are read: results of a
    row, each with the window's column that lies on each of the four."""

    start: int
    uses: tuple[tuple[int, Lanes], ...]


def groups(
    results: int, columns: int, *, stride: int, dilation: int, room: int
) -> tuple[FourPixels, ...]:
    """Groups that cover all points of a row of the windows of neighbouring results.

    Columns of inputs are counted from the first result's first one; there are `room` of them, so
    that a group near the end may start before the first. It is the cheapest way of two: groups
    that have whole rows of windows inside, or that lie side by side.
    """
    reach = (columns - 1) * dilation
    wanted = [
        [result * stride + point * dilation for point in range(columns)]
        for result in range(results)
    ]
    ways = [_starts([(at, at) for at in sorted({at for row in wanted for at in row})])]
    if reach < FOUR:
        ways.append(_starts([(row[0], row[-1]) for row in wanted]))
    made = [_used(wanted, sorted({min(at, room - FOUR) for at in way})) for way in ways]
    return min(made, key=products_and_loads)


def products_and_loads(found: Sequence[FourPixels]) -> int:
    """What a row of windows costs: an instruction for a product, three for a load."""
    return sum(len(group.uses) + 3 for group in found)


def _starts(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Where groups start that have each span inside."""
    starts: list[int] = []
    for first, last in spans:
        if not starts or last >= starts[-1] + FOUR:
            starts.append(first)
    return starts


def _used(wanted: list[list[int]], starts: list[int]) -> tuple[FourPixels, ...]:
    """Each result takes a group that has all of its points, or those that have some."""
    uses: dict[int, dict[int, list[int | None]]] = {}
    for result, row in enumerate(wanted):
        whole = [start for start in starts if start <= row[0] and row[-1] < start + FOUR]
        for point, at in enumerate(row):
            start = next(start for start in whole or starts if start <= at < start + FOUR)
            lanes = uses.setdefault(start, {}).setdefault(result, [None] * FOUR)
            lanes[at - start] = point
    return tuple(
        FourPixels(start=start, uses=tuple((r, tuple(lanes)) for r, lanes in sorted(found.items())))
        for start, found in sorted(uses.items())
    )
