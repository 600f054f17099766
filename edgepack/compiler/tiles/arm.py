"""Tiles of convolutions in assembly, for ARM.

Left to itself LLVM reorders the loads of such a loop until the sums no longer fit the
registers, on 32-bit ARM above all (16 registers: up to 46 stack accesses per 32 multiply-adds).
Here a whole tile (start with the bias, reduce, finish, store) is one block of inline assembly,
so that every register is where the tile's size said it would be. Tiles with no loop of their own,
the depthwise ones, come with those over the tiles of a row and over rows (`Rows`).

The R x V sums of a tile are the highest registers. The lower ones are the reduction's.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from edgepack.compiler.tiles.cpu import CpuModel
from edgepack.compiler.tiles.element import FLOAT32, Element

# Bytes of a vector register.
QUAD = 16
# What the tiles are of, and how many of them are in a register.
ELEMENT = FLOAT32
LANES = ELEMENT.lanes(QUAD)
# How both instruction sets call the operations of `Writer.binary`, after v or f.
_BINARY = {"maximum": "max", "minimum": "min", "add": "add", "subtract": "sub"}
# vldm and vstm of ARMv7 move at most 16 double registers.
_MOST_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Isa:
    """An instruction set that tiles can be written in."""

    name: str
    registers: int

    @classmethod
    def of(cls, cpu: CpuModel, element: Element) -> Isa | None:
        """The instruction set of a CPU, None if no tiles of such elements can be written in it."""
        if element != ELEMENT or cpu.isa not in _WRITERS:
            return None
        return cls(name=cpu.isa, registers=cpu.registers)

    def fits_convolution(self, pixels: int, vectors: int) -> bool:
        """Whether a tile leaves at least two registers for weights."""
        # ARMv7 takes lanes of q0 to q7 only, and the inputs are the lowest registers.
        most = _MOST_AT_ONCE if self.name == "armv7" else 16
        return pixels <= most and pixels * vectors + pixels + 2 <= self.registers

    def most_depthwise(self, columns: int) -> int:
        """Pixels of the largest depthwise tile that leaves some registers for inputs; may be 0."""
        # Two are enough to get by; what waits for a load, as in-order cores do, wants more.
        most, inputs = (_MOST_AT_ONCE, 2) if self.name == "armv7" else (16, 6)
        return max(0, min(most, self.registers - columns - inputs))

    def reaches(self, vectors: int) -> bool:
        """Whether instructions can address so many vectors from one pointer, which stays.

        So each load can start at once: a pointer that moves makes them wait for each other.
        """
        # The offset of ldp has seven bits, signed, in units of the vector's size.
        return self.name == "aarch64" and vectors <= 64


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What is done to a sum before it is stored: "maximum" or "minimum" with `value`, or
    "add" of the operand tensor."""

    name: str
    value: float = 0.0


class Reduction(Protocol):
    """What a tile adds to its sums; all steps of reductions are distances in bytes."""

    def write(self, writer: Writer) -> None:
        """Write it, with the registers of `writer.free`."""


