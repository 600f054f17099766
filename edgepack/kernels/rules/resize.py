"""Resized images, and images with borders: sums of rows, then of the columns of that one row.

    row[c] = sum over i of rows.weights[y][i] * in[rows.sources[y][i]][c]
    out[y][x] = sum over j of columns.weights[x][j] * row[columns.sources[x][j]]

Which positions and weights those are is known when the kernel is made (see `axis`). Along a row
they repeat for the usual scales, and are then part of the code; else they are read from a table.

Between blocked tensors a pixel is one vector. In plain ones the pixels of a row lie side by side:
there a few rows at a time are turned in registers, so that a vector is one column of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from tvm import tirx

from edgepack.kernels.axis import Axis, Run
from edgepack.kernels.layer import Layer, Resampling
from edgepack.kernels.rules.rule import (
    LayerKernel,
    LayerSite,
    Rows,
    RowsSite,
    Rule,
    product,
)
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import KIB, CpuModel
from edgepack.kernels.tiles.element import ELEMENTS
from edgepack.kernels.tiles.layout import Image, clear_halos
from edgepack.kernels.tiles.partition import shared_loops, worth_sharing
from edgepack.kernels.value import extent

# Results per turn of a loop: enough independent arithmetic to hide its latency.
_TOGETHER = 4
# Results whose positions and weights are code; more would be more code than they are worth.
_MOST_RESULTS = 48
# A row of sums lies on its thread's stack, and has to stay in a cache.
_MOST_ROW_BYTES = 64 * KIB

# A vector, or where it is, and what it is multiplied by; None for 1.
_Term = tuple[tirx.Expr, tirx.Expr | None]
# Makes the vector at a position of an axis.
_Load = Callable[[tir.Names, tir.Expr], tirx.Expr]
# Stores a result.
_Finish = Callable[[tir.Names, tirx.Expr, tir.Expr], None]


def _sum(terms: Iterable[_Term]) -> tirx.Expr:
    products = [value if factor is None else value * factor for value, factor in terms]
    total = products[0]
    for item in products[1:]:
        total = total + item
    return total


def _together(count: int, one: Callable[[tir.Names, tir.Expr], None]) -> tir.Stmt:
    """`one` for each of `count` results, a few per turn."""

    def turn(first: tir.Expr, results: int) -> tir.Stmt:
        names = tir.Names()
        for i in range(results):
            one(names, first + i)
        return names.done()

    full, rest = divmod(count, _TOGETHER)
    return tir.sequence(
        tir.loop_of("part", full, lambda i: turn(i * _TOGETHER, _TOGETHER)) if full else None,
        turn(full * _TOGETHER, rest) if rest else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """Constant arguments of a kernel."""

    buffers: list[tirx.Buffer] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def add(self, name: str, values: np.ndarray) -> tirx.Buffer:
        self.values.append(values)
        self.buffers.append(tir.buffer(name, values.shape, str(values.dtype)))
        return self.buffers[-1]


class _Table:
    """An axis as tables that the kernel reads."""

    def __init__(self, name: str, axis: Axis, tables: _Tables) -> None:
        self.taps = axis.taps
        self.sources = tables.add(f"{name}_sources", axis.sources)
        self.weights = None if axis.is_copy else tables.add(f"{name}_weights", axis.weights)

    def at(self, names: tir.Names, index: tir.Expr, lanes: int) -> list[_Term]:
        """Positions that make a result, and their factors."""

        def factor(tap: int) -> tirx.Expr | None:
            if self.weights is None:
                return None
            weight = names.bind("weight", tir.load(self.weights, [index, tap]))
            return names.bind("factor", tir.spread(weight, lanes))

        return [
            (names.bind("at", tir.load(self.sources, [index, tap])), factor(tap))
            for tap in range(self.taps)
        ]

    def results(self, count: int, lanes: int, load: _Load, finish: _Finish) -> tir.Stmt:
        """All results of an axis of `count`."""

        def one(names: tir.Names, x: tir.Expr) -> None:
            terms = self.at(names, x, lanes)
            finish(names, _sum((load(names, position), factor) for position, factor in terms), x)

        return _together(count, one)


def _run(axis: Axis, run: Run, dtype: str, lanes: int, load: _Load, finish: _Finish) -> tir.Stmt:
    """The results of a run; a position that several of one turn need is loaded once."""

    def turn(period: tir.Expr, periods: int) -> tir.Stmt:
        names = tir.Names()
        loaded: dict[int, tirx.Expr] = {}

        def term(position: int, weight: float) -> _Term:
            if position not in loaded:
                loaded[position] = names.bind("x", load(names, period * run.step + position))
            return loaded[position], None if weight == 1 else tir.number(weight, dtype, lanes)

        for i in range(run.period * periods):
            more, at = divmod(i, run.period)
            taps = zip(axis.sources[run.first + at], axis.weights[run.first + at], strict=True)
            # Borders have weights of 0 where the inside has others.
            terms = [(int(s) + more * run.step, float(w)) for s, w in taps if w] or [(0, 0.0)]
            value = _sum(term(*item) for item in terms)
            finish(names, value, period * run.period + (run.first + i))
        return names.done()

    periods = min(run.turns, -(-_TOGETHER // run.period))
    full, rest = divmod(run.turns, periods)
    return tir.sequence(
        tir.loop_of("turn", full, lambda i: turn(i * periods, periods)),
        turn(full * periods, rest) if rest else None,
    )


def _along(axis: Axis, tables: _Tables, dtype: str) -> Callable[[int, _Load, _Finish], tir.Stmt]:
    """How to make all results along a row from its columns."""
    runs = axis.runs(_MOST_RESULTS)
    if runs is None:
        return partial(_Table("column", axis, tables).results, axis.count)
    return lambda lanes, load, finish: tir.sequence(
        *(_run(axis, run, dtype, lanes, load, finish) for run in runs)
    )


_BORDERS = ("constant", "reflect", "replicate")


def takes_resize(layer: Layer, _cpu: CpuModel) -> bool:
    """All resizes; `graph` says which there are."""
    return isinstance(layer.operator, Resampling) and layer.operator.kind not in _BORDERS


def takes_pad(layer: Layer, _cpu: CpuModel) -> bool:
    """All borders around images."""
    return isinstance(layer.operator, Resampling) and layer.operator.kind in _BORDERS


def make(site: LayerSite) -> LayerKernel:
    """The kernel between blocked tensors; each pixel is one vector."""
    operator, layout, output = site.layer.operator, site.inputs[0], site.output
    assert isinstance(operator, Resampling)
    what = "pad" if operator.kind in _BORDERS else "resize"
    rows, columns, lanes = operator.rows, operator.columns, output.block
    dtype = output.element.accumulator
    source, target = Image("source", layout), Image("target", output)
    tables, epilogue = _Tables(), site.epilogue()
    table, along = _Table("row", rows, tables), _along(columns, tables, dtype)
    # Sums of whole rows, if their columns are needed more than once.
    ahead = not rows.is_copy and columns.count * columns.taps > layout.width
    ahead = ahead and layout.element.bytes * layout.width * lanes <= _MOST_ROW_BYTES

    def one_row(n: tir.Expr, block: tir.Expr, y: tir.Expr, index: tir.Expr | None) -> tir.Stmt:
        """Row `y` of the results, the `index`-th inside; None for one outside."""
        plane = n * output.blocks + block

        def finish(names: tir.Names, value: tirx.Expr, x: tir.Expr) -> None:
            value = epilogue.apply(names, value, plane, y, x, channel_block=block)
            names.add(target.store(value, plane, y, x))

        def outside(first: int, last: int) -> tir.Stmt | None:
            def one(names: tir.Names, x: tir.Expr) -> None:
                finish(names, tir.number(operator.outside, dtype, lanes), x + first)

            return _together(last - first, one) if first < last else None

        if index is None:
            return tir.sequence(outside(0, output.width))
        names = tir.Names()
        terms = table.at(names, index, lanes)

        def summed(_: tir.Names, x: tir.Expr) -> tirx.Expr:
            return _sum((source.load(plane, row, x), factor) for row, factor in terms)

        def inside(names: tir.Names, value: tirx.Expr, x: tir.Expr) -> None:
            finish(names, value, x + columns.first)

        sums = tir.Local("sums", lanes, dtype, count=layout.width)

        def keep(names: tir.Names, x: tir.Expr) -> None:
            names.add(sums.set(summed(names, x), x))

        def kept(_: tir.Names, x: tir.Expr) -> tirx.Expr:
            return sums.get(x)

        if ahead:
            names.add(sums.declare())
            names.add(_together(layout.width, keep))
        names.add(along(lanes, kept if ahead else summed, inside))
        return tir.sequence(
            outside(0, columns.first),
            names.done(),
            outside(columns.first + columns.count, output.width),
        )

    vectors = output.shape[0] * output.height * output.width
    cycles = vectors * (1 + columns.taps + rows.taps) / site.cpu.loads_per_cycle
    by_blocks, by_rows = shared_loops(cycles, output, site.cpu)

    def rows_of(n: tir.Expr, block: tir.Expr, first: int, last: int) -> tir.Stmt | None:
        """Results outside the image."""
        if first == last:
            return None
        return tir.loop_of("row", last - first, lambda row: one_row(n, block, row + first, None))

    def one_block(n: tir.Expr, block: tir.Expr) -> tir.Stmt:
        return tir.sequence(
            rows_of(n, block, 0, rows.first),
            tir.loop_of(
                "row",
                rows.count,
                lambda row: one_row(n, block, row + rows.first, row),
                parallel=by_rows,
            )
            if rows.count and columns.count
            else None,
            rows_of(n, block, rows.first + rows.count, output.height),
        )

    body = tir.loop_of(
        "n",
        output.batch,
        lambda n: tir.loop_of(
            "block", output.blocks, lambda block: one_block(n, block), parallel=by_blocks
        ),
    )
    return LayerKernel(
        name=f"{what}_{operator.kind}_{output.channels}_{output.height}x{output.width}",
        function=tir.function(
            [
                source.buffer,
                *epilogue.operand_buffers,
                *tables.buffers,
                *epilogue.constants,
                target.buffer,
            ],
            tir.sequence(clear_halos(target), body),
        ),
        constants=(*tables.values, *epilogue.packed),
        cycles=cycles,
    )


# ------------------------------------------------ of tensors as the model has them


def takes_plain(layer: Layer, cpu: CpuModel) -> bool:
    """Resizes that TVM does not do as well."""
    operator = layer.operator
    if not isinstance(operator, Resampling) or layer.expression or operator.repeats:
        return False
    return takes_resize(layer, cpu)


def planes_of(layer: Layer, cpu: CpuModel) -> RowsSite:
    """Planes of pixels: of all images and channels."""
    value, made = layer.inputs[0], layer.output
    shapes = (
        (batch * channels, height, width)
        for batch, channels, height, width in map(extent, (value, made))
    )
    data, result = (Rows(shape=shape, dtype=value.dtype) for shape in shapes)
    return RowsSite(layer=layer, inputs=(data,), output=result, cpu=cpu)


def make_plain(site: RowsSite) -> LayerKernel:
    """The kernel of a resize."""
    operator, cpu = site.layer.operator, site.cpu
    assert isinstance(operator, Resampling)
    assert isinstance(site.output, Rows)
    planes, height, width = site.inputs[0].shape
    _, *out = site.output.shape
    element = ELEMENTS[site.output.dtype]
    way, most = _upright, width
    if not operator.columns.is_all_of(width):
        way = _turned
        most = min(width, operator.columns.count, planes * operator.rows.count)
        most = min(most, _MOST_ROW_BYTES // (element.bytes * width))
    # What is narrower than the narrowest vector is small, too: one by one.
    lanes = max((lanes for lanes in cpu.lanes(element) if lanes <= most), default=1)
    shapes = (planes, height, width), (planes, out[0], out[1])
    return way(operator, *shapes, element.name, lanes, cpu)


def _turned(
    operator: Resampling,
    shape: tuple[int, int, int],
    out: tuple[int, int, int],
    dtype: str,
    lanes: int,
    cpu: CpuModel,
) -> LayerKernel:
    """The kernel from planes of `shape` to planes `out`, `lanes` rows at a time."""
    rows, columns, tables = operator.rows, operator.columns, _Tables()
    planes, width, count = shape[0], shape[2], shape[0] * rows.count
    source, target = tir.buffer("source", shape, dtype), tir.buffer("target", out, dtype)
    row_table, column_table = _Table("row", rows, tables), _Table("column", columns, tables)

    def group(first: tir.Expr) -> tir.Stmt:
        """Rows from `first` on, of those inside of all planes."""
        names = tir.Names()
        sums = tir.Local("sums", lanes, dtype, count=width)
        names.add(sums.declare())
        at = [names.bind("row", tir.integer(i) + first) for i in range(lanes)]
        places = [
            (names.bind("plane", row // rows.count), names.bind("index", row % rows.count))
            for row in at
        ]
        terms = [row_table.at(names, index, lanes) for _, index in places]

        def turn_in(column: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            summed = [
                _sum((tir.load(source, [plane, row, column], lanes), w) for row, w in taps)
                for (plane, _), taps in zip(places, terms, strict=True)
            ]
            for i, vector in enumerate(tir.transpose(names, summed)):
                names.add(sums.set(vector, column + i))
            return names.done()

        def turn_out(column: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            made = [
                _sum((sums.get(at), w) for at, w in column_table.at(names, column + i, lanes))
                for i in range(lanes)
            ]
            for (plane, index), row in zip(places, tir.transpose(names, made), strict=True):
                to = [plane, index + rows.first, column + columns.first]
                names.add(tir.store(target, row, to, lanes))
            return names.done()

        names.add(_in_steps("columns", width, lanes, turn_in))
        names.add(_in_steps("columns", columns.count, lanes, turn_out))
        return names.done()

    # A load, a transposition and a store on both sides.
    vectors = count * (width + columns.count) / lanes
    cycles = vectors * (2 + 2 * lanes.bit_length() + rows.taps + columns.taps)
    parallel = worth_sharing(cycles, cpu)
    return LayerKernel(
        name=f"resize_{operator.kind}_{planes}x{out[1]}x{out[2]}",
        function=tir.function(
            [source, *tables.buffers, target],
            tir.sequence(
                _outside(operator, target, lanes),
                _in_steps("rows", count, lanes, group, parallel=parallel),
            ),
        ),
        constants=tuple(tables.values),
        cycles=cycles,
    )


def _upright(
    operator: Resampling,
    shape: tuple[int, int, int],
    out: tuple[int, int, int],
    dtype: str,
    lanes: int,
    cpu: CpuModel,
) -> LayerKernel:
    """The same for images whose columns stay: `lanes` columns at a time."""
    rows, width, tables = operator.rows, shape[2], _Tables()
    source, target = tir.buffer("source", shape, dtype), tir.buffer("target", out, dtype)
    table = _Table("row", rows, tables)

    def one_row(row: tir.Expr) -> tir.Stmt:
        names = tir.Names()
        plane, index = names.bind("plane", row // rows.count), names.bind("index", row % rows.count)
        terms = table.at(names, index, lanes)

        def some(column: tir.Expr) -> tir.Stmt:
            result = _sum((tir.load(source, [plane, at, column], lanes), w) for at, w in terms)
            return tir.store(target, result, [plane, index + rows.first, column], lanes)

        names.add(_in_steps("columns", width, lanes, some))
        return names.done()

    count = shape[0] * rows.count
    cycles = count * width / lanes * (1 + rows.taps) / cpu.loads_per_cycle
    return LayerKernel(
        name=f"resize_{operator.kind}_{shape[0]}x{out[1]}x{out[2]}",
        function=tir.function(
            [source, *tables.buffers, target],
            tir.sequence(
                _outside(operator, target, lanes),
                tir.loop_of("row", count, one_row, parallel=worth_sharing(cycles, cpu)),
            ),
        ),
        constants=tuple(tables.values),
        cycles=cycles,
    )


def _outside(operator: Resampling, target: tirx.Buffer, lanes: int) -> tir.Stmt | None:
    """The value of results outside of the image, in all of them; None if there are none."""
    inside, out = (operator.rows.count, operator.columns.count), list(map(int, target.shape))
    if inside == tuple(out[1:]):
        return None

    def fill(at: tir.Expr) -> tir.Stmt:
        value = tir.number(operator.outside, str(target.dtype), lanes)
        return tir.store(target, value, [0, 0, at], lanes)

    return _in_steps("fill", product(out), lanes, fill)


def _in_steps(
    name: str,
    count: int,
    step: int,
    body: Callable[[tir.Expr], tir.Stmt],
    *,
    parallel: bool = False,
) -> tir.Stmt:
    """`body` for each `step`-th of `count`; the last one overlaps the one before."""
    return tir.sequence(
        tir.loop_of(name, count // step, lambda i: body(i * step), parallel=parallel),
        body(count - step) if count % step else None,
    )


RESIZE = Rule(name="resize", takes=takes_resize, make=make)
PAD = Rule(name="pad", takes=takes_pad, make=make)
# Of an image that no other kernel of ours reads or makes.
PLAIN_RESIZE = Rule(name="resize", takes=takes_plain, rows=planes_of, make=make_plain)
