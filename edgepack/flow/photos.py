"""Photos as programs have them: files, Pillow's images, arrays of a camera."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import UsageError
from edgepack.deploy.remote_app import TENSORS
from edgepack.preprocess.image import KINDS, GrayImageError, load_image

_FORMATS = {"rgb": "rgb24", "bgr": "bgr24", "gray": "gray"}
COLORS = tuple(_FORMATS)
"""In which order the channels of an array of pixels are."""


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """A photo's: `form` is what edgepack-run and ffmpeg call it, `data` has the rows one by one."""

    data: bytes
    width: int
    height: int
    form: str


def is_photo(data: object, color: str | None = None) -> bool:
    """Whether that is a photo: a file, a Pillow image, or with a `color` an array of pixels."""
    if isinstance(data, str | Path):
        return Path(data).suffix.lower() not in TENSORS
    return is_image(data) or (color is not None and isinstance(data, np.ndarray))


def is_image(data: object) -> TypeGuard[Any]:
    """Whether that is one of Pillow's: whoever has one has imported Pillow."""
    return "PIL.Image" in sys.modules and isinstance(data, sys.modules["PIL.Image"].Image)


def pixels_of(
    photo: object, color: str | None = None, *, accept: Collection[str] = KINDS
) -> Pixels:
    """The pixels of a photo, decoded here and turned as its EXIF data says.

    An array is uint8, (height, width, 3) with `color` "rgb" or "bgr", or (height, width) with
    "gray". `accept` are the kinds of photos that are converted, others are refused. Raises
    UsageError if it is none, or nobody says which, and ImageError for a kind that is refused.
    """
    if isinstance(photo, str | Path):
        return _pixels(load_image(Path(photo), accept=accept), "bgr")
    if is_image(photo):
        if photo.mode == "RGB":
            return _pixels(np.asarray(photo), "rgb")
        # Gray, with alpha, of a palette: what a file of it would be taken for, or refused as.
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            file = Path(folder) / "photo.png"
            photo.save(file)
            return _pixels(load_image(file, accept=accept), "bgr")
    if color not in _FORMATS:
        raise UsageError(
            "an array of pixels, and nobody says in which order its channels are"
            if color is None
            else f"color: unknown: {color!r}",
            hint='give color="rgb", color="bgr" (as OpenCV has it) or color="gray"',
        )
    if color == "gray" and "gray" not in accept:
        raise GrayImageError(
            "pixels of one channel, but the model was made for colours",
            hint='accept = ["gray"] in [preprocess] repeats the channel',
        )
    array = np.asarray(photo)
    channels = () if color == "gray" else (3,)
    if array.dtype != np.uint8 or array.ndim != 2 + len(channels) or array.shape[2:] != channels:
        wanted = "(height, width)" if color == "gray" else "(height, width, 3)"
        raise UsageError(
            f"an array of {color} pixels is uint8 {wanted}; this one is "
            f"{array.dtype} {array.shape}",
            hint="of floats, multiply by 255 and round; of channels first, transpose(1, 2, 0)",
        )
    if not array.size:
        raise UsageError(f"an array without pixels: {array.shape}")
    return _pixels(array, color)


def _pixels(array: npt.NDArray[np.uint8], color: str) -> Pixels:
    height, width = array.shape[:2]
    data = np.ascontiguousarray(array).tobytes()
    return Pixels(data=data, width=width, height=height, form=_FORMATS[color])


def save_png(photo: object, color: str | None, path: Path) -> None:
    """Write a photo that is no file as a PNG file, with the same pixels."""
    import cv2

    pixels = pixels_of(photo, color)
    channels = len(pixels.data) // (pixels.width * pixels.height)
    array = np.frombuffer(pixels.data, np.uint8).reshape(pixels.height, pixels.width, channels)
    cv2.imwrite(str(path), array[:, :, ::-1] if pixels.form == "rgb24" else array)
