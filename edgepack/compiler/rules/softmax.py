"""Softmax and its logarithm along rows: powers of e over their sum.

A row is read from memory once, and again from the first-level cache: for its largest element, the
powers, and the result. The powers are kept where the result will be, which may be where the row is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from edgepack.compiler.layers.tensors import constant_of, shape_of
from edgepack.compiler.rules.rule import LayerKernel, PlainKernel, product
from edgepack.compiler.tiles import functions, rows, tir
from edgepack.compiler.tiles.cpu import CpuModel
from edgepack.compiler.tiles.element import FLOAT32
from edgepack.compiler.tiles.partition import worth_sharing

# Vectors of the shortest row: TVM's schedule has several shorter ones side by side, which wins on
# rows of up to 6 vectors (x86-64).
_FEWEST = 8
# Loads, stores and operations per element of all passes, e^x among them.
_PER_ELEMENT = 36
# Of e^x side by side, as few as fit 16 registers.
_EXPONENTIALS = 2
_OPERATORS = {"relax.nn.softmax": False, "relax.nn.log_softmax": True}


def make(
    call: relax.Call, _made: Mapping[relax.Var, relax.Expr], cpu: CpuModel
) -> PlainKernel | None:
    """The kernel of `relax.nn.softmax` and `relax.nn.log_softmax` along the last axis, which is
    no short one; None for anything else."""
    name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
    if name not in _OPERATORS:
        return None
    (data,) = call.args
    shape = shape_of(data)
    if constant_of(data) is not None or str(data.ty.dtype) != FLOAT32.name or not shape:
        return None
    axis = int(call.attrs.axis) % len(shape)
    if product(shape[axis + 1 :]) != 1 or shape[axis] < _FEWEST * cpu.widest(FLOAT32):
        return None
    softmax = Softmax(
        rows=product(shape[:axis]), size=shape[axis], logarithm=_OPERATORS[name], cpu=cpu
    )
    return PlainKernel(
        rule="softmax",
        kernel=softmax.kernel(),
        inputs=((data, (softmax.rows, softmax.size)),),
        shape=(softmax.rows, softmax.size),
        dtype=FLOAT32.name,
    )


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """Of `size` elements in each row, or their logarithms."""

    rows: int
    size: int
    logarithm: bool
    cpu: CpuModel

    def kernel(self) -> LayerKernel:
        """The kernel."""
        source = tir.buffer("source", (self.rows, self.size), FLOAT32.name)
        target = tir.buffer("target", (self.rows, self.size), FLOAT32.name)
        cycles = _PER_ELEMENT / 2 * self.rows * self.size / self.cpu.widest(FLOAT32)
        body = tir.loop_of(
            "row",
            self.rows,
            lambda row: self._row(source, target, row),
            parallel=worth_sharing(cycles, self.cpu),
        )
        kind = "log_softmax" if self.logarithm else "softmax"
        return LayerKernel(
            name=f"{kind}_{self.rows}x{self.size}",
            function=tir.function([source, target], body, in_place=[(source, target)]),
            constants=(),
            cycles=cycles,
        )

    def _row(self, source: tirx.Buffer, target: tirx.Buffer, row: tir.Expr) -> tir.Stmt:
        names = tir.Names()

        def element(at: tir.Expr, lanes: int, _: tir.Names) -> tirx.Expr:
            return tir.load(source, [row, at], lanes)

        most = names.bind("most", self._gathered(names, float("-inf"), tirx.max, element))

        def less(at: tir.Expr, lanes: int) -> tirx.Expr:
            return tir.load(source, [row, at], lanes) - tir.spread(most, lanes)

        def power(at: tir.Expr, lanes: int, inside: tir.Names) -> tirx.Expr:
            scope = functions.Scope(lanes, lambda value: inside.bind("e", value))
            value = inside.bind("power", functions.exp(inside.bind("less", less(at, lanes)), scope))
            if not self.logarithm:
                inside.add(tir.store(target, value, [row, at], lanes))
            return value

        total = names.bind("total", self._gathered(names, 0.0, lambda a, b: a + b, power))
        if self.logarithm:
            scope = functions.Scope(1, lambda value: names.bind("log", value))
            same = names.bind("same", functions.log(total, scope))
        else:
            same = names.bind("same", tir.number(1.0, FLOAT32.name) / total)

        def result(at: tir.Expr, lanes: int) -> tir.Stmt:
            if self.logarithm:
                value = less(at, lanes) - tir.spread(same, lanes)
            else:
                value = tir.load(target, [row, at], lanes) * tir.spread(same, lanes)
            return tir.store(target, value, [row, at], lanes)

        for start, lanes, count in rows.pieces(self.size, self.cpu.lanes(FLOAT32)):

            def one(index: tir.Expr, start: int = start, lanes: int = lanes) -> tir.Stmt:
                return result(start + index * lanes, lanes)

            names.add(tir.loop_of("vector", count, one))
        return names.done()

    def _gathered(
        self,
        names: tir.Names,
        start: float,
        combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
        value: Callable[[tir.Expr, int, tir.Names], tirx.Expr],
    ) -> tirx.Expr:
        """Something of each element of a row, combined."""
        found = None
        for first, lanes, count in rows.pieces(self.size, self.cpu.lanes(FLOAT32)):

            def one(
                index: tir.Expr, inside: tir.Names, first: int = first, lanes: int = lanes
            ) -> tirx.Expr:
                return value(first + index * lanes, lanes, inside)

            part = rows.gathered(
                names, count, lanes, start, combine, one, side_by_side=_EXPONENTIALS
            )
            found = part if found is None else combine(names.bind("part", found), part)
        assert found is not None
        return found
