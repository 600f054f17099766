"""Sums of integers made 8 bits again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import tirx

from edgepack.kernels.integer import Target
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import INT8_BLOCK, CpuModel
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import Blocked, Image

# The last place of floats from this number on, to twice its two thirds, is 1: numbers added to it
# are rounded half to even, and lie in its lowest bits.
_ROUNDING = 12582912.0


def round_half_to_even(value: tirx.Expr, lanes: int) -> tirx.Expr:
    """int32 of float32 up to 2 ** 22, half to even."""
    large = tir.number(_ROUNDING, "float32", lanes)
    bits = tirx.reinterpret(f"int32x{lanes}" if lanes > 1 else "int32", value + large)
    pattern = int(np.float32(_ROUNDING).view("int32"))
    return bits - tir.spread(tir.integer(pattern), lanes)


def requantise(value: tirx.Expr, factor: tirx.Expr, to: Target, lanes: int) -> tirx.Expr:
    """int8 of sums (int32, or float32 if they are none); see `integer.Target.requantised`.

    Between the product and the sum that rounds lie the bounds, so that no compiler makes one
    instruction of both, which would round once.
    """
    real = tir.cast(value, "float32") * factor
    least, most = (tir.number(bound - to.zero, "float32", lanes) for bound in (to.low, to.high))
    real = tirx.min(tirx.max(real, least), most)
    bits = tirx.reinterpret(
        f"int32x{lanes}" if lanes > 1 else "int32",
        real + tir.number(_ROUNDING, "float32", lanes),
    )
    # The number's low byte, to which the zero point is added modulo 256: the sum is in range.
    zero = tir.spread(tirx.IntImm("int8", to.zero), lanes)
    return tir.cast(bits, "int8") + zero


def _on_aarch64(names: tir.Names, value: tirx.Expr, factor: tirx.Expr, to: Target) -> tirx.Expr:
    """The same of a block by AArch64's instructions, which round and saturate."""
    real = names.keep("real", tir.cast(value, "float32") * factor)
    zero = tir.spread(tirx.IntImm("int16", to.zero), 8)
    whole = [
        _intrinsic("int32x4", "aarch64.neon.fcvtns.v4i32.v4f32", part)
        for part in tir.pieces(real, 4)
    ]
    quarters = [_intrinsic("int16x4", "aarch64.neon.sqxtn.v4i16", part) for part in whole]
    halves = [
        _intrinsic("int16x8", "sadd.sat.v8i16", tir.join_vectors(quarters[i : i + 2]), zero)
        for i in (0, 2)
    ]
    bytes_ = [_intrinsic("int8x8", "aarch64.neon.sqxtn.v8i8", half) for half in halves]
    made = names.keep("q", tir.join_vectors(bytes_))
    if to.low > -128:
        made = tirx.max(made, tir.spread(tirx.IntImm("int8", to.low), INT8_BLOCK))
    if to.high < 127:
        made = tirx.min(made, tir.spread(tirx.IntImm("int8", to.high), INT8_BLOCK))
    return made


def _on_armv7(names: tir.Names, value: tirx.Expr, factor: tirx.Expr, to: Target) -> tirx.Expr:
    """The same of a block, with bounds by NEON's instructions: LLVM would compare and select."""
    real = names.keep("real", tir.cast(value, "float32") * factor)
    least, most = (tir.number(bound - to.zero, "float32", 4) for bound in (to.low, to.high))
    bits = []
    for part in tir.pieces(real, 4):
        within = _intrinsic("float32x4", "arm.neon.vmaxs.v4f32", part, least)
        within = _intrinsic("float32x4", "arm.neon.vmins.v4f32", within, most)
        rounded = within + tir.number(_ROUNDING, "float32", 4)
        bits.append(tir.cast(tirx.reinterpret("int32x4", rounded), "int16"))
    zero = tir.spread(tirx.IntImm("int8", to.zero), INT8_BLOCK)
    return tir.cast(tir.join_vectors(bits), "int8") + zero


# Pixels of a block whose results are one vector.
_RUN = 4
# Numbers from here on are no integers of 32 bits.
_BEYOND = 2.0**31


