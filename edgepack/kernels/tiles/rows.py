"""Rows of elements of any number, in vectors: as many of the widest as fit, then narrower ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32

# Vectors in flight where each waits for the one before, as sums do: additions take 3 to 4 cycles on
# all CPUs here, of which one or two start per cycle.
SIDE_BY_SIDE = 4


def pieces(size: int, widths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """`size` elements in vectors of `widths` lanes, widest first, and single ones: (first element,
    lanes, how many vectors)."""
    first = 0
    for lanes in (*widths, 1):
        count = (size - first) // lanes
        if count:
            yield first, lanes, count
            first += count * lanes


def in_turns(
    count: int, kept: Sequence[tir.Local], one: Callable[[tir.Expr, tir.Local], tir.Stmt]
) -> tir.Stmt:
    """Something for each of `count` vectors, as many side by side as there are variables in which
    they keep what they find."""
    together = len(kept)
    full, rest = divmod(count, together)

    def some(first: tir.Expr, number: int) -> tir.Stmt:
        return tir.sequence(*(one(first + i, kept[i]) for i in range(number)))

    return tir.sequence(
        tir.loop_of("vectors", full, lambda turn: some(turn * together, together))
        if full
        else None,
        some(full * together, rest) if rest else None,
    )


def gather(
    names: tir.Names,
    count: int,
    lanes: int,
    start: float,
    combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
    one: Callable[[tir.Expr, tir.Names], tirx.Expr],
    *,
    side_by_side: int = SIDE_BY_SIDE,
) -> tirx.Expr:
    """What `one` makes of each of `count` vectors of float32, combined from `start` on, and so are
    their lanes. It is given the vector's number, and where to bind and to store."""
    kept = [tir.Local(f"kept{i}", lanes, "float32") for i in range(min(side_by_side, count))]

    def turn(index: tir.Expr, total: tir.Local) -> tir.Stmt:
        inside = tir.Names()
        inside.add(total.set(combine(total.get(), one(index, inside))))
        return inside.done()

    for total in kept:
        names.add(total.declare())
        names.add(total.set(tir.number(start, "float32", lanes)))
    names.add(in_turns(count, kept, turn))
    return tir.fold_lanes(names, [total.get() for total in kept], combine)


def side_by_side(chosen: Way | None, *, usual: int, most: int) -> int:
    """How many vectors of a row are summed up side by side: `usual`, if nothing is chosen that is
    at most `most`."""
    return chosen.vectors if chosen is not None and 0 < chosen.vectors <= most else usual


def ways(
    rule: str, size: int, cpu: CpuModel, cycles: float, *, usual: int, most: int
) -> list[Ranked]:
    """Rows of `size` elements with 1, 2, 4.. up to `most` vectors side by side, `usual` first; the
    cost model, of which `cycles` are, knows no difference."""
    count = max(count for _, _, count in pieces(size, cpu.lanes(FLOAT32)))
    numbers = [usual, *(1 << i for i in range(most.bit_length()) if 1 << i != usual)]
    return [
        Ranked(choice=Way(rule=rule, vectors=vectors), cycles=cycles)
        for vectors in dict.fromkeys(min(number, count) for number in numbers)
    ]
