"""Transposed convolution to a few channels: each pixel is multiplied with the whole window at once.

A vector has room for more channels than such a result has. So the points of the window are
channels, too, of a product of 1x1: `parts`, what each pixel adds to the results around it. A few
rows of them are kept, the last ones, of which each result is the sum of some.

    out[y][x] = sum over the points (i, j) with y + top = s * q + i, x + left = s * r + j
                of parts[(i, j)][q][r]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from tvm import tirx

from edgepack.kernels.layer import Layer, TransposedConvolution
from edgepack.kernels.rules import transposed
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule, product
from edgepack.kernels.tiles import micro, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import Blocked, Halo, Image, clear_halos, pack_channels
from edgepack.kernels.tiles.partition import worth_sharing
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    Window,
    choose_tile,
    pack_bias,
    pack_weights,
)
from edgepack.kernels.tiles.tile import RegisterTile
from edgepack.kernels.value import extent

# Results that are at most one vector of the narrowest kind.
_MOST_CHANNELS = 4
# Cycles to add a part, and to begin and store a result (guesses).
_ADDED, _STORED = 1.0, 3.0
# Of the cycles of the product by phases, what has to be left: the model is no better than that.
_WORTH = 0.8


def takes(layer: Layer, cpu: CpuModel) -> bool:
    """Those where it is faster than a product for each phase."""
    operator = layer.operator
    if not isinstance(operator, TransposedConvolution) or operator.groups > 1:
        return False
    if operator.weight.shape[0] > _MOST_CHANNELS:
        return False
    if {layer.source, layer.element, layer.weights} != {FLOAT32}:
        return False
    spread = _Spread(layer=layer, cpu=cpu)
    return spread.cycles < _WORTH * spread.cycles_of_phases


def make(site: LayerSite) -> LayerKernel:
    """The kernel: rows of parts and of results in turns."""
    return _SpreadKernel(site).kernel()


@dataclass(frozen=True, kw_only=True)
class _Spread:
    layer: Layer
    cpu: CpuModel

    @property
    def operator(self) -> TransposedConvolution:
        assert isinstance(self.layer.operator, TransposedConvolution)
        return self.layer.operator

    @cached_property
    def phases(self) -> list[transposed.Phase]:
        """The results that are sums of the same points of the window."""
        return list(transposed.phases(self.operator, extent(self.layer.output)[2:]))

    @cached_property
    def reach(self) -> Halo:
        """Rows and columns of parts that results want beside the image, which are zeros."""
        return transposed.reach_of_phases(self.phases, extent(self.layer.inputs[0])[2:])

    @property
    def lanes(self) -> int:
        """Lanes of a vector of results."""
        return self.cpu.block(self.operator.weight.shape[0], FLOAT32)

    @property
    def apart(self) -> int:
        """Parts of a point of the window, of which one is read for all lanes, or one for each."""
        return 1 if self.operator.weight.shape[0] == 1 else self.lanes

    @cached_property
    def parts(self) -> Blocked:
        """A row of parts."""
        channels = product(self.operator.kernel) * self.apart
        return Blocked(
            element=FLOAT32,
            batch=1,
            channels=channels,
            height=1,
            width=extent(self.layer.inputs[0])[3],
            block=max(self.cpu.block(channels, FLOAT32), self.apart),
            halo=Halo(left=self.reach.left, right=self.reach.right),
        )

    @cached_property
    def weight(self) -> np.ndarray:
        """[1, points * apart, in channels, 1, 1]."""
        outs, ins, rows, columns = self.operator.weight.shape
        weight = np.zeros((rows, columns, self.apart, ins), self.operator.weight.dtype)
        weight[:, :, :outs] = self.operator.weight.transpose(2, 3, 0, 1)
        return weight.reshape(1, -1, ins, 1, 1)

    @cached_property
    def tile(self) -> RegisterTile:
        """Of the product, with the cycles of all its rows."""
        batch, ins, height, width = extent(self.layer.inputs[0])
        image = Blocked(
            element=FLOAT32,
            batch=batch,
            channels=self.parts.channels,
            height=height,
            width=width,
            block=self.parts.block,
        )
        return choose_tile(image, blocks=image.blocks, reduction=ins, cpu=self.cpu)

    @property
    def cycles(self) -> float:
        """Of the product and the sums."""
        batch, _, *size = extent(self.layer.output)
        added = product(self.operator.kernel) / product(self.operator.stride)
        return self.tile.cycles + batch * product(size) * (added * _ADDED + _STORED)

    @property
    def cycles_of_phases(self) -> float:
        """Of the products that the other rule makes."""
        batch, channels, *_ = extent(self.layer.output)
        total = 0.0
        for phase in self.phases:
            image = Blocked(
                element=FLOAT32,
                batch=batch,
                channels=channels,
                height=phase.size[0],
                width=phase.size[1],
                block=self.lanes,
            )
            kernel = phase.convolution.weight
            total += choose_tile(
                image,
                blocks=1,
                reduction=kernel[0].size,
                cpu=self.cpu,
                columns=kernel.shape[3],
            ).cycles
        return total

    @property
    def kept(self) -> int:
        """So many rows of parts are kept, the last ones."""
        return max(1, *(len(phase.rows) for phase in self.phases))

    @property
    def first(self) -> int:
        """The first row of parts that is kept at step 0."""
        return self._ready - self.kept

    @cached_property
    def _ready(self) -> int:
        """Rows of parts that are there at step 0."""
        return min((_end(phase) for phase in self.phases if phase.rows), default=1)

    def late(self, phase: transposed.Phase) -> int:
        """The step at which the rows of parts of a phase's first row are there."""
        return max(0, _end(phase) - self._ready)

    @property
    def steps(self) -> int:
        """From the first row of a phase to the last one."""
        return max(self.late(phase) + phase.size[0] for phase in self.phases)