def _in_run(
    names: tir.Names,
    values: Sequence[tirx.Expr],
    factor: tirx.Expr,
    to: Target,
    *,
    saturates: bool,
) -> tirx.Expr:
    """int8x64 of the sums of four pixels by AVX-512: conversions that round half to even, and that
    leave out of `saturates` a number that no int32 holds; then packs that saturate."""
    least, most = (
        tir.number(bound - to.zero, "float32", INT8_BLOCK) for bound in (to.low, to.high)
    )
    whole = []
    for value in values:
        real = tir.cast(value, "float32") * factor
        if not saturates:
            real = tirx.min(tirx.max(real, least), most)
        # All lanes (a mask of 16 bits), by the rounding mode of the moment (4).
        mode = tirx.IntImm("int16", -1), tirx.IntImm("int32", 4)
        nothing = tir.spread(tir.integer(0), INT8_BLOCK)
        rounded = _intrinsic(
            "int32x16", "x86.avx512.mask.cvtps2dq.512", names.bind("real", real), nothing, *mode
        )
        whole.append(names.keep("whole", rounded))
    halves = [
        names.keep("half", _intrinsic("int16x32", "x86.avx512.packssdw.512", *whole[i : i + 2]))
        for i in (0, 2)
    ]
    if to.zero:
        zero = tir.spread(tirx.IntImm("int16", to.zero), 2 * INT8_BLOCK)
        halves = [
            names.keep("half", _intrinsic("int16x32", "sadd.sat.v32i16", half, zero))
            for half in halves
        ]
    bytes_ = _intrinsic("int8x64", "x86.avx512.packsswb.512", *halves)
    # Packs go by quarters of vectors: those of a pixel are four apart now.
    quarters = names.keep("quarters", tirx.reinterpret("int32x16", bytes_))
    order = [tir.integer(_RUN * i + pixel) for pixel in range(_RUN) for i in range(4)]
    made = names.keep("q", tirx.reinterpret("int8x64", tirx.Shuffle([quarters], order)))
    if to.low > -128:
        made = tirx.max(made, tir.spread(tirx.IntImm("int8", to.low), _RUN * INT8_BLOCK))
    if to.high < 127:
        made = tirx.min(made, tir.spread(tirx.IntImm("int8", to.high), _RUN * INT8_BLOCK))
    return made


def _intrinsic(dtype: str, name: str, *arguments: tirx.Expr) -> tirx.Expr:
    return tirx.call_llvm_pure_intrin(dtype, f"llvm.{name}", *arguments)


class Requantising(Epilogue):
    """The end of a kernel whose sums are int32: `factor` is one number, or one per channel. No
    product of both is larger than `largest`."""

    def __init__(
        self,
        output: Blocked,
        to: Target,
        factor: np.ndarray | float,
        cpu: CpuModel,
        largest: float = math.inf,
    ) -> None:
        super().__init__(output)
        self.to, self.factor, self.cpu, self.largest = to, factor, cpu, largest
        if isinstance(factor, np.ndarray):
            packed = np.zeros(output.blocks * output.block, "float32")
            packed[: output.channels] = factor
            self.packed = (packed,)
            self.constants = [tir.buffer("factor", packed.shape, "float32")]

    def apply(
        self,
        names: tir.Names,
        value: tirx.Expr,
        plane: tir.Expr,
        _row: tir.Expr,
        _column: tir.Expr,
        channel_block: tir.Expr | None = None,
    ) -> tirx.Expr:
        """The result for one pixel of one plane, as int8."""
        lanes = self.output.block
        block = plane if channel_block is None else channel_block
        factor = self._factor(block)
        if self.cpu.isa == "aarch64":
            return names.keep("q", _on_aarch64(names, value, factor, self.to))
        if self.cpu.isa == "armv7":
            return names.keep("q", _on_armv7(names, value, factor, self.to))
        return names.keep("q", requantise(value, factor, self.to, lanes))

    @property
    def run(self) -> int:
        """Pixels that are best stored together."""
        return _RUN if self.cpu.isa == "x86" and "avx512bw" in self.cpu.features else 1

    def store(
        self,
        names: tir.Names,
        target: Image,
        values: Sequence[tirx.Expr],
        plane: tir.Expr,
        row: tir.Expr,
        column: tir.Expr,
        channel_block: tir.Expr | None = None,
    ) -> None:
        """Writes the results for neighbouring pixels of a row, from `column` on."""
        lanes = self.output.block
        packs = self.run > 1 and target.step == (1, 1)
        done = 0
        while packs and len(values) - done > 1:
            run = list(values[done : done + _RUN])
            size = len(run)
            block = plane if channel_block is None else channel_block
            made = _in_run(
                names,
                run + run[-1:] * (_RUN - size),
                self._factor(block),
                self.to,
                saturates=self.largest < _BEYOND,
            )
            # Three are two and one.
            for first, count in ((0, _RUN),) if size == _RUN else ((0, 2), (2, size - 2)):
                if count:
                    part = made
                    if count < _RUN:
                        kept = [
                            tir.integer(i) for i in range(first * lanes, (first + count) * lanes)
                        ]
                        part = tirx.Shuffle([made], kept)
                    at = target.at(plane, row, column + done + first)
                    names.add(tir.store(target.buffer, part, at, count * lanes))
            done += size
        for number in range(done, len(values)):
            here = column + number
            made = self.apply(names, values[number], plane, row, here, channel_block)
            names.add(target.store(made, plane, row, here))

    def _factor(self, block: tir.Expr) -> tirx.Expr:
        """That of a block's channels."""
        lanes = self.output.block
        if isinstance(self.factor, np.ndarray):
            return tir.load(self.constants[0], [block * lanes], lanes)
        return tir.number(self.factor, "float32", lanes)
