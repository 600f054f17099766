"""Channels put side by side, and ranges of channels: in place, or as copies of whole planes.

A blocked tensor's channels lie one block after the other. So tensors whose channels fill whole
blocks are side by side as soon as each one's producer writes to the right place, and a range of
whole blocks is a view. Copies are made where an image of the batch would be in the way, where a
part's first byte is not aligned, or where a part has its place elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from edgepack.kernels.layer import Concatenation, Layer, Slice
from edgepack.kernels.rules.rule import Joining, LayerKernel, LayerSite, Rule
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import ALIGNMENT, Blocked, Image, clear_halos
from edgepack.kernels.value import extent


def takes_concat(layer: Layer, cpu: CpuModel) -> bool:
    """Inputs that fill whole blocks of the output."""
    if not isinstance(layer.operator, Concatenation) or layer.expression:
        return False
    element = layer.element
    block = cpu.block(extent(layer.output)[1], element)
    channels = [extent(value)[1] for value in layer.inputs]
    return all(c % block == 0 for c in channels[:-1]) and all(
        cpu.block(c, element) == block for c in channels
    )


def takes_slice(layer: Layer, cpu: CpuModel) -> bool:
    """Ranges of whole blocks; the last block may be the input's last one."""
    if not isinstance(layer.operator, Slice) or layer.expression:
        return False
    element = layer.element
    block = cpu.block(extent(layer.inputs[0])[1], element)
    channels, first = extent(layer.output)[1], layer.operator.first
    ends = channels % block == 0 or first + channels == extent(layer.inputs[0])[1]
    return first % block == 0 and ends and cpu.block(channels, element) == block


def offsets(parts: Sequence[Blocked]) -> list[int]:
    """Where each part starts in a joint of one image, in bytes."""
    return [0, *accumulate(part.nbytes for part in parts[:-1])]


def in_place(parts: Sequence[Blocked], joint: Blocked) -> bool:
    """Whether parts that lie one after the other are the joint."""
    return joint.batch == 1 and all(offset % ALIGNMENT == 0 for offset in offsets(parts))


def view_at(site: LayerSite) -> int | None:
    """Where the channels of a slice start, in bytes; None if they have to be copied."""
    assert isinstance(site.layer.operator, Slice)
    source = site.inputs[0]
    offset = site.layer.operator.first // source.block * source.nbytes // source.shape[0]
    return offset if source.batch == 1 and offset % ALIGNMENT == 0 else None


def copy(source: Blocked, target: Blocked) -> LayerKernel:
    """The same tensor with another halo, or just elsewhere."""
    return _copy("copy", [(source, 0)], target)


def make_concat(site: LayerSite) -> LayerKernel:
    """Copies all inputs."""
    return _copy("concat", [(layout, 0) for layout in site.inputs], site.output)


def make_slice(site: LayerSite) -> LayerKernel:
    """Copies the range."""
    operator = site.layer.operator
    assert isinstance(operator, Slice)
    source = site.inputs[0]
    return _copy("slice", [(source, operator.first // source.block)], site.output)


def _copy(what: str, parts: Sequence[tuple[Blocked, int]], output: Blocked) -> LayerKernel:
    """Fills the output's blocks one after the other: with each part's, from a block on."""
    target = Image("target", output)
    sources = [Image(f"source{i}", layout) for i, (layout, _) in enumerate(parts)]

    def planes(n: tir.Expr, source: Image, start: int, first: int, count: int) -> tir.Stmt:
        """`count` blocks, from `start` on there, to `first` on here."""

        def pixel(block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
            value = source.load(n * source.layout.blocks + start + block, row, column)
            return target.store(value, n * output.blocks + first + block, row, column)

        return tir.loop_of(
            "block",
            count,
            lambda block: tir.loop_of(
                "row",
                output.height,
                lambda row: tir.loop_of(
                    "column", output.width, lambda column: pixel(block, row, column)
                ),
            ),
        )

    def all_parts(n: tir.Expr) -> tir.Stmt:
        copies, first = [], 0
        for source, (layout, start) in zip(sources, parts, strict=True):
            count = min(layout.blocks - start, output.blocks - first)
            copies.append(planes(n, source, start, first, count))
            first += count
        return tir.sequence(*copies)

    return LayerKernel(
        name=f"{what}_{output.channels}_{output.height}x{output.width}",
        function=tir.function(
            [*(source.buffer for source in sources), target.buffer],
            tir.sequence(clear_halos(target), tir.loop_of("n", output.batch, all_parts)),
        ),
        constants=(),
        cycles=2 * output.nbytes / output.element.bytes / output.block,
    )


CONCAT = Rule(
    name="concat", takes=takes_concat, make=make_concat, joining=Joining(fits=in_place, copy=copy)
)
SLICE = Rule(name="slice", takes=takes_slice, make=make_slice, view_at=view_at)
