"""An image with elements of another type, whose blocks are of another size, too."""

from __future__ import annotations

from edgepack.kernels.layer import Conversion, Layer
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Image, clear_halos
from edgepack.kernels.tiles.partition import shared_loops


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """What `place` puts between layers of different precision."""
    return isinstance(layer.operator, Conversion)


def make(site: LayerSite) -> LayerKernel:
    """The kernel: pieces of the smaller one of both blocks, one after the other."""
    layout, output = site.inputs[0], site.output
    source, target = Image("source", layout), Image("target", output)
    lanes = min(layout.block, output.block)
    dtype = output.element.name

    def pixel(n: tir.Expr, block: int | tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        stores = []
        for first in range(0, output.block, lanes):
            channel = block * output.block + first
            plane = n * output.blocks + block
            value = tir.number(0.0, dtype, lanes)
            if not isinstance(block, int) or channel < layout.blocks * layout.block:
                there = n * layout.blocks + channel // layout.block
                at = source.at(there, row, column, channel % layout.block)
                value = tir.cast(tir.load(source.buffer, at, lanes), dtype)
            to = target.at(plane, row, column, first)
            stores.append(tir.store(target.buffer, value, to, lanes))
        return tir.sequence(*stores)

    cycles = 2 * output.nbytes / output.element.bytes / lanes
    by_blocks, by_rows = shared_loops(cycles, output, site.cpu)

    def plane(n: tir.Expr, block: tir.Expr) -> tir.Stmt:
        return tir.loop_of(
            "row",
            output.height,
            lambda row: tir.loop_of(
                "column", output.width, lambda column: pixel(n, block, row, column)
            ),
            parallel=by_rows,
        )

    # The last block may be one of which the source has but a part.
    whole = min(output.blocks, layout.blocks * layout.block // output.block)
    body = tir.loop_of(
        "n",
        output.batch,
        lambda n: tir.split(
            "block",
            whole,
            lambda block: plane(n, block),
            (lambda: plane(n, whole)) if whole < output.blocks else None,
            parallel=by_blocks,
        ),
    )
    return LayerKernel(
        name=f"to_{dtype}_{output.channels}_{output.height}x{output.width}",
        function=tir.function(
            [source.buffer, target.buffer], tir.sequence(clear_halos(target), body)
        ),
        constants=(),
        cycles=cycles,
    )


RULE = Rule(name="conversion", takes=takes, make=make)
