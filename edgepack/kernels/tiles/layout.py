"""The blocked layout that all fast kernels read and write.

A tensor of C channels lies as blocks of a few channels (as many as fit a vector), each block
an image of its own: `[batch * blocks][top + H + bottom][left + W + right][block]`. A pixel of
a block is one vector, neighbours are next to each other, and a convolution's window never
needs a bounds check: the zeros around the image (its halo) are written by its producer.

A network's input of a few channels may stay NCHW if all kernels that read it load single values
anyway; such a tensor is `planar`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.element import INT8, Element

# Of tensors in memory: a cache line of every CPU here, and the widest vector register (AVX-512).
ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True)
class Halo:
    """Rows and columns of zeros around each image, and so many images of zeros before the first one
    of the batch and behind the last one."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0
    front: int = 0
    back: int = 0

    def __bool__(self) -> bool:
        return any((self.top, self.left, self.bottom, self.right, self.front, self.back))

    @property
    def of_images(self) -> Halo:
        """Without whole images of zeros."""
        return replace(self, front=0, back=0)

    def union(self, other: Halo) -> Halo:
        """The smallest halo that has both inside."""
        return Halo(
            top=max(self.top, other.top),
            left=max(self.left, other.left),
            bottom=max(self.bottom, other.bottom),
            right=max(self.right, other.right),
            front=max(self.front, other.front),
            back=max(self.back, other.back),
        )


NO_HALO = Halo()


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A blocked tensor; its last block may have channels that hold nothing of meaning.

    A `planar` one is not blocked: it is NCHW, without a halo, of no more channels than a block.
    Integers around each image are `outside`, not zeros. Where images overlap (see `rules.stack`),
    each begins so many planes behind the one before as `apart` says.
    """

    element: Element

    batch: int
    channels: int
    height: int
    width: int
    block: int
    halo: Halo = NO_HALO
    planar: bool = False
    outside: int = 0
    apart: int = 0

    @property
    def blocks(self) -> int:
        """Blocks per image of the batch."""
        return -(-self.channels // self.block)

    @property
    def step(self) -> int:
        """Planes from one image of the batch to the next."""
        return self.apart or self.blocks

    @property
    def planes(self) -> int:
        """Planes that are no zeros."""
        return (self.batch - 1) * self.step + self.blocks

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape in memory."""
        if self.planar:
            return self.batch, self.channels, self.height, self.width
        halo = self.halo
        return (
            (halo.front + halo.back) * self.step + self.planes,
            halo.top + self.height + halo.bottom,
            halo.left + self.width + halo.right,
            self.block,
        )

    @property
    def nbytes(self) -> int:
        """Bytes in memory, halo included."""
        return self.element.bytes * int(np.prod(self.shape))

    @property
    def flat(self) -> Blocked:
        """The same tensor as one row of pixels; only without a halo.

        The rows follow each other in memory, so that pixel p of row 0 is pixel p of the image.
        """
        assert not self.halo
        return replace(self, height=1, width=self.height * self.width)


