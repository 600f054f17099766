"""Neighbouring images of a batch side by side, as channels, and channels as images again.

So a convolution of volumes is one of images (`frontend.volumes`). A blocked tensor's images lie one
after the other: those of a window are side by side already, and the windows of two results overlap.
What is read by rules that go by `Blocked.step` is a view of that kind. Else the images are copied.
The way back moves no bytes either, where images fill whole blocks.
"""

from __future__ import annotations

from dataclasses import replace

from edgepack.kernels.layer import Layer, Stack, Unstack
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Regrouping, Rule
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import ALIGNMENT, Blocked, Halo, Image, clear_halos
from edgepack.kernels.value import extent


def takes(layer: Layer, cpu: CpuModel) -> bool:
    """Images that fill whole blocks of the result."""
    return isinstance(layer.operator, Stack) and _in_whole_blocks(layer, cpu)


def takes_unstack(layer: Layer, cpu: CpuModel) -> bool:
    """The same on the way back."""
    return isinstance(layer.operator, Unstack) and _in_whole_blocks(layer, cpu)


def _in_whole_blocks(layer: Layer, cpu: CpuModel) -> bool:
    if layer.expression or layer.operands:
        return False
    counts = [extent(value)[1] for value in (layer.inputs[0], layer.output)]
    blocks = {cpu.block(count, layer.element) for count in counts}
    return len(blocks) == 1 and min(counts) % blocks.pop() == 0


def halo(layer: Layer) -> Halo:
    """Images before the first one and behind the last one."""
    operator = layer.operator
    assert isinstance(operator, Stack)
    given, made = extent(layer.inputs[0])[0], extent(layer.output)[0]
    reached = (made - 1) * operator.stride + operator.taps - operator.before
    return Halo(front=max(0, operator.before), back=max(0, reached - given))


def _around(_layer: Layer, halo: Halo) -> Halo:
    return halo


def _first_plane(layer: Layer, source: Blocked) -> int:
    operator = layer.operator
    assert isinstance(operator, Stack)
    return (source.halo.front - operator.before) * source.blocks


def _layout(layer: Layer, source: Blocked) -> Blocked | None:
    """No kernel reads what is not aligned."""
    operator = layer.operator
    assert isinstance(operator, Stack)
    if _first_plane(layer, source) * _plane_bytes(source) % ALIGNMENT:
        return None
    batch, channels, *_ = extent(layer.output)
    return replace(
        source,
        batch=batch,
        channels=channels,
        halo=source.halo.of_images,
        apart=operator.stride * source.blocks,
    )


def _plane_bytes(layout: Blocked) -> int:
    return layout.nbytes // layout.shape[0]


def view_at(site: LayerSite) -> int | None:
    """Where the result begins in the input; None if it is a copy."""
    (source,), layer = site.inputs, site.layer
    is_part = _layout(layer, source) == site.output
    return _first_plane(layer, source) * _plane_bytes(source) if is_part else None


def _around_stacked(layer: Layer, halo: Halo) -> Halo:
    """Whole images are k times as many planes there."""
    count = _count(layer)
    return replace(halo, front=-(-halo.front // count), back=-(-halo.back // count))


def _count(layer: Layer) -> int:
    return extent(layer.output)[0] // extent(layer.inputs[0])[0]


def _unstacked_layout(layer: Layer, source: Blocked) -> Blocked:
    count, (batch, channels, *_) = _count(layer), extent(layer.output)
    halo = replace(source.halo, front=source.halo.front * count, back=source.halo.back * count)
    return replace(source, batch=batch, channels=channels, halo=halo)


def first_byte_of_unstack(site: LayerSite) -> int | None:
    """That of the input; None if the result is a copy."""
    return 0 if _unstacked_layout(site.layer, site.inputs[0]) == site.output else None


def make(site: LayerSite) -> LayerKernel:
    """Copies the images."""
    operator, output = site.layer.operator, site.output
    source, target = Image("source", site.inputs[0]), Image("target", output)

    def image(n: tir.Expr) -> tir.Stmt:
        first = n * output.blocks
        if isinstance(operator, Stack):
            first = (n * operator.stride - operator.before) * source.layout.blocks

        def pixel(block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
            value = source.load(first + block, row, column)
            return target.store(value, n * output.blocks + block, row, column)

        return tir.loop_of(
            "block",
            output.blocks,
            lambda block: tir.loop_of(
                "row",
                output.height,
                lambda row: tir.loop_of(
                    "column", output.width, lambda column: pixel(block, row, column)
                ),
            ),
        )

    return LayerKernel(
        name=f"images_{output.batch}x{output.channels}_{output.height}x{output.width}",
        function=tir.function(
            [source.buffer, target.buffer],
            tir.sequence(clear_halos(target), tir.loop_of("n", output.batch, image)),
        ),
        constants=(),
        cycles=2 * output.nbytes / output.element.bytes / output.block,
    )


RULE = Rule(
    name="stack",
    takes=takes,
    make=make,
    halo=halo,
    view_at=view_at,
    regrouping=Regrouping(around=_around, layout=_layout, overlaps=True),
)
UNSTACK = Rule(
    name="unstack",
    takes=takes_unstack,
    make=make,
    view_at=first_byte_of_unstack,
    regrouping=Regrouping(around=_around_stacked, layout=_unstacked_layout),
)
