"""The mean of each channel of a kernel's result, as a second result of the same kernel.

Each tile leaves the sum of its pixels in a slot of its own while they are in registers; when all
tiles of a plane are done, the slots are added up in their order. So the result is not read again,
and the mean is the same to the last bit however the tiles were shared out between threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.layout import NO_HALO, Blocked, Image

# Sums, or the like, that run in parallel: hides the latency of the addition.
_PARTS = 4


class Average:
    """The second result: `mean` is its layout, that of one pixel per plane.

    `output` is the layout of the first result as the kernel sees it. The kernel computes it in
    tiles of `pixels` along each row, of which the last one may be smaller, and may do the rows in
    `parts` equal parts: then the thread that filled a part's slots adds them up.
    """

    def __init__(self, output: Blocked, mean: Blocked, pixels: int, parts: int = 1) -> None:
        self.pixels = pixels
        self.parts = parts
        self.count = output.height * output.width
        slots = replace(output, width=-(-output.width // pixels), halo=NO_HALO)
        self.slots, self.mean = Image("slots", slots), Image("mean", mean)

    @property
    def buffers(self) -> list[tirx.Buffer]:
        """Arguments that follow the kernel's first result: the second one, and the slots."""
        return [self.mean.buffer, self.slots.buffer]

    def slot(self, plane: tir.Expr, row: tir.Expr, column: tir.Expr) -> list[tir.Expr]:
        """Indices of the slot of the tile that starts at a pixel."""
        return self.slots.at(plane, row, column // self.pixels)

    def leave(
        self, results: Sequence[tirx.Expr], plane: tir.Expr, row: tir.Expr, column: tir.Expr
    ) -> tir.Stmt:
        """Fill the slot of the tile that starts at a pixel, given its results or their sum."""
        left = list(results)
        while len(left) > 1:
            half = len(left) // 2
            left = [left[i] + left[half + i] for i in range(half)] + left[2 * half :]
        at = self.slot(plane, row, column)
        return tir.store(self.slots.buffer, left[0], at, self.slots.layout.block)

    def add_up(self, plane: tir.Expr, part: tir.Expr) -> tir.Stmt | None:
        """Put the sum of a part's slots into the first one; None if there is but one."""
        rows, width = self.slots.layout.height // self.parts, self.slots.layout.width
        if rows * width == 1:
            return None
        slots = self.slots.spaced(step=(1, 1), first=(part * rows, 0), size=(rows, width))
        sums = PlaneFold(slots, plane)
        return tir.sequence(sums.code, slots.store(sums.total, plane, 0, 0))

    def finish(self, plane: tir.Expr) -> tir.Stmt:
        """The mean of a plane, all of whose slots are filled, or parts added up."""
        slots = self.slots
        if self.parts > 1:
            rows = slots.layout.height // self.parts
            slots = slots.spaced(step=(rows, 1), first=(0, 0), size=(self.parts, 1))
        sums = PlaneFold(slots, plane)
        layout = self.slots.layout
        mean = sums.total * tir.number(1 / self.count, layout.element.accumulator, layout.block)
        return tir.sequence(sums.code, self.mean.store(mean, plane, 0, 0))


class PlaneFold:
    """The `total` of all pixels of a plane, once `code` has run: their sum, unless another way to
    `combine` two vectors is given, and what changes none as the `first`."""

    def __init__(
        self,
        source: Image,
        plane: tir.Expr,
        combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr] = tirx.Add,
        first: float = 0.0,
    ) -> None:
        layout = source.layout
        dtype = layout.element.accumulator
        parts = [tir.Local(f"part{i}", layout.block, dtype) for i in range(_PARTS)]

        def add(row: tir.Expr, column: tir.Expr, count: int) -> tir.Stmt:
            added = (
                parts[i].set(combine(parts[i].get(), source.load(plane, row, column + i)))
                for i in range(count)
            )
            # Unrolled, an in-order core's loads come first, and do not fit the registers.
            return tir.not_unrolled(tir.sequence(*added))

        def along(row: tir.Expr) -> tir.Stmt:
            full, rest = divmod(layout.width, _PARTS)
            return tir.sequence(
                tir.loop_of("part", full, lambda part: add(row, part * _PARTS, _PARTS))
                if full
                else None,
                add(row, full * _PARTS, rest) if rest else None,
            )

        self.code = tir.sequence(
            *(item.declare() for item in parts),
            *(item.set(tir.number(first, dtype, layout.block)) for item in parts),
            tir.loop_of("row", layout.height, along),
        )
        pairs = [combine(parts[i].get(), parts[i + 1].get()) for i in (0, 2)]
        self.total = combine(*pairs)
