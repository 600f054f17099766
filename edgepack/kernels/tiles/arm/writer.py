"""What writes the instructions of a tile, and gives them registers; the same for all of ARM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from edgepack.kernels.tiles.arm.isa import MOST_AT_ONCE, QUAD, Isa
from edgepack.kernels.tiles.element import FLOAT32, Element

# How both instruction sets call the operations of `Writer.binary`, after v or f.
BINARY = {
    "maximum": "max",
    "minimum": "min",
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
}

# The core register that points to memory on the stack.
_SCRATCH = "scratch"


class Writer(ABC):
    """Writes the assembly of one tile. Core registers have names; the assembler's text refers
    to them as {name}. Vector registers are numbers."""

    # How LLVM calls vector registers and integers of a core register's size.
    vector_prefix = ""
    word = ""
    # The most vectors that `widen` fills at once.
    most_widened = 0
    # What makes one of an int32.
    extend = ""
    # Whether a loop's loads are better written a turn ahead, between its multiply-adds.
    loads_ahead = False
    # Whether `load_halves` costs no more than `load`.
    pairs_pixels = False

    def __init__(self, isa: Isa, pointers: Sequence[str], counts: Sequence[str]) -> None:
        self.isa = isa
        self.pointers, self.counts = tuple(pointers), tuple(counts)
        self.lines: list[str] = []
        self.temporaries: list[str] = []
        self.constants: dict[int, str] = {}
        self.scratch_bytes = 0
        self.keeps_constants = True
        # Whether nothing is multiplied yet that a load could be in the way of.
        self.idle = False
        # Whether no more core registers may be taken than needed.
        self.leaves_registers = False
        self.labels = 0
        self.free = list(range(isa.registers))
        self.accumulators: list[list[int]] = []
        # Sums that have not begun: the first product is written into them, not added.
        self.unbegun: set[int] = set()

    def hold(self, pixels: int, vectors: int, *, by_pixels: bool = False) -> None:
        """Keep the highest registers for accumulators: those of a vector lie side by side, as its
        pixels do in memory, or those of a pixel."""
        first = self.isa.registers - pixels * vectors
        self.free = list(range(first))
        pixel, vector = (vectors, 1) if by_pixels else (1, pixels)
        self.accumulators = [
            [first + v * vector + r * pixel for r in range(pixels)] for v in range(vectors)
        ]

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
    def load_at_once(self, vectors: Sequence[int], register: str) -> None:
        """The same of up to four by one instruction; the pointer stays."""

    @abstractmethod
    def move_strided(
        self, name: str, vector: int, register: str, *, step: int, index: int, count: int
    ) -> int:
        """Load ("ld") or store ("st") the `index`-th of `count` vectors that lie `step` bytes
        apart, in this order; the bytes that the pointer moved."""

    def load_halves(self, vector: int, register: str, places: Sequence[int]) -> None:
        """Load the halves of a vector, or the lower one alone, from so many bytes behind a
        pointer, which stays. Only where writers have `pairs_pixels`."""
        raise NotImplementedError

    @abstractmethod
    def store(self, vectors: Sequence[int], register: str) -> None:
        """Store vectors side by side."""

    @abstractmethod
    def multiply_add_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        """total += vector * lanes[lane]"""

    @abstractmethod
    def multiply_add(self, total: int, left: int, right: int) -> None:
        """total += left * right"""

    def add_product_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        """total += vector * lanes[lane], or = if the sum has not begun"""
        begins = total in self.unbegun
        self.unbegun.discard(total)
        write = self.multiply_lane if begins else self.multiply_add_lane
        write(total, vector, lanes, lane)

    def add_product(self, total: int, left: int, right: int) -> None:
        """total += left * right, or = if the sum has not begun"""
        if total in self.unbegun:
            self.unbegun.discard(total)
            self.binary("multiply", total, left, right)
        else:
            self.multiply_add(total, left, right)

    def begin_sums(self) -> None:
        """Let sums that have not begun be zero, as a loop that adds to them wants it."""
        for total in sorted(self.unbegun):
            self.zero(total)
        self.unbegun.clear()

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
        """to = maximum, minimum, sum ("add"), difference ("subtract") or product ("multiply") of
        left and right"""

    @abstractmethod
    def move(self, to: int, vector: int) -> None:
        """Copy a vector."""

    @abstractmethod
    def zero(self, vector: int) -> None:
        """Zeros in every lane."""

    @abstractmethod
    def widen(self, vectors: Sequence[int], register: str) -> None:
        """Load halves and make float32 of them: four for each vector. The pointer moves along."""

    @abstractmethod
    def spread(self, vector: int, register: str) -> None:
        """The lowest bits of a core register in every lane."""

    @abstractmethod
    def count_down(self, register: str, label: int) -> None:
        """Decrement, and jump back unless zero."""

    # ------------------------------------------------ pieces

    @contextmanager
    def apart_from_products(self) -> Iterator[None]:
        """Write loads that come before all multiply-adds, or after them."""
        self.idle = True
        yield
        self.idle = False

    def load_addends(
        self, vectors: Sequence[int], register: str, *, advance: bool, first: int = 0
    ) -> None:
        """Load what is added to sums that are done."""
        with self.apart_from_products():
            self.load(vectors, register, advance=advance, first=first)

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
        self.set_constant(bits, _bits(value, self.isa.element))
        self.spread(vector, bits)

    def set_float(self, vector: int, value: float) -> None:
        """A float32 in every lane, whatever the elements are."""
        bits = self._temporary("bits")
        self.set_constant(bits, _bits(value, FLOAT32))
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
            together = min(room, MOST_AT_ONCE) & ~1 or room
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
        self.begin_sums()
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

    def arranged(self, lines: list[str]) -> list[str]:
        """A whole function in the order that suits the core."""
        return lines

    def _temporary(self, name: str) -> str:
        if name not in self.temporaries:
            self.temporaries.append(name)
        return name

    def scratch(self, nbytes: int) -> str:
        """The pointer to so many bytes on the stack, the same ones each time."""
        self.scratch_bytes = max(self.scratch_bytes, nbytes)
        return _SCRATCH

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
        lines = self.arranged(self.lines + body)
        stack = [_SCRATCH] if self.scratch_bytes else []
        given = [*self.pointers, *stack, *self.counts]
        registers = [*given, *self.temporaries]
        numbers = {register: f"${index}" for index, register in enumerate(registers)}
        numbers |= {f"{register}_w": f"${{{index}:w}}" for index, register in enumerate(registers)}
        text = "\\0A".join(line.format(**numbers) for line in lines)
        outputs = ["=&r"] * len(registers)
        inputs = [str(index) for index in range(len(given))]
        vectors = [f"~{{{self.vector_prefix}{index}}}" for index in range(self.isa.registers)]
        constraints = ",".join([*outputs, *inputs, *vectors, "~{cc}", "~{memory}"])
        words = len(self.counts) + len(self.temporaries)
        types = ", ".join(["ptr"] * len(self.pointers + tuple(stack)) + [self.word] * words)
        pointers = [f"ptr %{pointer}" for pointer in self.pointers]
        arguments = ", ".join([*pointers, *(f"i32 %{count}" for count in self.counts)])
        pointers += [f"ptr %{pointer}" for pointer in stack]
        passed = ", ".join([*pointers, *(f"{self.word} %{count}_word" for count in self.counts)])
        widened = "".join(
            f"  %{count}_word = {self.extend} i32 %{count} to {self.word}\n"
            for count in self.counts
        )
        taken = "".join(
            f"  %{pointer} = alloca [{self.scratch_bytes} x i8], align {QUAD}\n"
            for pointer in stack
        )
        # Without a loop of its own it looks small to LLVM, which would unroll a whole row of tiles
        # and keep all their addresses on the stack.
        once = "" if self.labels else " noduplicate"
        return (
            f"define internal i32 @{name}({arguments}) alwaysinline nounwind {{\n"
            f"{taken}"
            f"{widened}"
            f'  %r = call {{ {types} }} asm sideeffect "{text}", "{constraints}"({passed}){once}\n'
            "  ret i32 0\n"
            "}\n"
        )


def _bits(value: float, element: Element) -> int:
    """A number as an element, which is infinite if it is too large for one."""
    with np.errstate(over="ignore"):
        number = np.array(value, element.name)
    return int.from_bytes(number.tobytes(), "little")
