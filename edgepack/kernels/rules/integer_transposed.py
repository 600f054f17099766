"""Transposed convolutions of integers, as s x s convolutions; see `transposed`.

A phase has a part of the window, and with that the zero point of its own to take away: its sums
start from a bias of its own.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from tvm import tirx

from edgepack.kernels import integer
from edgepack.kernels.layer import Layer, TransposedConvolution
from edgepack.kernels.rules import integer_depthwise
from edgepack.kernels.rules.convolution import dense_weight, merged_groups, window_of
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule, product
from edgepack.kernels.rules.transposed import Phase, phases, reach_of_phases
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Halo, Image, clear_halos, pack_channels
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    choose_integer_tile,
    dot_product,
    pack_integers,
)
from edgepack.kernels.tiles.requantise import Requantising
from edgepack.kernels.value import extent


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Every transposed convolution of integers."""
    return isinstance(layer.operator, integer.IntegerTransposed)


def _phases(layer: Layer) -> list[Phase]:
    operator = layer.operator
    assert isinstance(operator, integer.IntegerTransposed)
    alike = TransposedConvolution(
        weight=operator.weight,
        bias=None,
        stride=operator.stride,
        before=operator.before,
        dilation=(1, 1),
        groups=operator.groups,
    )
    return list(phases(alike, operator.size))


def halo(layer: Layer) -> Halo:
    """What all phases together read around the image."""
    return reach_of_phases(_phases(layer), extent(layer.inputs[0])[2:])


def make(site: LayerSite) -> LayerKernel:
    """The kernel of a transposed convolution: its phases one after the other."""
    operator, output = site.layer.operator, site.output
    assert isinstance(operator, integer.IntegerTransposed)
    source, target = Image("source", site.inputs[0]), Image("target", output)
    epilogue = Requantising(output, operator.to, operator.factor, site.cpu)
    buffers: list[tirx.Buffer] = []
    constants: list[np.ndarray] = []
    bodies: list[tir.Stmt] = []
    tiles: list[str] = []
    cycles = 0.0
    for phase in _phases(site.layer):
        view = partial(Image.spaced, step=operator.stride, first=phase.first, size=phase.size)
        weight = dense_weight(
            phase.convolution, merged_groups(phase.convolution, source.layout.block, output.block)
        )
        narrow = int(operator.weight.min(initial=0)) > -128
        dot = dot_product(site.cpu, weight.shape[2], narrow=narrow)
        shape = Shape.of(weight, source.layout, output, dot.kr)
        spaced = view(target)
        chosen = choose_integer_tile(
            width=phase.size[1],
            rows=phase.size[0] * output.batch * shape.groups,
            blocks=shape.out_blocks,
            reduction=shape.reduction,
            cpu=site.cpu,
            dot=dot,
        )
        packed = pack_integers(weight, shape, chosen.vectors, dot)
        some = phase.convolution.weight
        totals = some.reshape(len(some), -1).sum(axis=1, dtype="int64")
        bias = pack_channels(operator.bias - (operator.zero + dot.moved) * totals, output)
        number = len(bodies)
        loops = ProductLoops(
            cpu=site.cpu,
            window=window_of(phase.convolution),
            shape=shape,
            tile=chosen,
            source=source,
            target=spaced,
            weights=tir.buffer(f"weights{number}", packed.shape, "int8"),
            bias=tir.buffer(f"bias{number}", bias.shape, "int32"),
            epilogue=epilogue,
            dot=dot,
        )
        one = partial(loops.image, parallel=loops.partition.worth_sharing)
        bodies.append(loops.imported(tir.loop_of("n", output.batch, one)))
        buffers += [loops.weights, loops.bias]
        constants += [packed, bias]
        tiles.append(str(chosen))
        cycles += integer_depthwise.cycles(chosen.cycles, packed.nbytes, site.cpu)
    rows, columns = operator.weight.shape[2:]
    return LayerKernel(
        name=f"qtransposed{rows}x{columns}_{source.layout.channels}_{output.channels}"
        f"_{output.height}x{output.width}",
        function=tir.function(
            [source.buffer, *buffers, *epilogue.constants, target.buffer],
            tir.sequence(clear_halos(target), *bodies),
        ),
        constants=(*constants, *epilogue.packed),
        tile=", ".join(dict.fromkeys(tiles)),
        macs=operator.weight.size * product(extent(site.layer.inputs[0])[2:]) * output.batch,
        cycles=cycles,
    )


RULE = Rule(name="int8 transposed", takes=takes, make=make, halo=halo)
