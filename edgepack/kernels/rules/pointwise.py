"""Element-wise arithmetic that no other kernel could take in."""

from __future__ import annotations

from tvm import tirx

from edgepack.kernels.layer import Layer, Pointwise
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Image, clear_halos
from edgepack.kernels.tiles.partition import shared_loops


def takes_pointwise(layer: Layer, _cpu: CpuModel) -> bool:
    """Any element-wise expression."""
    return isinstance(layer.operator, Pointwise)


def make_pointwise(site: LayerSite) -> LayerKernel:
    """One pass over the image."""
    output = site.output
    source, target = Image("source", site.inputs[0]), Image("target", output)
    epilogue = site.epilogue()

    def one(n: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        names = tir.Names()
        plane = n * output.blocks + block
        value = source.load(plane, row, column)
        result = epilogue.apply(names, value, plane, row, column, channel_block=block)
        names.add(target.store(result, plane, row, column))
        return names.done()

    vectors = output.shape[0] * output.height * output.width
    cycles = vectors * (1 + len(site.layer.operands) + len(site.layer.expression))
    by_blocks, by_rows = shared_loops(cycles, output, site.cpu)

    def one_block(n: tir.Expr, block: tir.Expr) -> tir.Stmt:
        return tir.loop_of(
            "row",
            output.height,
            lambda row: tir.loop_of(
                "column", output.width, lambda column: one(n, block, row, column)
            ),
            parallel=by_rows,
        )

    def function() -> tirx.PrimFunc:
        body = tir.loop_of(
            "n",
            output.batch,
            lambda n: tir.loop_of(
                "block", output.blocks, lambda block: one_block(n, block), parallel=by_blocks
            ),
        )
        return tir.function(
            [source.buffer, *epilogue.operand_buffers, *epilogue.constants, target.buffer],
            tir.sequence(clear_halos(target), body),
            in_place=[
                *([(source.buffer, target.buffer)] if site.inputs[0] == output else []),
                *epilogue.in_place(target),
            ],
        )

    operations = "_".join(operation.name for operation in site.layer.expression[:3])
    return LayerKernel(
        name=f"{operations}_{output.channels}_{output.height}x{output.width}",
        function=function,
        constants=epilogue.packed,
        cycles=cycles,
    )


POINTWISE = Rule(name="pointwise", takes=takes_pointwise, make=make_pointwise, kept=True)
