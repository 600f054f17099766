"""How exact a compiled model is to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

TF32 = "tf32"
PRECISIONS = ("float32", "float16", TF32)
# What is done of a quantised model's layers on integers: those that are faster so, all that can be,
# or none.
QUANTIZED = ("auto", "int8", "float")
# Which processor runs a model; the last has plans for both.
COMPUTE = ("cpu", "gpu", "gpu, else cpu")

# Values are kept this far below the largest half, 65504: other inputs may reach further than those
# that were looked at.
MOST = 16384.0
# What rounding to halves may lose: where all are normal numbers they are 72 dB above their error.
_LEAST_DB = 50.0
# What a layer in half precision may lose by Winograd's algorithm. Without it, ResNet-18's are 53 to
# 57 dB above their error; with F(4x4) they are 51 to 55, a trained YOLOv8n's 48 to 59 on a photo.
LEAST_WINOGRAD_DB = 45.0


@dataclass(frozen=True, kw_only=True)
class Precision:
    """What weights and images are stored in, and computed in where the CPU can: one of
    `PRECISIONS`. With "tf32" NVIDIA's GPUs multiply float32 rounded to 11 bits, and nothing else.

    A CPU without half-precision arithmetic computes in float32, and of "float16" has weights
    only. `samples` are inputs of the model, on which is found which ONNX nodes have to stay
    float32; `exact` are these nodes by name, and why. `winograd` are those that lose too much by
    large tiles of Winograd's algorithm, with the most results of a tile in one direction that they
    may have, 0 for none.

    `quantized`, one of `QUANTIZED`, says what of a quantised model is done on integers. `floats`,
    if given, are the nodes that are not, by name, and why; then it is not looked for.

    `bounded` are inputs, by name, whose values are as large as they were in training, such as
    pixels; layers that read others take small tiles of Winograd's algorithm. `direct` layers, all
    or those of some nodes, take none.
    """

    name: str = "float32"
    samples: tuple[Sequence[np.ndarray], ...] = field(default=(), repr=False, compare=False)
    exact: Mapping[str, str] = field(default_factory=dict)
    winograd: Mapping[str, int] = field(default_factory=dict)
    quantized: str = QUANTIZED[0]
    floats: Mapping[str, str] | None = None
    bounded: frozenset[str] = frozenset()
    direct: bool | frozenset[str] = False

    def is_direct(self, nodes: Iterable[str]) -> bool:
        """Whether a layer of some nodes is to be computed without Winograd's algorithm."""
        if isinstance(self.direct, bool):
            return self.direct
        return not self.direct.isdisjoint(nodes)

    @property
    def is_half(self) -> bool:
        """Whether some of it is to be half precision."""
        return self.name == "float16"

    @property
    def is_tf32(self) -> bool:
        """Whether a GPU may round what it multiplies to TF32."""
        return self.name == TF32


FULL = Precision()


def misfit(values: np.ndarray) -> str:
    """Why values cannot be stored as halves; empty if they can."""
    import numpy as np  # not for those who only ask which precisions there are

    largest = float(np.abs(values).max(initial=0.0))
    if largest > MOST:
        return f"reaches {largest:.3g}"
    wide = values.astype("float64")
    error = float(((wide - values.astype("float16")) ** 2).sum())
    power = float((wide**2).sum())
    if error * 10 ** (_LEAST_DB / 10) > power:
        return f"is as small as {largest:.3g}"
    return ""
