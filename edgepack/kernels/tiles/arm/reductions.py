"""What tiles add up: products over input channels, or over the window of each channel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Protocol

from edgepack.kernels.tiles.arm.ahead import LoadsAhead
from edgepack.kernels.tiles.arm.isa import MOST_AT_ONCE, QUAD, Isa
from edgepack.kernels.tiles.arm.writer import Writer
from edgepack.kernels.tiles.element import FLOAT16, Element

# Columns of a window that are unrolled, and how many of a longer one are done in a turn of a loop.
_MOST_COLUMNS = 16
_COLUMNS_PER_TURN = 4
# Points of a window that are unrolled where loads are written between multiply-adds.
_MOST_POINTS = 9

# Products that are added up in a row, at most, in float32: with parts of 256, and sums of up to 240
# in one, inner tensors of ResNets are at most 1.11 times as far off as onnxruntime's
# (`bench.rounding --board rasp4b-64`, exact; 1.06 with parts of 240, which take up to 0.2 % more
# instructions; 1.22 with sums of 256 in one, 1.52 with parts of 768).
_CHAIN = 256
_WHOLE = 240
# In half precision MobileNetV2's logits are 42 dB above their error with it (four photos, qemu's
# Cortex-A76).
_HALF_CHAIN = 192
# The same of halves behind transforms of Winograd's algorithm, where errors grow behind the sums:
# 512 channels are 51 dB above their error instead of 48.
_SHORT_HALF_CHAIN = 96


def longest_chain(element: Element, products: int, results: int = 1) -> int:
    """How many of a sum's `products` are added up in a row, at most: of an algorithm with so many
    `results` in a row of a tile, as `toom_cook.TileForm` has them."""
    if element == FLOAT16:
        return _SHORT_HALF_CHAIN if results > 1 else _HALF_CHAIN
    # Tiles of two results have no large coefficients: ResNets are no less exact with 256 in one.
    return _CHAIN if results == 2 or products > _CHAIN else _WHOLE


class Reduction(Protocol):
    """What a tile adds to its accumulators; all steps of reductions are distances in bytes."""

    def write(self, writer: Writer) -> None:
        """Write it, with the registers of `writer.free`."""


@dataclass(frozen=True, kw_only=True)
class Convolve:
    """Sums of products over input channels and the window, for R pixels and V vectors of output
    channels. A block of channels of a pixel is one register, and multiply-adds take one lane of it:

        accumulators[r][v] += weights[v] * input[r].lane[k]        for each lane k

    The inputs of the R pixels are the lowest registers. Those between them and the accumulators are
    a ring buffer for weights, loaded in the order of use as soon as one is free.

    There are `blocks` whole blocks of input channels, and after them one of `last_lanes` channels,
    if that is not 0. A matrix has no padding to fill this one: it is loaded from `back` channels
    earlier, so that it ends with the last channel, and its first `back` lanes are not used again.

    Where sums are cut into parts, those have at most `chain` products.
    """

    blocks: int
    last_lanes: int
    kernel: tuple[int, int]
    pixel_step: int
    column_step: int
    row_step: int
    plane_step: int
    back: int = 0
    chain: int = _CHAIN

    def write(self, writer: Writer) -> None:
        """Write the loops over blocks and window rows."""
        if self.blocks:
            self._blocks(writer, self.blocks, range(writer.isa.lanes))
        if self.last_lanes:
            writer.add("source", -writer.isa.element.bytes * self.back)
            self._blocks(writer, 1, range(self.back, self.back + self.last_lanes))

    def _blocks(self, writer: Writer, count: int, lanes: range) -> None:
        """Reduce over `count` input blocks of which `lanes` count."""
        rows, columns = self.kernel
        if writer.loads_ahead:
            self._ahead(writer, count, lanes)
            return
        if rows == columns == 1:

            def points(times: int) -> None:
                for _ in range(times):
                    moved = self._point(writer, lanes)
                    writer.add("source", self.plane_step - moved)

            # Two blocks per turn: half the counting. Sums begin with one or two that are in none.
            first = 2 - count % 2
            points(first)
            writer.loop("block", (count - first) // 2, lambda: points(2))
            return

        def points_of_row(times: int) -> None:
            for _ in range(times):
                moved = self._point(writer, lanes)
                writer.add("source", self.column_step - moved)

        def one_row() -> None:
            if columns > _MOST_COLUMNS:
                turns, rest = divmod(columns, _COLUMNS_PER_TURN)
                writer.loop("column", turns, lambda: points_of_row(_COLUMNS_PER_TURN))
                points_of_row(rest)
                writer.add("source", self.row_step - columns * self.column_step)
                return
            points_of_row(columns - 1)
            moved = self._point(writer, lanes)
            writer.add("source", self.row_step - (columns - 1) * self.column_step - moved)

        def one_block() -> None:
            writer.loop("row", rows, one_row)
            writer.add("source", self.plane_step - rows * self.row_step)

        if writer.unbegun:
            # Sums begin in a row that is in no loop.
            one_row()
            writer.loop("row", rows - 1, one_row)
            writer.add("source", self.plane_step - rows * self.row_step)
            count -= 1
        writer.loop("block", count, one_block)

    def _ahead(self, writer: Writer, count: int, lanes: range) -> None:
        """The same by `LoadsAhead`, in turns as long as instructions have room for."""
        rows, columns = self.kernel
        ahead = LoadsAhead(writer, pixel_step=self.pixel_step, lanes=lanes)
        row = [self.column_step] * (columns - 1)
        behind_row = self.row_step - (columns - 1) * self.column_step
        behind_block = self.plane_step - rows * self.row_step
        if rows * columns <= _MOST_POINTS:
            window = [*row, behind_row] * (rows - 1) + [*row, behind_row + behind_block]
            ahead.loop("block", count, window)
        elif columns <= _MOST_COLUMNS:

            def one_block() -> None:
                ahead.loop("row", rows, [*row, behind_row])
                writer.add("source", behind_block)

            writer.loop("block", count, one_block)
        else:

            def one_row() -> None:
                ahead.loop("column", columns, [self.column_step])
                writer.add("source", self.row_step - columns * self.column_step)

            def rows_of_block() -> None:
                writer.loop("row", rows, one_row)
                writer.add("source", behind_block)

            writer.loop("block", count, rows_of_block)

    def _point(self, writer: Writer, lanes: range) -> int:
        """One point of the window in one block; the bytes that the source pointer moved."""
        vectors, pixels = len(writer.accumulators), len(writer.accumulators[0])
        inputs, ring = writer.free[:pixels], writer.free[pixels:]
        moved = 0
        if self.pixel_step == QUAD:
            writer.load(inputs, "source", advance=False)
        else:
            moved = writer.move_all_strided("ld", inputs, "source", self.pixel_step)
        for used, vector in writer.stream(ring, len(lanes) * vectors, "weights"):
            lane, v = divmod(used, vectors)
            for r in range(pixels):
                writer.add_product_lane(writer.accumulators[v][r], vector, inputs[r], lanes[lane])
        return moved


@dataclass(frozen=True, kw_only=True)
class ConvolveInParts(Convolve):
    """The same where a long sum would lose what is added to it, all in half precision, or some:
    it is cut into equal parts that are added up in memory."""

    def write(self, writer: Writer) -> None:
        """Write the loops over parts, and what is in each."""
        lanes = writer.isa.lanes
        parts = -(-self.blocks * prod(self.kernel) * lanes // self.chain)
        blocks = -(-self.blocks // parts) if parts else 0
        before = (self.blocks - 1) // blocks if blocks else 0
        if before < 1:
            super().write(writer)
            return
        sums = [sum_ for accumulators in writer.accumulators for sum_ in accumulators]
        totals = writer.scratch(QUAD * len(sums))
        every = range(lanes)

        def add() -> None:
            for first in range(0, len(sums), len(writer.free)):
                some = sums[first : first + len(writer.free)]
                others = writer.free[: len(some)]
                writer.load_addends(others, totals, advance=False, first=first)
                for sum_, other in zip(some, others, strict=True):
                    writer.binary("add", sum_, sum_, other)

        def part() -> None:
            writer.unbegun = set(sums)
            self._blocks(writer, blocks, every)
            add()
            writer.store(sums, totals)

        self._blocks(writer, blocks, every)
        writer.store(sums, totals)
        writer.loop("part", before - 1, part)
        writer.unbegun = set(sums)
        # The last part may be longer than a chain, as the others: another cut would keep its sums
        # where these are.
        super(ConvolveInParts, replace(self, blocks=self.blocks - before * blocks)).write(writer)
        add()


@dataclass(frozen=True, kw_only=True)
class Depthwise:
    """Sums over the window of one block of channels.

    A window row's weights are the lowest registers. Its inputs come in batches, each loaded once
    and used by all pixels whose window it is in; half of the other registers hold the batch in
    use, the next one is loaded into the other half between the multiply-adds. Those go by column
    of the window, so that one sum's follow each other at a distance: each takes four cycles.
    """

    kernel: tuple[int, int]
    stride: int
    row_step: int

    def moved(self, isa: Isa, pixels: int) -> dict[str, int]:
        """How many bytes further the pointers are behind a tile."""
        rows, columns = self.kernel
        inputs = self._inputs(pixels)
        return {
            "source": (rows - 1) * self.row_step + (0 if isa.reaches(inputs) else QUAD * inputs),
            "weights": 0 if isa.reaches(rows * columns) else QUAD * rows * columns,
        }

    def _inputs(self, pixels: int) -> int:
        """Inputs under one row of the windows."""
        return (pixels - 1) * self.stride + self.kernel[1]

    def write(self, writer: Writer) -> None:
        """Write the window's rows."""
        rows, columns = self.kernel
        weights, ring = writer.free[:columns], writer.free[columns:]
        inputs = self._inputs(len(writer.accumulators[0]))
        most = min(MOST_AT_ONCE, len(ring) // 2)
        batches = [range(at, min(at + most, inputs)) for at in range(0, inputs, most)]
        halves = (ring[:most], ring[most : 2 * most])
        turns = [(row, batch) for row in range(rows) for batch in batches]

        def load(turn: int) -> None:
            """Load a batch: all that comes before in the ring has been used."""
            row, batch = turns[turn]
            vectors, stays = halves[turn % 2][: len(batch)], writer.isa.reaches(inputs)
            if row and batch is batches[0]:
                writer.add("source", self.row_step - (0 if stays else QUAD * inputs))
            if stays:
                writer.load(vectors, "source", advance=False, first=batch[0])
            else:
                writer.load(vectors, "source", advance=True)

        def load_weights(row: int) -> None:
            if writer.isa.reaches(rows * columns):
                writer.load(weights, "weights", advance=False, first=row * columns)
            else:
                writer.load(weights, "weights", advance=True)

        with writer.apart_from_products():
            load(0)
            load_weights(0)
        for turn, (row, batch) in enumerate(turns):
            if row and batch is batches[0]:
                load_weights(row)
            if turn + 1 < len(turns):
                load(turn + 1)
            for column, at in product(range(columns), batch):
                pixel, between = divmod(at - column, self.stride)
                if between == 0 and 0 <= pixel < len(writer.accumulators[0]):
                    vector = halves[turn % 2][at - batch[0]]
                    writer.add_product(writer.accumulators[0][pixel], vector, weights[column])
