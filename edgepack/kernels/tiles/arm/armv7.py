"""Tiles in the 32-bit state: 16 vector registers, multiply-adds that round twice."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.kernels.tiles.arm.isa import MOST_AT_ONCE, QUAD
from edgepack.kernels.tiles.arm.writer import BINARY, Writer


class Armv7(Writer):
    vector_prefix = "q"
    word = "i32"
    most_widened = 8
    extend = "bitcast"

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
        assert not first and (advance or len(vectors) <= MOST_AT_ONCE)
        for start in range(0, len(vectors), MOST_AT_ONCE):
            some = _doubles(vectors[start : start + MOST_AT_ONCE])
            self.lines.append(f"vldmia {{{register}}}{mark}, {some}")

    def load_at_once(self, vectors: Sequence[int], register: str) -> None:
        self.load(vectors, register, advance=False)

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
        self.lines.append(f"v{BINARY[name]}.f32 q{to}, q{left}, q{right}")

    def move(self, to: int, vector: int) -> None:
        self.lines.append(f"vmov q{to}, q{vector}")

    def zero(self, vector: int) -> None:
        self.lines.append(f"vmov.i32 q{vector}, #0")

    def widen(self, vectors: Sequence[int], register: str) -> None:
        # The halves in the upper vectors: none is overwritten before it is read.
        first = 2 * vectors[-1] + 2 - len(vectors)
        some = f"{{{{d{first}-d{2 * vectors[-1] + 1}}}}}"
        self.lines.append(f"vldmia {{{register}}}!, {some}")
        for index, vector in enumerate(vectors):
            self.lines.append(f"vcvt.f32.f16 q{vector}, d{first + index}")

    def spread(self, vector: int, register: str) -> None:
        self.lines.append(f"vdup.32 q{vector}, {{{register}}}")

    def count_down(self, register: str, label: int) -> None:
        self.lines.append(f"subs {{{register}}}, {{{register}}}, #1")
        self.lines.append(f"bne {label}b")


def _doubles(vectors: Sequence[int]) -> str:
    """Quad registers as the range of double registers that vldm wants, braces escaped."""
    return f"{{{{d{2 * vectors[0]}-d{2 * vectors[-1] + 1}}}}}"


def _encodable(value: int) -> bool:
    """Whether ARM can add a value as an immediate: 8 bits at an even position."""
    return any(
        value >> shift << shift == value and value >> shift < 256 for shift in range(0, 25, 2)
    )
