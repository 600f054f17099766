"""The loops of a convolution in groups, on an image that is there a few rows at a time."""

from __future__ import annotations

from copy import copy

from tvm import tirx

from edgepack.kernels.layer import Convolution
from edgepack.kernels.rules import convolution
from edgepack.kernels.rules.rule import LayerKernel, LayerSite
from edgepack.kernels.tiles import micro, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import Element
from edgepack.kernels.tiles.layout import Image
from edgepack.kernels.tiles.product import (
    ProductLoops,
    choose_tile,
    pack_bias,
    pack_weights,
)


def blocks_of_group(operator: Convolution, element: Element, cpu: CpuModel) -> int:
    """Blocks of channels that a group reads, neighbouring groups made one until it has whole
    ones."""
    outs, ins = operator.weight.shape[:2]
    block = cpu.block(ins * operator.groups, element)
    merged = convolution.merged_groups(operator, block, cpu.block(outs, element))
    return -(-int(ins) * merged // block)


class GroupedKernel:
    """The loops of one. Its image is in `source`, a part at a time (see `reading`), with rows of
    zeros where windows reach over it; the rows are done in `parts` equal parts."""

    def __init__(self, site: LayerSite, source: Image, parts: int) -> None:
        operator, output = site.layer.operator, site.output
        assert isinstance(operator, Convolution)
        between = site.inputs[0]
        weight, shape = convolution.grouped_weight(operator, between, output, site.cpu)
        self.site, self.source, self.parts = site, source, parts
        self.operator = operator
        self.shape = shape
        self.tile = choose_tile(
            output,
            blocks=self.shape.out_blocks,
            reduction=self.shape.reduction,
            cpu=site.cpu,
            groups=self.shape.groups,
            columns=self.shape.kernel[1],
        )
        self.packed = pack_weights(weight, self.shape, self.tile.vectors)
        self.packed_bias = pack_bias(operator.bias, output, site.cpu)
        self.weights = tir.buffer("group_weights", self.packed.shape, str(self.packed.dtype))
        dtype = str(self.packed_bias.dtype)
        self.bias = tir.buffer("group_bias", self.packed_bias.shape, dtype)
        self.target = Image("target", output)
        self.epilogue = site.epilogue(pixels=self.tile.pixels, parts=parts)
        self.functions = micro.AssemblyFunctions()

    def kernel(self) -> LayerKernel:
        """Constants, and what they cost; there is no code without the other convolution's."""
        output, operator = self.site.output, self.operator
        rows, columns = operator.kernel
        name = f"grouped{rows}x{columns}_{output.channels}_{output.height}x{output.width}"
        if operator.stride != (1, 1):
            name += f"_s{operator.stride[0]}"
        if self.epilogue.average:
            name += "_mean"
        return LayerKernel(
            name=name,
            function=_never_alone,
            constants=(self.packed, self.packed_bias, *self.epilogue.packed),
            tile=str(self.tile),
            macs=operator.weight.size * output.height * output.width * output.batch,
            cycles=self.tile.cycles,
        )

    def reading(self, source: Image) -> GroupedKernel:
        """The same on the memory of the image where it lies now."""
        kernel = copy(self)
        kernel.source = source
        return kernel

    @property
    def _loops(self) -> ProductLoops:
        return ProductLoops(
            cpu=self.site.cpu,
            window=convolution.window_of(self.operator),
            shape=self.shape,
            tile=self.tile,
            source=self.source,
            target=self.target,
            weights=self.weights,
            bias=self.bias,
            epilogue=self.epilogue,
            clears=True,
            functions=self.functions,
        )

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """`body`, which has these loops, with the code that they call."""
        return self._loops.imported(body)

    @property
    def constant_buffers(self) -> list[tirx.Buffer]:
        """Arguments for the kernel's constants."""
        return [self.weights, self.bias, *self.epilogue.constants]

    def clear(self) -> tir.Stmt | None:
        """Nothing: the zeros around the results are written with each row."""
        return None

    @property
    def in_place(self) -> list[tuple[tirx.Buffer, tirx.Buffer]]:
        """See `tir.function`."""
        return self._loops.in_place

    def rows(self, n: tir.Expr, block: tir.Expr, part: tir.Expr) -> tir.Stmt:
        """A part of the rows of the group that reads a block of channels, and those behind it."""
        output, groups = self.site.output, self.shape.groups
        group = tir.expr(block) // self.shape.in_blocks
        rows = output.height // self.parts
        done = self._loops.band(n, part * rows, rows, group)
        average, each = self.epilogue.average, output.blocks // groups
        if average is None:
            return done
        first = n * output.blocks + group * each

        def add_up(v: tir.Expr) -> tir.Stmt:
            plane = first + v
            made = average.finish(plane) if self.parts == 1 else average.add_up(plane, part)
            return tir.sequence(made)

        return tir.sequence(done, tir.loop_of("block", each, add_up))


def _never_alone() -> tirx.PrimFunc:
    raise AssertionError("there is code for both convolutions only")