@dataclass(frozen=True, kw_only=True)
class Convolve:
    """Sums over input channels. Four channels of a pixel are one register, and multiply-adds
    take one lane of it:

        sum[r][v] += weights[v] * input[r].lane[k]        for k in 0..3

    The inputs of the R pixels are the lowest registers; the others are a ring that the weights
    stream through in the order of use, refilled as soon as there is room.
    `blocks` whole input blocks are followed by one of `last_lanes` channels (0: by none). With
    `back` that one starts so many channels earlier: they count as they did before, and nothing
    behind the last channel is read.
    """

    blocks: int
    last_lanes: int
    kernel: tuple[int, int]
    pixel_step: int
    column_step: int
    row_step: int
    plane_step: int
    back: int = 0

    def write(self, writer: Writer) -> None:
        """Write the loops over blocks and window rows."""
        if self.blocks:
            self._blocks(writer, self.blocks, range(LANES))
        if self.last_lanes:
            writer.add("source", -ELEMENT.bytes * self.back)
            self._blocks(writer, 1, range(self.back, self.back + self.last_lanes))

    def _blocks(self, writer: Writer, count: int, lanes: range) -> None:
        """Reduce over `count` input blocks of which `lanes` count."""
        rows, columns = self.kernel
        if rows == columns == 1:

            def points(times: int) -> None:
                for _ in range(times):
                    moved = self._point(writer, lanes)
                    writer.add("source", self.plane_step - moved)

            # Two blocks per turn: half the counting.
            writer.loop("block", count // 2, lambda: points(2))
            writer.loop("block", count % 2, lambda: points(1))
            return

        def one_row() -> None:
            for _ in range(columns - 1):
                moved = self._point(writer, lanes)
                writer.add("source", self.column_step - moved)
            moved = self._point(writer, lanes)
            writer.add("source", self.row_step - (columns - 1) * self.column_step - moved)

        def one_block() -> None:
            writer.loop("row", rows, one_row)
            writer.add("source", self.plane_step - rows * self.row_step)

        writer.loop("block", count, one_block)

    def _point(self, writer: Writer, lanes: range) -> int:
        """One point of the window in one block; the bytes that the source pointer moved."""
        vectors, pixels = len(writer.sums), len(writer.sums[0])
        inputs, ring = writer.free[:pixels], writer.free[pixels:]
        moved = 0
        if self.pixel_step == QUAD:
            writer.load(inputs, "source", advance=False)
        else:
            moved = writer.move_all_strided("ld", inputs, "source", self.pixel_step)
        for used, vector in writer.stream(ring, len(lanes) * vectors, "weights"):
            lane, v = divmod(used, vectors)
            for r in range(pixels):
                writer.multiply_add_lane(writer.sums[v][r], vector, inputs[r], lanes[lane])
        return moved


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
        inputs = self._inputs(len(writer.sums[0]))
        most = min(_MOST_AT_ONCE, len(ring) // 2)
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

        load(0)
        for turn, (row, batch) in enumerate(turns):
            if batch is batches[0]:
                load_weights(row)
            if turn + 1 < len(turns):
                load(turn + 1)
            for column, at in product(range(columns), batch):
                pixel, between = divmod(at - column, self.stride)
                if between == 0 and 0 <= pixel < len(writer.sums[0]):
                    vector = halves[turn % 2][at - batch[0]]
                    writer.multiply_add(writer.sums[0][pixel], vector, weights[column])


@dataclass(frozen=True, kw_only=True)
class Tile:
    """All that a tile's code depends on: `pixels` x `vectors` sums.

    `out_step` and `operand_step` are the bytes from one vector's plane to the next's, in the
    target and in the tensor that `finish` adds; `pixel_step` those from a pixel of the target to
    the next. With a `total_step` the sum of each vector's pixels is stored as well, so many bytes
    apart.
    """

    isa: Isa
    pixels: int
    vectors: int
    reduction: Reduction
    finish: tuple[Finish, ...]
    out_step: int
    operand_step: int
    pixel_step: int = QUAD
    total_step: int | None = None

    @property
    def pointers(self) -> tuple[str, ...]:
        """What its code takes, in this order."""
        added = ("operand",) if any(item.name == "add" for item in self.finish) else ()
        total = () if self.total_step is None else ("total",)
        return ("target", "source", "weights", "bias", *added, *total)

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name` of `pointers`."""
        writer = Writer.of(self.isa, self.pointers)
        self.write(writer)
        return writer.llvm_ir(name)

    def write(self, writer: Writer) -> None:
        """Write it all. Of one vector, only the reduction moves pointers."""
        writer.hold(self.pixels, self.vectors)
        for v, sums in enumerate(writer.sums):
            writer.load(sums[:1], "bias", advance=v + 1 < self.vectors)
            for total in sums[1:]:
                writer.move(total, sums[0])
        self.reduction.write(writer)
        for finish in self.finish:
            self._finish(writer, finish)
        moved = 0
        for v, sums in enumerate(writer.sums):
            if v:
                writer.add("target", self.out_step - moved)
            if self.pixel_step == QUAD:
                writer.store(sums, "target")
            else:
                moved = writer.move_all_strided("st", sums, "target", self.pixel_step)
        if self.total_step is not None:
            self._add_up(writer, self.total_step)

    def _add_up(self, writer: Writer, step: int) -> None:
        """The sums of each vector's pixels, which are stored already; all vectors in turn, for
        an addition takes as long as several instructions."""
        count = self.pixels
        while count > 1:
            half = count // 2
            for i in range(half):
                for sums in writer.sums:
                    writer.binary("add", sums[i], sums[i], sums[count - half + i])
            count -= half
        for v, sums in enumerate(writer.sums):
            if v:
                writer.add("total", step)
            writer.store(sums[:1], "total")

    def _finish(self, writer: Writer, finish: Finish) -> None:
        if finish.name == "add":
            for v, sums in enumerate(writer.sums):
                if v:
                    writer.add("operand", self.operand_step)
                for index, other in writer.stream(writer.free, len(sums), "operand"):
                    writer.binary("add", sums[index], sums[index], other)
                writer.add("operand", -QUAD * len(sums))
            return
        bound = writer.free[0]
        writer.set_vector(bound, finish.value)
        for sums in writer.sums:
            for total in sums:
                writer.binary(finish.name, total, total, bound)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Tiles of one vector side by side, in rows: as many of `tile` as `width` pixels have room for,
    and a smaller one.

    Left to LLVM these loops are unrolled, on 32-bit ARM until the addresses of all their tiles are
    on the stack. The steps are bytes from one row to the next.
    """

    tile: Tile
    width: int
    source_step: int
    target_step: int
    operand_step: int
    total_step: int

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name` of the tile's pointers and the number of rows, at least one."""
        writer = Writer.of(self.tile.isa, self.tile.pointers, counts=("rows",))
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


class Writer(ABC):
    """Writes the assembly of one tile. Core registers have names; the assembler's text refers
    to them as {name}. Vector registers are numbers."""

    # How LLVM calls vector registers and integers of a core register's size.
    vector_prefix = ""
    word = ""
    # What makes one of an int32.
    widen = ""

    def __init__(self, isa: Isa, pointers: Sequence[str], counts: Sequence[str]) -> None:
        self.isa = isa
        self.pointers, self.counts = tuple(pointers), tuple(counts)
        self.lines: list[str] = []
        self.temporaries: list[str] = []
        self.constants: dict[int, str] = {}
        self.keeps_constants = True
        self.labels = 0
        self.free = list(range(isa.registers))
        self.sums: list[list[int]] = []

    @staticmethod
    def of(isa: Isa, pointers: Sequence[str], counts: Sequence[str] = ()) -> Writer:
        """A writer for an instruction set; `pointers` are the function's arguments, `counts` those
        after them, positive int32."""
        return _WRITERS[isa.name](isa, pointers, counts)

    def hold(self, pixels: int, vectors: int) -> None:
        """Keep the highest registers for sums: those of a vector lie side by side, as its
        pixels do in memory."""
        first = self.isa.registers - pixels * vectors
        self.free = list(range(first))
        self.sums = [[first + v * pixels + r for r in range(pixels)] for v in range(vectors)]

    # ------------------------------------------------ what instruction sets differ in

    @abstractmethod
    def set_constant(self, register: str, value: int) -> None:
        """Put a 32-bit pattern, or a (negative) distance, into a core register."""

    @abstractmethod
    def add(self, register: str, value: int) -> None:
        """Move a pointer."""

    @abstractmethod
    def load(self, vectors: Sequence[int], register: str, *, advance: bool, first: int = 0) -> None:
        """Load vectors that follow each other in memory and by number.

        Without `advance` they start so many vectors behind the pointer, which `Isa.reaches`.
        """

    @abstractmethod
    def move_strided(
        self, name: str, vector: int, register: str, *, step: int, index: int, count: int
    ) -> int:
        """Load ("ld") or store ("st") the `index`-th of `count` vectors that lie `step` bytes
        apart, in this order; the bytes that the pointer moved."""

    @abstractmethod
    def store(self, vectors: Sequence[int], register: str) -> None:
        """Store vectors side by side."""

    @abstractmethod
    def multiply_add_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        """total += vector * lanes[lane]"""

    @abstractmethod
    def multiply_add(self, total: int, left: int, right: int) -> None:
        """total += left * right"""

    @abstractmethod
    def multiply_subtract_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        """total -= vector * lanes[lane]"""

    @abstractmethod
    def multiply_lane(self, to: int, vector: int, lanes: int, lane: int) -> None:
        """to = vector * lanes[lane]"""

    @abstractmethod
    def negate(self, to: int, vector: int) -> None:
        """to = -vector"""

    @abstractmethod
    def binary(self, name: str, to: int, left: int, right: int) -> None:
        """to = maximum, minimum, sum ("add") or difference ("subtract") of left and right"""

    @abstractmethod
    def move(self, to: int, vector: int) -> None:
        """Copy a vector."""

    @abstractmethod
    def spread(self, vector: int, register: str) -> None:
        """A core register's 32 bits in every lane."""

    @abstractmethod
    def count_down(self, register: str, label: int) -> None:
        """Decrement, and jump back unless zero."""

    # ------------------------------------------------ pieces

    def move_all_strided(self, name: str, vectors: Sequence[int], register: str, step: int) -> int:
        """The same for all of some vectors."""
        count = len(vectors)
        return sum(
            self.move_strided(name, vector, register, step=step, index=index, count=count)
            for index, vector in enumerate(vectors)
        )

    def set_vector(self, vector: int, value: float) -> None:
        """A number in every lane."""
        bits = self._temporary("bits")
        self.set_constant(bits, _float_bits(value))
        self.spread(vector, bits)

    def stream(self, ring: Sequence[int], count: int, register: str) -> Iterator[tuple[int, int]]:
        """Load `count` vectors through a ring of registers, and yield (index, register) of each.

        What is written between two yields is done with the vector. The pointer moves along.
        """
        size = len(ring)
        loaded = 0
        for used in range(count):
            start = loaded % size
            room = min(size - start, count - loaded, size - (loaded - used))
            # As many at once as one instruction can, but never a single one ahead of time
            # unless it is the last.
            together = min(room, _MOST_AT_ONCE) & ~1 or room
            if together > 1 or (room and (loaded == used or count - loaded == 1)):
                self.load(ring[start : start + together], register, advance=True)
                loaded += together
            yield used, ring[used % size]

    def loop(self, name: str, count: int, body: Callable[[], None]) -> None:
        """`count` turns of what `body` writes."""
        if count == 1:
            body()
        elif count > 1:
            counter = self._temporary(name)
            self.set_constant(counter, count)
            self.repeat(counter, body)

    def repeat(self, counter: str, body: Callable[[], None]) -> None:
        """As many turns as a core register says, which is zero then."""
        self.labels += 1
        label = self.labels
        self.lines.append(f"{label}:")
        body()
        self.count_down(counter, label)

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Write code that takes no core registers for constants."""
        self.keeps_constants = False
        yield
        self.keeps_constants = True

    def add_large(self, register: str, value: int) -> None:
        """Move a pointer by what no instruction can hold."""
        if self.keeps_constants:
            held = self.kept(value)
        else:
            held = self._temporary("bits")
            self.set_constant(held, value)
        self.lines.append(f"add {{{register}}}, {{{register}}}, {{{held}}}")

    def _temporary(self, name: str) -> str:
        if name not in self.temporaries:
            self.temporaries.append(name)
        return name

    def kept(self, value: int) -> str:
        """A core register that holds a constant from the start on."""
        if value not in self.constants:
            self.constants[value] = self._temporary(f"constant{len(self.constants)}")
        return self.constants[value]

    def llvm_ir(self, name: str) -> str:
        """The function around the assembly."""
        body, self.lines = self.lines, []
        for value, register in self.constants.items():
            self.set_constant(register, value)
        lines = self.lines + body
        given = [*self.pointers, *self.counts]
        registers = [*given, *self.temporaries]
        numbers = {register: f"${index}" for index, register in enumerate(registers)}
        numbers |= {f"{register}_w": f"${{{index}:w}}" for index, register in enumerate(registers)}
        text = "\\0A".join(line.format(**numbers) for line in lines)
        outputs = ["=&r"] * len(registers)
        inputs = [str(index) for index in range(len(given))]
        vectors = [f"~{{{self.vector_prefix}{index}}}" for index in range(self.isa.registers)]
        constraints = ",".join([*outputs, *inputs, *vectors, "~{cc}", "~{memory}"])
        words = len(self.counts) + len(self.temporaries)
        types = ", ".join(["ptr"] * len(self.pointers) + [self.word] * words)
        pointers = [f"ptr %{pointer}" for pointer in self.pointers]
        arguments = ", ".join([*pointers, *(f"i32 %{count}" for count in self.counts)])
        passed = ", ".join([*pointers, *(f"{self.word} %{count}_word" for count in self.counts)])
        widened = "".join(
            f"  %{count}_word = {self.widen} i32 %{count} to {self.word}\n" for count in self.counts
        )
        # Without a loop of its own it looks small to LLVM, which would unroll a whole row of tiles
        # and keep all their addresses on the stack.
        once = "" if self.labels else " noduplicate"
        return (
            f"define internal i32 @{name}({arguments}) alwaysinline nounwind {{\n"
            f"{widened}"
            f'  %r = call {{ {types} }} asm sideeffect "{text}", "{constraints}"({passed}){once}\n'
            "  ret i32 0\n"
            "}\n"
        )


class _Armv7(Writer):
    vector_prefix = "q"
    word = "i32"
    widen = "bitcast"

    def set_constant(self, register: str, value: int) -> None:
        value &= 0xFFFFFFFF
        self.lines.append(f"movw {{{register}}}, #{value & 0xFFFF}")
        if value >> 16:
            self.lines.append(f"movt {{{register}}}, #{value >> 16}")

    def add(self, register: str, value: int) -> None:
        if value == 0:
            return
        name = "add" if value > 0 else "sub"
        if _encodable(abs(value)):
            self.lines.append(f"{name} {{{register}}}, {{{register}}}, #{abs(value)}")
        else:
            self.add_large(register, value)

    def load(self, vectors: Sequence[int], register: str, *, advance: bool, first: int = 0) -> None:
        mark = "!" if advance else ""
        assert not first and (advance or len(vectors) <= _MOST_AT_ONCE)
        for start in range(0, len(vectors), _MOST_AT_ONCE):
            some = _doubles(vectors[start : start + _MOST_AT_ONCE])
            self.lines.append(f"vldmia {{{register}}}{mark}, {some}")

    def move_strided(
        self, name: str, vector: int, register: str, *, step: int, index: int, count: int
    ) -> int:
        after = "!" if step == QUAD else f", {{{self.kept(step)}}}"
        self.lines.append(f"v{name}1.32 {_doubles([vector])}, [{{{register}}}]{after}")
        return step

    def store(self, vectors: Sequence[int], register: str) -> None:
        self.lines.append(f"vstmia {{{register}}}, {_doubles(vectors)}")

    def multiply_add_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        # There is no fused form by lane on ARMv7.
        self.lines.append(f"vmla.f32 q{total}, q{vector}, d{2 * lanes + lane // 2}[{lane % 2}]")

    def multiply_add(self, total: int, left: int, right: int) -> None:
        self.lines.append(f"vmla.f32 q{total}, q{left}, q{right}")

    def multiply_subtract_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        self.lines.append(f"vmls.f32 q{total}, q{vector}, d{2 * lanes + lane // 2}[{lane % 2}]")

    def multiply_lane(self, to: int, vector: int, lanes: int, lane: int) -> None:
        self.lines.append(f"vmul.f32 q{to}, q{vector}, d{2 * lanes + lane // 2}[{lane % 2}]")

    def negate(self, to: int, vector: int) -> None:
        self.lines.append(f"vneg.f32 q{to}, q{vector}")

    def binary(self, name: str, to: int, left: int, right: int) -> None:
        self.lines.append(f"v{_BINARY[name]}.f32 q{to}, q{left}, q{right}")

    def move(self, to: int, vector: int) -> None:
        self.lines.append(f"vmov q{to}, q{vector}")

    def spread(self, vector: int, register: str) -> None:
        self.lines.append(f"vdup.32 q{vector}, {{{register}}}")

    def count_down(self, register: str, label: int) -> None:
        self.lines.append(f"subs {{{register}}}, {{{register}}}, #1")
        self.lines.append(f"bne {label}b")


class _Aarch64(Writer):
    vector_prefix = "v"
    word = "i64"
    widen = "zext"

    def set_constant(self, register: str, value: int) -> None:
        value &= 0xFFFFFFFFFFFFFFFF
        parts = [value >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
        if value >> 63:
            # A negative distance: start from all ones.
            self.lines.append(f"mov {{{register}}}, #-1")
            first = False
        else:
            self.lines.append(f"movz {{{register}}}, #{parts[0]}")
            first = True
        for index, part in enumerate(parts):
            if (first and index == 0) or part == (0 if first else 0xFFFF):
                continue
            self.lines.append(f"movk {{{register}}}, #{part}, lsl #{16 * index}")

    def add(self, register: str, value: int) -> None:
        if value == 0:
            return
        size, name = abs(value), "add" if value > 0 else "sub"
        if size < 4096:
            self.lines.append(f"{name} {{{register}}}, {{{register}}}, #{size}")
        elif size % 4096 == 0 and size < 4096 * 4096:
            self.lines.append(f"{name} {{{register}}}, {{{register}}}, #{size // 4096}, lsl #12")
        else:
            self.add_large(register, value)

    def load(self, vectors: Sequence[int], register: str, *, advance: bool, first: int = 0) -> None:
        self._move_many("ld", vectors, register, advance=advance, first=first)

    def move_strided(
        self, name: str, vector: int, register: str, *, step: int, index: int, count: int
    ) -> int:
        # An immediate is 12 bits, in units of the vector's size.
        if step % QUAD == 0 and (count - 1) * step < 4096 * QUAD:
            self.lines.append(f"{name}r q{vector}, [{{{register}}}, #{index * step}]")
            return 0
        self.lines.append(f"{name}1 {{{{v{vector}.4s}}}}, [{{{register}}}], {{{self.kept(step)}}}")
        return step

    def store(self, vectors: Sequence[int], register: str) -> None:
        self._move_many("st", vectors, register, advance=False)

    def _move_many(
        self, name: str, vectors: Sequence[int], register: str, *, advance: bool, first: int = 0
    ) -> None:
        """Pairs of vectors by ldp or stp, an odd one by ldr or str."""
        for index in range(0, len(vectors), 2):
            pair = vectors[index : index + 2]
            mnemonic = name + ("p" if len(pair) == 2 else "r")
            names = ", ".join(f"q{vector}" for vector in pair)
            if advance:
                address = f"[{{{register}}}], #{QUAD * len(pair)}"
            else:
                address = f"[{{{register}}}, #{QUAD * (first + index)}]"
            self.lines.append(f"{mnemonic} {names}, {address}")

    def multiply_add_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        self.lines.append(f"fmla v{total}.4s, v{vector}.4s, v{lanes}.s[{lane}]")

    def multiply_add(self, total: int, left: int, right: int) -> None:
        self.lines.append(f"fmla v{total}.4s, v{left}.4s, v{right}.4s")

    def multiply_subtract_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        self.lines.append(f"fmls v{total}.4s, v{vector}.4s, v{lanes}.s[{lane}]")

    def multiply_lane(self, to: int, vector: int, lanes: int, lane: int) -> None:
        self.lines.append(f"fmul v{to}.4s, v{vector}.4s, v{lanes}.s[{lane}]")

    def negate(self, to: int, vector: int) -> None:
        self.lines.append(f"fneg v{to}.4s, v{vector}.4s")

    def binary(self, name: str, to: int, left: int, right: int) -> None:
        self.lines.append(f"f{_BINARY[name]} v{to}.4s, v{left}.4s, v{right}.4s")

    def move(self, to: int, vector: int) -> None:
        self.lines.append(f"mov v{to}.16b, v{vector}.16b")

    def spread(self, vector: int, register: str) -> None:
        self.lines.append(f"dup v{vector}.4s, {{{register}_w}}")

    def count_down(self, register: str, label: int) -> None:
        self.lines.append(f"subs {{{register}}}, {{{register}}}, #1")
        self.lines.append(f"b.ne {label}b")


_WRITERS: dict[str, type[Writer]] = {"armv7": _Armv7, "aarch64": _Aarch64}


def _doubles(vectors: Sequence[int]) -> str:
    """Quad registers as the range of double registers that vldm wants, braces escaped."""
    return f"{{{{d{2 * vectors[0]}-d{2 * vectors[-1] + 1}}}}}"


def _encodable(value: int) -> bool:
    """Whether ARM can add a value as an immediate: 8 bits at an even position."""
    return any(
        value >> shift << shift == value and value >> shift < 256 for shift in range(0, 25, 2)
    )


def _float_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])
