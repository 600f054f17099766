"""The micro-kernels there are for ARM, one row each."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.kernels.tiles.arm.ahead import input_registers
from edgepack.kernels.tiles.arm.isa import Isa
from edgepack.kernels.tiles.arm.reductions import Convolve, ConvolveInParts
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT16, FLOAT32, Element

# Registers that a tile leaves to weights, at least; more where they are loaded long before they are
# used.
_FEWEST_FOR_WEIGHTS = 2
_FEWEST_AHEAD = 4


@dataclass(frozen=True, kw_only=True)
class MicroKernel:
    """A way to multiply and add in registers, in the words of the field:

    up to `mr` pixels and `nr` vectors of output channels are one tile, and a step of the reduction
    takes `kr` input channels at once (1: multiply-adds by lane; 4: dot products; 8: matrix
    instructions). CPUs of `isa` have it if they have the `feature` (of `cpu.FEATURES`).
    `code` writes the reduction, in the type itself.
    """

    element: Element
    isa: str
    mr: int
    nr: int
    kr: int
    feature: str | None
    code: type[Convolve]

    def runs_on(self, cpu: CpuModel) -> bool:
        """Whether a CPU has the instructions."""
        return cpu.isa == self.isa and (self.feature is None or self.feature in cpu.features)

    def fits(self, pixels: int, vectors: int, registers: int, *, ahead: bool = False) -> bool:
        """Whether a tile can be held in registers, inputs and some weights included.

        With `ahead` they are loaded long before they are used.
        """
        inside = pixels <= self.mr and vectors <= self.nr
        weights = _FEWEST_AHEAD if ahead else _FEWEST_FOR_WEIGHTS
        pairs = ahead and self.isa == "aarch64"
        inputs = input_registers(pixels, pairs_pixels=pairs)
        return inside and pixels * vectors + inputs + weights <= registers


# The first that runs on a CPU is taken.
KERNELS = (
    MicroKernel(
        element=FLOAT32, isa="aarch64", mr=16, nr=8, kr=1, feature=None, code=ConvolveInParts
    ),
    # Multiply-adds take lanes of v0 to v15 only (halves) or of q0 to q7 (ARMv7), and the inputs are
    # the lowest registers.
    MicroKernel(
        element=FLOAT16, isa="aarch64", mr=16, nr=8, kr=1, feature="fp16", code=ConvolveInParts
    ),
    MicroKernel(element=FLOAT32, isa="armv7", mr=8, nr=8, kr=1, feature=None, code=Convolve),
)


def micro_kernel(cpu: CpuModel, element: Element) -> MicroKernel | None:
    """The best one for a CPU and a type; None: left to LLVM."""
    rows = (row for row in KERNELS if row.element == element and row.runs_on(cpu))
    return next(rows, None)


def isa_of(cpu: CpuModel, element: Element) -> Isa | None:
    """The instruction set that tiles of a type are written in for a CPU; None: left to LLVM."""
    row = micro_kernel(cpu, element)
    if row is None:
        return None
    return Isa(name=row.isa, registers=cpu.registers, element=element, core=cpu.pipeline)
