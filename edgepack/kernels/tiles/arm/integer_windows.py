"""Depthwise convolutions of 8-bit integers: two products of 16 bits are added up, then widened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from edgepack.kernels.tiles.arm.isa import QUAD, Isa
from edgepack.kernels.tiles.arm.rounding import RoundedEnd
from edgepack.kernels.tiles.arm.writer import Writer
from edgepack.kernels.tiles.arm.writers import writer_of
from edgepack.kernels.tiles.element import INT8

# Registers of weights, of products, and of inputs: two each for two pixels.
_WEIGHTS, _PRODUCTS, _INPUTS = (0, 1), (2, 3), (4, 5, 6, 7)

# A point of the image: a row and a column of the window, as far from the tile's first pixel.
_Point = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class IntegerDepthwise(RoundedEnd):
    """A tile of one or two pixels of a block, for ARMv7, whose 16 registers LLVM does not get by
    with. Weights are at least -127. Steps are `stride` and `dilation` pixels across, `row_step`
    bytes down."""

    window: tuple[int, int]
    stride: int
    dilation: int
    row_step: int

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name(target, source, weights, bias, factor)` of pointers."""
        isa = Isa(name="armv7", registers=16, element=INT8)
        writer = writer_of(isa, ("target", "source", "weights", "bias", "factor"))
        writer.hold(self.pixels, 4, by_pixels=True)
        for totals in zip(*writer.accumulators, strict=True):
            writer.load_at_once(totals, "bias")
        # There are more distances than core registers.
        with writer.sparing():
            self._reduce(writer)
        self.finish_block_in_32_bits(writer)
        return writer.llvm_ir(name)

    def _reduce(self, writer: Writer) -> None:
        points = list(product(*map(range, self.window)))
        held: dict[_Point, int] = {}
        at = 0
        for first in range(0, len(points), 2):
            pair = points[first : first + 2]
            wanted = [(i, self._across(r, j)) for i, j in pair for r in range(self.pixels)]
            # What was loaded for the pair before is used again, or makes room.
            held = {point: register for point, register in held.items() if point in wanted}
            left = [register for register in _INPUTS if register not in held.values()]
            missing = sorted({*wanted} - {*held})
            for some in self._runs(missing, left):
                (row, column), count = next(iter(some)), len(some)
                offset = row * self.row_step + column * QUAD
                writer.add("source", offset - at)
                writer.load(list(some.values()), "source", advance=True)
                at = offset + count * QUAD
                held |= some
            writer.load(_WEIGHTS[: len(pair)], "weights", advance=True)
            for r in range(self.pixels):
                inputs = [held[i, self._across(r, j)] for i, j in pair]
                self._add_products(writer, r, inputs)

    def _across(self, pixel: int, column: int) -> int:
        return pixel * self.stride + column * self.dilation

    def _runs(self, points: list[_Point], registers: list[int]) -> Iterator[dict[_Point, int]]:
        """Registers for points, together where both lie side by side."""
        some: dict[_Point, int] = {}
        for (row, column), register in zip(points, registers, strict=False):
            if some and some.get((row, column - 1)) != register - 1:
                yield some
                some = {}
            some[row, column] = register
        if some:
            yield some

    def _add_products(self, writer: Writer, pixel: int, inputs: list[int]) -> None:
        lines = writer.lines
        for name, weight, given in zip(("vmull", "vmlal"), _WEIGHTS, inputs, strict=False):
            lines += [
                f"{name}.s8 q{to}, d{2 * weight + half}, d{2 * given + half}"
                for half, to in enumerate(_PRODUCTS)
            ]
        for v, totals in enumerate(writer.accumulators):
            total, both = totals[pixel], 2 * _PRODUCTS[0] + v
            lines.append(f"vaddw.s16 q{total}, q{total}, d{both}")
