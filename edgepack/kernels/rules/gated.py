"""A 1x1 convolution of an image whose channels are scaled first: the end of squeeze-and-excite.

    out[o] = sum over c of weights[o][c] * (gate[c] * image[c])

The gate scales the weights instead of the image: each panel of them once, right before all pixels
use it. So the scaled image is never written, and a panel's scaled weights stay in the first-level
cache.
"""

from __future__ import annotations

from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.rules import convolution
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Image
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    choose_tile,
    pack_bias,
    pack_weights,
    rank_tiles,
)


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Convolutions that `fuse` has given a gate."""
    return isinstance(layer.operator, Convolution) and layer.operator.gated


def make(site: LayerSite) -> LayerKernel:
    """The kernel; the scaled weights are its scratch memory."""
    operator, output = site.layer.operator, site.output
    assert isinstance(operator, Convolution)
    source, gate = site.inputs[0], Image("gate", site.inputs[1])
    shape = Shape.of(operator.weight[None], source, output)
    flat = convolution.is_flat(operator, site)
    view = output.flat if flat else output
    chosen = choose_tile(
        view,
        blocks=shape.out_blocks,
        reduction=shape.reduction,
        cpu=site.cpu,
        choice=site.chosen(RULE.name),
    )
    packed = pack_weights(operator.weight[None], shape, chosen.vectors)
    packed_bias = pack_bias(operator.bias, output, site.cpu)
    weights, scaled = (
        tir.buffer(name, packed.shape, output.element.name) for name in ("weights", "scaled")
    )

    def scale(panel: tir.Expr, vectors: int) -> tir.Stmt:
        """The weights of one panel; `panel` counts whole ones."""
        first = panel * shape.panel(chosen.vectors)
        wide = vectors * shape.lanes

        def channel(block: tir.Expr, lane: tir.Expr) -> tir.Stmt:
            at = first + (block * shape.in_block + lane) * wide
            names = tir.Names()
            factor = names.bind("factor", tir.load(gate.buffer, gate.at(block, 0, 0, lane)))
            for v in range(vectors):
                where = [at + v * shape.lanes]
                weight = tir.load(weights, where, shape.lanes)
                result = weight * tir.spread(factor, shape.lanes)
                names.add(tir.store(scaled, result, where, shape.lanes))
            return names.done()

        def channels(block: tir.Expr, count: int) -> tir.Stmt:
            return tir.loop_of("lane", count, lambda lane: channel(block, lane))

        whole = shape.in_blocks - 1
        return tir.sequence(
            tir.loop_of("in_block", whole, lambda block: channels(block, shape.in_block))
            if whole
            else None,
            channels(whole, shape.last_lanes),
        )

    loops = ProductLoops(
        cpu=site.cpu,
        window=convolution.window_of(operator),
        shape=shape,
        tile=chosen,
        source=Image("source", source, source.flat if flat else source),
        target=Image("target", output, view),
        weights=scaled,
        bias=tir.buffer("bias", packed_bias.shape, str(packed_bias.dtype)),
        epilogue=site.epilogue(flat=flat),
        clears=True,
        prepare=scale,
    )

    def function() -> tirx.PrimFunc:
        body = loops.image(0, parallel=loops.partition.worth_sharing)
        return tir.function(
            [
                loops.source.buffer,
                gate.buffer,
                *loops.epilogue.operand_buffers,
                weights,
                loops.bias,
                *loops.epilogue.constants,
                loops.target.buffer,
                scaled,
            ],
            loops.imported(body),
            in_place=loops.in_place,
        )

    return LayerKernel(
        name=f"gated1x1_{source.channels}_{output.channels}_{output.height}x{output.width}",
        function=function,
        constants=(packed, packed_bias, *loops.epilogue.packed),
        tile=f"{chosen}{' flat' if flat else ''}",
        macs=operator.weight.size * output.height * output.width,
        cycles=chosen.cycles + packed.size / output.block / site.cpu.loads_per_cycle,
        by_pixels=loops.partition.by_pixels,
    )


def ways(site: LayerSite) -> list[Ranked]:
    """All tiles."""
    operator, output = site.layer.operator, site.output
    assert isinstance(operator, Convolution)
    shape = Shape.of(operator.weight[None], site.inputs[0], output)
    view = output.flat if convolution.is_flat(operator, site) else output
    tiles = rank_tiles(view, blocks=shape.out_blocks, reduction=shape.reduction, cpu=site.cpu)
    return [
        Ranked(
            choice=Way(rule=RULE.name, pixels=item.pixels, vectors=item.vectors),
            cycles=item.cycles,
        )
        for item in tiles
    ]


RULE = Rule(name="gated", takes=takes, make=make, ways=ways, kept=True)
