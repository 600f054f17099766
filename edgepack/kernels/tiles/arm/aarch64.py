"""Tiles in the 64-bit state: 32 vector registers, fused multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.kernels.tiles.arm.isa import QUAD, Isa
from edgepack.kernels.tiles.arm.writer import BINARY, Writer


class Aarch64(Writer):
    vector_prefix = "v"
    word = "i64"
    most_widened = 16
    extend = "zext"

    def __init__(self, isa: Isa, pointers: Sequence[str], counts: Sequence[str]) -> None:
        super().__init__(isa, pointers, counts)
        # How instructions call the elements of a register, and one of them.
        self._all, self._one = {1: ("16b", "b"), 2: ("8h", "h"), 4: ("4s", "s")}[isa.element.bytes]

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

    def load_at_once(self, vectors: Sequence[int], register: str) -> None:
        self.lines.append(f"ld1 {{{{v{vectors[0]}.16b-v{vectors[-1]}.16b}}}}, [{{{register}}}]")

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
            self._move_some(name, pair, register, None if advance else QUAD * (first + index))

    def _move_some(
        self, name: str, vectors: Sequence[int], register: str, at: int | None = None
    ) -> None:
        """One or two vectors, at a distance from the pointer, or at the pointer, which moves on."""
        mnemonic = name + ("p" if len(vectors) == 2 else "r")
        names = ", ".join(f"q{vector}" for vector in vectors)
        address = f"[{{{register}}}], #{QUAD * len(vectors)}"
        if at is not None:
            address = f"[{{{register}}}, #{at}]"
        self.lines.append(f"{mnemonic} {names}, {address}")

    def _every(self, vector: int) -> str:
        return f"v{vector}.{self._all}"

    def _lane(self, vector: int, lane: int) -> str:
        return f"v{vector}.{self._one}[{lane}]"

    def multiply_add_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        self.lines.append(
            f"fmla {self._every(total)}, {self._every(vector)}, {self._lane(lanes, lane)}"
        )

    def multiply_add(self, total: int, left: int, right: int) -> None:
        self.lines.append(f"fmla {self._every(total)}, {self._every(left)}, {self._every(right)}")

    def multiply_subtract_lane(self, total: int, vector: int, lanes: int, lane: int) -> None:
        self.lines.append(
            f"fmls {self._every(total)}, {self._every(vector)}, {self._lane(lanes, lane)}"
        )

    def multiply_lane(self, to: int, vector: int, lanes: int, lane: int) -> None:
        self.lines.append(
            f"fmul {self._every(to)}, {self._every(vector)}, {self._lane(lanes, lane)}"
        )

    def negate(self, to: int, vector: int) -> None:
        self.lines.append(f"fneg {self._every(to)}, {self._every(vector)}")

    def binary(self, name: str, to: int, left: int, right: int) -> None:
        self.lines.append(
            f"f{BINARY[name]} {self._every(to)}, {self._every(left)}, {self._every(right)}"
        )

    def move(self, to: int, vector: int) -> None:
        self.lines.append(f"mov v{to}.16b, v{vector}.16b")

    def zero(self, vector: int) -> None:
        self.lines.append(f"movi v{vector}.4s, #0")

    def widen(self, vectors: Sequence[int], register: str) -> None:
        # Pairs of vectors from one register of halves each, which is the second one.
        pairs = [vectors[i : i + 2] for i in range(0, len(vectors), 2)]
        whole = [pair[1] for pair in pairs if len(pair) == 2]
        for i in range(0, len(whole), 2):
            self._move_some("ld", whole[i : i + 2], register)
        for pair in pairs:
            if len(pair) == 1:
                self.lines.append(f"ldr d{pair[0]}, [{{{register}}}], #8")
            halves = pair[-1]
            self.lines.append(f"fcvtl v{pair[0]}.4s, v{halves}.4h")
            if len(pair) == 2:
                self.lines.append(f"fcvtl2 v{pair[1]}.4s, v{halves}.8h")

    def spread(self, vector: int, register: str) -> None:
        self.lines.append(f"dup {self._every(vector)}, {{{register}_w}}")

    def count_down(self, register: str, label: int) -> None:
        self.lines.append(f"subs {{{register}}}, {{{register}}}, #1")
        self.lines.append(f"b.ne {label}b")
