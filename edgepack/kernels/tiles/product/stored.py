"""Weights that are stored as halves, and multiplied as float32.

They are made float32 one panel at a time, right before all pixels use it. Of large ones each core
has room for a single panel, which stays in its cache: so half as many bytes come from memory.
"""

from __future__ import annotations

import numpy as np

from edgepack.kernels.tiles import arm, micro, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT16
from edgepack.kernels.tiles.product.shape import Shape


class StoredHalves:
    """The weights `packed` of a product of one group, in panels of `vectors` vectors.

    `stored` is the argument that holds them, `wide` the scratch memory that they are multiplied
    from. With `slots` that has a panel for each of so many cores, else all.
    """

    def __init__(self, packed: np.ndarray, shape: Shape, vectors: int, cpu: CpuModel) -> None:
        self.shape, self.vectors, self.cpu = shape, vectors, cpu
        self.packed = packed.astype(FLOAT16.name)
        # What does not fit the cache would be written to memory, and read again.
        large = shape.weight_bytes > cpu.l2_bytes / 2
        self.slots = cpu.cores if large else None
        size = cpu.cores * shape.panel(vectors) if large else packed.size
        self.stored = tir.buffer("stored", packed.shape, FLOAT16.name)
        self.wide = tir.buffer("weights", (size,), shape.element.name)
        self.functions = micro.AssemblyFunctions()

    def widen(self, panel: tir.Expr, vectors: int, slot: tir.Expr | None = None) -> tir.Stmt:
        """Make a panel float32, in its own place or that of a core."""
        whole, lanes = self.shape.panel(self.vectors), self.shape.lanes
        source, target = panel * whole, (panel if slot is None else slot) * whole
        count = self.shape.panel(vectors) // lanes
        isa = arm.isa_of(self.cpu, self.shape.element)
        if isa is not None:
            code = arm.Widening(isa=isa, vectors=count)
            return self.functions.call(code, [(self.wide, [target]), (self.stored, [source])])

        def one(index: tir.Expr) -> tir.Stmt:
            halves = tir.load(self.stored, [source + index * lanes], lanes)
            value = tir.cast(halves, self.shape.element.name)
            return tir.store(self.wide, value, [target + index * lanes], lanes)

        return tir.loop_of("widened", count, one)

    @property
    def cycles(self) -> float:
        """What widening all of them costs: a load, conversions and a store for each two vectors."""
        return 2 * self.packed.size / self.shape.lanes / self.cpu.loads_per_cycle


def stored_halves(
    packed: np.ndarray, shape: Shape, vectors: int, cpu: CpuModel
) -> StoredHalves | None:
    """The weights as halves; None if the CPU cannot widen them, or there are several groups."""
    if shape.groups > 1 or not cpu.converts_halves or shape.element == FLOAT16:
        return None
    return StoredHalves(packed, shape, vectors, cpu)
