"""Softmax and its logarithm along rows: powers of e over their sum.

A row is read from memory once, and again from the first-level cache: for its largest element, the
powers, and the result. The powers are kept where the result will be, which may be where the row is.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from edgepack.kernels.choices import Ranked
from edgepack.kernels.layer import Layer, Softmax
from edgepack.kernels.rules.rule import LayerKernel, Rows, RowsSite, Rule
from edgepack.kernels.tiles import functions, rows, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32, Element
from edgepack.kernels.tiles.partition import worth_sharing

# Vectors of the shortest row: TVM's schedule has several shorter ones side by side, which wins on
# rows of up to 6 vectors (x86-64).
_FEWEST = 8
# Loads, stores and operations per element of all passes, e^x among them.
_PER_ELEMENT = 36
# Of e^x side by side, as few as fit 16 registers.
_EXPONENTIALS = 2
# What may be tried instead, on CPUs with more registers.
_MOST = 4


def takes(layer: Layer, cpu: CpuModel) -> bool:
    """Softmax and its logarithm along rows that are no short ones."""
    operator = layer.operator
    return isinstance(operator, Softmax) and operator.size >= _FEWEST * cpu.widest(FLOAT32)


def rows_of(layer: Layer, cpu: CpuModel) -> RowsSite:
    """Rows, read and written."""
    operator = layer.operator
    assert isinstance(operator, Softmax)
    matrix = Rows(shape=(operator.rows, operator.size), dtype=layer.element.name)
    return RowsSite(layer=layer, inputs=(matrix,), output=matrix, cpu=cpu)


def make(site: RowsSite) -> LayerKernel:
    """The kernel."""
    assert isinstance(site.layer.operator, Softmax)
    together = rows.side_by_side(site.chosen(RULE.name), usual=_EXPONENTIALS, most=_MOST)
    element = site.layer.element
    return _SoftmaxKernel(site.layer.operator, element, site.cpu, together).kernel()


def ways(site: RowsSite) -> list[Ranked]:
    """Powers of as many vectors side by side as there are registers for."""
    softmax = site.layer.operator
    assert isinstance(softmax, Softmax)
    cycles = _cycles(softmax, site.cpu)
    return rows.ways(RULE.name, softmax.size, site.cpu, cycles, usual=_EXPONENTIALS, most=_MOST)


RULE = Rule(name="softmax", takes=takes, rows=rows_of, make=make, ways=ways)


def _cycles(softmax: Softmax, cpu: CpuModel) -> float:
    return _PER_ELEMENT / 2 * softmax.rows * softmax.size / cpu.widest(FLOAT32)


class _SoftmaxKernel:
    def __init__(self, softmax: Softmax, element: Element, cpu: CpuModel, together: int) -> None:
        self.element = element
        self.rows, self.size, self.logarithm = softmax.rows, softmax.size, softmax.logarithm
        self.cpu, self.together = cpu, together
        self.cycles = _cycles(softmax, cpu)

    def kernel(self) -> LayerKernel:
        """The kernel."""
        source = tir.buffer("source", (self.rows, self.size), self.element.name)
        target = tir.buffer("target", (self.rows, self.size), self.element.name)
        body = tir.loop_of(
            "row",
            self.rows,
            lambda row: self._row(source, target, row),
            parallel=worth_sharing(self.cycles, self.cpu),
        )
        kind = "log_softmax" if self.logarithm else "softmax"
        return LayerKernel(
            name=f"{kind}_{self.rows}x{self.size}",
            function=tir.function([source, target], body, in_place=[(source, target)]),
            constants=(),
            cycles=self.cycles,
        )

    def _row(self, source: tirx.Buffer, target: tirx.Buffer, row: tir.Expr) -> tir.Stmt:
        names = tir.Names()

        def read(buffer: tirx.Buffer, at: tir.Expr, lanes: int) -> tirx.Expr:
            return tir.cast(tir.load(buffer, [row, at], lanes), FLOAT32.name)

        def write(value: tirx.Expr, at: tir.Expr, lanes: int) -> tir.Stmt:
            return tir.store(target, tir.cast(value, self.element.name), [row, at], lanes)

        def element(at: tir.Expr, lanes: int, _: tir.Names) -> tirx.Expr:
            return read(source, at, lanes)

        most = names.bind("most", self._gathered(names, float("-inf"), tirx.max, element))

        def less(at: tir.Expr, lanes: int) -> tirx.Expr:
            return read(source, at, lanes) - tir.spread(most, lanes)

        def power(at: tir.Expr, lanes: int, inside: tir.Names) -> tirx.Expr:
            scope = functions.Scope(lanes, lambda value: inside.bind("e", value))
            value = inside.bind("power", functions.exp(inside.bind("less", less(at, lanes)), scope))
            if not self.logarithm:
                inside.add(write(value, at, lanes))
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
                value = read(target, at, lanes) * tir.spread(same, lanes)
            return write(value, at, lanes)

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

            part = rows.gather(names, count, lanes, start, combine, one, side_by_side=self.together)
            found = part if found is None else combine(names.bind("part", found), part)
        assert found is not None
        return found