class Image:
    """A blocked tensor inside a kernel."""

    # Whether its last block of channels overlaps the one before, for lack of padding to fill it.
    overlaps = False
    # Of a part of a larger image: where that one's plane 0 would be.
    first_plane: tir.Expr = 0

    def __init__(self, name: str, layout: Blocked, view: Blocked | None = None) -> None:
        self.layout = view or layout
        self.buffer = tir.buffer(name, layout.shape, layout.element.name)
        self.step = (1, 1)
        self.first: tuple[tir.Expr, tir.Expr] = (0, 0)

    @property
    def pixel_bytes(self) -> int:
        """From one pixel of a row to the next."""
        return self.layout.element.bytes * self.layout.block

    @property
    def column_bytes(self) -> int:
        """From one column to the next, which may be pixels apart."""
        return self.pixel_bytes * self.step[1]

    @property
    def row_bytes(self) -> int:
        """From one row to the next, halo included."""
        return self.pixel_bytes * int(self.buffer.shape[2])

    @property
    def plane_bytes(self) -> int:
        """From one block of channels to the next."""
        return self.row_bytes * int(self.buffer.shape[1])

    def viewed(self, view: Blocked) -> Image:
        """The same memory, with other extents."""
        image = copy(self)
        image.layout = view
        return image

    def spaced(
        self,
        *,
        step: tuple[int, int],
        first: tuple[tir.Expr, tir.Expr],
        size: tuple[int, int],
    ) -> Image:
        """`size` pixels that are `step` apart, (vertical, horizontal), as an image."""
        image = self.viewed(replace(self.layout, height=size[0], width=size[1]))
        image.step, image.first = step, first
        return image

    def placed(self, *, plane: tir.Expr, row: tir.Expr = 0, column: tir.Expr = 0) -> Image:
        """The same memory as a part of a larger image, whose plane 0, row 0 and column 0 would be
        at these ones."""
        image = copy(self)
        image.first_plane, image.first = plane, (row, column)
        return image

    def at(
        self, plane: tir.Expr, row: tir.Expr, column: tir.Expr, lane: tir.Expr = 0
    ) -> list[tir.Expr]:
        """Indices of a pixel, counted from the image's corner, not the halo's."""
        halo = self.layout.halo
        return [
            plane + (self.first_plane + self.layout.halo.front * self.layout.step),
            row * self.step[0] + (self.first[0] + halo.top),
            column * self.step[1] + (self.first[1] + halo.left),
            lane,
        ]

    def load(self, plane: tir.Expr, row: tir.Expr, column: tir.Expr) -> tirx.Expr:
        """All channels of a block at a pixel, in the type that arithmetic is done in."""
        value = tir.load(self.buffer, self.at(plane, row, column), self.layout.block)
        return tir.cast(value, self.layout.element.accumulator)

    def store(self, value: tirx.Expr, plane: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        """Write all channels of a block at a pixel."""
        value = tir.cast(value, self.layout.element.name)
        return tir.store(self.buffer, value, self.at(plane, row, column), self.layout.block)

    def clear_halo(self, plane: tir.Expr) -> tir.Stmt | None:
        """Write the zeros around one plane."""
        plane = self._in_memory(plane)
        height = self.layout.height
        return self._clear(plane, 0, height, above=self._above(plane), below=self._below(plane))

    def clear_beside(self, plane: tir.Expr, row: tir.Expr) -> tir.Stmt | None:
        """Write the zeros around one row of a plane; those above the first one and below the last
        one are theirs."""

        def only(at: int, body: tir.Stmt | None) -> tir.Stmt | None:
            return body and tirx.IfThenElse(tirx.EQ(tir.expr(row), tir.integer(at)), body, None)

        plane = self._in_memory(plane)
        above, below = only(0, self._above(plane)), only(self.layout.height - 1, self._below(plane))
        return self._clear(plane, row, 1, above=above, below=below)

    def _in_memory(self, plane: tir.Expr) -> tir.Expr:
        """A plane's number, those of the images of zeros in front of it counted."""
        return plane + self.layout.halo.front * self.layout.step

    def _clear(
        self,
        plane: tir.Expr,
        row: tir.Expr,
        rows: int,
        *,
        above: tir.Stmt | None,
        below: tir.Stmt | None,
    ) -> tir.Stmt | None:
        layout, halo = self.layout, self.layout.halo
        first, behind = row + halo.top, halo.left + layout.width
        parts = [
            above,
            self._zeros(plane, first, rows, 0, halo.left),
            self._zeros(plane, first, rows, behind, halo.right),
            below,
        ]
        return tir.sequence(*parts) if any(part is not None for part in parts) else None

    def _above(self, plane: tir.Expr) -> tir.Stmt | None:
        """The zeros above a plane; with those of the first one, whole images in front of it."""
        layout = self.layout
        images = self._planes_of_zeros(0, layout.halo.front)
        above = self._zeros(plane, 0, layout.halo.top, 0, layout.shape[2])
        return self._with_images(plane, 0, images, above)

    def _below(self, plane: tir.Expr) -> tir.Stmt | None:
        """The zeros below a plane; with those of the last one, whole images behind it."""
        layout, halo = self.layout, self.layout.halo
        images = self._planes_of_zeros(halo.front * layout.step + layout.planes, halo.back)
        below = self._zeros(plane, halo.top + layout.height, halo.bottom, 0, layout.shape[2])
        return self._with_images(plane, layout.planes - 1, images, below)

    def _with_images(
        self, plane: tir.Expr, only: int, images: tir.Stmt | None, zeros: tir.Stmt | None
    ) -> tir.Stmt | None:
        if images is None:
            return zeros
        first = self.layout.halo.front * self.layout.step
        here = tirx.EQ(tir.expr(plane), tir.integer(first + only))
        return tir.sequence(tirx.IfThenElse(here, images, None), zeros)

    def _planes_of_zeros(self, first: int, images: int) -> tir.Stmt | None:
        """So many images of them, from a plane of the memory on."""
        if not images:
            return None
        _, rows, columns, _ = self.layout.shape

        def clear(plane: tir.Expr) -> tir.Stmt:
            return tir.sequence(self._zeros(first + plane, 0, rows, 0, columns))

        return tir.loop_of("plane", images * self.layout.step, clear)

    def _outside(self) -> tirx.Expr:
        """What is around the image, for all channels of a block."""
        lanes, element = self.layout.block, self.layout.element
        if element == INT8:
            return tir.spread(tirx.IntImm(element.name, self.layout.outside), lanes)
        return tir.number(0.0, element.name, lanes)

    def _zeros(
        self, plane: tir.Expr, row: tir.Expr, rows: int, column: int, columns: int
    ) -> tir.Stmt | None:
        """`rows` x `columns` of them, counted from the halo's corner."""
        if rows <= 0 or columns <= 0:
            return None
        lanes, zero = self.layout.block, self._outside()
        return tir.loop_of(
            "row",
            rows,
            lambda i: tir.loop_of(
                "column",
                columns,
                lambda j: tir.store(self.buffer, zero, [plane, row + i, column + j, 0], lanes),
            ),
        )


class Planar(Image):
    """A planar tensor inside a kernel; as if it were blocked, with one plane per image."""

    def at(
        self, plane: tir.Expr, row: tir.Expr, column: tir.Expr, lane: tir.Expr = 0
    ) -> list[tir.Expr]:
        """Indices of a channel of a pixel."""
        return [plane, lane, row, column]


def clear_halos(image: Image) -> tir.Stmt | None:
    """Write the zeros around all planes of a tensor."""
    if not image.layout.halo:
        return None

    def clear(plane: tir.Expr) -> tir.Stmt:
        statement = image.clear_halo(plane)
        assert statement is not None
        return statement

    return tir.loop_of("plane", image.layout.planes, clear)


def pack_channels(
    values: np.ndarray | None, layout: Blocked, dtype: str | None = None
) -> np.ndarray:
    """One value per channel (None: zeros), padded with zeros to whole blocks.

    Of the accumulator's type unless another is given, for such values are added to sums or
    multiplied with them.
    """
    packed = np.zeros(layout.blocks * layout.block, dtype or layout.element.accumulator)
    if values is not None:
        packed[: layout.channels] = values
    return packed


def conv_halo(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
    out: Sequence[int],
) -> Halo:
    """The halo a window needs: what it reads before the first and after the last pixel.

    Each argument is (vertical, horizontal); `before` is the padding at top and left. Padding
    after the image that no window reaches is not part of it.
    """
    after = [
        max(0, (out[i] - 1) * stride[i] + (kernel[i] - 1) * dilation[i] - before[i] - size[i] + 1)
        for i in (0, 1)
    ]
    return Halo(top=before[0], left=before[1], bottom=after[0], right=after[1])
