"""Sums of products of integers whose zero point is known only when the model runs, and the integers
themselves: what a model has that is quantised dynamically.

    integers of the network -> blocks of channels, a row at a time; around images the zero point
    for each tile
        sums in registers, from minus the zero point times the sum of the channel's weights on
        made numbers, and stored

So no inner loop knows the zero point. Products of rows read and write them where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from tvm import tirx

from edgepack.kernels.layer import (
    Convolution,
    DynamicIntegers,
    DynamicRange,
    DynamicSums,
    Layer,
)
from edgepack.kernels.rules import integer_depthwise
from edgepack.kernels.rules.convolution import dense_weight, merged_groups
from edgepack.kernels.rules.rule import LayerKernel, Rows, RowsSite, Rule, product
from edgepack.kernels.tiles import rows, tir
from edgepack.kernels.tiles.cpu import INT8_BLOCK, CpuModel
from edgepack.kernels.tiles.element import FLOAT32, INT8, INT32
from edgepack.kernels.tiles.layout import Blocked, Image, conv_halo
from edgepack.kernels.tiles.matrix import Matrix
from edgepack.kernels.tiles.partition import worth_sharing
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    Window,
    choose_integer_tile,
    dot_product,
    pack_integers,
)
from edgepack.kernels.tiles.requantise import round_half_to_even
from edgepack.kernels.tiles.sums_end import SumsEnd, SumsOperand, WeightZeros

# From int8 to uint8 that stand for the same.
_MOVED = 128
# uint8's steps.
_STEPS = 255.0


# ------------------------------------------------ integers of numbers


def range_rows(layer: Layer, cpu: CpuModel) -> RowsSite:
    """All elements, and the scale beside the zero point."""
    assert isinstance(layer.operator, DynamicRange)
    data = Rows(shape=(layer.operator.size,))
    return RowsSite(layer=layer, inputs=(data,), output=Rows(shape=(2,)), cpu=cpu)


def make_range(site: RowsSite) -> LayerKernel:
    """Scale and zero point, as onnxruntime has them: of zeros alone the scale is 1."""
    assert isinstance(site.layer.operator, DynamicRange)
    size, cpu = site.layer.operator.size, site.cpu
    source, target = (tir.buffer(*of, "float32") for of in (("source", (size,)), ("target", (2,))))
    names = tir.Names()

    def extreme(combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr], name: str) -> tirx.Expr:
        found: tirx.Expr = tir.number(0.0, "float32")
        for start, lanes, count in rows.pieces(size, cpu.lanes(FLOAT32)):

            def one(
                index: tir.Expr, inside: tir.Names, start: int = start, lanes: int = lanes
            ) -> tirx.Expr:
                return inside.bind("x", tir.load(source, [start + index * lanes], lanes))

            part = rows.gather(names, count, lanes, 0.0, combine, one)
            found = combine(found, names.bind(name, part))
        return names.bind(name, found)

    low, high = extreme(tirx.min, "low"), extreme(tirx.max, "high")
    one = tir.number(1.0, "float32")
    scale = names.bind("step", (high - low) / tir.number(_STEPS, "float32"))
    is_none = tirx.EQ(scale, tir.number(0.0, "float32"))
    scale = names.bind("scale", tirx.Select(is_none, one, scale))
    zero = tir.number(0.0, "float32") - low / scale
    zero = tirx.max(tirx.min(zero, tir.number(_STEPS, "float32")), tir.number(0.0, "float32"))
    names.add(tir.store(target, scale, [0]))
    names.add(tir.store(target, tir.cast(round_half_to_even(zero, 1), "float32"), [1]))
    return LayerKernel(
        name=f"range_{size}",
        function=tir.function([source, target], names.done()),
        constants=(),
        cycles=2 * size / cpu.widest(FLOAT32) / cpu.loads_per_cycle,
    )


# Elements that a core makes integers of at a time.
_PART = 1 << 12


def integers_rows(layer: Layer, cpu: CpuModel) -> RowsSite:
    """All elements, with the scale beside the zero point."""
    assert isinstance(layer.operator, DynamicIntegers)
    size = layer.operator.size
    inputs = Rows(shape=(size,)), Rows(shape=(2,))
    made = Rows(shape=(size,), dtype="uint8")
    return RowsSite(layer=layer, inputs=inputs, output=made, cpu=cpu)


def make_integers(site: RowsSite) -> LayerKernel:
    """The nearest to x / scale, half to even, plus the zero point, as uint8."""
    assert isinstance(site.layer.operator, DynamicIntegers)
    size, cpu = site.layer.operator.size, site.cpu
    source = tir.buffer("source", (size,), "float32")
    given = tir.buffer("steps", (2,), "float32")
    target = tir.buffer("target", (size,), "uint8")
    cycles = 8.0 * size / cpu.widest(FLOAT32)

    def some(first: tir.Expr, count: int) -> tir.Stmt:
        names = tir.Names()
        scale = names.bind("scale", tir.load(given, [0]))
        zero = names.bind("zero", tir.load(given, [1]))
        whole = names.bind("whole", tir.cast(zero, "int32"))
        for start, lanes, turns in rows.pieces(count, [INT8_BLOCK]):

            def one(index: tir.Expr, start: int = start, lanes: int = lanes) -> tir.Stmt:
                at = [first + start + index * lanes]
                inside = tir.Names()
                real = tir.load(source, at, lanes) / tir.spread(scale, lanes)
                least = tir.spread(tir.number(0.0, "float32") - zero, lanes)
                most = tir.spread(tir.number(_STEPS, "float32") - zero, lanes)
                real = tirx.min(tirx.max(inside.bind("x", real), least), most)
                value = round_half_to_even(real, lanes) + tir.spread(whole, lanes)
                inside.add(tir.store(target, tir.cast(value, "uint8"), at, lanes))
                return inside.done()

            names.add(tir.loop_of("vector", turns, one))
        return names.done()

    full, rest = divmod(size, _PART)
    body = tir.split(
        "part",
        full,
        lambda part: some(part * _PART, _PART),
        (lambda: some(full * _PART, rest)) if rest else None,
        parallel=full > 1 and worth_sharing(cycles, cpu),
    )
    return LayerKernel(
        name=f"integers_{size}",
        function=tir.function([source, given, target], body),
        constants=(),
        cycles=cycles,
    )


# ------------------------------------------------ their sums


def sums_rows(layer: Layer, cpu: CpuModel) -> RowsSite:
    """Rows, or an image whose result is left in blocks; see `_SumsKernel.operands`."""
    sums = layer.operator
    assert isinstance(sums, DynamicSums)
    made = _SumsKernel(layer, cpu)
    inputs = [Rows(shape=sums.given, dtype=sums.dtype)]
    if sums.zero is None:
        inputs.append(Rows(shape=(1,), dtype=sums.dtype))
    output: Rows | Blocked = made.target
    if sums.in_rows:
        output = Rows(shape=(1, *sums.made), dtype=made.target.element.name)
    return RowsSite(
        layer=layer,
        inputs=tuple(inputs),
        operands=tuple(Rows(shape=shape) for shape in made.operands),
        output=output,
        cpu=cpu,
    )


def make_sums(site: RowsSite) -> LayerKernel:
    """The kernel of sums."""
    return _SumsKernel(site.layer, site.cpu).kernel()


class _SumsKernel:
    def __init__(self, layer: Layer, cpu: CpuModel) -> None:
        assert isinstance(layer.operator, DynamicSums)
        self.layer, self.sums, self.cpu = layer, layer.operator, cpu

    @property
    def columns(self) -> int:
        return len(self.sums.weight)

    @property
    def source(self) -> Blocked:
        """The layout of the integers in blocks."""
        sums, given = self.sums, self.sums.given
        if sums.in_rows:
            return Blocked(
                element=INT8,
                batch=1,
                channels=given[1],
                height=1,
                width=given[0],
                block=INT8_BLOCK,
            )
        height, width = self.target.height, self.target.width
        halo = conv_halo(
            size=given[2:],
            kernel=sums.weight.shape[2:],
            stride=sums.stride,
            dilation=sums.dilation,
            before=sums.before,
            out=(height, width),
        )
        batch, channels, rows_, width = given
        return Blocked(
            element=INT8,
            batch=batch,
            channels=channels,
            height=rows_,
            width=width,
            block=INT8_BLOCK,
            halo=halo,
        )

    @property
    def target(self) -> Blocked:
        """The layout of the results, as the product sees them."""
        if self.sums.in_rows:
            batch, height, width = 1, 1, self.sums.given[0]
        else:
            batch, _, height, width = self.sums.made
        return Blocked(
            element=FLOAT32 if self.sums.converted else INT32,
            batch=batch,
            channels=self.columns,
            height=height,
            width=width,
            block=INT8_BLOCK,
        )

    @property
    def weight(self) -> np.ndarray:
        """[groups, out, in, rows, columns]; of rows the last block of columns starts earlier, where
        they are no multiple of a block."""
        sums = self.sums
        if sums.in_rows:
            last = self.columns - INT8_BLOCK
            starts = (min(i * INT8_BLOCK, last) for i in range(self.target.blocks))
            order = [column for start in starts for column in range(start, start + INT8_BLOCK)]
            return np.asarray(sums.weight[order][None])
        alike = Convolution(
            weight=sums.weight,
            bias=None,
            stride=sums.stride,
            before=sums.before,
            dilation=sums.dilation,
            groups=sums.groups,
        )
        return dense_weight(alike, merged_groups(alike, INT8_BLOCK, INT8_BLOCK))

    @property
    def totals(self) -> np.ndarray:
        """The sum of each channel's weights."""
        weight, made = self.weight, np.zeros(self.target.blocks * INT8_BLOCK, "int32")
        sums = weight.reshape(weight.shape[0] * weight.shape[1], -1).sum(1, dtype="int64")
        made[: len(sums)] = sums.astype("int32")
        return made

    @property
    def operands(self) -> list[tuple[int, ...]]:
        """As which shape each of what the arithmetic reads is read; see `SumsOperand`."""
        full = (1, self.sums.given[0], self.columns)
        found: list[tuple[int, ...]] = []
        for item in self.layer.operands:
            # What is of one row's shape is one number for each column as well.
            is_full = self.sums.in_rows and self.sums.given[0] > 1 and item.size == product(full)
            found.append(full if is_full else (item.size,))
        return found

    @property
    def weight_zeros(self) -> np.ndarray | None:
        """One for each column; blocks are read whole."""
        if self.sums.weight_zero is None:
            return None
        size = max(self.target.blocks * INT8_BLOCK, self.columns)
        return np.pad(self.sums.weight_zero, (0, size - self.columns)).astype("int32")

    @property
    def constants(self) -> list[np.ndarray]:
        """One value per column each; blocks are read whole."""
        size = max(self.target.blocks * INT8_BLOCK, self.columns)
        return [
            np.pad(values, (0, size - len(values))).astype("float32")
            for values in self.layer.constants
        ]

    def kernel(self) -> LayerKernel:
        """The kernel."""
        sums, source, output = self.sums, self.source, self.target
        in_rows, dtype = sums.in_rows, sums.dtype
        weight = self.weight
        dot = dot_product(
            self.cpu, weight.shape[2], narrow=bool(sums.weight.min(initial=0) > -_MOVED)
        )
        # What is stored in blocks is so much more than the data.
        moved = -_MOVED if dtype == "uint8" else 0
        if dot.spread_moved is not None:
            dot, moved = replace(dot, spread=dot.spread_moved), moved + _MOVED
        shape = Shape.of(weight, source, output, dot.kr)
        flat = not in_rows and sums.weight.shape[2:] == sums.stride == (1, 1) and not source.halo
        view_in, view_out = (source.flat, output.flat) if flat else (source, output)
        chosen = choose_integer_tile(
            width=view_out.width,
            rows=view_out.height * output.batch * shape.groups,
            blocks=shape.out_blocks,
            reduction=shape.reduction,
            cpu=self.cpu,
            dot=dot,
        )
        packed, totals = pack_integers(weight, shape, chosen.vectors, dot), self.totals
        zero = tir.buffer("zero", (1,), dtype) if sums.zero is None else None
        data = tir.buffer("data", sums.given, dtype)
        others = [tir.buffer(f"operand{i}", of, "float32") for i, of in enumerate(self.operands)]
        per_column = [
            tir.buffer(f"constant{i}", values.shape, "float32")
            for i, values in enumerate(self.constants)
        ]
        sums_of_weights = tir.buffer("totals", totals.shape, "int32")
        zeros, less = self.weight_zeros, None
        if zeros is not None:
            pixels = output.batch * output.height * output.width
            less = WeightZeros(
                zeros=tir.buffer("weight_zeros", zeros.shape, "int32"),
                inputs=tir.buffer("inputs", (pixels,), "int32"),
            )
        blocks = Image("blocks", source, view_in)
        target = self._results(view_out)
        loops = ProductLoops(
            cpu=self.cpu,
            window=Window(stride=sums.stride, before=sums.before, dilation=sums.dilation),
            shape=shape,
            tile=chosen,
            source=blocks,
            target=target,
            weights=tir.buffer("weights", packed.shape, "int8"),
            bias=tir.buffer("bias", totals.shape, "int32"),
            epilogue=SumsEnd(
                output,
                self.layer.expression,
                per_column,
                [SumsOperand(buffer=item) for item in others],
                self.cpu,
                converts=sums.converted,
                less=less,
            ),
            dot=dot,
        )
        outside = zero if sums.zero is None else sums.zero
        assert outside is not None
        pack = _Pack(data=data, image=_Moved(blocks.buffer, source, outside, moved))
        added = _Added(data=data, zero=outside, source=source, target=output, sums=sums)
        channels = added.buffer
        shared = worth_sharing(prod(source.shape) / max(self.cpu.vector_bytes), self.cpu)
        body = tir.sequence(
            pack.start(loops.bias, sums_of_weights),
            pack.rows(parallel=shared) if in_rows else pack.images(parallel=shared),
            added.inputs(less.inputs, channels) if less is not None else None,
            tir.loop_of(
                "n", output.batch, lambda n: loops.image(n, parallel=loops.partition.worth_sharing)
            ),
        )
        arguments = [
            data,
            *([zero] if zero is not None else ()),
            *others,
            loops.weights,
            sums_of_weights,
            *([less.zeros] if less is not None else ()),
            *per_column,
            target.buffer,
            blocks.buffer,
            loops.bias,
            *([less.inputs, channels] if less is not None else ()),
        ]
        window = "x".join(map(str, sums.weight.shape[2:]))
        return LayerKernel(
            name=f"sums{window}_{'x'.join(map(str, sums.given))}_{self.columns}",
            function=tir.function(arguments, loops.imported(body)),
            constants=(
                packed,
                totals,
                *([zeros] if zeros is not None else ()),
                *self.constants,
            ),
            tile=f"{chosen}{' flat' if flat else ''}",
            macs=sums.weight.size * output.height * output.width * output.batch,
            cycles=integer_depthwise.cycles(chosen.cycles, packed.nbytes, self.cpu),
        )

    def _results(self, view: Blocked) -> Image:
        """Where results go."""
        if not self.sums.in_rows:
            return Image("out", self.target, view)
        shape, blocks = (1, self.sums.given[0], self.columns), self.target.blocks
        made = tir.buffer("out", shape, view.element.name)
        return Matrix(made, 0, view, last=blocks - 1, shift=-self.columns % INT8_BLOCK)


