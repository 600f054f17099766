"""The writer of each instruction set."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.kernels.tiles.arm.aarch64 import Aarch64
from edgepack.kernels.tiles.arm.armv7 import Armv7
from edgepack.kernels.tiles.arm.in_order import InOrderAarch64, InOrderArmv7
from edgepack.kernels.tiles.arm.isa import Isa
from edgepack.kernels.tiles.arm.writer import Writer

_WRITERS: dict[str, type[Writer]] = {"armv7": Armv7, "aarch64": Aarch64}
# For cores that issue in order.
_IN_ORDER: dict[str, type[Writer]] = {"armv7": InOrderArmv7, "aarch64": InOrderAarch64}


def writer_of(isa: Isa, pointers: Sequence[str], counts: Sequence[str] = ()) -> Writer:
    """A writer for an instruction set; `pointers` are the function's arguments, `counts` those
    after them, positive int32."""
    writers = {**_WRITERS, **(_IN_ORDER if isa.core else {})}
    return writers[isa.name](isa, pointers, counts)
