"""Whole tiles: reduced, the bias added, finished, stored; and rows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from edgepack.kernels.tiles.arm.isa import QUAD, Isa
from edgepack.kernels.tiles.arm.reductions import Depthwise, Reduction
from edgepack.kernels.tiles.arm.writer import Writer
from edgepack.kernels.tiles.arm.writers import writer_of


@dataclass(frozen=True, kw_only=True)
class EpilogueStep:
    """What is done to a sum before it is stored: "maximum" or "minimum" with `value`, or
    "add" of the operand tensor."""

    name: str
    value: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AssemblyTile:
    """All that a tile's code depends on: `pixels` x `vectors` accumulators.

    `out_step` and `operand_step` are the bytes from one vector's plane to the next's, in the
    target and in the tensor that `finish` adds; `pixel_step` those from a pixel of either to the
    next. With a `total_step` the sum of each vector's pixels is stored as well, so many bytes
    apart. The bias is added to sums that are done, for the large number that it may be would round
    each product away that follows; they start with it if `bias_first`, where it is mostly zero.
    """

    isa: Isa
    pixels: int
    vectors: int
    reduction: Reduction
    finish: tuple[EpilogueStep, ...]
    out_step: int
    operand_step: int
    pixel_step: int = QUAD
    total_step: int | None = None
    bias_first: bool = False

    @property
    def pointers(self) -> tuple[str, ...]:
        """What its code takes, in this order."""
        added = ("operand",) if any(item.name == "add" for item in self.finish) else ()
        total = () if self.total_step is None else ("total",)
        return ("target", "source", "weights", "bias", *added, *total)

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name` of `pointers`."""
        writer = writer_of(self.isa, self.pointers)
        self.write(writer)
        if not writer.labels:
            # LLVM's loop over such tiles is the innermost one, and wants registers, too.
            writer = writer_of(self.isa, self.pointers)
            writer.leaves_registers = True
            self.write(writer)
        return writer.llvm_ir(name)

    def write(self, writer: Writer) -> None:
        """Write it all. Of one vector, only the reduction moves pointers."""
        writer.hold(self.pixels, self.vectors)
        self._sum_up(writer)
        for is_sum, some in groupby(self.finish, key=lambda item: item.name == "add"):
            if is_sum:
                for _ in some:
                    self._add_operand(writer)
            else:
                self._bound(writer, list(some))
        moved = 0
        for v, accumulators in enumerate(writer.accumulators):
            if v:
                writer.add("target", self.out_step - moved)
            if self.pixel_step == QUAD:
                writer.store(accumulators, "target")
            else:
                moved = writer.move_all_strided("st", accumulators, "target", self.pixel_step)
        if self.total_step is not None:
            self._add_up(writer, self.total_step)

    def _sum_up(self, writer: Writer) -> None:
        """All products, and the bias."""
        if self.bias_first:
            for v, accumulators in enumerate(writer.accumulators):
                with writer.apart_from_products():
                    writer.load(accumulators[:1], "bias", advance=v + 1 < self.vectors)
                for total in accumulators[1:]:
                    writer.move(total, accumulators[0])
            self.reduction.write(writer)
            return
        writer.unbegun = {total for some in writer.accumulators for total in some}
        self.reduction.write(writer)
        writer.begin_sums()
        registers = writer.free[: self.vectors]
        for v, accumulators in enumerate(writer.accumulators):
            bias = registers[v % len(registers)]
            writer.load_addends([bias], "bias", advance=v + 1 < self.vectors)
            for total in accumulators:
                writer.binary("add", total, total, bias)

    def _add_up(self, writer: Writer, step: int) -> None:
        """Add up the pixels of each vector, which are stored already.

        The vectors take turns, for an addition waits several cycles for the one before.
        """
        count = self.pixels
        while count > 1:
            half = count // 2
            for i in range(half):
                for accumulators in writer.accumulators:
                    writer.binary(
                        "add", accumulators[i], accumulators[i], accumulators[count - half + i]
                    )
            count -= half
        for v, accumulators in enumerate(writer.accumulators):
            if v:
                writer.add("total", step)
            writer.store(accumulators[:1], "total")

    def _add_operand(self, writer: Writer) -> None:
        """Add the operand, whose pixels are as far from each other as the target's."""
        for v, accumulators in enumerate(writer.accumulators):
            if v:
                writer.add("operand", self.operand_step)
            for index, other in self._operands(writer, len(accumulators)):
                writer.binary("add", accumulators[index], accumulators[index], other)

    def _operands(self, writer: Writer, count: int) -> Iterator[tuple[int, int]]:
        """Load the operand's vector for each of `count` pixels, and yield (index, register)."""
        ring = writer.free
        if self.pixel_step == QUAD:
            yield from writer.stream(ring, count, "operand")
            writer.add("operand", -QUAD * count)
            return
        moved = 0
        for first in range(0, count, len(ring)):
            loaded = list(zip(range(first, count), ring, strict=False))
            for index, other in loaded:
                moved += writer.move_strided(
                    "ld", other, "operand", step=self.pixel_step, index=index, count=count
                )
            yield from loaded
        writer.add("operand", -moved)

    def _bound(self, writer: Writer, bounds: Sequence[EpilogueStep]) -> None:
        """Maxima and minima: one after the other, unless what is done can be stored meanwhile."""
        together = bounds[: len(writer.free) if writer.loads_ahead else 1]
        for bound, register in zip(together, writer.free, strict=False):
            writer.set_vector(register, bound.value)
        for accumulators in writer.accumulators:
            for total in accumulators:
                for bound, register in zip(together, writer.free, strict=False):
                    writer.binary(bound.name, total, total, register)
        if len(together) < len(bounds):
            self._bound(writer, bounds[len(together) :])


