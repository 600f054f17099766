"""Rows less their mean, over their deviation: layer norm, and RMS norm, which leaves the mean.

A row is read from memory once, and again from the first-level cache: for its mean, the mean square
of what is left, and the result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import tirx

from edgepack.kernels.choices import Ranked
from edgepack.kernels.layer import Layer, Norm
from edgepack.kernels.rules.rule import LayerKernel, Rows, RowsSite, Rule
from edgepack.kernels.tiles import rows, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32, Element
from edgepack.kernels.tiles.partition import worth_sharing

# Shorter rows are over before their vectors are added up (a guess).
_SHORTEST = 8
# Vectors of a sum side by side: half of the registers that all CPUs have.
_MOST = 8
# Loads, stores and operations per element of all passes.
_PER_ELEMENT = 12


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Layer norm and RMS norm over rows that are no short ones."""
    return isinstance(layer.operator, Norm) and layer.operator.size >= _SHORTEST


def rows_of(layer: Layer, cpu: CpuModel) -> RowsSite:
    """Rows, read and written."""
    operator = layer.operator
    assert isinstance(operator, Norm)
    matrix = Rows(shape=(operator.rows, operator.size), dtype=layer.element.name)
    return RowsSite(layer=layer, inputs=(matrix,), output=matrix, cpu=cpu)


def make(site: RowsSite) -> LayerKernel:
    """The kernel."""
    assert isinstance(site.layer.operator, Norm)
    chosen = site.chosen(RULE.name)
    together = rows.side_by_side(chosen, usual=rows.SIDE_BY_SIDE, most=_MOST)
    return _NormKernel(site.layer.operator, site.layer.element, site.cpu, together).kernel()


def ways(site: RowsSite) -> list[Ranked]:
    """Sums of as many vectors side by side as there are registers for."""
    norm = site.layer.operator
    assert isinstance(norm, Norm)
    cycles = _cycles(norm, site.cpu)
    return rows.ways(RULE.name, norm.size, site.cpu, cycles, usual=rows.SIDE_BY_SIDE, most=_MOST)


RULE = Rule(name="norm", takes=takes, rows=rows_of, make=make, kept=True, ways=ways)


def _cycles(norm: Norm, cpu: CpuModel) -> float:
    return _PER_ELEMENT / 2 * norm.rows * norm.size / cpu.widest(FLOAT32)


class _NormKernel:
    def __init__(self, norm: Norm, element: Element, cpu: CpuModel, together: int) -> None:
        self.element = element
        self.cycles, self.together = _cycles(norm, cpu), together
        self.rows, self.size, self.epsilon = norm.rows, norm.size, norm.epsilon
        self.scale, self.shift, self.cpu = norm.scale, norm.shift, cpu

    def kernel(self) -> LayerKernel:
        """The kernel."""
        source = tir.buffer("source", (self.rows, self.size), self.element.name)
        target = tir.buffer("target", (self.rows, self.size), self.element.name)
        constants = [self.scale] if self.shift is None else [self.scale, self.shift]
        given = [
            tir.buffer(f"constant{i}", (self.size,), FLOAT32.name) for i in range(len(constants))
        ]

        def row(index: tir.Expr) -> tir.Stmt:
            return self._row(source, target, given, index)

        def function() -> tirx.PrimFunc:
            body = tir.loop_of("row", self.rows, row, parallel=worth_sharing(self.cycles, self.cpu))
            return tir.function([source, *given, target], body, in_place=[(source, target)])

        kind = "rms" if self.shift is None else "layer"
        return LayerKernel(
            name=f"{kind}_norm_{self.rows}x{self.size}",
            function=function,
            constants=tuple(np.ascontiguousarray(values, FLOAT32.name) for values in constants),
            cycles=self.cycles,
        )

    def _row(
        self,
        source: tirx.Buffer,
        target: tirx.Buffer,
        given: list[tirx.Buffer],
        row: tir.Expr,
    ) -> tir.Stmt:
        names = tir.Names()
        mean = None
        if self.shift is not None:
            mean = names.bind("mean", self._mean(names, lambda x, _: x, source, row))

        def centred(value: tirx.Expr, lanes: int) -> tirx.Expr:
            return value if mean is None else value - tir.spread(mean, lanes)

        def square(value: tirx.Expr, lanes: int) -> tirx.Expr:
            less = centred(value, lanes)
            return less * less

        variance = self._mean(names, square, source, row)
        epsilon = tir.number(self.epsilon, FLOAT32.name)
        share = names.bind("share", tir.number(1.0, FLOAT32.name) / tirx.sqrt(variance + epsilon))

        def scaled(first: tir.Expr, lanes: int) -> tir.Stmt:
            value = centred(self._load(source, row, first, lanes), lanes)
            value = value * tir.spread(share, lanes) * tir.load(given[0], [first], lanes)
            if self.shift is not None:
                value = value + tir.load(given[1], [first], lanes)
            return tir.store(target, tir.cast(value, self.element.name), [row, first], lanes)

        for start, lanes, count in rows.pieces(self.size, self.cpu.lanes(FLOAT32)):

            def one(index: tir.Expr, start: int = start, lanes: int = lanes) -> tir.Stmt:
                return scaled(start + index * lanes, lanes)

            names.add(tir.loop_of("vector", count, one))
        return names.done()

    def _load(self, source: tirx.Buffer, row: tir.Expr, first: tir.Expr, lanes: int) -> tirx.Expr:
        return tir.cast(tir.load(source, [row, first], lanes), FLOAT32.name)

    def _mean(
        self,
        names: tir.Names,
        value: Callable[[tirx.Expr, int], tirx.Expr],
        source: tirx.Buffer,
        row: tir.Expr,
    ) -> tirx.Expr:
        """The mean of something of each element, given vectors and their lanes."""
        total = None
        for start, lanes, count in rows.pieces(self.size, self.cpu.lanes(FLOAT32)):

            def one(
                index: tir.Expr, inside: tir.Names, start: int = start, lanes: int = lanes
            ) -> tirx.Expr:
                element = self._load(source, row, start + index * lanes, lanes)
                return value(inside.bind("x", element), lanes)

            part = rows.gather(
                names, count, lanes, 0.0, lambda a, b: a + b, one, side_by_side=self.together
            )
            total = part if total is None else names.bind("part", total) + part
        assert total is not None
        return total * tir.number(1.0 / self.size, FLOAT32.name)
