"""Depthwise convolution: each channel on its own, so vectors run along the channels.

for each block of channels, row, tile of R pixels
    R sums in registers; each input vector of a window row is loaded once and used by
    all the pixels whose window it is in
"""

from __future__ import annotations

import numpy as np
from tvm import tirx

from edgepack.compiler.kernels import convolution, tir
from edgepack.compiler.kernels.cpu import CpuModel
from edgepack.compiler.kernels.graph import Convolution, Layer
from edgepack.compiler.kernels.layout import Blocked, Image, clear_halos, pack_channels
from edgepack.compiler.kernels.rule import Epilogue, Kernel, Rule, Site, product, worth_sharing

# Weights of windows up to this size stay in registers for all rows of a block.
_HELD_WEIGHTS = 9


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Convolutions with as many groups as input and output channels."""
    operator = layer.operator
    if not isinstance(operator, Convolution) or operator.groups == 1:
        return False
    outs, ins = operator.weight.shape[:2]
    return bool(ins == 1 and outs == operator.groups)


def pack_weights(weight: np.ndarray, layout: Blocked) -> np.ndarray:
    """[channels, 1, rows, columns] -> [block][row][column][channel of the block]."""
    rows, columns = weight.shape[2:]
    packed = np.zeros((layout.blocks * layout.block, rows, columns), "float32")
    packed[: layout.channels] = weight[:, 0]
    blocked = packed.reshape(layout.blocks, layout.block, rows, columns)
    return np.ascontiguousarray(blocked.transpose(0, 2, 3, 1))


def _pixels(width: int, operator: Convolution, cpu: CpuModel) -> int:
    """Pixels per tile: as few input loads per result as registers allow.

    A tile of R pixels loads (R - 1) * stride + columns vectors per window row. The smaller
    tile that ends a row is charged like a full one.
    """
    rows, columns = operator.kernel
    held = min(rows * columns, _HELD_WEIGHTS)
    # The sums, the held weights, an input vector and one result being finished.
    most = max(2, cpu.registers - held - 2)

    def cost(pixels: int) -> float:
        loads = rows * ((pixels - 1) * operator.stride[1] + columns)
        one = loads / cpu.loads_per_cycle + pixels * product(operator.kernel) + 4 * pixels + 10
        return -(-width // pixels) * one

    return min(range(1, min(width, most) + 1), key=lambda pixels: (cost(pixels), -pixels))


def make(site: Site) -> Kernel:
    """The kernel of a depthwise convolution."""
    operator = site.layer.operator
    assert isinstance(operator, Convolution)
    output = site.output
    lanes = output.block
    pixels = _pixels(output.width, operator, site.cpu)
    source, target = Image("source", site.inputs[0]), Image("target", output)
    packed = pack_weights(operator.weight, output)
    weights, bias = (
        tir.buffer("weights", packed.shape),
        tir.buffer("bias", (output.blocks * lanes,)),
    )
    epilogue = Epilogue(site)
    rows, columns = operator.kernel
    macs = operator.weight.size * output.height * output.width * output.batch
    cycles = macs / lanes / site.cpu.lanes[lanes] * 2

    def one_tile(
        plane: tir.Expr,
        block: tir.Expr,
        held: dict[tuple[int, int], tirx.Var],
        row: tir.Expr,
        column: tir.Expr,
        count: int,
    ) -> tir.Stmt:
        names = tir.Names()
        sums = [tir.load(bias, [block * lanes], lanes)] * count
        for i in range(rows):
            seen: dict[int, tirx.Var] = {}
            for r in range(count):
                for j in range(columns):
                    at = r * operator.stride[1] + j * operator.dilation[1]
                    if at not in seen:
                        value = source.load(
                            plane,
                            row * operator.stride[0]
                            + i * operator.dilation[0]
                            - operator.before[0],
                            column * operator.stride[1] + at - operator.before[1],
                        )
                        seen[at] = names.bind("x", value)
                    weight = held.get((i, j))
                    if weight is None:
                        weight = tir.load(weights, [block, i, j, 0], lanes)
                    sums[r] = names.bind("sum", sums[r] + seen[at] * weight)
        for r in range(count):
            result = epilogue.apply(names, sums[r], plane, row, column + r, channel_block=block)
            names.add(target.store(result, plane, row, column + r))
        return names.done()

    def one_block(n: tir.Expr, block: tir.Expr) -> tir.Stmt:
        plane = n * output.blocks + block
        names = tir.Names()
        held = {}
        if rows * columns <= _HELD_WEIGHTS:
            for i in range(rows):
                for j in range(columns):
                    held[i, j] = names.bind("w", tir.load(weights, [block, i, j, 0], lanes))
        full, rest = divmod(output.width, pixels)
        names.add(
            tir.loop_of(
                "row",
                output.height,
                lambda row: tir.sequence(
                    tir.loop_of(
                        "tile",
                        full,
                        lambda t: one_tile(plane, block, held, row, t * pixels, pixels),
                    ),
                    one_tile(plane, block, held, row, full * pixels, rest) if rest else None,
                ),
            )
        )
        return names.done()

    parallel = worth_sharing(cycles, site.cpu)
    body = tir.loop_of(
        "n",
        output.batch,
        lambda n: tir.loop_of(
            "block", output.blocks, lambda block: one_block(n, block), parallel=parallel
        ),
    )
    arguments = [
        source.buffer,
        *epilogue.operand_buffers,
        weights,
        bias,
        *epilogue.constants,
        target.buffer,
    ]
    bias_values = np.zeros(output.channels, "float32") if operator.bias is None else operator.bias
    name = f"depthwise{rows}x{columns}_{output.channels}_{output.height}x{output.width}"
    if operator.stride != (1, 1):
        name += f"_s{operator.stride[0]}"
    return Kernel(
        name=name,
        function=tir.function(arguments, tir.sequence(clear_halos(target), body)),
        constants=(packed, pack_channels(bias_values, output), *epilogue.packed),
        tile=str(pixels),
        macs=macs,
        cycles=cycles,
    )


RULE = Rule(name="depthwise", takes=takes, make=make, halo=convolution.halo)
