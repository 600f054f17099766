"""Loops cut where a condition changes its value, so that no piece has one inside.

    for i in 60: y[i] = x[max(0, min(55, i - 2))]       i in 0..2, 2..58, 58..60

Concatenations, paddings, tilings and clamped indices become plain copies this way.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer, detect_linear_equation

from edgepack.compiler.backend import exact
from edgepack.kernels.tiles import tir

# More pieces than this are more code than they save.
_MOST_PIECES = 4


def cut(loop: tirx.For) -> tirx.Stmt:
    """An innermost loop of a store in pieces; any other as it is."""
    if not isinstance(loop.extent, tirx.IntImm) or not isinstance(loop.body, tirx.BufferStore):
        return loop
    if loop.kind != tirx.ForKind.SERIAL:
        return loop
    extent, variable = int(loop.extent), loop.loop_var
    points = sorted({point for point in _changes(loop) if 0 < point < extent})
    if points and len(points) < _MOST_PIECES:
        bounds = zip([0, *points], [*points, extent], strict=True)
        return tir.sequence(*(cut(_piece(loop, first, last)) for first, last in bounds))
    value = loop.body.value
    if _is_choice(value) and not _uses(value.args[0], variable):
        choices = (cut(_storing(loop, branch)) for branch in value.args[1:])
        return tirx.IfThenElse(value.args[0], *choices)
    return loop


def _piece(loop: tirx.For, first: int, last: int) -> tirx.For:
    """The turns from `first` to before `last`, simplified."""
    counter, analyzer = tir.var(loop.loop_var.name), Analyzer()
    analyzer.bind(counter, tvm.ir.Range(0, last - first))
    at = counter + first if first else counter
    value, index = (
        exact.show_arithmetic(
            analyzer.simplify(substitute(exact.hide_arithmetic(item), loop.loop_var, at))
        )
        for item in (loop.body.value, loop.body.indices[0])
    )
    return tir.loop(counter, last - first, tirx.BufferStore(loop.body.buffer, value, [index]))


def _storing(loop: tirx.For, value: tirx.Expr) -> tirx.For:
    """A loop of its own with another value: two loops of one variable are not shared by cores."""
    counter = tir.var(loop.loop_var.name)
    value, index = (
        substitute(item, loop.loop_var, counter) for item in (value, loop.body.indices[0])
    )
    return tir.loop(counter, int(loop.extent), tirx.BufferStore(loop.body.buffer, value, [index]))


def _changes(loop: tirx.For) -> Iterator[int]:
    """Turns at which a comparison, a clamp or a division within the loop gives something new."""
    found: list[tirx.Expr] = []
    kinds = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.Min, tirx.Max, tirx.FloorDiv, tirx.FloorMod)
    tvm_ffi.structural_walk(loop.body, (kinds, found.append))
    for item in found:
        if str(item.a.ty.dtype) != "int32":
            continue
        periodic = isinstance(item, tirx.FloorDiv | tirx.FloorMod)
        linear = detect_linear_equation(item.a if periodic else item.a - item.b, [loop.loop_var])
        if not linear or not all(isinstance(part, tirx.IntImm) for part in linear):
            continue
        step, base = (int(part) for part in linear)
        if periodic and step == 1 and isinstance(item.b, tirx.IntImm):
            yield from range(-base % int(item.b), int(loop.extent), int(item.b))
        elif not periodic and step in (1, -1):
            # a - b is zero here, and one turn later (a < b, step 1) has another sign than before.
            zero = -base * step
            late = (
                isinstance(item, tirx.LE | tirx.GT)
                if step == 1
                else isinstance(item, tirx.LT | tirx.GE)
            )
            yield zero + late


def _is_choice(value: tirx.Expr) -> bool:
    return (
        isinstance(value, tvm.ir.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name == "prim.if_then_else"
    )


def _uses(expr: tirx.Expr, variable: tirx.Var) -> bool:
    return any(var.same_as(variable) for var in tirx.analysis.undefined_vars(expr))


def substitute(item: tirx.Expr, variable: tirx.Var, value: tirx.Expr) -> tirx.Expr:
    """An expression or a statement with `value` for a variable."""
    return tvm_ffi.structural_map(
        item, (tvm.ir.Var, lambda var: value if var.same_as(variable) else var)
    )
