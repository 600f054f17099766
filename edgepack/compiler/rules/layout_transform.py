"""Layout transforms between the network's own layouts and the blocked one.

NCHW and NCL: a block of channels and as many pixels are a square matrix, which is transposed in
registers; what is left of a row of pixels is done by a square that overlaps the one before.
NHWC, NLC and matrices, whose rows are pixels: channels lie side by side in both layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import tirx

from edgepack.compiler.rules.rule import LayerKernel
from edgepack.compiler.tiles import tir
from edgepack.compiler.tiles.cpu import CpuModel
from edgepack.compiler.tiles.layout import Blocked, Image, clear_halos
from edgepack.compiler.tiles.partition import shared_loops

# Lanes of the smallest vector; rows of fewer pixels are copied one by one.
_SMALLEST = 4


@dataclass(frozen=True, kw_only=True)
class _PixelAt:
    """A pixel of a block, of which `valid` channels hold something."""

    n: tir.Expr
    block: tir.Expr
    valid: int
    row: tir.Expr = 0
    column: tir.Expr = 0


@dataclass(frozen=True, kw_only=True)
class _BothLayouts:
    """A tensor in both layouts, the plain one with the channels of a pixel side by side or not."""

    plain: tirx.Buffer
    image: Image
    channels_last: bool

    def in_plain(self, place: _PixelAt, lane: int) -> list[tir.Expr]:
        """Indices of a channel of a block."""
        channel = place.block * self.image.layout.block + lane
        rank = len(self.plain.shape)
        if rank == 2:
            return [place.column, channel]
        pixel = [place.row, place.column][4 - rank :]
        return [place.n, *pixel, channel] if self.channels_last else [place.n, channel, *pixel]

    def in_blocked(self, place: _PixelAt, pixel: int, lane: int) -> list[tir.Expr]:
        """Indices of a channel, `pixel` pixels further on."""
        plane = place.n * self.image.layout.blocks + place.block
        return self.image.at(plane, place.row, place.column + pixel, lane)

    def over(
        self,
        cpu: CpuModel,
        square: Callable[[_PixelAt, int], tir.Stmt],
        one: Callable[[_PixelAt], tir.Stmt],
    ) -> tir.Stmt:
        """Everything, by squares of a number of pixels or by single pixels."""
        layout = self.image.layout
        if not layout.halo:
            layout = layout.flat
        widest = min(layout.block, layout.width)
        side = 1 << (widest.bit_length() - 1)
        # A load and a store of each vector.
        by_blocks, by_rows = shared_loops(
            2 * layout.nbytes / layout.element.bytes / layout.block, layout, cpu
        )

        def along(place: _PixelAt) -> tir.Stmt:
            if self.channels_last or side < _SMALLEST:
                return tir.loop_of(
                    "column", layout.width, lambda column: one(replace(place, column=column))
                )
            full, rest = divmod(layout.width, side)
            return tir.sequence(
                tir.loop_of(
                    "square",
                    full,
                    lambda i: square(replace(place, column=i * side), side),
                    parallel=by_rows and layout.height == 1,
                ),
                square(replace(place, column=layout.width - side), side) if rest else None,
            )

        def plane(n: tir.Expr, block: tir.Expr, valid: int) -> tir.Stmt:
            place = _PixelAt(n=n, block=block, valid=valid)
            return tir.loop_of(
                "row",
                layout.height,
                lambda row: along(replace(place, row=row)),
                parallel=by_rows,
            )

        last = (layout.channels - 1) % layout.block + 1
        whole = layout.blocks - (last < layout.block)
        return tir.loop_of(
            "n",
            layout.batch,
            lambda n: tir.split(
                "block",
                whole,
                lambda block: plane(n, block, layout.block),
                (lambda: plane(n, whole, last)) if whole < layout.blocks else None,
                parallel=by_blocks,
            ),
        )


def pack(
    shape: tuple[int, ...], layout: Blocked, cpu: CpuModel, *, channels_last: bool = False
) -> LayerKernel:
    """NCHW, NCL or rows of channels -> blocked, halo and unused channels set to zero.

    With `channels_last` from NHWC or NLC.
    """
    dtype = layout.element.name
    plain = tir.buffer("source", shape, layout.element.accumulator)
    tensors = _both(plain, Image("target", layout), channels_last)
    target = tensors.image.buffer

    def load(place: _PixelAt, channel: int, lanes: int = 1) -> tirx.Expr:
        return tir.cast(tir.load(plain, tensors.in_plain(place, channel), lanes), dtype)

    def square(place: _PixelAt, side: int) -> tir.Stmt:
        names = tir.Names()
        for first in range(0, layout.block, side):
            channels = [
                load(place, first + i, side)
                if first + i < place.valid
                else tir.number(0.0, dtype, side)
                for i in range(side)
            ]
            for i, pixel in enumerate(tir.transposed(names, channels)):
                names.add(tir.store(target, pixel, tensors.in_blocked(place, i, first), side))
        return names.done()

    def one(place: _PixelAt) -> tir.Stmt:
        if tensors.channels_last and place.valid == layout.block:
            pixel = load(place, 0, layout.block)
            return tir.store(target, pixel, tensors.in_blocked(place, 0, 0), layout.block)
        lanes = []
        for lane in range(layout.block):
            value = tir.number(0.0, dtype)
            if lane < place.valid:
                value = load(place, lane)
            lanes.append(tir.store(target, value, tensors.in_blocked(place, 0, lane)))
        return tir.sequence(*lanes)

    body = tir.sequence(clear_halos(tensors.image), tensors.over(cpu, square, one))
    name = _name("pack", shape, channels_last)
    return LayerKernel(name=name, function=tir.function([plain, target], body), constants=())


def unpack(
    layout: Blocked, shape: tuple[int, ...], cpu: CpuModel, *, channels_last: bool = False
) -> LayerKernel:
    """Blocked -> NCHW, NCL or rows of channels; with `channels_last` NHWC or NLC."""
    dtype = layout.element.accumulator
    plain = tir.buffer("target", shape, dtype)
    tensors = _both(plain, Image("source", layout), channels_last)
    source, target = tensors.image.buffer, tensors.plain

    def square(place: _PixelAt, side: int) -> tir.Stmt:
        names = tir.Names()
        for first in range(0, place.valid, side):
            pixels = [
                tir.load(source, tensors.in_blocked(place, i, first), side) for i in range(side)
            ]
            channels = tir.transposed(names, pixels)
            for i, channel in enumerate(channels[: place.valid - first]):
                value = tir.cast(channel, dtype)
                names.add(tir.store(target, value, tensors.in_plain(place, first + i), side))
        return names.done()

    def one(place: _PixelAt) -> tir.Stmt:
        if tensors.channels_last and place.valid == layout.block:
            pixel = tir.load(source, tensors.in_blocked(place, 0, 0), layout.block)
            value = tir.cast(pixel, dtype)
            return tir.store(target, value, tensors.in_plain(place, 0), layout.block)
        return tir.sequence(
            *(
                tir.store(
                    target,
                    tir.cast(tir.load(source, tensors.in_blocked(place, 0, lane)), dtype),
                    tensors.in_plain(place, lane),
                )
                for lane in range(place.valid)
            )
        )

    body = tensors.over(cpu, square, one)
    name = _name("unpack", shape, channels_last)
    return LayerKernel(name=name, function=tir.function([source, target], body), constants=())


def _both(plain: tirx.Buffer, image: Image, channels_last: bool) -> _BothLayouts:
    is_matrix = len(plain.shape) == 2
    return _BothLayouts(plain=plain, image=image, channels_last=channels_last or is_matrix)


def _name(what: str, shape: tuple[int, ...], channels_last: bool) -> str:
    return f"{what}_{'x'.join(map(str, shape))}" + ("_channels_last" if channels_last else "")
