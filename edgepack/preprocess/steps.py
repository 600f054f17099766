"""A photo after each step of its preprocessing, and the tensor turned back into pixels: to look at.

What is wrong with a [preprocess] table shows there: a crop that cuts the thing off, colours the
other way round, values that the model was not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgepack.preprocess.geometry import Geometry
from edgepack.preprocess.image import MOST_PIXELS, Pixels, decode_image
from edgepack.preprocess.presets import PRESETS
from edgepack.preprocess.spec import PreprocessSpec

Array = npt.NDArray[Any]

_IMAGENET = PRESETS["torchvision-imagenet"].table
NORMALISATIONS: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "0 to 255": (1.0, (0.0,) * 3, (1.0,) * 3),
    "0 to 1": (1 / 255, (0.0,) * 3, (1.0,) * 3),
    "-1 to 1": (1 / 127.5, (1.0,) * 3, (1.0,) * 3),
    "ImageNet's mean and std": (
        _IMAGENET["scale"], tuple(_IMAGENET["mean"]), tuple(_IMAGENET["std"]),
    ),
}  # fmt: skip
"""How models are usually trained: scale, mean and std of RGB, as in `PreprocessSpec`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PhotoSteps:
    """What became of a photo: `photo` is BGR as decoded in full, `size` is its (height, width).

    The next three have channels in the order of the spec's `color`: `colored` is the photo at one
    `reduction`-th of its size, `resized` and `cropped` are what follows. `tensor` is the model's
    input, in which the photo lies as `geometry` says.
    """

    photo: Pixels
    reduction: int
    colored: Array
    resized: Array
    cropped: Array
    tensor: Array
    geometry: Geometry

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the photo."""
        return self.geometry.height, self.geometry.width

    @property
    def crop_box(self) -> tuple[float, float, float, float] | None:
        """Left, top, right and bottom of what is cut out of `resized`, if it is a part."""
        (height, width), outer = self.cropped.shape[:2], self.resized.shape[:2]
        if (height, width) == outer:
            return None
        inner = self.geometry
        # Where a letterbox has a border, the photo begins within `resized`.
        left = inner.left + (outer[1] - inner.scaled_width) // 2
        top = inner.top + (outer[0] - inner.scaled_height) // 2
        return (left, top, left + width, top + height)

    @property
    def seen_box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of what the model sees, in the photo's pixels."""
        height, width = self.cropped.shape[:2]
        return (*self.geometry.point(0, 0), *self.geometry.point(width, height))


def trace_steps(spec: PreprocessSpec, path: Path) -> PhotoSteps:
    """The steps of `spec.load(path)`. Raises what that raises."""
    most = spec.max_pixels or MOST_PIXELS
    photo, _ = decode_image(path, accept=spec.accepted, max_pixels=most)
    pixels, size = photo, photo.shape[:2]
    if spec.decode != "full":
        pixels, size = decode_image(
            path, accept=spec.accepted, max_pixels=most, reduction=spec.reduction
        )
    colored, resized, cropped = spec.stages(pixels, size)
    return PhotoSteps(
        photo=photo,
        reduction=round(size[0] / pixels.shape[0]),
        colored=colored,
        resized=resized,
        cropped=cropped,
        tensor=spec.tensor(cropped),
        geometry=spec.geometry(*size),
    )


def values_of(spec: PreprocessSpec, tensor: Array) -> Array:
    """The first image of a tensor as (H, W, C) float32, without its quantization."""
    values: Array = tensor[0].transpose(1, 2, 0) if spec.layout == "NCHW" else tensor[0]
    values = values.astype(np.float32)
    if spec.quantization is not None:
        scale, zero_point = spec.quantization
        values = (values - np.float32(zero_point)) * np.float32(scale)
    return np.asarray(values, np.float32)


def undone(spec: PreprocessSpec, tensor: Array) -> Pixels:
    """The pixels (H, W, C) that a tensor stands for by the spec, channels in the order of `color`.

    What a tensor cannot hold, because its dtype is too narrow, is missing in them.
    """
    values = values_of(spec, tensor)
    if spec.normalises:
        return pixels_of(values, spec.scale, spec.mean, spec.std)
    return _rounded(values)


def pixels_of(
    values: Array, scale: float, mean: tuple[float, ...], std: tuple[float, ...]
) -> Pixels:
    """Pixels (H, W, C) of normalised values; what is no colour is black or white."""
    with np.errstate(all="ignore"):
        return _rounded((values * np.array(std) + np.array(mean)) / scale)


def _rounded(values: Array) -> Pixels:
    return np.asarray(np.clip(np.nan_to_num(np.rint(values)), 0, 255), np.uint8)


def in_frame(image: Pixels, geometry: Geometry, scale: float) -> tuple[Pixels, npt.NDArray[Any]]:
    """`image` where it lies in the photo, `scale` times as large, and where in that there is any of
    it (H, W) bool; grey elsewhere.
    """
    height, width = (max(round(side * scale), 1) for side in (geometry.height, geometry.width))
    across = geometry.scaled_width / geometry.width / scale
    down = geometry.scaled_height / geometry.height / scale
    # From centres of pixels of the frame to those of the tensor.
    at_x = (np.arange(width, dtype=np.float32) + 0.5) * across - geometry.left - 0.5
    at_y = (np.arange(height, dtype=np.float32) + 0.5) * down - geometry.top - 0.5
    inside_x = (at_x > -1) & (at_x < image.shape[1])
    inside_y = (at_y > -1) & (at_y < image.shape[0])
    # Pixels at the photo's edges are its own, without any of a border.
    at_x = _within(at_x, geometry.left, geometry.scaled_width, image.shape[1])
    at_y = _within(at_y, geometry.top, geometry.scaled_height, image.shape[0])
    map_x, map_y = np.meshgrid(at_x, at_y)
    out = cv2.remap(image, map_x, map_y, cv2.INTER_LINEAR)
    inside = inside_y[:, np.newaxis] & inside_x[np.newaxis]
    out = out.reshape(height, width, -1)
    return np.where(inside[..., np.newaxis], out, np.uint8(128)).astype(np.uint8), inside


def _within(at: Array, start: int, scaled: int, size: int) -> Array:
    """Positions of a tensor's `size` pixels, moved to those that are the photo's."""
    return np.clip(at, max(0, -start), min(size, scaled - start) - 1).astype(np.float32)
