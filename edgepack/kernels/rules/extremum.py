"""Where the largest or the smallest element along an axis is: ArgMax and ArgMin.

    along the last axis     each lane keeps its best element and the turn it came in
    along any other one     each lane is a result of its own

Per vector of elements a comparison and two selections; four vectors take turns, for each of those
waits for the one before.
"""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

from tvm import tirx

from edgepack.kernels.layer import Extremum, Layer
from edgepack.kernels.rules.rule import LayerKernel, Rows, RowsSite, Rule
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.partition import worth_sharing

# What elements are compared as.
_COMPARED = {
    "float32": "float32",
    "float64": "float64",
    "int32": "int32",
    "int16": "int32",
    "uint16": "int32",
    "int8": "int32",
    "uint8": "int32",
}
# Vectors in flight.
_VECTORS = 4

# Elements, and where they are.
_Best: TypeAlias = tuple[tirx.Expr, tirx.Expr]


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """ArgMax and ArgMin of elements that can be compared.

    NaN is never found, unless it is the very first element: onnxruntime compares one element after
    the other with the best so far.
    """
    return isinstance(layer.operator, Extremum) and layer.operator.dtype in _COMPARED


def rows_of(layer: Layer, cpu: CpuModel) -> RowsSite:
    """A tensor of three axes, and indices without the one in the middle."""
    found = layer.operator
    assert isinstance(found, Extremum)
    data = Rows(shape=(found.outer, found.size, found.inner), dtype=found.dtype)
    indices = Rows(shape=(found.outer, found.inner), dtype="int64")
    return RowsSite(layer=layer, inputs=(data,), output=indices, cpu=cpu)


def make(site: RowsSite) -> LayerKernel:
    """The kernel."""
    assert isinstance(site.layer.operator, Extremum)
    return _ExtremumKernel(site.layer.operator, site.cpu).kernel()


RULE = Rule(name="extremum", takes=takes, rows=rows_of, make=make)


