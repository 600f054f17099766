"""Tiles of convolutions in assembly, for ARM.

LLVM reorders the loads of such a loop until the accumulators no longer fit the registers, on 32-bit
ARM above all (16 registers: up to 46 stack accesses per 32 multiply-adds). So a whole tile is one
block of inline assembly: load the bias, reduce, epilogue, store. Depthwise tiles are short; they
come with the loops over the tiles of a row and over rows (`TileRows`, `DepthwiseBand`).

The R x V accumulators of a tile are the highest registers; the reduction has the others.

    kernels     which micro-kernels there are, a row each
    reductions  the inner loops; `ahead` those whose loads are written between multiply-adds
    bands       rows of depthwise results, each input of which is loaded once
    integers    tiles of 8-bit integers; `integer_windows` depthwise ones, `rounding` their end
    tile        whole tiles, and rows of them
    widening    halves made float32
    transform   passes of Winograd's transforms
    writer      registers, labels and constants; `armv7` and `aarch64` write the instructions
"""

from edgepack.kernels.tiles.arm.bands import DepthwiseBand
from edgepack.kernels.tiles.arm.integer_windows import IntegerDepthwise
from edgepack.kernels.tiles.arm.integers import IntegerKernel, IntegerTile, integer_kernel
from edgepack.kernels.tiles.arm.isa import QUAD, Isa
from edgepack.kernels.tiles.arm.kernels import KERNELS, MicroKernel, isa_of, micro_kernel
from edgepack.kernels.tiles.arm.reductions import (
    Convolve,
    Depthwise,
    Reduction,
    longest_chain,
)
from edgepack.kernels.tiles.arm.rounding import ANY_WIDTH, width_of
from edgepack.kernels.tiles.arm.tile import AssemblyTile, EpilogueStep, TileRows
from edgepack.kernels.tiles.arm.widening import Widening

__all__ = [
    "ANY_WIDTH",
    "KERNELS",
    "QUAD",
    "AssemblyTile",
    "Convolve",
    "Depthwise",
    "DepthwiseBand",
    "EpilogueStep",
    "IntegerDepthwise",
    "IntegerKernel",
    "IntegerTile",
    "Isa",
    "MicroKernel",
    "Reduction",
    "TileRows",
    "Widening",
    "integer_kernel",
    "isa_of",
    "longest_chain",
    "micro_kernel",
    "width_of",
]
