"""Sums of integers made 8 bits again."""

from __future__ import annotations

import math

import numpy as np
from tvm import tirx

from edgepack.compiler.integer import Target
from edgepack.compiler.tiles import tir
from edgepack.compiler.tiles.cpu import INT8_BLOCK, CpuModel
from edgepack.compiler.tiles.epilogue import Epilogue
from edgepack.compiler.tiles.layout import Blocked

# The last place of floats from this number on, to twice its two thirds, is 1: numbers added to it
# are rounded half to even, and lie in its lowest bits.
_ROUNDING = 12582912.0


def requantised(value: tirx.Expr, factor: tirx.Expr, to: Target, lanes: int) -> tirx.Expr:
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
        _intrinsic("int16x8", "sadd.sat.v8i16", tir.joined(quarters[i : i + 2]), zero)
        for i in (0, 2)
    ]
    bytes_ = [_intrinsic("int8x8", "aarch64.neon.sqxtn.v8i8", half) for half in halves]
    made = names.keep("q", tir.joined(bytes_))
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
    return tir.cast(tir.joined(bits), "int8") + zero


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
        if isinstance(self.factor, np.ndarray):
            factor = tir.load(self.constants[0], [block * lanes], lanes)
        else:
            factor = tir.number(self.factor, "float32", lanes)
        if self.cpu.isa == "aarch64":
            return names.keep("q", _on_aarch64(names, value, factor, self.to))
        if self.cpu.isa == "armv7":
            return names.keep("q", _on_armv7(names, value, factor, self.to))
        return names.keep("q", requantised(value, factor, self.to, lanes))
