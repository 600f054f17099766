"""The epilogue: what a kernel does to its accumulators before it stores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Protocol

import numpy as np
from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.average import Average
from edgepack.kernels.tiles.expression import LONG, Expression, evaluate
from edgepack.kernels.tiles.layout import Blocked, Image, clear_halos, pack_channels

# Results in one turn of a pass over them: as many as hide the latency of the arithmetic on each, of
# few operations, and as fit any registers.
_SIDE_BY_SIDE = 4
# Of long arithmetic, each step for all of them before the next one: of Gelu, which waits for itself
# most of the time, as many as 16 registers hold.
_IN_STEP = 3


class Epilogue:
    """What is done to a kernel's accumulators before they are stored.

    That is `expression`, of the result in the layout `output`. Its `constants` (one value per
    channel each) and `operands` (the layouts of the tensors it reads) become arguments of the
    kernel. With a layout `mean` the mean of the result's channels is made, too, by a kernel of
    tiles of `pixels` that does the rows in `parts`. `flat`: the kernel sees images as one row.
    """

    def __init__(
        self,
        output: Blocked,
        expression: Expression = (),
        *,
        constants: Sequence[np.ndarray] = (),
        operands: Sequence[Blocked] = (),
        mean: Blocked | None = None,
        flat: bool = False,
        pixels: int = 1,
        parts: int = 1,
    ) -> None:
        self.expression = expression
        self.output = output
        self.layouts = tuple(operands)
        size = output.height, output.width
        self.operands = [
            Image(
                f"operand{i}",
                layout,
                layout.flat if flat and (layout.height, layout.width) == size else None,
            )
            for i, layout in enumerate(self.layouts)
        ]
        self.packed = tuple(pack_channels(values, output) for values in constants)
        self.constants = [
            tir.buffer(f"constant{i}", values.shape, str(values.dtype))
            for i, values in enumerate(self.packed)
        ]
        view = output.flat if flat else output
        self.average = Average(view, mean, pixels, parts) if mean else None

    @property
    def operand_buffers(self) -> list[tirx.Buffer]:
        """Arguments that follow the inputs."""
        return [image.buffer for image in self.operands]

    @property
    def average_buffers(self) -> list[tirx.Buffer]:
        """Arguments that follow the result."""
        return self.average.buffers if self.average else []

    def clear_around_means(self) -> tir.Stmt | None:
        """Write the zeros around the mean, if there is one and it has any."""
        return clear_halos(self.average.mean) if self.average else None

    def means(self) -> tir.Stmt | None:
        """The means of all planes, once all results are stored."""
        if self.average is None:
            return None
        return tir.loop_of("plane", self.output.planes, self.average.finish)

    def apply(
        self,
        names: tir.Names,
        value: tirx.Expr,
        plane: tir.Expr,
        row: tir.Expr,
        column: tir.Expr,
        channel_block: tir.Expr | None = None,
    ) -> tirx.Expr:
        """The result for one pixel of one plane; `channel_block` where it is not the plane."""
        lanes = self.output.block
        block = plane if channel_block is None else channel_block
        if not self.expression:
            return value

        def channel(index: int) -> tirx.Expr:
            return tir.load(self.constants[index], [block * lanes], lanes)

        def operand(index: int, pixel: bool) -> tirx.Expr:
            image = self.operands[index]
            return image.load(plane, 0, 0) if pixel else image.load(plane, row, column)

        return evaluate(self.expression, value, lanes, names, channel, operand)

    def viewed(self, view: Callable[[Image], Image]) -> Epilogue:
        """The same for a part of the result: `view` is its part of an image of that size."""
        epilogue = copy(self)
        epilogue.operands = [
            view(image) if (image.layout.height, image.layout.width) == self._size else image
            for image in self.operands
        ]
        return epilogue

    @property
    def _size(self) -> tuple[int, int]:
        return self.output.height, self.output.width

    def in_place(self, target: Image) -> list[tuple[tirx.Buffer, tirx.Buffer]]:
        """The operands whose memory the result may take (see `tir.function`).

        For kernels that store what `apply` makes of each result, and nothing before.
        """
        return [
            (image.buffer, target.buffer)
            for image, layout in zip(self.operands, self.layouts, strict=True)
            if layout == self.output
        ]

    @property
    def is_long(self) -> bool:
        """Whether it is so much code that it should be in a loop, not once per sum."""
        return any(operation.name in LONG for operation in self.expression)

    def pass_over(self, target: Image, tile: _TileOfResults) -> tir.Stmt:
        """Apply the expression to results that are stored already, as they come."""
        dtype = self.output.element.accumulator
        total = tir.Local("total", self.output.block, dtype)

        def one(v: int, r: tir.Expr) -> tir.Names:
            at = (tile.plane + v, tile.row, tile.column + r)
            names = tir.Names()
            block = tile.channel_block + v
            result = self.apply(names, target.load(*at), *at, channel_block=block)
            names.add(target.store(result, *at))
            if self.average:
                names.add(total.set(total.get() + result))
            return names

        def vector(v: int) -> tir.Stmt:
            pixels = self._in_turns(tile.pixels, partial(one, v))
            if self.average is None:
                return pixels
            start = total.set(tir.number(0.0, dtype, self.output.block))
            at = (tile.plane + v, tile.row, tile.column)
            return tir.sequence(start, pixels, self.average.leave([total.get()], *at))

        return tir.sequence(
            total.declare() if self.average else None, *map(vector, range(tile.vectors))
        )

    def _in_turns(self, pixels: int, one: Callable[[tir.Expr], tir.Names]) -> tir.Stmt:
        """Something for each of a row of pixels, some of them side by side."""
        together = _IN_STEP if self.is_long else _SIDE_BY_SIDE
        full, rest = divmod(pixels, together)

        def some(first: tir.Expr, count: int) -> tir.Stmt:
            made = [one(first + i) for i in range(count)]
            return tir.in_step(made) if self.is_long else tir.sequence(*(x.done() for x in made))

        def turn(index: tir.Expr) -> tir.Stmt:
            return tir.not_unrolled(some(index * together, together))

        return tir.sequence(
            tir.loop_of("pixels", full, turn) if full else None,
            some(full * together, rest) if rest else None,
        )


class _TileOfResults(Protocol):
    """`pixels` x `vectors` results from a pixel of a plane on."""

    @property
    def plane(self) -> tir.Expr: ...
    @property
    def channel_block(self) -> tir.Expr: ...
    @property
    def row(self) -> tir.Expr: ...
    @property
    def column(self) -> tir.Expr: ...
    @property
    def pixels(self) -> int: ...
    @property
    def vectors(self) -> int: ...
