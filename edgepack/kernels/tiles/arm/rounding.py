"""What makes 8 bits of sums of 32: a multiplication, rounding, and what is out of range cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.kernels.integer import Target
from edgepack.kernels.tiles.arm.writer import Writer

# 1.5 * 2 ** 23: the last place of numbers around it is 1, so that a sum with it is rounded half to
# even.
_ROUNDING = 12582912.0
# What is between these numbers and their negatives has so many bits when it is rounded: it can be
# cut off there without a look, or such sums are in that range.
_WIDTHS = {16: 2.0**15 - 128, 22: 2.0**21}
ANY_WIDTH = 32


def width_of(largest: float) -> int:
    """The bits that are known to hold numbers up to `largest`, and to its negative."""
    return next((bits for bits, most in _WIDTHS.items() if largest < most), ANY_WIDTH)


@dataclass(frozen=True, kw_only=True)
class RoundedEnd:
    """The end of a tile of `pixels` pixels. `width` is that of the products of sums and factors,
    see `width_of`."""

    pixels: int
    to: Target
    width: int = ANY_WIDTH

    def bounds(self, writer: Writer, at: int, size: str) -> list[tuple[str, int]]:
        """Instructions that cut results off, and the registers with the bounds."""
        found = []
        for name, bound, least in (("smax", self.to.low, -128), ("smin", self.to.high, 127)):
            if bound != least:
                writer.lines.append(f"movi v{at}.{size}, #{bound & 0xFF}")
                found.append((name, at))
                at += 1
        return found

    def moved(self, registers: Sequence[int], zero: int) -> list[str]:
        """Numbers of 16 bits and the zero point, of which a register has the distance from 0."""
        name = "sqadd" if self.to.zero > 0 else "sqsub"
        if not self.to.zero:
            return []
        return [f"{name} v{one}.8h, v{one}.8h, v{zero}.8h" for one in registers]

    def narrowed(self, one: int, other: int) -> list[str]:
        """Two registers of 32 bits as one of 16, the first."""
        if self.width == 16:
            return [f"uzp1 v{one}.8h, v{one}.8h, v{other}.8h"]
        return [f"sqxtn v{one}.4h, v{one}.4s", f"sqxtn2 v{one}.8h, v{other}.4s"]

    def finish_block(self, writer: Writer) -> None:
        """All 16 channels of each pixel, which are four registers."""
        lines, sums = writer.lines, writer.accumulators
        factor, results, zero = (
            writer.free[:4],
            writer.free[: self.pixels],
            writer.free[self.pixels],
        )
        writer.load_at_once(factor, "factor")
        for v, totals in enumerate(sums):
            for form in (
                "scvtf v{0}.4s, v{0}.4s",
                f"fmul v{{0}}.4s, v{{0}}.4s, v{factor[v]}.4s",
                "fcvtns v{0}.4s, v{0}.4s",
            ):
                lines += [form.format(total) for total in totals]
        for v in (0, 2):
            for one, other in zip(sums[v], sums[v + 1], strict=True):
                lines += self.narrowed(one, other)
        # From 0 to 255, 128 less: less to do than with a zero point.
        unsigned = self.to.zero == -128
        if unsigned:
            lines.append(f"movi v{zero}.16b, #128")
        elif self.to.zero:
            lines.append(f"movi v{zero}.8h, #{abs(self.to.zero)}")
            lines += self.moved([*sums[0], *sums[2]], zero)
        name = "sqxtun" if unsigned else "sqxtn"
        for one, low, high in zip(results, sums[0], sums[2], strict=True):
            lines.append(f"{name} v{one}.8b, v{low}.8h")
            lines.append(f"{name}2 v{one}.16b, v{high}.8h")
        if unsigned:
            lines += [f"eor v{one}.16b, v{one}.16b, v{zero}.16b" for one in results]
        for name, bound in self.bounds(writer, zero, "16b"):
            lines += [f"{name} v{one}.16b, v{one}.16b, v{bound}.16b" for one in results]
        writer.store(results, "target")

    def rounded_in_32_bits(self, writer: Writer, sums: Sequence[int], others: Sequence[int]) -> str:
        """There is no conversion that rounds: the sum with a large number is rounded. What might be
        out of its range is cut off first. The instruction that makes 16 bits of the results."""
        rounding, *ends = others
        writer.set_float(rounding, _ROUNDING)
        forms = []
        if self.width == ANY_WIDTH:
            bounds = (("vmax", self.to.low), ("vmin", self.to.high))
            for register, (name, bound) in zip(ends, bounds, strict=False):
                writer.set_float(register, bound - self.to.zero)
                forms.append(f"{name}.f32 q{{0}}, q{{0}}, q{register}")
        forms.append(f"vadd.f32 q{{0}}, q{{0}}, q{rounding}")
        if self.width == 22:
            # What was added to the number's bits is taken away from them.
            forms.append(f"vsub.i32 q{{0}}, q{{0}}, q{rounding}")
        for form in forms:
            writer.lines += [form.format(total) for total in sums]
        return "vqmovn.s32" if self.width == 22 else "vmovn.i32"

    def finish_block_in_32_bits(self, writer: Writer) -> None:
        lines, sums = writer.lines, writer.accumulators
        factor, others = writer.free[:4], writer.free[4:]
        writer.load_at_once(factor, "factor")
        every = [total for totals in sums for total in totals]
        lines += [f"vcvt.f32.s32 q{total}, q{total}" for total in every]
        for v, totals in enumerate(sums):
            lines += [f"vmul.f32 q{total}, q{total}, q{factor[v]}" for total in totals]
        narrow = self.rounded_in_32_bits(writer, every, others[:3])
        results = factor[: self.pixels]
        for r, one in enumerate(results):
            for v in (0, 2):
                low, high = sums[v][r], sums[v + 1][r]
                lines.append(f"{narrow} d{2 * low}, q{low}")
                lines.append(f"{narrow} d{2 * low + 1}, q{high}")
                lines += self.bytes_in_32_bits(low, 2 * one + v // 2, others[0])
        writer.store(results, "target")

    def bytes_in_32_bits(self, one: int, to: int, other: int) -> list[str]:
        """Numbers of 16 bits and the zero point as bytes in half a register, with another
        register's help."""
        lines = []
        if self.to.zero:
            name = "vqadd" if self.to.zero > 0 else "vqsub"
            lines.append(f"vmov.i16 q{other}, #{abs(self.to.zero)}")
            lines.append(f"{name}.s16 q{one}, q{one}, q{other}")
        lines.append(f"vqmovn.s16 d{to}, q{one}")
        for name, bound, end in (("vmax", self.to.low, -128), ("vmin", self.to.high, 127)):
            if self.width != ANY_WIDTH and bound != end:
                lines.append(f"vmov.i8 d{2 * other}, #{bound & 0xFF}")
                lines.append(f"{name}.s8 d{to}, d{to}, d{2 * other}")
        return lines
