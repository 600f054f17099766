"""Tiles of convolutions in assembly, for ARM.

Left to itself LLVM reorders the loads of such a loop until the accumulators no longer fit the
registers, on 32-bit ARM above all (16 registers: up to 46 stack accesses per 32 multiply-adds).
Here a whole tile (start with the bias, reduce, finish, store) is one block of inline assembly,
so that every register is where the tile's size said it would be. Tiles with no loop of their own,
the depthwise ones, come with those over the tiles of a row and over rows (`Rows`).

The R x V accumulators of a tile are the highest registers. The lower ones are the reduction's.
"""

from edgepack.compiler.tiles.arm.isa import LANES, QUAD, Isa
from edgepack.compiler.tiles.arm.kernels import KERNELS, MicroKernel, isa_of, micro_kernel
from edgepack.compiler.tiles.arm.reductions import Convolve, Depthwise, Reduction
from edgepack.compiler.tiles.arm.tile import AssemblyTile, EpilogueStep, TileRows

__all__ = [
    "KERNELS",
    "LANES",
    "QUAD",
    "AssemblyTile",
    "Convolve",
    "Depthwise",
    "EpilogueStep",
    "Isa",
    "MicroKernel",
    "Reduction",
    "TileRows",
    "isa_of",
    "micro_kernel",
]
