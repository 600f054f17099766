"""Convolutions of integers: depthwise ones, and all others as products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from tvm import tirx

from edgepack.compiler import integer
from edgepack.compiler.layers.layer import Convolution, Layer
from edgepack.compiler.layers.tensors import extent
from edgepack.compiler.rules.convolution import dense_weight, merged_groups
from edgepack.compiler.rules.rule import LayerKernel, LayerSite, Rule
from edgepack.compiler.tiles import arm, micro, tir
from edgepack.compiler.tiles.cpu import CpuModel
from edgepack.compiler.tiles.layout import Halo, Image, conv_halo, pack_channels
from edgepack.compiler.tiles.partition import even_parts, worth_sharing
from edgepack.compiler.tiles.product import (
    ProductLoops,
    Shape,
    Window,
    choose_integer_tile,
    dot_product,
    moved_image,
    pack_integers,
    stream_cycles,
)
from edgepack.compiler.tiles.requantise import Requantising

# Pixels of a depthwise tile, by a CPU's registers: neighbours share their inputs.
_PIXELS = {32: 4, 16: 2}
# So often each input of a product is read where it pays to move it once.
_WORTH_MOVING = 3
# Points of a window that are written out in assembly.
_MOST_IN_ASSEMBLY = 49


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Every convolution of integers."""
    return isinstance(layer.operator, integer.IntegerConvolution)


def halo(layer: Layer) -> Halo:
    """What the window reads around the image."""
    operator = _operator(layer)
    return conv_halo(
        size=extent(layer.inputs[0])[2:],
        kernel=operator.kernel,
        stride=operator.stride,
        dilation=operator.dilation,
        before=operator.before,
        out=extent(layer.output)[2:],
    )


def _operator(layer: Layer) -> integer.IntegerConvolution:
    operator = layer.operator
    assert isinstance(operator, integer.IntegerConvolution)
    return operator


def make(site: LayerSite) -> LayerKernel:
    """The kernel of a convolution."""
    operator = _operator(site.layer)
    if operator.groups == len(operator.weight) == site.inputs[0].channels and _is_narrow(operator):
        return _depthwise(site, operator)
    return _product(site, operator)


