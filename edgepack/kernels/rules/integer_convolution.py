"""Convolutions of integers: depthwise ones, and all others as products."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from edgepack.kernels import integer
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.rules import integer_depthwise
from edgepack.kernels.rules.convolution import dense_weight, merged_groups
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule, window_halo
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Image, pack_channels
from edgepack.kernels.tiles.partition import worth_sharing
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    Window,
    choose_integer_tile,
    dot_product,
    moved_image,
    pack_integers,
)
from edgepack.kernels.tiles.requantise import Requantising

# So often each input of a product is read where it pays to move it once.
_WORTH_MOVING = 3


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Every convolution of integers."""
    return isinstance(layer.operator, integer.IntegerConvolution)


halo = window_halo


def _operator(layer: Layer) -> integer.IntegerConvolution:
    operator = layer.operator
    assert isinstance(operator, integer.IntegerConvolution)
    return operator


def make(site: LayerSite) -> LayerKernel:
    """The kernel of a convolution."""
    operator = _operator(site.layer)
    if operator.groups == len(operator.weight) == site.inputs[0].channels:
        made = integer_depthwise.kernel(site, operator)
        if made is not None:
            return made
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
    dot = dot_product(site.cpu, weight.shape[2], narrow=integer_depthwise.is_narrow(operator))
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
        epilogue=Requantising(
            output, operator.to, operator.factor, site.cpu, integer_depthwise.largest(operator)
        ),
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
        cycles=integer_depthwise.cycles(chosen.cycles, packed.nbytes, site.cpu),
        by_pixels=loops.partition.by_pixels,
    )


RULE = Rule(name="int8 conv", takes=takes, make=make, halo=halo)
