"""Scales and zero points: which numbers 256 steps stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.quantization.network import Array, FloatNetwork, values

# Values of a tensor that are kept of one photo, at most: the rest is like them.
_KEPT = 40_000
# Both ends of what is cut off, as shares of all values.
_PERCENTILES = (0.0, 1e-5, 1e-4, 1e-3)
_LEAST = 1e-8
_BINS = 40


@dataclass(frozen=True, kw_only=True)
class ByteSteps:
    """uint8 integers q stand for `scale` * (q - `zero`)."""

    scale: float
    zero: int

    @staticmethod
    def between(low: float, high: float) -> ByteSteps:
        """Those from `low` to `high`, with 0 among them."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = float(np.float32(max((high - low) / 255, _LEAST)))
        return ByteSteps(scale=scale, zero=int(np.clip(round(-low / scale), 0, 255)))

    def rounded(self, numbers: Array) -> Array:
        """The numbers that integers can stand for."""
        whole = np.clip(np.rint(numbers / np.float32(self.scale)) + self.zero, 0, 255)
        return np.asarray((whole - self.zero) * np.float32(self.scale))


@dataclass(frozen=True, kw_only=True)
class TensorRange:
    """A tensor's values on the photos of calibration: `counts` in equal steps from `least` to
    `most`; and from `low` to `high`, what its integers stand for. The share `cut` lies beyond.
    """

    tensor: str
    counts: tuple[int, ...]
    least: float
    most: float
    low: float
    high: float
    cut: float

    @staticmethod
    def of(tensor: str, numbers: Array, steps: ByteSteps) -> TensorRange:
        low, high = -steps.zero * steps.scale, (255 - steps.zero) * steps.scale
        counts, edges = np.histogram(numbers, bins=_BINS)
        # What would be rounded to an end is not beyond it.
        half = steps.scale / 2
        return TensorRange(
            tensor=tensor,
            counts=tuple(counts.tolist()),
            least=float(edges[0]),
            most=float(edges[-1]),
            low=low,
            high=high,
            cut=float(((numbers < low - half) | (numbers > high + half)).mean()),
        )


def sample_values(
    network: FloatNetwork, photos: Sequence[Array], names: Sequence[str]
) -> dict[str, Array]:
    """Values of some tensors on all photos, evenly taken out of them."""
    kept: dict[str, list[Array]] = {name: [] for name in names}
    for found in values(network.proto, photos, names):
        for name in names:
            flat = found[name].reshape(-1)
            kept[name].append(flat[:: -(-flat.size // _KEPT)])
    return {name: np.concatenate(parts) for name, parts in kept.items()}


def steps_for(numbers: Array) -> ByteSteps:
    """The steps of least mean square error of those that cut off some percentile."""
    ordered = np.sort(numbers)
    found = []
    for share in _PERCENTILES:
        cut = int(share * ordered.size)
        steps = ByteSteps.between(float(ordered[cut]), float(ordered[ordered.size - 1 - cut]))
        error = float(((steps.rounded(numbers) - numbers) ** 2).mean(dtype="float64"))
        found.append((error, steps))
    return min(found, key=lambda item: item[0])[1]
