"""Halves that are made float32."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.kernels.tiles.arm.isa import QUAD, Isa
from edgepack.kernels.tiles.arm.writer import Writer
from edgepack.kernels.tiles.arm.writers import writer_of


@dataclass(frozen=True, kw_only=True)
class Widening:
    """`vectors` vectors of four float32, made of halves that lie one after the other."""

    isa: Isa
    vectors: int

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name(target, source)` of pointers."""
        writer = writer_of(self.isa, ("target", "source"))
        full, rest = divmod(self.vectors, writer.most_widened)
        writer.loop("turn", full, lambda: self._some(writer, writer.most_widened))
        if rest:
            self._some(writer, rest)
        return writer.llvm_ir(name)

    def _some(self, writer: Writer, count: int) -> None:
        made = writer.free[:count]
        writer.widen(made, "source")
        writer.store(made, "target")
        writer.add("target", QUAD * count)
