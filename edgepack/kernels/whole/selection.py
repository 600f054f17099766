"""Elements picked by what they hold: those that are not zero, and those that differ.

How many there are is known only when a kernel has run. Its results have room for all, zeros behind
the last, and the number beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.whole import kernel, sorting


def nonzero(shape: Sequence[int], dtype: str) -> tirx.PrimFunc:
    """Where a tensor is not zero, in the order of its elements.

    Arguments: source; positions [rank, elements] and their number [1], int64.
    """
    rank, total = len(shape), 1
    for extent in shape:
        total *= extent
    source = tir.buffer("source", shape, dtype)
    positions = tir.buffer("positions", (rank, total), "int64")
    count = tir.buffer("count", (1,), "int64")
    found = tir.Local("found", 1, "int32")

    def element(at: Sequence[tir.Expr]) -> tir.Stmt:
        value = tir.load(source, at)
        wanted = value if dtype == "bool" else value != tirx.const(0, dtype)
        stores = [
            tir.store(positions, tirx.Cast("int64", tir.expr(index)), [axis, found.get()])
            for axis, index in enumerate(at)
        ]
        return tir.when(wanted, tir.sequence(*stores, found.set(found.get() + 1)))

    def nest(at: Sequence[tir.Expr]) -> tir.Stmt:
        if len(at) == rank:
            return element(at)
        return tir.loop_of(f"i{len(at)}", shape[len(at)], lambda i: nest([*at, i]))

    body = tir.sequence(
        found.declare(),
        found.set(tir.integer(0)),
        nest([]),
        tir.store(count, tirx.Cast("int64", found.get()), [0]),
        tir.loop_of("axis", rank, lambda axis: _zeros(positions, [axis], found.get(), total)),
    )
    return kernel([source], [positions, count], body)


def places(parts: int, room: int) -> tirx.PrimFunc:
    """The positions of what is in use of the parts of an axis, one part behind the other.

    Arguments: where each part starts and how much of it is in use [parts]; positions [room], zeros
    behind the last one. All int64; no more is in use than `room`.
    """
    starts, sizes = (tir.buffer(name, (parts,), "int64") for name in ("starts", "sizes"))
    positions = tir.buffer("positions", (room,), "int64")
    found = tir.Local("found", 1, "int32")

    def part(number: tir.Expr) -> tir.Stmt:
        start, size = (tir.load(buffer, [number]) for buffer in (starts, sizes))

        def element(i: tir.Expr) -> tir.Stmt:
            place = start + tirx.Cast("int64", tir.expr(i))
            return tir.store(positions, place, [found.get() + tir.expr(i)])

        used = tirx.Cast("int32", size)
        return tir.sequence(tir.loop_of("i", used, element), found.set(found.get() + used))

    body = tir.sequence(
        found.declare(),
        found.set(tir.integer(0)),
        tir.loop_of("part", parts, part),
        _zeros(positions, [], found.get(), room),
    )
    return kernel([starts, sizes], [positions], body)


def unique(rows: int, width: int, dtype: str, *, ordered: bool) -> tirx.PrimFunc:
    """The different rows of a matrix, sorted (`ordered`) or as they come first.

    Arguments: source [rows, width], how many rows of it count [1] (int64); the rows that differ
    [rows, width]; where each comes first, which of them each row is, and how often each comes
    (int64 [rows]); their number [1]; scratch [2, rows] and [3, rows] int32. Of floats NaN is the
    largest, and equal to itself.
    """
    source = tir.buffer("source", (rows, width), dtype)
    valid = tir.buffer("valid", (1,), "int64")
    values = tir.buffer("values", (rows, width), dtype)
    first, inverse, times = (
        tir.buffer(name, (rows,), "int64") for name in ("first", "inverse", "times")
    )
    count = tir.buffer("count", (1,), "int64")
    order = tir.buffer("order", (2, rows), "int32")
    # By group, in sorted order: the first row of each, and its number; by row: its group.
    groups = tir.buffer("groups", (3, rows), "int32")
    size, found, sign = (tir.Local(name, 1, "int32") for name in ("size", "found", "sign"))
    zero, one = tir.integer(0), tir.integer(1)

    def less(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        plain = a < b
        return tirx.Or(plain, tirx.And(b != b, tirx.EQ(a, a))) if "float" in dtype else plain  # noqa: PLR0124

    def compare(left: tirx.Expr, right: tirx.Expr) -> tir.Stmt:
        """Set `sign` to that of one row less another, by the first element that differs."""

        def element(k: tir.Expr) -> tir.Stmt:
            a, b = (tir.load(source, [row, k]) for row in (left, right))
            value = tirx.Select(less(a, b), tir.integer(-1), tirx.Select(less(b, a), one, zero))
            return tir.when(tirx.EQ(sign.get(), zero), sign.set(value))

        return tir.sequence(sign.set(zero), tir.loop_of("k", width, element))

    def better(theirs: tirx.Expr, mine: tirx.Expr) -> tuple[tir.Stmt, tirx.Expr]:
        return compare(theirs, mine), sign.get() < zero

    passes, half = sorting.merge_sort(order, size.get(), rows, better)

    def place(i: tir.Expr) -> tir.Stmt:
        """Put row number `i` of the sorted ones into its group, maybe a new one."""
        row = tir.load(order, [half, i])
        before = tir.load(order, [half, tirx.max(tir.expr(i) - 1, zero)])
        new = tir.sequence(
            tir.store(groups, row, [0, found.get()]),
            tir.store(times, tirx.const(0, "int64"), [found.get()]),
            found.set(found.get() + 1),
        )
        last = found.get() - 1
        return tir.sequence(
            compare(before, row),
            tir.when(tirx.Or(tirx.EQ(tir.expr(i), zero), sign.get() != zero), new),
            tir.store(groups, last, [2, row]),
            tir.store(times, tir.load(times, [last]) + tirx.const(1, "int64"), [last]),
        )

    def by_appearance() -> tir.Stmt:
        """Give groups numbers in the order of their first rows; move the times along."""
        number = tir.Local("number", 1, "int32")

        def row(i: tir.Expr) -> tir.Stmt:
            group = tir.load(groups, [2, i])
            return tir.when(
                tirx.EQ(tir.load(groups, [0, group]), tir.expr(i)),
                tir.sequence(
                    tir.store(groups, number.get(), [1, group]),
                    number.set(number.get() + 1),
                ),
            )

        return tir.sequence(number.declare(), number.set(zero), tir.loop_of("i", size.get(), row))

    def number_of(group: tir.Expr) -> tirx.Expr:
        return tir.expr(group) if ordered else tir.load(groups, [1, group])

    def write(group: tir.Expr) -> tir.Stmt:
        row, at = tir.load(groups, [0, group]), number_of(group)
        return tir.sequence(
            tir.store(first, tirx.Cast("int64", row), [at]),
            tir.loop_of(
                "k", width, lambda k: tir.store(values, tir.load(source, [row, k]), [at, k])
            ),
            # The sorted rows are not needed any more.
            tir.store(order, tirx.Cast("int32", tir.load(times, [group])), [0, at]),
        )

    def write_inverse(i: tir.Expr) -> tir.Stmt:
        at = number_of(tir.load(groups, [2, i]))
        return tir.store(inverse, tirx.Cast("int64", at), [i])

    body = tir.sequence(
        *(local.declare() for local in (size, found, sign)),
        size.set(tirx.Cast("int32", tir.load(valid, [0]))),
        found.set(zero),
        tir.loop_of("i", size.get(), lambda i: tir.store(order, tir.expr(i), [0, i])),
        *passes,
        tir.loop_of("i", size.get(), place),
        None if ordered else by_appearance(),
        tir.loop_of("g", found.get(), write),
        tir.loop_of("i", size.get(), write_inverse),
        tir.loop_of(
            "g",
            found.get(),
            lambda g: tir.store(times, tirx.Cast("int64", tir.load(order, [0, g])), [g]),
        ),
        tir.store(count, tirx.Cast("int64", found.get()), [0]),
        *(_zeros(buffer, [], found.get(), rows) for buffer in (first, times)),
        _zeros(inverse, [], size.get(), rows),
        tir.loop_of(
            "i",
            tir.integer(rows) - found.get(),
            lambda i: _zeros(values, [found.get() + i], zero, width),
        ),
    )
    return kernel([source, valid], [values, first, inverse, times, count, order, groups], body)


def _zeros(buffer: tirx.Buffer, at: Sequence[tir.Expr], start: tirx.Expr, end: int) -> tir.Stmt:
    """Zeros from an index of the last axis on."""
    zero = tirx.const(0, str(buffer.dtype))
    return tir.loop_of(
        "rest", tir.integer(end) - start, lambda i: tir.store(buffer, zero, [*at, start + i])
    )