def _end(phase: transposed.Phase) -> int:
    """The row of parts behind those that a phase's first row is a sum of."""
    return len(phase.rows) - phase.convolution.before[0]


class _SpreadKernel:
    """Its loops: a row of parts, and the rows of results that it was the last one for, in turns.

    Each core has some of these steps, and its own parts.
    """

    def __init__(self, site: LayerSite) -> None:
        spread = _Spread(layer=site.layer, cpu=site.cpu)
        self.site, self.spread, self.operator = site, spread, spread.operator
        self.source, self.target = Image("source", site.inputs[0]), Image("target", site.output)
        self.shape = Shape.of(spread.weight, self.source.layout, spread.parts)
        shared = worth_sharing(spread.cycles, site.cpu)
        self.cores = min(site.cpu.cores, spread.steps) if shared else 1
        self.each = -(-spread.steps // self.cores)
        self.parts = Image("parts", replace(spread.parts, batch=self.cores * spread.kept))
        self.constants = (
            pack_weights(spread.weight, self.shape, spread.tile.vectors),
            pack_bias(None, spread.parts, site.cpu),
            pack_channels(self.operator.bias, site.output),
        )
        self.weights, self.zeros, self.bias = (
            tir.buffer(name, values.shape, str(values.dtype))
            for name, values in zip(("weights", "zeros", "bias"), self.constants, strict=True)
        )
        self.functions, self.epilogue = micro.AssemblyFunctions(), site.epilogue()

    def kernel(self) -> LayerKernel:
        """With the parts as scratch memory."""
        output, epilogue, operator = self.site.output, self.epilogue, self.operator

        def image(n: tir.Expr) -> tir.Stmt:
            return tir.loop_of(
                "core", self.cores, lambda core: self._core(n, core), parallel=self.cores > 1
            )

        body = tir.sequence(
            clear_halos(self.target),
            clear_halos(self.parts),
            tir.loop_of("n", output.batch, image),
        )
        arguments = [
            self.source.buffer,
            *epilogue.operand_buffers,
            *(self.weights, self.zeros, self.bias),
            *epilogue.constants,
            *(self.target.buffer, self.parts.buffer),
        ]
        rows, columns = operator.kernel
        size = f"{output.height}x{output.width}"
        pixels = product(extent(self.site.layer.inputs[0])[2:]) * output.batch
        return LayerKernel(
            name=f"spread{rows}x{columns}_{operator.weight.shape[1]}_{output.channels}_{size}",
            function=tir.function(arguments, self._loops(0, 0, 0).imported(body)),
            constants=(*self.constants, *epilogue.packed),
            tile=str(self.spread.tile),
            macs=operator.weight.size * pixels,
            cycles=self.spread.cycles,
        )

    def _core(self, n: tir.Expr, core: tir.Expr) -> tir.Stmt:
        spread, first = self.spread, core * self.each

        def before(number: tir.Expr) -> tir.Stmt:
            return self._row_of_parts(n, core, first + spread.first + number)

        def step(number: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            now = names.bind("now", first + number)
            names.add(self._row_of_parts(n, core, now + (spread.first + spread.kept - 1)))
            for phase in spread.phases:
                row = now - spread.late(phase)
                made = self._row_of_phase(phase, n, core, row)
                if spread.late(phase) or phase.size[0] < self.cores * self.each:
                    made = tir.when(tirx.And(row >= 0, row < phase.size[0]), made)
                names.add(made)
            return names.done()

        steps = tir.loop_of("step", self.each, step)
        if spread.kept == 1:
            return steps
        return tir.sequence(tir.loop_of("before", spread.kept - 1, before), steps)

    def _plane(self, core: tir.Expr, row: tir.Expr) -> tir.Expr:
        """Where a row of parts is kept; the first ones have numbers below 0."""
        kept = self.spread.kept
        turns = -(self.spread.first // kept)
        slot = core * kept + tir.expr(row + turns * kept) % kept
        return slot * self.parts.layout.blocks

    def _loops(self, n: tir.Expr, row: tir.Expr, plane: tir.Expr) -> ProductLoops:
        """Those that make a row of parts."""
        layout = self.spread.parts
        view = self.parts.viewed(replace(layout, height=self.source.layout.height))
        return ProductLoops(
            cpu=self.site.cpu,
            window=Window(),
            shape=self.shape,
            tile=self.spread.tile,
            source=self.source,
            target=view.placed(plane=plane - n * layout.blocks, row=0 - tir.expr(row)),
            weights=self.weights,
            bias=self.zeros,
            bias_first=True,
            epilogue=Epilogue(layout),
            functions=self.functions,
        )

    def _row_of_parts(self, n: tir.Expr, core: tir.Expr, row: tir.Expr) -> tir.Stmt:
        """Zeros where it is none of the image."""
        names, layout = tir.Names(), self.parts.layout
        plane = names.bind("plane", self._plane(core, row))
        zero = tir.number(0.0, layout.element.name, layout.block)

        def clear(block: tir.Expr) -> tir.Stmt:
            return tir.loop_of(
                "column", layout.width, lambda i: self.parts.store(zero, plane + block, 0, i)
            )

        names.add(
            tirx.IfThenElse(
                tirx.And(tir.expr(row) >= 0, tir.expr(row) < self.source.layout.height),
                self._loops(n, row, plane).band(n, row, 1),
                tir.loop_of("block", layout.blocks, clear),
            )
        )
        return names.done()

    def _row_of_phase(
        self, phase: transposed.Phase, n: tir.Expr, core: tir.Expr, row: tir.Expr
    ) -> tir.Stmt:
        """Each result is the bias and the parts of the window's points that meet it."""
        lanes, apart = self.target.layout.block, self.spread.apart
        view = partial(Image.spaced, step=self.operator.stride, first=phase.first, size=phase.size)
        results, epilogue, names = view(self.target), self.epilogue.viewed(view), tir.Names()
        top, left = phase.convolution.before
        planes = [
            names.bind("plane", self._plane(core, row + (i - top))) for i in range(len(phase.rows))
        ]
        start = names.bind("start", tir.load(self.bias, [0], lanes))

        def part(plane: tir.Expr, column: tir.Expr, point: int) -> tirx.Expr:
            block, lane = divmod(point * apart, self.parts.layout.block)
            at = self.parts.at(plane + block, 0, column, lane)
            value = tir.load(self.parts.buffer, at, apart)
            return tir.spread(value, lanes) if apart < lanes else value

        def pixel(column: tir.Expr) -> tir.Stmt:
            inside, total = tir.Names(), tir.expr(start)
            for plane, i in zip(planes, phase.rows, strict=True):
                for number, j in enumerate(phase.columns):
                    point = i * self.operator.kernel[1] + j
                    total = total + part(plane, column + (number - left), point)
            value = epilogue.apply(inside, total, n, row, column, channel_block=0)
            inside.add(results.store(value, n, row, column))
            return inside.done()

        names.add(tir.loop_of("column", phase.size[1], pixel))
        return names.done()


RULE = Rule(name="spread", takes=takes, make=make)
