"""Convolution of a sequence whose window reaches far past its ends: dilated, or causal.

    for each panel of output blocks
        for each stretch of columns under which the same points of the window lie in the sequence
            tiles, whose reduction is over these points only

Nothing is read around the sequence. Zeros there would be half as much again as the sequence itself
in the last layers of a temporal convolutional network, and each layer's another number of them, so
that no result could take the place of what is added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.rules.convolution import halo
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Image
from edgepack.kernels.tiles.micro import AssemblyFunctions
from edgepack.kernels.tiles.product import (
    PanelPart,
    Partition,
    ProductLoops,
    Shape,
    Window,
    choose_tile,
    pack_bias,
    pack_weights,
    rank_tiles,
)
from edgepack.kernels.value import extent

# Of the code of one kernel: each has tiles of its own.
_MOST_STRETCHES = 8


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Columns `first` to `behind` (excluded) of the result, and the points of the window that lie
    in the sequence for all of them: `points` from `point` on. The others lie beside it for all of
    them."""

    first: int
    behind: int
    point: int
    points: int


def stretches(width: int, out: int, *, columns: int, dilation: int, before: int) -> list[Stretch]:
    """All columns of a result that is `out` wide, of a sequence of `width`, in order."""
    starts = [before - point * dilation for point in range(columns)]
    edges = {0, out, *starts, *(start + width for start in starts)}
    found = []
    for first, behind in pairwise(sorted(edge for edge in edges if 0 <= edge <= out)):
        inside = [i for i, start in enumerate(starts) if start <= first < start + width]
        point = inside[0] if inside else 0
        found.append(Stretch(first=first, behind=behind, point=point, points=len(inside)))
    return found


