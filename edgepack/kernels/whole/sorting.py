"""The largest or smallest elements along an axis, in order: a stable merge sort of positions.

Of equal elements the one that comes first stays first, as onnxruntime has it. Positions are merged
from runs of 1, 2, 4, ... until one is left: log2 n passes of n steps, whatever the data.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.whole import kernel


def top(
    shape: tuple[int, int, int], dtype: str, count: int, *, largest: bool = True
) -> tirx.PrimFunc:
    """A kernel from a tensor [outer, size, inner] to its first `count` elements along the middle.

    Arguments: source; values [outer, count, inner], their positions (int64); scratch of two rows of
    positions [2, size] int32. NaN comes last, be the others the largest or the smallest.
    """
    outer, size, inner = shape
    source = tir.buffer("source", shape, dtype)
    values = tir.buffer("values", (outer, count, inner), dtype)
    positions = tir.buffer("positions", (outer, count, inner), "int64")
    order = tir.buffer("order", (2, size), "int32")

    def sort(row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        def key(position: tirx.Expr) -> tirx.Expr:
            return tir.load(source, [row, position, column])

        def better(theirs: tirx.Expr, mine: tirx.Expr) -> tuple[None, tirx.Expr]:
            one, other = key(mine), key(theirs)
            comes_first = other > one if largest else other < one
            if "float" in dtype:
                is_nan, is_number = tirx.NE(one, one), tirx.EQ(other, other)
                comes_first = tirx.Or(comes_first, tirx.And(is_nan, is_number))
            return None, comes_first

        start = tir.loop_of("i", size, lambda i: tir.store(order, tir.expr(i), [0, i]))
        passes, half = merge_sort(order, size, size, better)
        steps = [start, *passes]

        def take(i: tir.Expr) -> tir.Stmt:
            position = tir.load(order, [half, i])
            return tir.sequence(
                tir.store(values, key(position), [row, i, column]),
                tir.store(positions, tirx.Cast("int64", position), [row, i, column]),
            )

        return tir.sequence(*steps, tir.loop_of("i", count, take))

    body = tir.loop_of(
        "row", outer, lambda row: tir.loop_of("column", inner, lambda column: sort(row, column))
    )
    return kernel([source], [values, positions, order], body)


# Whether one position comes before another, and what has to be done to know it.
Better = Callable[[tirx.Expr, tirx.Expr], tuple[tir.Stmt | None, tirx.Expr]]


def merge_sort(
    order: tirx.Buffer, size: tir.Expr, most: int, better: Better
) -> tuple[list[tir.Stmt], int]:
    """Sort the first `size` positions in row 0 of `order` [2, most].

    Returns the passes, and the row that holds the sorted ones. `better` tells whether its first
    argument has to come before its second, which is now before it.
    """
    passes: list[tir.Stmt] = []
    run, half = 1, 0
    while run < most:
        once = _merge(order, half, run, size, better)
        if isinstance(size, int):
            passes.append(once)
            run, half = 2 * run, 1 - half
        else:
            # There and back again, as long as there is more than one run.
            again = _merge(order, 1 - half, 2 * run, size, better)
            passes.append(tir.when(size > run, tir.sequence(once, again)))
            run *= 4
    return passes, half


def _merge(order: tirx.Buffer, half: int, run: int, size: tir.Expr, better: Better) -> tir.Stmt:
    """Sorted runs become half as many of twice the length, in the other row of `order`."""
    left, right = (tir.Local(name, 1, "int32") for name in ("left", "right"))

    def pair(number: tir.Expr) -> tir.Stmt:
        start = number * (2 * run)
        middle = tirx.min(tir.expr(start + run), tir.expr(size))
        end = tirx.min(tir.expr(start + 2 * run), tir.expr(size))

        def step(at: tir.Expr) -> tir.Stmt:
            # Both are read before either is known to be there.
            mine, theirs = (
                tir.load(order, [half, tirx.min(side.get(), tir.expr(size) - 1)])
                for side in (left, right)
            )
            before, first = better(theirs, mine)
            from_right = tirx.And(right.get() < end, tirx.Or(tirx.GE(left.get(), middle), first))
            choice = tirx.IfThenElse(
                from_right,
                tir.sequence(
                    tir.store(order, theirs, [1 - half, start + at]),
                    right.set(right.get() + 1),
                ),
                tir.sequence(
                    tir.store(order, mine, [1 - half, start + at]),
                    left.set(left.get() + 1),
                ),
            )
            return tir.sequence(before, choice)

        return tir.sequence(
            left.set(tir.expr(start)),
            right.set(middle),
            tir.loop_of("at", end - start, step),
        )

    if isinstance(size, int):
        pairs: tir.Expr = -(-size // (2 * run))
    else:
        pairs = tirx.floordiv(size + (2 * run - 1), tir.integer(2 * run))
    return tir.sequence(left.declare(), right.declare(), tir.loop_of("pair", pairs, pair))
