"""Transposed convolution of stride s, as s x s ordinary convolutions.

Output rows y with the same (y + padding) mod s are made of the same rows of the window, each s-th
one, and their inputs lie side by side: such a phase is a convolution of stride 1 with a smaller
window, whose results are stored s pixels apart. Together the phases do each multiplication of the
transposed convolution once, and none with a zero.

    y + padding = s * q + p:    out[y] = sum over j of in[q - j] * weight[p + s * j]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from tvm import tirx

from edgepack.kernels.layer import Convolution, Layer, TransposedConvolution
from edgepack.kernels.rules import convolution, depthwise
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule, product
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import (
    NO_HALO,
    Halo,
    Image,
    clear_halos,
    conv_halo,
    pack_channels,
)
from edgepack.kernels.tiles.partition import worth_sharing
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    choose_tile,
    pack_bias,
    pack_weights,
)
from edgepack.kernels.value import extent


@dataclass(frozen=True, kw_only=True)
class Phase:
    """`size` output pixels from `first` on, and the convolution that makes them, of these rows and
    columns of the window."""

    first: tuple[int, int]
    size: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    convolution: Convolution


def phases(operator: TransposedConvolution, out: tuple[int, int]) -> Iterator[Phase]:
    """The phases of an output of `out` pixels (vertical, horizontal)."""

    def along(axis: int, first: int) -> tuple[np.ndarray, int, int]:
        """Rows or columns of the window in the order of their inputs, padding, and size."""
        stride = operator.stride[axis]
        start, phase = divmod(first + operator.before[axis], stride)
        taps = np.arange(phase, operator.kernel[axis], stride)[::-1]
        return taps, len(taps) - 1 - start, -(-(out[axis] - first) // stride)

    for y in range(min(operator.stride[0], out[0])):
        for x in range(min(operator.stride[1], out[1])):
            (rows, top, height), (columns, left, width) = along(0, y), along(1, x)
            yield Phase(
                first=(y, x),
                size=(height, width),
                rows=tuple(map(int, rows)),
                columns=tuple(map(int, columns)),
                convolution=Convolution(
                    weight=operator.weight[:, :, rows][:, :, :, columns],
                    bias=operator.bias,
                    stride=(1, 1),
                    before=(top, left),
                    dilation=(1, 1),
                    groups=operator.groups,
                ),
            )


def _phases(layer: Layer) -> list[Phase]:
    assert isinstance(layer.operator, TransposedConvolution)
    return list(phases(layer.operator, extent(layer.output)[2:]))


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """All transposed convolutions; see `graph` for which there are."""
    return isinstance(layer.operator, TransposedConvolution)


def _takes_apart(layer: Layer, cpu: CpuModel) -> bool:
    """Those whose groups stay what they are."""
    operator = layer.operator
    return isinstance(operator, TransposedConvolution) and (
        _is_depthwise(operator) or not convolution.merges(layer, cpu, side_by_side=False)
    )


def _is_depthwise(operator: TransposedConvolution) -> bool:
    outs, ins = operator.weight.shape[:2]
    return bool(ins == 1 and outs == operator.groups > 1)


def halo(layer: Layer) -> Halo:
    """What all phases together read around the image."""
    return reach_of_phases(_phases(layer), extent(layer.inputs[0])[2:])


def reach_of_phases(every: Sequence[Phase], size: Sequence[int]) -> Halo:
    """What phases read around an image of that size."""
    wanted = NO_HALO
    for phase in every:
        wanted = wanted.union(
            conv_halo(
                size=size,
                kernel=phase.convolution.kernel,
                stride=(1, 1),
                dilation=(1, 1),
                before=phase.convolution.before,
                out=phase.size,
            )
        )
    return wanted


def make(site: LayerSite) -> LayerKernel:
    """The kernel of a transposed convolution: its phases one after the other."""
    operator, output = site.layer.operator, site.output
    assert isinstance(operator, TransposedConvolution)
    loops = _depthwise if _is_depthwise(operator) else _ordinary
    packed_bias = (
        pack_bias(operator.bias, output, site.cpu)
        if loops is _ordinary
        else pack_channels(operator.bias, output)
    )
    source, target = Image("source", site.inputs[0]), Image("target", output)
    bias_buffer, epilogue = (
        tir.buffer("bias", packed_bias.shape, str(packed_bias.dtype)),
        site.epilogue(),
    )
    parts = []
    for phase in _phases(site.layer):
        view = partial(Image.spaced, step=operator.stride, first=phase.first, size=phase.size)
        parts.append(
            loops(site.cpu, phase, source, view(target), bias_buffer, epilogue.viewed(view))
        )
    rows, columns = operator.kernel
    return LayerKernel(
        name=f"transposed{rows}x{columns}_{source.layout.channels}_{output.channels}"
        f"_{output.height}x{output.width}",
        function=tir.function(
            [
                source.buffer,
                *epilogue.operand_buffers,
                *(part.buffer for part in parts),
                bias_buffer,
                *epilogue.constants,
                target.buffer,
            ],
            tir.sequence(clear_halos(target), *(part.body for part in parts)),
        ),
        constants=(*(part.weights for part in parts), packed_bias, *epilogue.packed),
        tile=", ".join(dict.fromkeys(part.tile for part in parts)),
        macs=operator.weight.size * product(extent(site.layer.inputs[0])[2:]) * output.batch,
        cycles=sum(part.cycles for part in parts),
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The loops of a phase, and its packed weights."""

    body: tir.Stmt
    buffer: tirx.Buffer
    weights: np.ndarray
    tile: str
    cycles: float


