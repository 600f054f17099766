"""Indices of int32 where a kernel's values are int64.

TVM narrows what it can, but takes an index within an expression of int64 for a part of the value.
A tensor here has far less than 2^31 elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx

from edgepack.compiler.backend.schedule.pieces import substitute
from edgepack.kernels.tiles import tir

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def narrow_counters(body: tirx.Stmt) -> tirx.Stmt:
    """A statement with all counters of loops in int32, and all indices that are made of them."""
    counted = tvm_ffi.structural_map(body, (tirx.For, _loop))
    return tvm_ffi.structural_map(
        counted,
        (
            (tvm.ir.TensorLoad, lambda load: tirx.BufferLoad(load.source, _all(load.indices))),
            (
                tirx.BufferStore,
                lambda store: tirx.BufferStore(store.buffer, store.value, _all(store.indices)),
            ),
            (_COMPARISONS, _comparison),
        ),
    )


def _loop(loop: tirx.For) -> tirx.For:
    if str(loop.loop_var.ty.dtype) != "int64" or not isinstance(loop.extent, tirx.IntImm):
        return loop
    counter = tir.var(loop.loop_var.name)
    body = substitute(loop.body, loop.loop_var, tirx.Cast("int64", counter))
    first, extent = (tir.integer(int(bound)) for bound in (loop.min, loop.extent))
    return tirx.For(counter, first, extent, loop.kind, body)


def _comparison(item: tirx.Expr) -> tirx.Expr:
    if str(item.a.ty.dtype) != "int64":
        return item
    a, b = _index(item.a), _index(item.b)
    return item if a is None or b is None else type(item)(a, b)


def _all(indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    made = ((_index(index, loads=True), index) for index in indices)
    return [index if narrow is None else narrow for narrow, index in made]


def _index(expr: tirx.Expr, *, loads: bool = False) -> tirx.Expr | None:
    """An index in int32; None for what holds more than counters of loops and small numbers.

    `loads`: also for what holds elements of tensors, which are indices then.
    """
    if isinstance(expr, tirx.IntImm):
        return tir.integer(int(expr.value)) if abs(int(expr.value)) < 1 << 31 else None
    if isinstance(expr, tirx.Var):
        return expr if str(expr.ty.dtype) == "int32" else None
    if isinstance(expr, tirx.Cast):
        return _index(expr.value, loads=loads)
    if isinstance(expr, tvm.ir.TensorLoad):
        return tirx.Cast("int32", expr) if loads else None
    if isinstance(expr, _ARITHMETIC):
        a, b = _index(expr.a, loads=loads), _index(expr.b, loads=loads)
        return None if a is None or b is None else type(expr)(a, b)
    return None
