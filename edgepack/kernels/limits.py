"""How layers may be made, as far as that was decided of them: it is not what they are."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.kernels.layer import Layer
from edgepack.kernels.value import Value


@dataclass(frozen=True, kw_only=True)
class LayerLimits:
    """What was decided of how a layer may be made; None says nothing.

    Winograd's algorithm makes at most `most_results` results of a tile in each direction, for more
    would cost too much accuracy, or for the `reason`; 0 is none. Where a kernel has scratch memory
    as a matter of choice it takes at most `room` bytes. `apart`: groups are not made one by weights
    of zero, by which an infinity of one is NaN in the others. `exact` says why weights are not
    stored as halves, if that was wanted.
    """

    most_results: int | None = None
    reason: str = ""
    room: int | None = None
    apart: bool = False
    exact: str = ""


FREE = LayerLimits()


class LimitsByValue(dict[Value, LayerLimits]):
    """Those of a network's layers, by the value that each makes."""

    def of(self, layer: Layer) -> LayerLimits:
        """What was decided of a layer."""
        return self.get(layer.output, FREE)