class _ExtremumKernel:
    def __init__(self, found: Extremum, cpu: CpuModel) -> None:
        self.outer, self.size, self.inner = found.outer, found.size, found.inner
        self.dtype, self.largest, self.reverse = found.dtype, found.largest, found.reverse
        self.cpu = cpu

    def kernel(self) -> LayerKernel:
        """The kernel."""
        source = tir.buffer("source", (self.outer, self.size, self.inner), self.dtype)
        target = tir.buffer("target", (self.outer, self.inner), "int64")
        cycles = 2.0 * self.outer * self.inner * -(-self.size // self.cpu.widest(FLOAT32))
        if self.inner > 1:
            cycles = 2.0 * self.outer * self.size * -(-self.inner // self.cpu.widest(FLOAT32))
        parallel = worth_sharing(cycles, self.cpu)
        by_outer = parallel and (self.inner == 1 or self.outer >= self.cpu.cores)

        def one(outer: tir.Expr) -> tir.Stmt:
            if self.inner == 1:
                return self._row(source, target, outer)
            return self._columns(source, target, outer, parallel and not by_outer)

        body = tir.loop_of("outer", self.outer, one, parallel=by_outer)
        name = "argmax" if self.largest else "argmin"
        return LayerKernel(
            name=f"{name}_{self.outer}x{self.size}x{self.inner}",
            function=tir.function([source, target], body),
            constants=(),
            cycles=cycles,
        )

    def _load(self, source: tirx.Buffer, at: list[tir.Expr], lanes: int) -> tirx.Expr:
        compared, value = _COMPARED[self.dtype], tir.load(source, at, lanes)
        return value if compared == self.dtype else tirx.Cast(_type(compared, lanes), value)

    def _beats(self, later: tirx.Expr, earlier: tirx.Expr) -> tirx.Expr:
        """Whether an element takes the place of one before it."""
        if not self._has_nan:
            if self.reverse:
                return later >= earlier if self.largest else later <= earlier
            return later > earlier if self.largest else later < earlier
        # What is no number yields to one.
        if self.reverse:
            stays = later < earlier if self.largest else later > earlier
        else:
            stays = later <= earlier if self.largest else later >= earlier
        return tirx.And(tirx.Not(stays), tirx.EQ(later, later))

    @property
    def _has_nan(self) -> bool:
        return self.dtype.startswith("float")

    def _better(self, steps: list[tir.Stmt], lanes: int, one: _Best, other: _Best) -> _Best:
        """Of two elements anywhere the better one, or of equal ones the one to be preferred.

        It is put into variables of its own: values bound to names are written out by TVM's
        simplifier wherever they are used, ever more of them in each round.
        """
        better = other[0] > one[0] if self.largest else other[0] < one[0]
        preferred = other[1] > one[1] if self.reverse else other[1] < one[1]
        equal = tirx.EQ(other[0], one[0])
        if self._has_nan:
            mine, theirs = (tirx.NE(value, value) for value, _ in (one, other))
            equal = tirx.Or(equal, tirx.And(mine, theirs))
            better = tirx.Or(better, tirx.And(mine, tirx.Not(theirs)))
        take = tirx.Or(better, tirx.And(equal, preferred))
        (value,), (index,) = self._places(1, lanes)
        steps += [
            value.declare(),
            index.declare(),
            value.set(tirx.Select(take, other[0], one[0])),
            index.set(tirx.Select(take, other[1], one[1])),
        ]
        return value.get(), index.get()

    def _result(self, index: tirx.Expr, first: tirx.Expr, lanes: int) -> tirx.Expr:
        """What is stored; `first` are the elements that come first."""
        if self._has_nan:
            zero = tir.spread(tir.integer(0), lanes)
            index = tirx.Select(tirx.EQ(first, first), index, zero)
        if self.reverse:
            index = tir.spread(tir.integer(self.size - 1), lanes) - index
        return tirx.Cast(_type("int64", lanes), index)

    def _keep(
        self,
        bests: list[tir.Local],
        indices: list[tir.Local],
        values: list[tirx.Expr],
        index: tir.Expr,
    ) -> tir.Stmt:
        """Let `values`, which come at `index`, take the places of what they beat."""
        names = tir.Names()
        spread = tirx.Cast("int32", index) if isinstance(index, tirx.Expr) else tir.integer(index)
        for best, where, loaded in zip(bests, indices, values, strict=False):
            value = names.bind("value", loaded)
            old = names.bind("best", best.get())
            take = self._beats(value, old)
            names.add(best.set(tirx.Select(take, value, old)))
            names.add(where.set(tirx.Select(take, tir.spread(spread, best.lanes), where.get())))
        return names.done()

    def _places(self, vectors: int, lanes: int) -> tuple[list[tir.Local], list[tir.Local]]:
        compared = _COMPARED[self.dtype]
        return (
            [tir.Local(f"best{v}", lanes, compared) for v in range(vectors)],
            [tir.Local(f"index{v}", lanes, "int32") for v in range(vectors)],
        )

    # ------------------------------------------------ lanes are results

    def _columns(
        self, source: tirx.Buffer, target: tirx.Buffer, outer: tir.Expr, parallel: bool
    ) -> tir.Stmt:
        """All results of one part, some vectors of them at a time.

        The last vector begins where it ends with the last result, unless there are fewer results.
        """
        fitting = sorted(lanes for lanes in self.cpu.lanes(FLOAT32) if lanes <= self.inner)
        lanes = max(fitting, default=1)
        together = lanes * _VECTORS
        full, rest = divmod(self.inner, together)

        def tile(turn: tir.Expr) -> tir.Stmt:
            at = [turn * together + v * lanes for v in range(_VECTORS)]
            return self._tile(source, target, outer, at, lanes)

        parts = [tir.loop_of("tile", full, tile, parallel=parallel)] if full else []
        single, left = divmod(rest, lanes)
        tail = [full * together + v * lanes for v in range(single)]
        if tail:
            parts.append(self._tile(source, target, outer, tail, lanes))
        if left:
            narrow = next(lanes for lanes in fitting if lanes >= left)
            parts.append(self._tile(source, target, outer, [self.inner - narrow], narrow))
        return tir.sequence(*parts)

    def _tile(
        self,
        source: tirx.Buffer,
        target: tirx.Buffer,
        outer: tir.Expr,
        columns: list[tir.Expr],
        lanes: int,
    ) -> tir.Stmt:
        bests, indices = self._places(len(columns), lanes)

        def values(k: tir.Expr) -> list[tirx.Expr]:
            return [self._load(source, [outer, k, at], lanes) for at in columns]

        zero = tir.spread(tir.integer(0), lanes)
        return tir.sequence(
            *(local.declare() for local in (*bests, *indices)),
            *(best.set(value) for best, value in zip(bests, values(0), strict=True)),
            *(index.set(zero) for index in indices),
            tir.loop_of(
                "k", self.size - 1, lambda k: self._keep(bests, indices, values(k + 1), k + 1)
            )
            if self.size > 1
            else None,
            *(
                tir.store(target, self._result(index.get(), value, lanes), [outer, at], lanes)
                for index, at, value in zip(indices, columns, values(0), strict=True)
            ),
        )

    # ------------------------------------------------ lanes are elements

    def _row(self, source: tirx.Buffer, target: tirx.Buffer, outer: tir.Expr) -> tir.Stmt:
        """One result: the best of each lane, then the best of those."""
        fitting = [lanes for lanes in self.cpu.lanes(FLOAT32) if lanes <= self.size]
        lanes = max(fitting, default=1)
        vectors = min(_VECTORS, self.size // lanes)
        together = lanes * vectors
        turns, rest = divmod(self.size, together)
        bests, indices = self._places(vectors, lanes)

        def values(turn: tir.Expr, count: int) -> list[tirx.Expr]:
            first = turn * together
            return [self._load(source, [outer, first + v * lanes, 0], lanes) for v in range(count)]

        steps: list[tir.Stmt] = []
        found = []
        for v, (best, index) in enumerate(zip(bests, indices, strict=True)):
            lane = tir.integer(v * lanes)
            first = tirx.Ramp(lane, tir.integer(1), lanes) if lanes > 1 else lane
            steps.append(index.set(index.get() * tir.spread(tir.integer(together), lanes) + first))
            found.append((best.get(), index.get()))
        result = reduce(lambda one, other: self._better(steps, lanes, one, other), found)
        width = lanes
        while width > 1:
            width //= 2
            low, high = (
                tuple(tirx.Shuffle([item], [tir.integer(i) for i in picked]) for item in result)
                for picked in (range(width), range(width, 2 * width))
            )
            result = self._better(steps, width, low, high)
        for k in range(self.size - rest % lanes, self.size):
            element = self._load(source, [outer, k, 0], 1)
            result = self._better(steps, 1, result, (element, tir.integer(k)))
        first_element = self._load(source, [outer, 0, 0], 1)
        steps.append(tir.store(target, self._result(result[1], first_element, 1), [outer, 0]))
        zero = tir.spread(tir.integer(0), lanes)
        return tir.sequence(
            *(local.declare() for local in (*bests, *indices)),
            *(best.set(value) for best, value in zip(bests, values(0, vectors), strict=True)),
            *(index.set(zero) for index in indices),
            tir.loop_of(
                "turn",
                turns - 1,
                lambda t: self._keep(bests, indices, values(t + 1, vectors), t + 1),
            )
            if turns > 1
            else None,
            self._keep(bests, indices, values(turns, rest // lanes), turns)
            if rest >= lanes
            else None,
            *steps,
        )


def _type(dtype: str, lanes: int) -> str:
    return f"{dtype}x{lanes}" if lanes > 1 else dtype
