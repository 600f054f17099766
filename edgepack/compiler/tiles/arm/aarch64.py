"""Tiles in the 64-bit state: 32 vector registers, fused multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.compiler.tiles.arm.isa import QUAD
from edgepack.compiler.tiles.arm.writer import BINARY, Writer


class Aarch64(Writer):
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
        self.lines.append(f"f{BINARY[name]} v{to}.4s, v{left}.4s, v{right}.4s")

    def move(self, to: int, vector: int) -> None:
        self.lines.append(f"mov v{to}.16b, v{vector}.16b")

    def spread(self, vector: int, register: str) -> None:
        self.lines.append(f"dup v{vector}.4s, {{{register}_w}}")

    def count_down(self, register: str, label: int) -> None:
        self.lines.append(f"subs {{{register}}}, {{{register}}}, #1")
        self.lines.append(f"b.ne {label}b")
