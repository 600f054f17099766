"""Tensors of which some elements are written anew: a cache with the row of one more step.

The result may be the tensor's own memory, as it is where nobody reads the old one any more. Then
nothing is copied, and what is written is all that is done.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.whole import kernel

# What an element is afterwards, of what it was and what is given, by ONNX's `reduction`.
REDUCTIONS: Mapping[str, Callable[[tir.Expr, tir.Expr], tir.Expr]] = {
    "none": lambda _, given: given,
    "add": operator.add,
    "mul": operator.mul,
    "min": tirx.min,
    "max": tirx.max,
}


def rows(
    shape: Sequence[int],
    dtype: str,
    index: Sequence[int],
    kind: str,
    order: Sequence[int],
    reduction: str = "none",
) -> tirx.PrimFunc:
    """ScatterND: parts of a tensor, each at a position along some axes.

    Arguments: data `shape`, positions `index` [parts, axes] of the integer type `kind`, updates
    [parts, extents of the other axes]; the result. `order` are the axes of the positions, then the
    others as the updates have them. Where a position is named twice, updates come one after the
    other.
    """
    count, axes = index
    combined = REDUCTIONS[reduction]
    data, result = (tir.buffer(name, shape, dtype) for name in ("data", "result"))
    positions = tir.buffer("positions", index, kind)
    inner = [shape[axis] for axis in order[axes:]]
    updates = tir.buffer("updates", [count, *inner], dtype)

    def row(number: tir.Expr) -> tir.Stmt:
        places = [tir.load(positions, [number, axis]) for axis in range(axes)]

        def nest(at: Sequence[tir.Expr]) -> tir.Stmt:
            if len(at) < len(inner):
                return tir.loop_of(f"i{len(at)}", inner[len(at)], lambda i: nest([*at, i]))
            there = [*places, *at]
            to = [there[list(order).index(axis)] for axis in range(len(shape))]
            value = combined(tir.load(result, to), tir.load(updates, [number, *at]))
            return tir.store(result, value, to)

        return nest([])

    return _updated(data, [positions, updates], result, tir.loop_of("row", count, row))


def elements(
    shape: Sequence[int],
    dtype: str,
    index: Sequence[int],
    kind: str,
    axis: int,
    reduction: str = "none",
) -> tirx.PrimFunc:
    """ScatterElements: each update at a position of its own along `axis`, else where it lies.

    Arguments: data `shape`, positions `index` of the integer type `kind`, updates `index`; the
    result.
    """
    combined = REDUCTIONS[reduction]
    data, result = (tir.buffer(name, shape, dtype) for name in ("data", "result"))
    positions = tir.buffer("positions", index, kind)
    updates = tir.buffer("updates", index, dtype)

    def nest(at: Sequence[tir.Expr]) -> tir.Stmt:
        if len(at) < len(index):
            return tir.loop_of(f"i{len(at)}", index[len(at)], lambda i: nest([*at, i]))
        there = [*at[:axis], tir.load(positions, at), *at[axis + 1 :]]
        value = combined(tir.load(result, there), tir.load(updates, at))
        return tir.store(result, value, there)

    return _updated(data, [positions, updates], result, nest([]))


def steps(
    shape: Sequence[int], dtype: str, given: int, kind: str, *, circular: bool
) -> tirx.PrimFunc:
    """TensorScatter: `given` steps of a cache [batch, outer, extent, inner], from a position on
    that each batch has its own of.

    Arguments: cache, positions [batch] of the integer type `kind`, updates [batch, outer, given,
    inner]; the result. `circular` caches go on at the start behind the last step.
    """
    batch, outer, extent, inner = shape
    data, result = (tir.buffer(name, shape, dtype) for name in ("data", "result"))
    positions = tir.buffer("positions", [batch], kind)
    updates = tir.buffer("updates", [batch, outer, given, inner], dtype)

    def step(number: tir.Expr, k: tir.Expr, j: tir.Expr) -> tir.Stmt:
        at = tir.load(positions, [number]) + tirx.Cast(kind, tir.expr(j))
        if circular:
            at = tirx.floormod(at, tirx.IntImm(kind, extent))

        def element(i: tir.Expr) -> tir.Stmt:
            return tir.store(result, tir.load(updates, [number, k, j, i]), [number, k, at, i])

        return tir.loop_of("i", inner, element)

    body = tir.loop_of(
        "batch",
        batch,
        lambda number: tir.loop_of(
            "outer", outer, lambda k: tir.loop_of("step", given, lambda j: step(number, k, j))
        ),
    )
    return _updated(data, [positions, updates], result, body)


# TVM compares no addresses.
_SAME = """define internal i32 @edgepack_same(ptr %a, ptr %b) alwaysinline nounwind {
  %same = icmp eq ptr %a, %b
  %number = zext i1 %same to i32
  ret i32 %number
}
"""


def shift_window(shape: Sequence[int], dtype: str, given: int) -> tirx.PrimFunc:
    """A window [outer, extent, inner] over the last steps of a sequence, `given` steps later.

    Arguments: the window before, the steps that come in [outer, given, inner]; the window.
    """
    outer, extent, inner = shape
    old, size = (extent - given) * inner, extent * inner
    data, result = (tir.buffer(name, [outer, size], dtype) for name in ("data", "result"))
    updates = tir.buffer("updates", [outer, given * inner], dtype)

    def row(number: tir.Expr) -> tir.Stmt:
        def keep(i: tir.Expr) -> tir.Stmt:
            value = tir.load(data, [number, tir.expr(i) + given * inner])
            return tir.store(result, value, [number, i])

        def add(i: tir.Expr) -> tir.Stmt:
            value = tir.load(updates, [number, i])
            return tir.store(result, value, [number, tir.expr(i) + old])

        # From the front, so that nothing is written over before it is read.
        return tir.sequence(
            tir.loop_of("kept", old, keep), tir.loop_of("added", given * inner, add)
        )

    made = kernel([data, updates], [result], tir.loop_of("row", outer, row))
    return tir.may_share(made, [(data, result)])


def _updated(
    data: tirx.Buffer, given: Sequence[tirx.Buffer], result: tirx.Buffer, body: tir.Stmt
) -> tirx.PrimFunc:
    """`body` over what `result` is then: a copy of `data`, unless it is that itself."""

    def nest(at: Sequence[tir.Expr]) -> tir.Stmt:
        if len(at) == len(data.shape):
            return tir.store(result, tir.load(data, at), at)
        return tir.loop_of(f"c{len(at)}", int(data.shape[len(at)]), lambda i: nest([*at, i]))

    same = tirx.call_extern("int32", "edgepack_same", data.data, result.data)
    copied = tir.import_functions(_SAME, tir.when(tirx.EQ(same, tir.integer(0)), nest([])))
    made = kernel([data, *given], [result], tir.sequence(copied, body))
    return tir.may_share(made, [(data, result)])
