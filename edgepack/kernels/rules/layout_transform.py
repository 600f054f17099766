"""Layout transforms between the network's own layouts and the blocked one.

NCHW and NCL: a block of channels and as many pixels are a square matrix, which is transposed in
registers; what is left of a row of pixels is done by a square that overlaps the one before.
NHWC, NLC and matrices, whose rows are pixels: channels lie side by side in both layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from tvm import tirx

from edgepack.kernels.rules.rule import LayerKernel
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Blocked, Halo, Image, Planar, clear_halos
from edgepack.kernels.tiles.partition import shared_loops

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


class _Work(Protocol):
    """What is done to a square of pixels and channels, and to a single pixel."""

    def square(self, place: _PixelAt, side: int) -> tir.Stmt: ...
    def one(self, place: _PixelAt) -> tir.Stmt: ...


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

    def along(
        self, place: _PixelAt, layout: Blocked, work: _Work, *, parallel: bool = False
    ) -> tir.Stmt:
        """A row of pixels, by squares of a number of them or by single ones."""
        side = 1 << (min(layout.block, layout.width).bit_length() - 1)
        if self.channels_last or side < _SMALLEST:
            return tir.loop_of(
                "column", layout.width, lambda column: work.one(replace(place, column=column))
            )
        full, rest = divmod(layout.width, side)
        return tir.sequence(
            tir.loop_of(
                "square",
                full,
                lambda i: work.square(replace(place, column=i * side), side),
                parallel=parallel,
            ),
            work.square(replace(place, column=layout.width - side), side) if rest else None,
        )

    def over(self, cpu: CpuModel, work: _Work) -> tir.Stmt:
        """Everything."""
        layout = self.image.layout
        if not layout.halo:
            layout = layout.flat
        # A load and a store of each vector.
        by_blocks, by_rows = shared_loops(
            2 * layout.nbytes / layout.element.bytes / layout.block, layout, cpu
        )

        def plane(n: tir.Expr, block: tir.Expr, valid: int) -> tir.Stmt:
            place = _PixelAt(n=n, block=block, valid=valid)
            return tir.loop_of(
                "row",
                layout.height,
                lambda row: self.along(
                    replace(place, row=row), layout, work, parallel=by_rows and layout.height == 1
                ),
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


@dataclass(frozen=True, kw_only=True)
class _Packing:
    """Plain -> blocked; channels that there are not are zeros."""

    tensors: _BothLayouts

    def _load(self, place: _PixelAt, channel: int, lanes: int = 1) -> tirx.Expr:
        if channel >= place.valid:
            return tir.number(0.0, self._dtype, lanes)
        value = tir.load(self.tensors.plain, self.tensors.in_plain(place, channel), lanes)
        return tir.cast(value, self._dtype)

    @property
    def _dtype(self) -> str:
        return self.tensors.image.layout.element.name

    def square(self, place: _PixelAt, side: int) -> tir.Stmt:
        """`side` pixels, by as many channels at a time."""
        tensors, names = self.tensors, tir.Names()
        for first in range(0, tensors.image.layout.block, side):
            channels = [self._load(place, first + i, side) for i in range(side)]
            for i, pixel in enumerate(tir.transpose(names, channels)):
                at = tensors.in_blocked(place, i, first)
                names.add(tir.store(tensors.image.buffer, pixel, at, side))
        return names.done()

    def one(self, place: _PixelAt) -> tir.Stmt:
        """A pixel."""
        target, block = self.tensors.image.buffer, self.tensors.image.layout.block
        whole = self.tensors.channels_last and place.valid == block
        lanes = block if whole else 1
        return tir.sequence(
            *(
                tir.store(
                    target,
                    self._load(place, lane, lanes),
                    self.tensors.in_blocked(place, 0, lane),
                    lanes,
                )
                for lane in range(0, block, lanes)
            )
        )


@dataclass(frozen=True, kw_only=True)
class _Unpacking:
    """Blocked -> plain."""

    tensors: _BothLayouts

    @property
    def _dtype(self) -> str:
        return self.tensors.image.layout.element.accumulator

    def square(self, place: _PixelAt, side: int) -> tir.Stmt:
        """`side` pixels, by as many channels at a time."""
        tensors, names = self.tensors, tir.Names()
        for first in range(0, place.valid, side):
            pixels = [
                tir.load(tensors.image.buffer, tensors.in_blocked(place, i, first), side)
                for i in range(side)
            ]
            channels = tir.transpose(names, pixels)
            for i, channel in enumerate(channels[: place.valid - first]):
                value = tir.cast(channel, self._dtype)
                at = tensors.in_plain(place, first + i)
                names.add(tir.store(tensors.plain, value, at, side))
        return names.done()

    def one(self, place: _PixelAt) -> tir.Stmt:
        """A pixel."""
        tensors, source = self.tensors, self.tensors.image
        whole = tensors.channels_last and place.valid == source.layout.block
        lanes = place.valid if whole else 1
        return tir.sequence(
            *(
                tir.store(
                    tensors.plain,
                    tir.cast(
                        tir.load(source.buffer, tensors.in_blocked(place, 0, lane), lanes),
                        self._dtype,
                    ),
                    tensors.in_plain(place, lane),
                    lanes,
                )
                for lane in range(0, place.valid, lanes)
            )
        )


def pack(
    shape: tuple[int, ...], layout: Blocked, cpu: CpuModel, *, channels_last: bool = False
) -> LayerKernel:
    """NCHW, NCL or rows of channels -> blocked, halo and unused channels set to zero.

    With `channels_last` from NHWC or NLC.
    """
    plain = tir.buffer("source", shape, layout.element.accumulator)
    tensors = _both(plain, Image("target", layout), channels_last)
    body = tir.sequence(clear_halos(tensors.image), tensors.over(cpu, _Packing(tensors=tensors)))
    name = _name("pack", shape, channels_last)
    function = tir.function([plain, tensors.image.buffer], body)
    return LayerKernel(name=name, function=function, constants=())


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Rows of an NCHW image of few channels, packed with the zeros around them into scratch memory:
    at most `rows` of them at a time, for each of some `shares` of the work.

    `halo` is what the reader's window wants around the image.
    """

    source: Planar
    halo: Halo
    rows: int
    shares: int

    @property
    def _image(self) -> Blocked:
        """The image as if it were packed as a whole; rows above and below are made when asked."""
        sides = Halo(left=self.halo.left, right=self.halo.right)
        return replace(self.source.layout, planar=False, halo=sides)

    @cached_property
    def scratch(self) -> Image:
        return Image("rows", replace(self._image, batch=self.shares, height=self.rows))

    def image(self, n: tir.Expr, share: tir.Expr, top: tir.Expr) -> Image:
        """The whole image `n`, of which only rows from `top` on are there."""
        view = self.scratch.viewed(self._image)
        return view.placed(plane=share - tir.expr(n), row=0 - tir.expr(top))

    def pack(self, n: tir.Expr, share: tir.Expr, top: tir.Expr, rows: int) -> tir.Stmt:
        """Make `rows` rows of image `n` from `top` on, those beside the image zeros."""
        layout = self._image
        image = self.image(n, share, top)
        tensors = _BothLayouts(plain=self.source.buffer, image=image, channels_last=False)
        packing = _Packing(tensors=tensors)
        zero = tir.number(0.0, layout.element.accumulator, layout.block)

        def zeros(row: tir.Expr, first: int, count: int) -> tir.Stmt | None:
            if not count:
                return None
            return tir.loop_of("column", count, lambda i: image.store(zero, n, row, first + i))

        def one_row(number: tir.Expr) -> tir.Stmt:
            row = tir.expr(top + number)
            place = _PixelAt(n=n, block=0, valid=layout.channels, row=row)
            sides = layout.halo.left, layout.halo.right
            made = tir.sequence(
                zeros(row, -sides[0], sides[0]),
                zeros(row, layout.width, sides[1]),
                tensors.along(place, layout, packing),
            )
            inside = tirx.And(row >= 0, row < layout.height)
            outside = zeros(row, -sides[0], sides[0] + layout.width + sides[1])
            return tirx.IfThenElse(inside, made, outside)

        return tir.loop_of("packed", rows, one_row)


def unpack(
    layout: Blocked, shape: tuple[int, ...], cpu: CpuModel, *, channels_last: bool = False
) -> LayerKernel:
    """Blocked -> NCHW, NCL or rows of channels; with `channels_last` NHWC or NLC."""
    assert not layout.planar, layout
    plain = tir.buffer("target", shape, layout.element.accumulator)
    tensors = _both(plain, Image("source", layout), channels_last)
    body = tensors.over(cpu, _Unpacking(tensors=tensors))
    name = _name("unpack", shape, channels_last)
    function = tir.function([tensors.image.buffer, plain], body)
    return LayerKernel(name=name, function=function, constants=())


def _both(plain: tirx.Buffer, image: Image, channels_last: bool) -> _BothLayouts:
    is_matrix = len(plain.shape) == 2
    return _BothLayouts(plain=plain, image=image, channels_last=channels_last or is_matrix)


def _name(what: str, shape: tuple[int, ...], channels_last: bool) -> str:
    return f"{what}_{'x'.join(map(str, shape))}" + ("_channels_last" if channels_last else "")