class _Points(Image):
    """A sequence as an image that has a plane for each of some points of a window: the sequence
    from that point's column on, which is `start` for the first one. A row of such a plane is
    `across` of the sequence's blocks of channels, one behind the other, and no result of `out` ones
    sticks out of it."""

    def __init__(
        self, sequence: Image, *, out: int, points: int, across: int, start: int, dilation: int
    ) -> None:
        layout = sequence.layout
        # From a block's pixel to the same one of the next block.
        self.apart = sequence.plane_bytes // sequence.pixel_bytes
        self.layout = replace(
            layout,
            channels=points * layout.block,
            height=layout.blocks // across,
            width=across * self.apart + out,
        )
        self.buffer = sequence.buffer
        self.step, self.first = (1, 1), (0, start)
        self.sequence, self.across, self.dilation = sequence, across, dilation

    @property
    def row_bytes(self) -> int:
        return self.across * self.sequence.plane_bytes

    @property
    def plane_bytes(self) -> int:
        return self.dilation * self.pixel_bytes

    def at(
        self, plane: tir.Expr, row: tir.Expr, column: tir.Expr, lane: tir.Expr = 0
    ) -> list[tir.Expr]:
        points, blocks = self.layout.blocks, self.sequence.layout.blocks
        n, point = (plane // points, plane % points) if self.layout.batch > 1 else (0, plane)
        column = column + self.first[1] + point * self.dilation
        return self.sequence.at(n * blocks + row * self.across, 0, column, lane)


def _stretches_of(layer: Layer) -> list[Stretch]:
    operator = layer.operator
    assert isinstance(operator, Convolution)
    return stretches(
        extent(layer.inputs[0])[3],
        extent(layer.output)[3],
        columns=operator.kernel[1],
        dilation=operator.dilation[1],
        before=operator.before[1],
    )


def takes(layer: Layer, cpu: CpuModel) -> bool:
    """Sequences under a window that is dilated or reaches further on one side, if at least one of
    its points is in the sequence everywhere."""
    operator = layer.operator
    if type(operator) is not Convolution or operator.groups > 1 or operator.gated:
        return False
    channels, rows = extent(layer.inputs[0])[1:3]
    if not rows == operator.kernel[0] == operator.stride[1] == extent(layer.output)[2] == 1:
        return False
    if operator.kernel[1] > _MOST_STRETCHES:
        return False
    around = halo(layer)
    far = operator.dilation[1] > 1 or around.left != around.right
    # The rest of a last block of channels may hold anything, and would be multiplied.
    whole = channels % cpu.block(channels, layer.element) == 0
    if layer.weights != layer.element or not (far and whole and around):
        return False
    found = _stretches_of(layer)
    return len(found) <= _MOST_STRETCHES and all(stretch.points for stretch in found)


def _product(site: LayerSite, across: int) -> tuple[np.ndarray, Shape]:
    """The weights as those of a window of the sequence's blocks of channels, `across` of them side
    by side, on the points as planes; and the extents of the product with all points."""
    operator, sequence = site.layer.operator, site.inputs[0]
    assert isinstance(operator, Convolution)
    outs, _, _, columns = operator.weight.shape
    weight = operator.weight.reshape(outs, sequence.blocks, sequence.block, columns)
    weight = weight.transpose(0, 3, 2, 1)
    weight = weight.reshape(1, outs, columns * sequence.block, sequence.blocks // across, across)
    points = replace(sequence, channels=columns * sequence.block)
    return weight, Shape.of(weight, points, site.output)


def _blocks_across(site: LayerSite) -> int:
    """Two at a time, where they are even: half the counting."""
    return 2 - site.inputs[0].blocks % 2


def make(site: LayerSite) -> LayerKernel:
    """The kernel of such a convolution."""
    layer, output, sequence = site.layer, site.output, site.inputs[0]
    operator = layer.operator
    assert isinstance(operator, Convolution)
    outs, ins, _, columns = operator.weight.shape
    across = _blocks_across(site)
    weight, whole = _product(site, across)
    source, target = Image("source", sequence), Image("target", output)

    def seen(stretch: Stretch) -> _Points:
        """The sequence as the product of a stretch sees it."""
        return _Points(
            source,
            out=output.width,
            points=stretch.points,
            across=across,
            start=stretch.point * operator.dilation[1] - operator.before[1],
            dilation=operator.dilation[1],
        )

    found = _stretches_of(layer)
    chosen = choose_tile(
        output,
        blocks=whole.out_blocks,
        reduction=whole.reduction,
        cpu=site.cpu,
        choice=site.chosen(RULE.name),
    )
    packed, packed_bias = (
        pack_weights(weight, whole, chosen.vectors),
        pack_bias(operator.bias, output, site.cpu),
    )
    weights = tir.buffer("weights", packed.shape, str(packed.dtype))
    bias = tir.buffer("bias", packed_bias.shape, str(packed_bias.dtype))
    epilogue = site.epilogue(pixels=chosen.pixels)
    functions = AssemblyFunctions()

    def loops_of(stretch: Stretch) -> ProductLoops:
        image = seen(stretch)
        return ProductLoops(
            cpu=site.cpu,
            window=Window(dilation=(1, image.apart)),
            shape=replace(whole, in_blocks=stretch.points),
            tile=chosen,
            source=image,
            target=target,
            weights=weights,
            bias=bias,
            epilogue=epilogue,
            clears=True,
            functions=functions,
            part=PanelPart(of=whole, first=stretch.point * ins),
        )

    made = [(stretch, loops_of(stretch)) for stretch in found]
    partition = Partition(cpu=site.cpu, shape=whole, tile=chosen, source=sequence, target=output)

    def function() -> tirx.PrimFunc:
        loops = made[0][1]

        def panel(n: tir.Expr, index: tir.Expr, vectors: int) -> tir.Stmt:
            return tir.sequence(
                loops.clear(n, 0, index, vectors),
                *(
                    each.stretch(n, index, vectors, stretch.first, stretch.behind)
                    for stretch, each in made
                ),
            )

        body = tir.loop_of(
            "n",
            output.batch,
            lambda n: loops.over_panels(
                lambda index, vectors: panel(n, index, vectors), parallel=partition.worth_sharing
            ),
        )
        arguments = [source.buffer, *epilogue.operand_buffers, weights, bias, *epilogue.constants]
        return tir.function(
            [*arguments, target.buffer], loops.imported(body), in_place=loops.in_place
        )

    points = sum((stretch.behind - stretch.first) * stretch.points for stretch in found)
    macs = outs * ins * points * output.batch
    return LayerKernel(
        name=f"dilated{columns}_{ins}_{outs}_{output.width}",
        function=function,
        constants=(packed, packed_bias, *epilogue.packed),
        tile=str(chosen),
        macs=macs,
        cycles=chosen.cycles * macs / (operator.weight.size * output.width * output.batch),
    )


def ways(site: LayerSite) -> list[Ranked]:
    """All tiles."""
    _, whole = _product(site, _blocks_across(site))
    tiles = rank_tiles(
        site.output, blocks=whole.out_blocks, reduction=whole.reduction, cpu=site.cpu
    )
    return [
        Ranked(
            choice=Way(rule=RULE.name, pixels=tile.pixels, vectors=tile.vectors),
            cycles=tile.cycles,
        )
        for tile in tiles
    ]


RULE = Rule(name="dilated", takes=takes, make=make, halves=False, kept=True, ways=ways)