def _ordinary(
    cpu: CpuModel,
    phase: Phase,
    source: Image,
    target: Image,
    bias: tirx.Buffer,
    epilogue: Epilogue,
) -> _Part:
    """Any grouping, by the loops of the convolution rule."""
    layout, output = source.layout, target.layout
    merged = convolution.merged_groups(phase.convolution, layout.block, output.block)
    weight = convolution.dense_weight(phase.convolution, merged)
    shape = Shape.of(weight, layout, output)
    tile = choose_tile(
        output,
        blocks=shape.out_blocks,
        reduction=shape.reduction,
        cpu=cpu,
        groups=shape.groups,
        columns=shape.kernel[1],
    )
    packed = pack_weights(weight, shape, tile.vectors)
    loops = ProductLoops(
        cpu=cpu,
        window=convolution.window_of(phase.convolution),
        shape=shape,
        tile=tile,
        source=source,
        target=target,
        weights=tir.buffer("weights", packed.shape, layout.element.name),
        bias=bias,
        epilogue=epilogue,
    )
    body = tir.loop_of(
        "n", output.batch, lambda n: loops.image(n, parallel=loops.partition.worth_sharing)
    )
    return _Part(
        body=loops.imported(body),
        buffer=loops.weights,
        weights=packed,
        tile=str(tile),
        cycles=tile.cycles,
    )


def _depthwise(
    cpu: CpuModel,
    phase: Phase,
    source: Image,
    target: Image,
    bias: tirx.Buffer,
    epilogue: Epilogue,
) -> _Part:
    """Each channel on its own: windows are a few points, so a pixel at a time."""
    output, lanes = target.layout, target.layout.block
    packed = depthwise.pack_weights(phase.convolution.weight, output)
    buffer = tir.buffer("weights", packed.shape, output.element.name)
    rows, columns = phase.convolution.kernel
    top, left = phase.convolution.before

    def block_of(n: tir.Expr, block: tir.Expr) -> tir.Stmt:
        plane = n * output.blocks + block
        held = tir.Names()

        def weight(i: int, j: int) -> tirx.Var:
            value = tir.load(buffer, [block, i, j, 0], lanes)
            return held.bind("w", tir.cast(value, output.element.accumulator))

        taps = [(i - top, j - left, weight(i, j)) for i in range(rows) for j in range(columns)]
        start = held.bind("b", tir.load(bias, [block * lanes], lanes))

        def pixel(row: tir.Expr, column: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            total: tirx.Expr = start
            for down, across, weight in taps:
                total = total + source.load(plane, row + down, column + across) * weight
            at = (plane, row, column)
            names.add(target.store(epilogue.apply(names, total, *at, channel_block=block), *at))
            return names.done()

        held.add(
            tir.loop_of(
                "row",
                output.height,
                lambda row: tir.loop_of("column", output.width, lambda c: pixel(row, c)),
            )
        )
        return held.done()

    pixels = output.batch * output.blocks * output.height * output.width
    cycles = pixels * (2 * rows * columns + 2) / cpu.loads_per_cycle
    parallel = worth_sharing(cycles, cpu)
    body = tir.loop_of(
        "n",
        output.batch,
        lambda n: tir.loop_of("block", output.blocks, lambda b: block_of(n, b), parallel=parallel),
    )
    return _Part(body=body, buffer=buffer, weights=packed, tile="1x1", cycles=cycles)


@cache
def _apart() -> Rule:
    """The rule for layers whose groups must not be made one."""
    return replace(RULE, takes=_takes_apart)


RULE: Rule = Rule(
    name="transposed",
    takes=takes,
    make=make,
    halo=halo,
    reads_apart=True,
    limited=lambda limits: _apart() if limits.apart else RULE,
)