def _product(site: LayerSite, operator: integer.IntegerConvolution) -> LayerKernel:
    source, output = site.inputs[0], site.output
    # With the names of a convolution of floats, as those that weights are packed for.
    alike = Convolution(
        weight=operator.weight,
        bias=None,
        stride=operator.stride,
        before=operator.before,
        dilation=operator.dilation,
        groups=operator.groups,
    )
    merged = merged_groups(alike, source.block, output.block)
    weight = dense_weight(alike, merged)
    dot = dot_product(site.cpu, weight.shape[2], narrow=_is_narrow(operator))
    shape = Shape.of(weight, source, output, dot.kr)
    one_point = operator.kernel == operator.stride == (1, 1) and operator.before == (0, 0)
    flat = one_point and not source.halo and not output.halo
    view_out = output.flat if flat else output
    chosen = choose_integer_tile(
        width=view_out.width,
        rows=view_out.height * output.batch * shape.groups,
        blocks=shape.out_blocks,
        reduction=shape.reduction,
        cpu=site.cpu,
        dot=dot,
    )
    packed = pack_integers(weight, shape, chosen.vectors, dot)
    sums = operator.weight.reshape(len(operator.weight), -1).sum(axis=1, dtype="int64")
    bias = pack_channels(operator.bias - dot.moved * sums, output)
    view_in = source.flat if flat else source
    image = given = Image("source", source, view_in)
    # How often each input is read. Once or twice it is as well moved where it is read.
    reads = -(-shape.out_blocks // chosen.vectors) * prod(operator.kernel)
    is_moved = dot.spread_moved is not None and reads / prod(operator.stride) >= _WORTH_MOVING
    if dot.spread_moved is not None and is_moved:
        image, dot = Image("moved", source, view_in), replace(dot, spread=dot.spread_moved)
    loops = ProductLoops(
        cpu=site.cpu,
        window=Window(stride=operator.stride, before=operator.before, dilation=operator.dilation),
        shape=shape,
        tile=chosen,
        source=image,
        target=Image("target", output, view_out),
        weights=tir.buffer("weights", packed.shape, "int8"),
        bias=tir.buffer("bias", bias.shape, "int32"),
        epilogue=Requantising(output, operator.to, operator.factor, site.cpu, _largest(operator)),
        clears=True,
        dot=dot,
    )
    body = tir.loop_of(
        "n", output.batch, lambda n: loops.image(n, parallel=loops.partition.worth_sharing)
    )
    if is_moved:
        shared = worth_sharing(prod(source.shape) / max(site.cpu.vector_bytes), site.cpu)
        body = tir.sequence(moved_image(given, image, parallel=shared), body)
    rows, columns = operator.kernel
    name = f"qconv{rows}x{columns}_{source.channels}_{output.channels}"
    name += f"_{output.height}x{output.width}"
    if operator.stride != (1, 1):
        name += f"_s{operator.stride[0]}"
    return LayerKernel(
        name=name,
        function=tir.function(
            [
                given.buffer,
                loops.weights,
                loops.bias,
                *loops.epilogue.constants,
                loops.target.buffer,
                *([image.buffer] if is_moved else ()),
            ],
            loops.imported(body),
        ),
        constants=(packed, bias, *loops.epilogue.packed),
        tile=f"{chosen}{' flat' if flat else ''}",
        macs=operator.weight.size * output.height * output.width * output.batch,
        cycles=_cycles(chosen.cycles, packed.nbytes, site.cpu),
        by_pixels=loops.partition.by_pixels,
    )


def _cycles(instructions: float, weights: int, cpu: CpuModel) -> float:
    """What so many instructions take, and to read so many bytes of weights."""
    return instructions * cpu.cpi + stream_cycles(weights, 1, cpu)


def _is_narrow(operator: integer.IntegerConvolution) -> bool:
    """Whether two products fit 16 bits."""
    return int(operator.weight.min(initial=0)) > -128


def _largest(operator: integer.IntegerConvolution) -> float:
    """What sums times their factors are at most, whatever the input."""
    weights = np.abs(operator.weight.reshape(len(operator.weight), -1).astype("float64"))
    sums = 128 * weights.sum(axis=1) + np.abs(operator.bias.astype("float64"))
    return float((sums * operator.factor).max(initial=0.0))


def _depthwise(site: LayerSite, operator: integer.IntegerConvolution) -> LayerKernel:
    return _Depthwise(site, operator).kernel()


class _Depthwise:
    """Each channel by itself: two products of 16 bits are added up before they are widened."""

    def __init__(self, site: LayerSite, operator: integer.IntegerConvolution) -> None:
        self.site, self.operator = site, operator
        self.pixels = _PIXELS[site.cpu.registers]
        self.source, self.target = Image("source", site.inputs[0]), Image("target", site.output)
        self.output, self.lanes = site.output, site.output.block
        self.epilogue = Requantising(site.output, operator.to, operator.factor, site.cpu)
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

    def kernel(self) -> LayerKernel:
        """Code, constants and what they cost."""
        output, operator = self.output, self.operator
        macs = operator.weight.size * output.height * output.width * output.batch
        # Two instructions for 16 products, which are half of what there is to do. A guess.
        cycles = _cycles(4 * macs / self.lanes, self.packed.nbytes, self.site.cpu)
        shared = worth_sharing(cycles, self.site.cpu)
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
            tile=f"{min(self.pixels, output.width)}x1",
            macs=macs,
            cycles=cycles,
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
            width=arm.width_of(_largest(operator)),
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


RULE = Rule(name="int8 conv", takes=takes, make=make, halo=halo)