@dataclass(frozen=True, kw_only=True)
class TileRows:
    """Tiles of one vector side by side, in rows: as many of `tile` as `width` pixels have room for,
    and a smaller one.

    Left to LLVM these loops are unrolled, on 32-bit ARM until the addresses of all their tiles are
    on the stack. The steps are bytes from one row to the next.
    """

    tile: AssemblyTile
    width: int
    source_step: int
    target_step: int
    operand_step: int
    total_step: int

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name` of the tile's pointers and the number of rows, at least one."""
        writer = writer_of(self.tile.isa, self.tile.pointers, counts=("rows",))
        writer.repeat("rows", lambda: self._row(writer))
        return writer.llvm_ir(name)

    def _row(self, writer: Writer) -> None:
        size = self.tile.pixels
        full, rest = divmod(self.width, size)
        # Where the pointers are, from the start of the row.
        at = dict.fromkeys(self.tile.pointers, 0)

        def go(to: Mapping[str, int]) -> None:
            for pointer in self.tile.pointers:
                writer.add(pointer, to[pointer] - at[pointer])
            at.update(to)

        def tile(pixels: int) -> None:
            replace(self.tile, pixels=pixels).write(writer)
            for pointer, moved in self._reduction.moved(writer.isa, pixels).items():
                at[pointer] += moved

        def one_of_many() -> None:
            tile(size)
            go(self._behind(size))

        if full > 1:
            writer.loop("tile", full, one_of_many)
            at.update(self._behind(size * full, full))
        elif full:
            tile(size)
        # What is done once per row needs no registers of its own.
        with writer.sparing():
            if full and rest:
                go(self._behind(size * full, full))
            if rest:
                tile(rest)
            go(
                {
                    "target": self.target_step,
                    "source": self.source_step,
                    "weights": 0,
                    "bias": 0,
                    "operand": self.operand_step,
                    "total": self.total_step,
                }
            )

    def _behind(self, pixels: int, tiles: int = 1) -> dict[str, int]:
        """Where the pointers should be behind some tiles."""
        return {
            "target": QUAD * pixels,
            "source": QUAD * pixels * self._reduction.stride,
            "weights": 0,
            "bias": 0,
            "operand": QUAD * pixels,
            "total": QUAD * tiles,
        }

    @property
    def _reduction(self) -> Depthwise:
        assert isinstance(self.tile.reduction, Depthwise)
        return self.tile.reduction