class _Moved(Image):
    """Blocks of integers, which are `moved` more than the data; around them is the zero point."""

    def __init__(
        self, buffer: tirx.Buffer, layout: Blocked, zero: tirx.Buffer | int, moved: int
    ) -> None:
        self.layout, self.buffer = layout, buffer
        self.step, self.first = (1, 1), (0, 0)
        self.zero, self.moved = zero, moved

    def as_stored(self, value: tirx.Expr, lanes: int) -> tirx.Expr:
        """A vector of the data: its bytes, with another first bit if they are moved."""
        value = tirx.reinterpret(f"int8x{lanes}" if lanes > 1 else "int8", value)
        flip = tir.spread(tirx.IntImm("int8", -128), lanes)
        return tirx.bitwise_xor(value, flip) if self.moved else value

    def zero_as_stored(self) -> tirx.Expr:
        """The number that stands for 0, as int32."""
        if isinstance(self.zero, int):
            return tir.integer(self.zero + self.moved)
        return tir.cast(tir.load(self.zero, [0]), "int32") + self.moved

    def _outside(self) -> tirx.Expr:
        if isinstance(self.zero, int):
            byte = tirx.IntImm("int8", (self.zero + self.moved + 128) % 256 - 128)
        else:
            byte = tir.cast(self.zero_as_stored(), "int8")
        return tir.spread(byte, self.layout.block)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pack:
    """What is done before the sums."""

    data: tirx.Buffer
    image: _Moved

    def start(self, bias: tirx.Buffer, totals: tirx.Buffer) -> tir.Stmt:
        """What sums start with: what the zero point adds to them, taken away."""
        names = tir.Names()
        less = names.bind("less", tir.integer(0) - self.image.zero_as_stored())

        def some(block: tir.Expr) -> tir.Stmt:
            at = [block * INT8_BLOCK]
            value = tir.load(totals, at, INT8_BLOCK) * tir.spread(less, INT8_BLOCK)
            return tir.store(bias, value, at, INT8_BLOCK)

        names.add(tir.loop_of("block", int(bias.shape[0]) // INT8_BLOCK, some))
        return names.done()

    def rows(self, *, parallel: bool) -> tir.Stmt:
        """Rows of a matrix, each a pixel."""
        layout = self.image.layout
        full, rest = divmod(layout.channels, INT8_BLOCK)

        def part(row: tir.Expr, block: tir.Expr, lane: int, lanes: int) -> tir.Stmt:
            value = tir.load(self.data, [row, block * INT8_BLOCK + lane], lanes)
            at = self.image.at(block, 0, row, lane)
            return tir.store(self.image.buffer, self.image.as_stored(value, lanes), at, lanes)

        def one(row: tir.Expr) -> tir.Stmt:
            return tir.sequence(
                tir.loop_of("block", full, lambda block: part(row, block, 0, INT8_BLOCK))
                if full
                else None,
                *(part(row, full, lane, 1) for lane in range(rest)),
            )

        return tir.loop_of("row", layout.width, one, parallel=parallel)

    def images(self, *, parallel: bool) -> tir.Stmt:
        """Images by squares of channels and pixels, the last one of a row over the one before."""
        layout = self.image.layout
        widest = min(INT8_BLOCK, layout.width)
        side = 1 << (widest.bit_length() - 1)
        last = (layout.channels - 1) % INT8_BLOCK + 1
        whole = layout.blocks - (last < INT8_BLOCK)

        def square(
            n: tir.Expr, block: tir.Expr, valid: int, row: tir.Expr, column: tir.Expr
        ) -> tir.Stmt:
            names = tir.Names()
            plane = n * layout.blocks + block
            for first in range(0, valid, side):
                nothing = tir.spread(tirx.IntImm("int8", 0), side)
                lines = [
                    self.image.as_stored(
                        tir.load(self.data, [n, block * INT8_BLOCK + lane, row, column], side), side
                    )
                    if lane < valid
                    else nothing
                    for lane in range(first, first + side)
                ]
                for i, line in enumerate(tir.transpose(names, lines) if side > 1 else lines):
                    at = self.image.at(plane, row, column + i, first)
                    names.add(tir.store(self.image.buffer, line, at, side))
            return names.done()

        def plane(n: tir.Expr, block: tir.Expr, valid: int) -> tir.Stmt:
            def one_row(row: tir.Expr) -> tir.Stmt:
                full, rest = divmod(layout.width, side)
                return tir.sequence(
                    tir.loop_of("square", full, lambda i: square(n, block, valid, row, i * side)),
                    square(n, block, valid, row, layout.width - side) if rest else None,
                )

            around = self.image.clear_halo(n * layout.blocks + block) if layout.halo else None
            return tir.sequence(around, tir.loop_of("row", layout.height, one_row))

        return tir.loop_of(
            "n",
            layout.batch,
            lambda n: tir.split(
                "block",
                whole,
                lambda block: plane(n, block, INT8_BLOCK),
                (lambda: plane(n, whole, last)) if whole < layout.blocks else None,
                parallel=parallel,
            ),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Added:
    """The inputs of each result added up, less their zero point: what zero points of weights are
    multiplied by."""

    data: tirx.Buffer
    zero: tirx.Buffer | int
    source: Blocked
    target: Blocked
    sums: DynamicSums

    @property
    def buffer(self) -> tirx.Buffer:
        """Where the sums of an image's channels are kept, with zeros around them."""
        planes, rows_, columns, _block = self.source.shape
        shape = (planes // self.source.blocks, rows_, columns)
        return tir.buffer("channels", (1,) if self.sums.in_rows else shape, "int32")

    def _zero(self) -> tirx.Expr:
        if isinstance(self.zero, int):
            return tir.integer(self.zero)
        return tir.cast(tir.load(self.zero, [0]), "int32")

    def inputs(self, to: tirx.Buffer, channels: tirx.Buffer) -> tir.Stmt:
        """Writes one sum for each pixel of the result."""
        if self.sums.in_rows:
            return tir.loop_of("row", self.source.width, lambda row: self._row(to, row))
        names = tir.Names()
        zero = names.bind("zero", self._zero())
        names.add(tir.loop_of("n", self.source.batch, lambda n: self._image(to, channels, n, zero)))
        return names.done()

    def _row(self, to: tirx.Buffer, row: tir.Expr) -> tir.Stmt:
        """Along a row of a matrix."""
        depth, names = self.source.channels, tir.Names()
        total = tir.Local("total", 1, "int32")
        names.add(total.declare())
        names.add(total.set(self._zero() * -depth))
        for start, lanes, count in rows.pieces(depth, [INT8_BLOCK]):
            some = tir.Local("some", lanes, "int32")
            names.add(some.declare())
            names.add(some.set(tir.spread(tir.integer(0), lanes)))

            def one(
                index: tir.Expr, start: int = start, lanes: int = lanes, some: tir.Local = some
            ) -> tir.Stmt:
                value = tir.load(self.data, [row, start + index * lanes], lanes)
                return some.set(some.get() + tir.cast(value, "int32"))

            names.add(tir.loop_of("some", count, one))
            names.add(
                total.set(total.get() + tir.fold_lanes(names, [some.get()], lambda a, b: a + b))
            )
        names.add(tir.store(to, total.get(), [row]))
        return names.done()

    def _image(
        self, to: tirx.Buffer, channels: tirx.Buffer, n: tir.Expr, zero: tirx.Expr
    ) -> tir.Stmt:
        """Of an image all channels first, then the window."""
        layout, halo, sums = self.source, self.source.halo, self.sums
        _planes, rows_, columns, _block = layout.shape

        def clear(row: tir.Expr) -> tir.Stmt:
            return tir.loop_of(
                "column", columns, lambda c: tir.store(channels, tir.integer(0), [n, row, c])
            )

        def add(channel: tir.Expr, row: tir.Expr) -> tir.Stmt:
            parts = []
            for start, lanes, count in rows.pieces(layout.width, [INT8_BLOCK]):

                def one(index: tir.Expr, start: int = start, lanes: int = lanes) -> tir.Stmt:
                    column = start + index * lanes
                    value = tir.load(self.data, [n, channel, row, column], lanes)
                    value = tir.cast(value, "int32") - tir.spread(zero, lanes)
                    at = [n, row + halo.top, column + halo.left]
                    return tir.store(channels, tir.load(channels, at, lanes) + value, at, lanes)

                parts.append(tir.loop_of("some", count, one))
            return tir.sequence(*parts)

        def pixel(row: tir.Expr, column: tir.Expr) -> tir.Stmt:
            total = tir.Local("total", 1, "int32")

            def point(i: tir.Expr, j: tir.Expr) -> tir.Stmt:
                down = row * sums.stride[0] + i * sums.dilation[0] + halo.top - sums.before[0]
                along = column * sums.stride[1] + j * sums.dilation[1] + halo.left - sums.before[1]
                return total.set(total.get() + tir.load(channels, [n, down, along]))

            height, width = self.target.height, self.target.width
            return tir.sequence(
                total.declare(),
                total.set(tir.integer(0)),
                tir.loop_of(
                    "i",
                    sums.weight.shape[2],
                    lambda i: tir.loop_of("j", sums.weight.shape[3], lambda j: point(i, j)),
                ),
                tir.store(to, total.get(), [(n * height + row) * width + column]),
            )

        return tir.sequence(
            tir.loop_of("row", rows_, clear),
            tir.loop_of(
                "row",
                layout.height,
                lambda row: tir.loop_of("channel", layout.channels, lambda c: add(c, row)),
            ),
            tir.loop_of(
                "row",
                self.target.height,
                lambda row: tir.loop_of("column", self.target.width, lambda c: pixel(row, c)),
            ),
        )


RULES = (
    Rule(
        name="range",
        takes=lambda layer, _: isinstance(layer.operator, DynamicRange),
        rows=range_rows,
        make=make_range,
    ),
    Rule(
        name="quantize",
        takes=lambda layer, _: isinstance(layer.operator, DynamicIntegers),
        rows=integers_rows,
        make=make_integers,
    ),
    Rule(
        name="int8 sums",
        takes=lambda layer, _: isinstance(layer.operator, DynamicSums),
        rows=sums_rows,
        make=make_sums,
    ),
)
