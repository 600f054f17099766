"""Tiles for cores that issue in order: only the order of instructions lets them hide a load.

Vectors come in halves of 64 bits, for a load of more occupies such a core alone. Pointers move once
per block of instructions: until then the distance is part of the addresses, so that no load waits
for another one. What is written so is put in order by `pipeline.order`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from edgepack.kernels.pipeline.cores import CORES
from edgepack.kernels.pipeline.order import arrange
from edgepack.kernels.tiles.arm.aarch64 import Aarch64
from edgepack.kernels.tiles.arm.armv7 import Armv7
from edgepack.kernels.tiles.arm.isa import QUAD, Isa
from edgepack.kernels.tiles.arm.writer import Writer

# Halves of vectors on their way through core registers.
_UNDERWAY = 12
# Core registers that code names are numbers to the parser; these are none that it could mean.
_FIRST_NAME = 40


class InOrder(Writer):
    """What both instruction sets share."""

    loads_ahead = True

    def __init__(self, isa: Isa, pointers: Sequence[str], counts: Sequence[str]) -> None:
        super().__init__(isa, pointers, counts)
        self.core = CORES[isa.core]
        # How far behind its place each pointer still is.
        self.behind: dict[str, int] = {}
        self.turn = 0

    def arranged(self, lines: list[str]) -> list[str]:
        names: dict[str, str] = {}
        registers = [*self.pointers, "scratch", *self.counts, *self.temporaries]
        letters = ("x", "w") if self.isa.name == "aarch64" else ("r", "r")
        for index, name in enumerate(registers, start=_FIRST_NAME):
            names[name], names[f"{name}_w"] = (f"{letter}{index}" for letter in letters)
        texts = [line.format(**names) for line in lines]
        return arrange(lines, texts, self.isa.core, self.isa.name)

    def add(self, register: str, value: int) -> None:
        self.behind[register] = self.behind.get(register, 0) + value

    @abstractmethod
    def move_now(self, register: str, value: int) -> None:
        """Move a pointer at once."""

    def settle(self, register: str | None = None) -> None:
        """Move a pointer, or all of them, to where they should be."""
        for name in list(self.behind) if register is None else [register]:
            if value := self.behind.pop(name, 0):
                self.move_now(name, value)

    def repeat(self, counter: str, body: Callable[[], None]) -> None:
        def settled() -> None:
            body()
            self.settle()

        self.settle()
        super().repeat(counter, settled)

    def reach(self, register: str, at: int, nbytes: int, most: int) -> int:
        """The distance of what lies `at` bytes behind a pointer's place from the pointer, which
        moves if no instruction that moves `nbytes` can address that: to its place if that will do,
        or else to what is addressed."""

        def reaches(distance: int) -> bool:
            return 0 <= distance <= most and distance % nbytes == 0

        distance = self.behind.get(register, 0) + at
        if reaches(distance):
            return distance
        if reaches(at):
            self.settle(register)
            return at
        self.add(register, at)
        self.settle(register)
        self.add(register, -at)
        return 0

    def half(self) -> str:
        """A core register for the next half of a vector."""
        self.turn = (self.turn + 1) % _UNDERWAY
        return self._temporary(f"half{self.turn}")


class InOrderAarch64(InOrder, Aarch64):
    """In the 64-bit state."""

    pairs_pixels = True

    def move_now(self, register: str, value: int) -> None:
        # Two immediates of 12 bits rather than a register that holds it.
        sign = 1 if value > 0 else -1
        high = abs(value) & 0xFFF000 if abs(value) < 1 << 24 else 0
        Aarch64.add(self, register, sign * high)
        Aarch64.add(self, register, sign * (abs(value) - high))

    def load(self, vectors: Sequence[int], register: str, *, advance: bool, first: int = 0) -> None:
        for index, vector in enumerate(vectors, start=first):
            self._load_one(vector, register, QUAD * index)
        if advance:
            self.add(register, QUAD * len(vectors))

    def move_strided(
        self, name: str, vector: int, register: str, *, step: int, index: int, count: int
    ) -> int:
        if name == "ld" and step % 8 == 0 and (count - 1) * step + 8 <= _MOST_LOADED:
            self._load_one(vector, register, step * index)
            return 0
        if name == "st" and step % QUAD == 0 and (count - 1) * step <= _MOST_WHOLE:
            self._move_whole("str", vector, register, step * index)
            return 0
        self.settle(register)
        return super().move_strided(name, vector, register, step=step, index=index, count=count)

    def store(self, vectors: Sequence[int], register: str) -> None:
        for index, vector in enumerate(vectors):
            self._move_whole("str", vector, register, QUAD * index)

    def widen(self, vectors: Sequence[int], register: str) -> None:
        self.settle(register)
        super().widen(vectors, register)

    def load_halves(self, vector: int, register: str, places: Sequence[int]) -> None:
        """Halves from anywhere.

        Where a vector load takes a part of the arithmetic, both halves come through core registers:
        those loads are in no multiply-add's way, and two inserts share a cycle wherever it is.
        """
        through_core = 2 if self.core.vector_load_takes_pipe.value else 1
        for index, place in enumerate(places):
            address = f"[{{{register}}}, #{self.reach(register, place, 8, _MOST_LOADED)}]"
            if index < 2 - through_core:
                self.lines.append(f"ldr d{vector}, {address}")
                continue
            half = self.half()
            self.lines.append(f"ldr {{{half}}}, {address}")
            to = f"fmov d{vector}" if index == 0 else f"mov v{vector}.d[1]"
            self.lines.append(f"{to}, {{{half}}}")

    def _load_one(self, vector: int, register: str, at: int) -> None:
        """Whole where there is nothing to do in its two cycles."""
        if self.idle and at % QUAD == 0:
            self._move_whole("ldr", vector, register, at)
        else:
            self.load_halves(vector, register, [at, at + 8])

    def _move_whole(self, name: str, vector: int, register: str, at: int) -> None:
        distance = self.reach(register, at, QUAD, _MOST_WHOLE)
        self.lines.append(f"{name} q{vector}, [{{{register}}}, #{distance}]")


class InOrderArmv7(InOrder, Armv7):
    """In the 32-bit state."""

    def __init__(self, isa: Isa, pointers: Sequence[str], counts: Sequence[str]) -> None:
        super().__init__(isa, pointers, counts)
        spare = _CORE_REGISTERS - len(self.pointers) - len(self.counts) - _KEPT
        self.pairs = min(_PAIRS, spare // 2) if self.core.vector_load_takes_pipe.value else 0
        self.vectors = 0

    def repeat(self, counter: str, body: Callable[[], None]) -> None:
        # Which vectors of a turn are every fourth one. A tile of 4x2 does 0.70 multiply-adds per
        # cycle so, and 0.64 to 0.68 with the others (Cortex-A53, the strictest pairing).
        self.vectors = 2
        super().repeat(counter, body)

    def move_now(self, register: str, value: int) -> None:
        # Immediates of 8 bits rather than a register that holds it.
        sign = 1 if value > 0 else -1
        for shift in range(0, 32, 8):
            Armv7.add(self, register, sign * (abs(value) & 0xFF << shift))

    def load(self, vectors: Sequence[int], register: str, *, advance: bool, first: int = 0) -> None:
        for index, vector in enumerate(vectors, start=first):
            self._load_one(vector, register, QUAD * index)
        if advance:
            self.add(register, QUAD * len(vectors))

    def move_strided(
        self, name: str, vector: int, register: str, *, step: int, index: int, count: int
    ) -> int:
        if name == "ld" and step % 4 == 0 and (count - 1) * step <= _MOST_MOVED_32:
            self._load_one(vector, register, step * index)
            return 0
        self.settle(register)
        return super().move_strided(name, vector, register, step=step, index=index, count=count)

    def store(self, vectors: Sequence[int], register: str) -> None:
        for index, vector in enumerate(vectors):
            distance = self.reach(register, QUAD * index, 4, _MOST_MOVED_32)
            for half in (0, 1):
                place = f"[{{{register}}}, #{distance + 8 * half}]"
                self.lines.append(f"vstr d{2 * vector + half}, {place}")

    def widen(self, vectors: Sequence[int], register: str) -> None:
        self.settle(register)
        super().widen(vectors, register)

    def load_halves(self, vector: int, register: str, places: Sequence[int]) -> None:
        """Halves from anywhere.

        Where a vector load takes a part of the arithmetic, the upper half comes through core
        registers and shares the lower one's cycle. And where such a load must not follow a
        multiply-add at some distance, both halves of every fourth vector do: a row of loads can
        begin with it, between any two multiply-adds. Apart from those no half does: two loads
        that bring no more than one would be in the others' way.
        """
        self.vectors += 1
        through_core = 0
        pairs = min(self.pairs, 2) if self.leaves_registers else self.pairs
        if pairs:
            begins = self.core.adder_at.value and pairs == _PAIRS and self.vectors % 4 == 0
            through_core = 0 if self.idle else 2 if begins else 1
        for half, place in enumerate(places):
            to = 2 * vector + half
            if half < 2 - through_core:
                at = self.reach(register, place, 4, _MOST_MOVED_32)
                self.lines.append(f"vldr d{to}, [{{{register}}}, #{at}]")
                continue
            self.turn = (self.turn + 1) % pairs
            at = self.reach(register, place, 4, _MOST_MOVED_32)
            low, high = (self._temporary(f"half{2 * self.turn + part}") for part in (0, 1))
            self.lines.append(f"ldr {{{low}}}, [{{{register}}}, #{at}]")
            self.lines.append(f"ldr {{{high}}}, [{{{register}}}, #{at + 4}]")
            self.lines.append(f"vmov d{to}, {{{low}}}, {{{high}}}")

    def _load_one(self, vector: int, register: str, at: int) -> None:
        self.load_halves(vector, register, [at, at + 8])


# Immediates are 12 bits, in units of what is moved.
_MOST_LOADED = 8 * 4095
_MOST_WHOLE = QUAD * 4095
# The second half of what vldr and vstr reach.
_MOST_MOVED_32 = 1020 - 8
# All but the program counter, the stack's and the frame's.
_CORE_REGISTERS = 13
# Two counters, and a constant on its way.
_KEPT = 3
# Pairs of core registers for halves underway.
_PAIRS = 3
