"""Interpolation along one axis as a matrix of constants: every form of ONNX's Resize.

Each result along an axis is a weighted sum of some elements of it, whose weights depend on sizes
and attributes only. As onnx's text defines them, and as `edgepack.model.meanings`
says where onnxruntime follows another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Form:
    """A Resize's attributes, by ONNX's names of them."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


def matrix(
    form: Form, size: int, out: int, scale: float, region: tuple[float, float] = (0.0, 1.0)
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (out, size) float64 that make `out` elements of `size`, and which lie outside.

    `scale` is what the model gives, which need not be `out` / `size`. Those outside of the region's
    axis, of tf_crop_and_resize, have weights of zero.
    """
    made = np.zeros((out, size))
    positions = _positions(form, size, out, scale, region)
    outside = np.zeros(out, bool)
    if form.coordinates == "tf_crop_and_resize":
        outside = (positions < 0) | (positions > size - 1)
    for row, position in enumerate(positions):
        if outside[row]:
            continue
        # A position on an element has it as the second of its two neighbours.
        first = int(np.ceil(position)) - 1
        weights = _weights(form, float(position - first), scale)
        taps = first + 1 - len(weights) // 2 + np.arange(len(weights))
        if form.exclude_outside:
            weights = np.where((taps < 0) | (taps >= size), 0.0, weights)
            weights = weights / weights.sum()
        np.add.at(made[row], np.clip(taps, 0, size - 1), weights)
    return made, outside


def _positions(
    form: Form, size: int, out: int, scale: float, region: tuple[float, float]
) -> np.ndarray:
    """Where each result lies on the axis that is resized."""
    # The nearest element in float32, as onnxruntime and PyTorch have it: 2 / (2 / 3) is 3 there,
    # but not with the float32 nearest to 2 / 3 in float64.
    x = np.arange(out, dtype="float32" if form.mode == "nearest" else "float64")
    start, end = region
    match form.coordinates:
        case "align_corners":
            return x * 0 if out == 1 else x * (size - 1) / (out - 1)
        case "asymmetric":
            return x / scale
        case "tf_crop_and_resize":
            step = 0.0 if out == 1 else (end - start) * (size - 1) / (out - 1)
            middle = (end - start) * (size - 1) / 2 if out == 1 else 0.0
            return x * step + middle + start * (size - 1)
        case "pytorch_half_pixel" if out == 1:
            return x * 0
        case "half_pixel_symmetric":
            # From the middle, which is exact: onnx has size / 2 * (1 - out / (scale * size))
            # + (x + 0.5) / scale - 0.5.
            return (x + (1 - out) / 2) / scale + (size - 1) / 2
    return (x + 0.5) / scale - 0.5


def _weights(form: Form, ratio: float, scale: float) -> np.ndarray:
    """Those of the neighbours of a position that is `ratio`, in (0, 1], behind the inner left one.

    An even number of them, as many on each side.
    """
    if form.mode == "nearest":
        right = {
            "round_prefer_floor": ratio > 0.5,
            "round_prefer_ceil": ratio >= 0.5,
            "floor": ratio == 1,
            "ceil": True,
        }[form.nearest]
        return np.array([not right, right], "float64")
    reach = 2 if form.mode == "cubic" else 1
    # Antialiasing makes the kernel as wide as the step from one result to the next.
    narrow = min(scale, 1.0) if form.antialias else 1.0
    start = int(np.floor(-reach / narrow) + 1)
    distances = np.abs(np.arange(start, 2 - start) - ratio) * narrow
    kernel = _cubic(distances, form.cubic) if reach == 2 else np.maximum(1 - distances, 0)
    return kernel / kernel.sum() if form.antialias else kernel


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel of distances that are not negative."""
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))
