"""Pillow's resize of 8-bit images, on numpy: torchvision and timm resize by it.

The algorithm of Pillow's src/libImaging/Resample.c, written anew, as the runtime on the board has
it in C++. The package takes 20 MB, and which axis comes first depends on its version.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.preprocess.image import Pixels

FILTERS = {"pil-bilinear": 1.0, "pil-bicubic": 2.0}
"""How far each filter reaches, in pixels of the smaller image."""

# Weights are integers of this many fractional bits: a pixel has 8 bits, and 2 are left for sums
# outside 0..1 of a filter with negative lobes.
_BITS = 32 - 8 - 2


def pillow_resize(image: Pixels, height: int, width: int, interpolation: str) -> Pixels:
    """`image` (HWC or HW, uint8) at `height` x `width`.

    Width first, as Pillow did in one call before version 13, which begins with the height of
    tall photos: models were trained with the former.
    """
    across = _resized(np.swapaxes(image, 0, 1), width, interpolation)
    return _resized(np.swapaxes(across, 0, 1), height, interpolation)


def _resized(image: Pixels, size: int, interpolation: str) -> Pixels:
    """The first axis with `size` elements."""
    if image.shape[0] == size:
        return np.ascontiguousarray(image)
    rows = np.ascontiguousarray(image).reshape(image.shape[0], -1)
    out = np.empty((size, rows.shape[1]), np.uint8)
    for at, (first, weights) in enumerate(_taps(image.shape[0], size, interpolation)):
        # Sums of integers below 2^31, which float64 holds exactly.
        total = weights @ rows[first : first + weights.size].astype(np.float64)
        whole = (total.astype(np.int64) + (1 << (_BITS - 1))) >> _BITS
        out[at] = np.clip(whole, 0, 255)
    return out.reshape(size, *image.shape[1:])


@functools.lru_cache(maxsize=8)
def _taps(size: int, to: int, interpolation: str) -> list[tuple[int, npt.NDArray[np.float64]]]:
    """For each pixel that is made: the first one that is read, and the weights, whole numbers."""
    scale = size / to
    stretch = max(scale, 1.0)
    support = FILTERS[interpolation] * stretch
    taps = []
    for at in range(to):
        centre = (at + 0.5) * scale
        first = max(int(centre - support + 0.5), 0)
        last = min(int(centre + support + 0.5), size)
        weights = _weights((np.arange(first, last) - centre + 0.5) * (1.0 / stretch), interpolation)
        # One by one, as Pillow adds them.
        weights /= sum(weights.tolist()) or 1.0
        whole = weights * (1 << _BITS) + np.copysign(0.5, weights)
        taps.append((first, np.trunc(whole)))
    return taps


def _weights(x: npt.NDArray[Any], interpolation: str) -> npt.NDArray[Any]:
    x = np.abs(x)
    if interpolation == "pil-bilinear":
        return np.maximum(1.0 - x, 0.0)
    a = -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
