"""Tiles of 8-bit integers: products added up in 32 bits, and made 8 bits again, or left so.

A block is 16 channels, which are one register of a pixel. There are three ways to a sum:

    by dot products (SDOT): a lane of a sum is an output channel, and each step takes four input
    channels of a pixel, by lane; a tile has all 16 output channels;

    in pairs: products of 16 bits, two of which are added up before they are widened (SMULL, SMLAL2,
    SADALP; VMULL, VMLAL, VPADAL). The lanes of a sum are input channels, added up at the end; a
    tile has four output channels. Weights are at least -127: twice -128 * -128 is too large;

    by lanes (SMLAL, VMLAL): a lane of a sum is an output channel, and each step takes one input
    channel of a pixel, by lane, all made 16 bits first. It takes any weights, and nothing is lost
    on channels that are not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgepack.kernels.tiles.arm.isa import QUAD, Isa
from edgepack.kernels.tiles.arm.reductions import Convolve
from edgepack.kernels.tiles.arm.rounding import RoundedEnd
from edgepack.kernels.tiles.arm.writer import Writer
from edgepack.kernels.tiles.arm.writers import writer_of
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import INT8

# Input channels of a step of a dot product, and in pairs.
_DOT, _PAIRS = 4, 16


@dataclass(frozen=True, kw_only=True)
class IntegerKernel:
    """A way to do a tile: `kr` input channels at once, `outs` output channels, and up to `pixels`
    pixels. `narrow`: of weights from -127 on only."""

    isa: str
    kr: int
    outs: int
    pixels: int
    feature: str | None
    narrow: bool

    def instructions(self, pixels: int, reduction: int) -> float:
        """What a tile of 16 output channels takes, of sums of so many products; counted."""
        tiles = INT8.lanes(QUAD) // self.outs
        if self.kr == _PAIRS:
            # Multiplications, sums of pairs, and loads of pairs of registers.
            step, finish, start = 12 * pixels + 2 + pixels / 2, 11 * pixels, 10
        elif self.kr == _DOT:
            # Inputs are loaded at every fourth step.
            loads = 1 + (pixels > _MOST_WITH_RING) + (1 + (pixels > _MOST_AT_ONCE)) / 4
            step, finish, start = 4 * pixels + loads, 20 * pixels, 10
        else:
            step, finish, start = 4 * pixels + 3, 20 * pixels, 10
        return tiles * (reduction / self.kr * step + finish + start) + _AROUND


# Registers that AArch64 loads by one instruction; pixels of a tile of dot products that leave so
# many for weights.
_MOST_AT_ONCE, _MOST_WITH_RING = 4, 5
# Instructions around a tile's assembly.
_AROUND = 20
# Bytes of a sum.
_SUM = 4

INTEGER_KERNELS = (
    IntegerKernel(isa="aarch64", kr=4, outs=16, pixels=6, feature="dotprod", narrow=False),
    IntegerKernel(isa="aarch64", kr=16, outs=4, pixels=4, feature=None, narrow=True),
    IntegerKernel(isa="aarch64", kr=1, outs=16, pixels=4, feature=None, narrow=False),
    IntegerKernel(isa="armv7", kr=16, outs=4, pixels=2, feature=None, narrow=True),
    IntegerKernel(isa="armv7", kr=1, outs=16, pixels=2, feature=None, narrow=False),
)


def integer_kernel(cpu: CpuModel, *, narrow: bool) -> IntegerKernel | None:
    """The best one for a CPU, of those for `narrow` weights only if they are; None: left to
    LLVM."""
    rows = (
        row
        for row in INTEGER_KERNELS
        if row.isa == cpu.isa
        and (row.feature is None or row.feature in cpu.features)
        and (narrow or not row.narrow)
    )
    return next(rows, None)


@dataclass(frozen=True, kw_only=True)
class _ByDots(Convolve):
    def _point(self, writer: Writer, lanes: range) -> int:
        """One point of the window in one block; the bytes that the source pointer moved."""
        vectors, pixels = len(writer.accumulators), len(writer.accumulators[0])
        inputs, ring = writer.free[:pixels], writer.free[pixels:]
        if self.pixel_step == QUAD:
            # All are side by side: the last load takes the pointer on.
            moved = self.plane_step if self.kernel == (1, 1) else self.column_step
            most = _MOST_AT_ONCE
            writer.load(inputs[most:], "source", advance=False, first=most)
            some = _range(inputs[:most])
            writer.lines.append(f"ld1 {some}, [{{source}}], {{{writer.kept(moved)}}}")
        else:
            moved = writer.move_all_strided("ld", inputs, "source", self.pixel_step)
        # Weights of a step; of half of it where there are no more registers.
        together = vectors if len(ring) >= vectors else 2
        for step in range(-(-len(lanes) // _DOT)):
            for v, totals in enumerate(writer.accumulators):
                if v % together == 0 and together == vectors:
                    some = _range(ring[:vectors])
                    writer.lines.append(f"ld1 {some}, [{{weights}}], #{QUAD * vectors}")
                elif v % together == 0:
                    writer.load(ring[:together], "weights", advance=True)
                for total, given in zip(totals, inputs, strict=True):
                    weight = ring[v % together]
                    writer.lines.append(f"sdot v{total}.4s, v{weight}.16b, v{given}.4b[{step}]")
        return moved


def _range(registers: Sequence[int]) -> str:
    """Up to four registers that follow each other, as one instruction of AArch64 takes them."""
    first, *others = (f"v{register}.16b" for register in registers)
    return f"{{{{{first}-{others[-1]}}}}}" if others else f"{{{{{first}}}}}"


# Lanes of 16 bits in a register.
_HALF = 8


@dataclass(frozen=True, kw_only=True)
class _ByLanes(Convolve):
    """Inputs and weights are made 16 bits: half of a block's channels at a time."""

    def _point(self, writer: Writer, lanes: range) -> int:
        """One point of the window in one block; the bytes that the source pointer moved."""
        pixels = len(writer.accumulators[0])
        wide, inputs, others = (
            writer.free[:pixels],
            writer.free[pixels : 2 * pixels],
            writer.free[2 * pixels :],
        )
        moved = 0
        if self.pixel_step == QUAD:
            writer.load(inputs, "source", advance=False)
        else:
            moved = writer.move_all_strided("ld", inputs, "source", self.pixel_step)
        weights, halves = others[:2], others[2:]
        for used, lane in enumerate(lanes):
            if lane % _HALF == 0:
                for to, given in zip(wide, inputs, strict=True):
                    writer.lines.append(_widened(writer, to, given, lane // _HALF))
            if used % 2 == 0:
                writer.load(weights[: len(lanes) - used], "weights", advance=True)
            # As many in turn as there are: the next ones need not wait.
            first = 2 * used % len(halves)
            two = halves[first : first + 2]
            for half, to in enumerate(two):
                writer.lines.append(_widened(writer, to, weights[used % 2], half))
            for v, totals in enumerate(writer.accumulators):
                for total, given in zip(totals, wide, strict=True):
                    writer.lines.append(
                        _product_by_lane(writer, total, (two[v // 2], v % 2), given, lane % _HALF)
                    )
        return moved


def _widened(writer: Writer, to: int, given: int, half: int) -> str:
    """One half of a register's bytes as 16 bits."""
    if writer.isa.name == "armv7":
        return f"vmovl.s8 q{to}, d{2 * given + half}"
    return f"sxtl2 v{to}.8h, v{given}.16b" if half else f"sxtl v{to}.8h, v{given}.8b"


def _product_by_lane(
    writer: Writer, total: int, weight: tuple[int, int], lanes: int, lane: int
) -> str:
    """total += the weights of half a register * lanes[lane]"""
    register, half = weight
    if writer.isa.name == "armv7":
        by = f"d{2 * lanes + lane // 4}[{lane % 4}]"
        return f"vmlal.s16 q{total}, d{2 * register + half}, {by}"
    name, form = ("smlal2", "8h") if half else ("smlal", "4h")
    return f"{name} v{total}.4s, v{register}.{form}, v{lanes}.h[{lane}]"


@dataclass(frozen=True, kw_only=True)
class _InPairs(Convolve):
    """Four output channels, whose weights are a register each. A block that `starts` the sums does
    not read them."""

    starts: bool = False

    def write(self, writer: Writer) -> None:
        """Write a first block that starts the sums, and a loop over the others."""
        lanes = range(writer.isa.lanes)
        # Where its rows are a loop the sums are zero before.
        one_point = self.kernel == (1, 1)
        first = replace(self, starts=True) if one_point else self
        first._blocks(writer, 1, lanes)
        if self.blocks > 1:
            self._blocks(writer, self.blocks - 1, lanes)

    def _point(self, writer: Writer, lanes: range) -> int:
        """One point of the window in one block; the bytes that the source pointer moved."""
        pixels = len(writer.accumulators[0])
        inputs, others = writer.free[:pixels], writer.free[pixels:]
        moved = 0
        if self.pixel_step == QUAD:
            writer.load(inputs, "source", advance=False)
        else:
            moved = writer.move_all_strided("ld", inputs, "source", self.pixel_step)
        weights, products = others[:2], others[2:]
        is_64 = writer.isa.name == "aarch64"
        pending: list[tuple[int, int]] = []

        def add_up() -> None:
            name = "ddl" if self.starts else "dal"
            for total, pair in pending:
                writer.lines.append(
                    f"sa{name}p v{total}.4s, v{pair}.8h"
                    if is_64
                    else f"vpa{name}.s16 q{total}, q{pair}"
                )

        used = 0
        for v, totals in enumerate(writer.accumulators):
            if v % 2 == 0:
                writer.load(weights, "weights", advance=True)
            weight = weights[v % 2]
            pairs = [products[(used + r) % len(products)] for r in range(pixels)]
            used += pixels
            for pair, given in zip(pairs, inputs, strict=True):
                writer.lines.append(
                    f"smull v{pair}.8h, v{weight}.8b, v{given}.8b"
                    if is_64
                    else f"vmull.s8 q{pair}, d{2 * weight}, d{2 * given}"
                )
            for pair, given in zip(pairs, inputs, strict=True):
                writer.lines.append(
                    f"smlal2 v{pair}.8h, v{weight}.16b, v{given}.16b"
                    if is_64
                    else f"vmlal.s8 q{pair}, d{2 * weight + 1}, d{2 * given + 1}"
                )
            add_up()
            pending = list(zip(totals, pairs, strict=True))
        add_up()
        return moved


@dataclass(frozen=True, kw_only=True)
class IntegerTile(RoundedEnd):
    """A tile of `pixels` pixels, side by side in the target, by `kernel`.

    The other numbers are those of `Convolve`; of pairs all blocks are whole. With `raw` sums are
    stored as they are: of each pixel a block of int32, and the next one's behind it.
    """

    kernel: IntegerKernel
    blocks: int
    last_lanes: int
    window: tuple[int, int]
    pixel_step: int
    column_step: int
    row_step: int
    plane_step: int
    raw: bool = False

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name(target, source, weights, bias, factor)` of pointers; of `raw` sums
        without a factor."""
        registers = 32 if self.kernel.isa == "aarch64" else 16
        isa = Isa(name=self.kernel.isa, registers=registers, element=INT8)
        factor = () if self.raw else ("factor",)
        writer = writer_of(isa, ("target", "source", "weights", "bias", *factor))
        in_pairs = self.kernel.kr == _PAIRS
        writer.hold(self.pixels, 4, by_pixels=not in_pairs)
        if in_pairs:
            writer.loop("part", self.parts, lambda: self._part(writer))
        else:
            # With the bias; that of pairs is added in the end.
            for totals in zip(*writer.accumulators, strict=True):
                writer.load_at_once(totals, "bias")
            self._reduce(_ByDots if self.kernel.kr == _DOT else _ByLanes, writer)
            is_64 = self.kernel.isa == "aarch64"
            if self.raw:
                every = sorted(total for totals in writer.accumulators for total in totals)
                writer.store(every, "target")
            else:
                (self.finish_block if is_64 else self.finish_block_in_32_bits)(writer)
        return writer.llvm_ir(name)

    @property
    def parts(self) -> int:
        """Tiles of neighbouring output channels that one call does: all of a block, where no more
        than that is a loop."""
        one_point = self.window == (1, 1)
        return INT8.lanes(QUAD) // self.kernel.outs if one_point else 1

    def _part(self, writer: Writer) -> None:
        """One of them; pointers move on to the next one's."""
        if self.window != (1, 1):
            for totals in writer.accumulators:
                for total in totals:
                    writer.zero(total)
        self._reduce(_InPairs, writer)
        if self.kernel.isa == "aarch64":
            self._finish_pairs(writer)
        else:
            self._finish_pairs_in_32_bits(writer)
        if self.parts > 1:
            writer.add("source", -self.blocks * self.plane_step)

    def _to_next(self, pixel: int) -> int:
        """From a pixel's result to the next one's; from the last to the next part's first."""
        each = _SUM if self.raw else 1
        if pixel + 1 < self.pixels:
            return QUAD * each
        return (self.kernel.outs - QUAD * (self.pixels - 1)) * each

    def _reduce(self, reduction: type[Convolve], writer: Writer) -> None:
        reduction(
            blocks=self.blocks,
            last_lanes=self.last_lanes,
            kernel=self.window,
            pixel_step=self.pixel_step,
            column_step=self.column_step,
            row_step=self.row_step,
            plane_step=self.plane_step,
        ).write(writer)

    def _finish_pairs(self, writer: Writer) -> None:
        """Four lanes of each sum become one, and four channels' sums a register."""
        lines, sums = writer.lines, writer.accumulators
        bias, factor, zero = writer.free[:3]
        writer.load([bias], "bias", advance=self.parts > 1)
        if not self.raw:
            writer.load([factor], "factor", advance=self.parts > 1)
            lines.append(f"movi v{zero}.8h, #{abs(self.to.zero)}")
        results = sums[0]
        for v in (0, 2):
            for one, other in zip(sums[v], sums[v + 1], strict=True):
                lines.append(f"addp v{one}.4s, v{one}.4s, v{other}.4s")
        for one, other in zip(results, sums[2], strict=True):
            lines.append(f"addp v{one}.4s, v{one}.4s, v{other}.4s")
        lines += [f"add v{one}.4s, v{one}.4s, v{bias}.4s" for one in results]
        if self.raw:
            for r, one in enumerate(results):
                step = writer.kept(self._to_next(r))
                lines.append(f"st1 {{{{v{one}.4s}}}}, [{{target}}], {{{step}}}")
            return
        for form in (
            "scvtf v{0}.4s, v{0}.4s",
            f"fmul v{{0}}.4s, v{{0}}.4s, v{factor}.4s",
            "fcvtns v{0}.4s, v{0}.4s",
        ):
            lines += [form.format(total) for total in results]
        bounds = self.bounds(writer, bias, "8b")
        for r in range(0, self.pixels, 2):
            one = results[r]
            if r + 1 < self.pixels:
                lines += self.narrowed(one, results[r + 1])
            else:
                lines.append(f"sqxtn v{one}.4h, v{one}.4s")
            lines += self.moved([one], zero)
            lines.append(f"sqxtn v{one}.8b, v{one}.8h")
            lines += [f"{name} v{one}.8b, v{one}.8b, v{bound}.8b" for name, bound in bounds]
        for r in range(self.pixels):
            step = writer.kept(self._to_next(r))
            lane = f"{{{{v{results[r // 2 * 2]}.s}}}}[{r % 2}]"
            lines.append(f"st1 {lane}, [{{target}}], {{{step}}}")

    def _finish_pairs_in_32_bits(self, writer: Writer) -> None:
        lines, sums = writer.lines, writer.accumulators
        bias, factor, *others = writer.free[:6]
        results = sums[0]
        for v in (0, 2):
            for one, other in zip(sums[v], sums[v + 1], strict=True):
                lines += _added_pairs(one, other)
        for one, other in zip(results, sums[2], strict=True):
            lines += _added_pairs(one, other)
        writer.load([bias], "bias", advance=self.parts > 1)
        if not self.raw:
            writer.load([factor], "factor", advance=self.parts > 1)
        lines += [f"vadd.i32 q{one}, q{one}, q{bias}" for one in results]
        if self.raw:
            for r, one in enumerate(results):
                self._store_in_32_bits(writer, f"{{{{d{2 * one}-d{2 * one + 1}}}}}", r)
            return
        for form in (
            "vcvt.f32.s32 q{0}, q{0}",
            f"vmul.f32 q{{0}}, q{{0}}, q{factor}",
        ):
            lines += [form.format(total) for total in results]
        narrow = self.rounded_in_32_bits(writer, results, others[:3])
        # All pixels in one register: there are two at most.
        one = results[0]
        for half, total in enumerate(results):
            lines.append(f"{narrow} d{2 * one + half}, q{total}")
        lines += self.bytes_in_32_bits(one, 2 * one, others[0])
        for r in range(len(results)):
            self._store_in_32_bits(writer, f"{{{{d{2 * one}[{r}]}}}}", r)

    def _store_in_32_bits(self, writer: Writer, what: str, pixel: int) -> None:
        """Store a pixel's results; the pointer moves on."""
        store = f"vst1.32 {what}, [{{target}}]"
        if self.parts > 1:
            writer.lines.append(f"{store}, {{{writer.kept(self._to_next(pixel))}}}")
        else:  # core registers are needed for the window
            writer.lines.append(store)
            writer.add("target", self._to_next(pixel))


def _added_pairs(one: int, other: int) -> list[str]:
    """Neighbouring lanes of two registers added up, the results in the first."""
    return [
        f"vpadd.i32 d{2 * one + half}, d{2 * given}, d{2 * given + 1}"
        for half, given in enumerate((one, other))
    ]
