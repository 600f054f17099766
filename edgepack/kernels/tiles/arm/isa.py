"""What is to be known of an instruction set before code is written in it."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.kernels.tiles.element import FLOAT32, Element

# Bytes of a vector register.
QUAD = 16
# vldm and vstm of ARMv7 move at most 16 double registers.
MOST_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Isa:
    """An instruction set that tiles can be written in, its vector registers, and what tiles are
    of. `core` is that of `pipeline.cores` which instructions are put in order for; "" is one that
    does so itself."""

    name: str
    registers: int
    element: Element = FLOAT32
    core: str = ""

    @property
    def lanes(self) -> int:
        """Elements in a register."""
        return self.element.lanes(QUAD)

    def most_depthwise(self, columns: int) -> int:
        """Pixels of the largest depthwise tile that leaves some registers for inputs; may be 0."""
        # Two are enough to get by; what waits for a load, as in-order cores do, wants more.
        most, inputs = (MOST_AT_ONCE, 2) if self.name == "armv7" else (16, 6)
        return max(0, min(most, self.registers - columns - inputs))

    def reaches(self, vectors: int) -> bool:
        """Whether instructions can address so many vectors from one pointer, which stays.

        So each load can start at once: a pointer that moves makes them wait for each other.
        """
        # The offset of ldp has seven bits, signed, in units of the vector's size.
        return self.name == "aarch64" and vectors <= 64
