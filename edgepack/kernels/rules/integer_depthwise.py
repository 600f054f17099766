"""Depthwise convolutions of integers, each channel by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from tvm import tirx

from edgepack.kernels import integer
from edgepack.kernels.rules.rule import LayerKernel, LayerSite
from edgepack.kernels.tiles import arm, micro, taps, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Image, pack_channels
from edgepack.kernels.tiles.partition import even_parts, worth_sharing
from edgepack.kernels.tiles.product import stream_cycles, vpdpbusd
from edgepack.kernels.tiles.requantise import Requantising

# Pixels of a depthwise tile, by a CPU's registers: neighbours share their inputs.
_PIXELS = {32: 4, 16: 2}
# Points of a window that are written out in assembly.
_MOST_IN_ASSEMBLY = 49


def cycles(instructions: float, weights: int, cpu: CpuModel) -> float:
    """What so many instructions take, and to read so many bytes of weights."""
    return instructions * cpu.cpi + stream_cycles(weights, 1, cpu)


def is_narrow(operator: integer.IntegerConvolution) -> bool:
    """Whether two products fit 16 bits."""
    return int(operator.weight.min(initial=0)) > -128


def largest(operator: integer.IntegerConvolution) -> float:
    """What sums times their factors are at most, whatever the input."""
    weights = np.abs(operator.weight.reshape(len(operator.weight), -1).astype("float64"))
    sums = 128 * weights.sum(axis=1) + np.abs(operator.bias.astype("float64"))
    return float((sums * operator.factor).max(initial=0.0))


def kernel(site: LayerSite, operator: integer.IntegerConvolution) -> LayerKernel | None:
    """The kernel of a convolution with as many groups as channels; None if there is none for its
    weights."""
    if "vnni" in site.cpu.features and site.inputs[0].shape[2] >= taps.FOUR:
        return _Dots(site, operator).kernel()
    return _Pairs(site, operator).kernel() if is_narrow(operator) else None


class _Pairs:
    """Two products of 16 bits are added up before they are widened."""

    # Of 16 products: two instructions, which are half of what there is to do. A guess.
    _COST = 4.0
    how = ""

    def __init__(self, site: LayerSite, operator: integer.IntegerConvolution) -> None:
        self.site, self.operator = site, operator
        self.pixels = _PIXELS[site.cpu.registers]
        self.source, self.target = Image("source", site.inputs[0]), Image("target", site.output)
        self.output, self.lanes = site.output, site.output.block
        self.epilogue = Requantising(
            site.output, operator.to, operator.factor, site.cpu, largest(operator)
        )
        rows, columns = operator.kernel
        packed = np.zeros((site.output.blocks * self.lanes, rows, columns), "int8")
        packed[: site.output.channels] = operator.weight[:, 0]
        blocks = packed.reshape(site.output.blocks, self.lanes, rows, columns)
        self.packed = np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))
        self.packed_bias = pack_channels(operator.bias, site.output)
        self.weights = tir.buffer("weights", self.packed.shape, "int8")
        self.bias = tir.buffer("bias", self.packed_bias.shape, "int32")
        self.points = [(i, j) for i in range(rows) for j in range(columns)]
        self.functions = micro.AssemblyFunctions()
        self.in_assembly = site.cpu.isa == "armv7" and len(self.points) <= _MOST_IN_ASSEMBLY

    @property
    def instructions(self) -> float:
        """Of the whole kernel."""
        output, points = self.output, len(self.points)
        return self._COST * points * output.shape[0] * output.height * output.width

    def kernel(self) -> LayerKernel:
        """Code, constants and what they cost."""
        output, operator = self.output, self.operator
        macs = operator.weight.size * output.height * output.width * output.batch
        taken = cycles(self.instructions, self.packed.nbytes, self.site.cpu)
        shared = worth_sharing(taken, self.site.cpu)
        parts = even_parts(output, self.site.cpu.cores) if shared else 1
        count = output.height // parts

        def one(n: tir.Expr, item: tir.Expr) -> tir.Stmt:
            block, part = item // parts, item % parts
            return tir.loop_of("row", count, lambda i: self._row(n, block, part * count + i))

        body = tir.loop_of(
            "n",
            output.batch,
            lambda n: tir.loop_of(
                "item", output.blocks * parts, lambda item: one(n, item), parallel=shared
            ),
        )
        rows, columns = operator.kernel
        name = f"qdepthwise{rows}x{columns}_{output.channels}_{output.height}x{output.width}"
        if operator.stride != (1, 1):
            name += f"_s{operator.stride[0]}"
        arguments = [self.source.buffer, self.weights, self.bias, *self.epilogue.constants]
        return LayerKernel(
            name=name,
            function=tir.function([*arguments, self.target.buffer], self.functions.imported(body)),
            constants=(self.packed, self.packed_bias, *self.epilogue.packed),
            tile=f"{min(self.pixels, output.width)}x1{self.how}",
            macs=macs,
            cycles=taken,
        )

    def _row(self, n: tir.Expr, block: tir.Expr, row: tir.Expr) -> tir.Stmt:
        plane = n * self.output.blocks + block
        size = min(self.pixels, self.output.width)
        full, rest = divmod(self.output.width, size)

        def one(index: tir.Expr) -> tir.Stmt:
            return tir.not_unrolled(self._tile(plane, block, row, index * size, size))

        return tir.sequence(
            self.target.clear_beside(plane, row),
            tir.loop_of("tile", full, one),
            self._tile(plane, block, row, full * size, rest) if rest else None,
        )

    def _tile(
        self, plane: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr, pixels: int
    ) -> tir.Stmt:
        """Neighbouring pixels: each input is loaded once."""
        if self.in_assembly:
            return self._assembly(plane, block, row, column, pixels)
        names, operator, lanes = tir.Names(), self.operator, self.lanes

        def wide(buffer: tirx.Buffer, at: Sequence[tir.Expr]) -> tirx.Expr:
            return names.keep("x", tir.cast(tir.load(buffer, at, lanes), "int16"))

        held = {point: wide(self.weights, [block, *point, 0]) for point in self.points}
        seen: dict[tuple[int, int], tirx.Expr] = {}

        def product(r: int, point: tuple[int, int]) -> tirx.Expr:
            i, j = point
            across = r * operator.stride[1] + j * operator.dilation[1]
            if (i, across) not in seen:
                at = self.source.at(
                    plane,
                    row * operator.stride[0] + i * operator.dilation[0] - operator.before[0],
                    column * operator.stride[1] + across - operator.before[1],
                )
                seen[i, across] = wide(self.source.buffer, at)
            return seen[i, across] * held[point]

        for r in range(pixels):
            total = tir.load(self.bias, [block * lanes], lanes)
            for first in range(0, len(self.points), 2):
                pair = self.points[first : first + 2]
                both = product(r, pair[0])
                if len(pair) == 2:
                    both += product(r, pair[1])
                total = names.keep("sum", total + tir.cast(both, "int32"))
            at = (plane, row, column + r)
            result = self.epilogue.apply(names, total, *at, channel_block=block)
            names.add(self.target.store(result, *at))
        return names.done()

    def _assembly(
        self, plane: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr, pixels: int
    ) -> tir.Stmt:
        operator, channel = self.operator, block * self.lanes
        code = arm.IntegerDepthwise(
            pixels=pixels,
            to=operator.to,
            width=arm.width_of(largest(operator)),
            window=operator.kernel,
            stride=operator.stride[1],
            dilation=operator.dilation[1],
            row_step=self.source.row_bytes * operator.dilation[0],
        )
        corner = self.source.at(
            plane,
            row * operator.stride[0] - operator.before[0],
            column * operator.stride[1] - operator.before[1],
        )
        return self.functions.call(
            code,
            [
                (self.target.buffer, self.target.at(plane, row, column)),
                (self.source.buffer, corner),
                (self.weights, [block, 0, 0, 0]),
                (self.bias, [channel]),
                (self.epilogue.constants[0], [channel]),
            ],
        )


# Pixels of a tile of dot products.
_PIXELS_OF_DOTS = 8
# Dot products of a tile that are written out; rows of windows with more are a loop.
_MOST_WRITTEN_OUT = 256
# Instructions to make 8 bits of a sum. A guess.
_FINISH = 6


class _Dots(_Pairs):
    """Four points of a row of the window at once, by instructions that add up four products.

    Of four neighbouring pixels the bytes of each channel are brought together; results of several
    windows read them, each with weights that are zero where its own window has no point. Inputs are
    128 more, which the bias makes up for.
    """

    how = " by dots"

    def __init__(self, site: LayerSite, operator: integer.IntegerConvolution) -> None:
        super().__init__(site, operator)
        self.pixels = min(_PIXELS_OF_DOTS, self.output.width)
        self.tiles = self._tiles()
        self.lanes_of = sorted(
            {lanes for tile in self.tiles for group in tile for _r, lanes in group.uses}, key=str
        )
        # [block][row][which of them][channel][pixel]
        shape = (self.output.blocks, operator.kernel[0], len(self.lanes_of), self.lanes, taps.FOUR)
        packed = np.zeros(shape, "int8")
        for number, lanes in enumerate(self.lanes_of):
            for pixel, point in enumerate(lanes):
                if point is not None:
                    packed[:, :, number, :, pixel] = self.packed[:, :, point]
        self.packed = packed
        self.weights = tir.buffer("weights", packed.shape, "int8")
        sums = operator.weight.reshape(len(operator.weight), -1).sum(axis=1, dtype="int64")
        self.packed_bias = pack_channels(operator.bias - 128 * sums, site.output)

    def _tiles(self) -> list[tuple[taps.FourPixels, ...]]:
        """The groups of each tile of a row."""
        operator, layout = self.operator, self.source.layout
        made = []
        for column in range(0, self.output.width, self.pixels):
            first = column * operator.stride[1] - operator.before[1] + layout.halo.left
            found = taps.groups(
                min(self.pixels, self.output.width - column),
                operator.kernel[1],
                stride=operator.stride[1],
                dilation=operator.dilation[1],
                room=layout.shape[2] - first,
            )
            made.append(found)
        return made

    @property
    def instructions(self) -> float:
        """Of the whole kernel."""
        each_row = self.operator.kernel[0] * sum(map(taps.products_and_loads, self.tiles))
        rows = self.output.shape[0] * self.output.height
        return rows * (each_row + _FINISH * self.output.width)

    def _row(self, n: tir.Expr, block: tir.Expr, row: tir.Expr) -> tir.Stmt:
        plane = n * self.output.blocks + block
        alike = sum(1 for _ in takewhile(lambda tile: tile == self.tiles[0], self.tiles))

        def one(index: tir.Expr) -> tir.Stmt:
            return tir.not_unrolled(self._dots(plane, block, row, index * self.pixels, 0))

        last = [
            self._dots(plane, block, row, number * self.pixels, number)
            for number in range(alike, len(self.tiles))
        ]
        return tir.sequence(
            self.target.clear_beside(plane, row), tir.loop_of("tile", alike, one), *last
        )

    def _dots(
        self, plane: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr, number: int
    ) -> tir.Stmt:
        """One tile, which reads what tile `number` does."""
        operator, lanes, size = self.operator, self.lanes, self.lanes * taps.FOUR
        pixels = min(self.pixels, self.output.width - number * self.pixels)
        sums = [tir.Local(f"sum_{r}", lanes, "int32") for r in range(pixels)]
        flip = tir.spread(tirx.IntImm("int8", -128), size)
        # Byte c of pixel p becomes byte p of channel c.
        order = [tir.integer(p * lanes + c) for c in range(lanes) for p in range(taps.FOUR)]

        def one_row(i: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            for group in self.tiles[number]:
                at = self.source.at(
                    plane,
                    row * operator.stride[0] + i * operator.dilation[0] - operator.before[0],
                    column * operator.stride[1] - operator.before[1] + group.start,
                )
                four = tirx.bitwise_xor(tir.load(self.source.buffer, at, size), flip)
                by_channel = names.keep("x", tirx.Shuffle([names.keep("four", four)], order))
                for r, points in group.uses:
                    weights = [block, i, self.lanes_of.index(points), 0, 0]
                    held = tir.load(self.weights, weights, size)
                    names.add(sums[r].set(vpdpbusd(sums[r].get(), held, by_channel)))
            return names.done()

        names = tir.Names()
        values = [each.get() for each in sums]
        self.epilogue.store(names, self.target, values, plane, row, column, channel_block=block)
        rows = operator.kernel[0]
        is_long = rows * taps.products_and_loads(self.tiles[number]) > _MOST_WRITTEN_OUT
        start = tir.load(self.bias, [block * lanes], lanes)
        return tir.sequence(
            *(each.declare() for each in sums),
            *(each.set(start) for each in sums),
            tir.loop_of("window_row", rows, one_row)
            if is_long
            else tir.sequence(*map(one_row, range(rows))),
            names.done(),
        )
