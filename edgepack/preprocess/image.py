"""Decoding photos, by the same rules as the runtime on the board.

The runtime holds a slim OpenCV that knows JPEG and PNG; so nothing else is read here
either, though the Python wheel could. What kind of image a file holds is read from its
header, because a decoder would silently turn any kind into 8-bit colour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from edgepack.base.errors import ImageError
from edgepack.preprocess.photos import ImageNotFoundError, read_photo

__all__ = ["ImageNotFoundError", "decode_image", "load_image"]

Pixels = npt.NDArray[np.uint8]

KINDS = ("16bit", "alpha", "gray")
"""Kinds of image that are refused unless accepted, in the order they are named."""

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_GRAY, _PNG_ALPHA = (0, 4), (4, 6)  # colour types of IHDR
_STARTS = {
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL ": "JPEG XL",
    b"%PDF": "PDF",
}
_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1"), "HEIC"),
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
}
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOFn markers
_JPEG_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})  # without a length: TEM, RST0 to EOI


_READ_MODES = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}


class NotAnImageError(ImageError):
    """The file is no JPEG or PNG image, or is damaged."""


class AnimatedImageError(ImageError):
    """The image is an animated PNG, of which a decoder would show the first picture."""


class TooManyPixelsError(ImageError):
    """The image has more pixels than allowed, by its header."""


class AlphaImageError(ImageError):
    """The image has an alpha channel (or transparent colours), which is not accepted."""


class GrayImageError(ImageError):
    """The image has gray pixels only, which is not accepted."""


class SixteenBitImageError(ImageError):
    """The image has 16 bits per channel, which is not accepted."""


_REFUSED = {
    "16bit": (SixteenBitImageError, "has 16 bits per channel", "keep the upper 8 bits"),
    "alpha": (AlphaImageError, "has an alpha channel", "drop the alpha channel"),
    "gray": (GrayImageError, "is gray", "repeat the gray channel as colours"),
}


MOST_PIXELS = 1 << 30
"""What OpenCV's decoders take at most."""


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What a file's header declares; `kinds` are of `KINDS`."""

    height: int
    width: int
    jpeg: bool = False
    kinds: frozenset[str] = frozenset()
    animated: bool = False
    damaged: bool = False


def load_image(
    path: Path, *, accept: Collection[str] = (), max_pixels: int = MOST_PIXELS
) -> Pixels:
    """All pixels of the image in a JPEG or PNG file: see `decode_image`."""
    return decode_image(path, accept=accept, max_pixels=max_pixels)[0]


def decode_image(
    path: Path,
    *,
    accept: Collection[str] = (),
    max_pixels: int = MOST_PIXELS,
    reduction: Callable[[int, int], int] | None = None,
) -> tuple[Pixels, tuple[int, int]]:
    """The image in a JPEG or PNG file as BGR, HWC (H, W, 3) uint8, and its own (height, width).

    Both are turned as EXIF data says. `accept` names kinds (of `KINDS`) that are converted instead
    of refused: gray pixels are repeated, alpha is dropped, of 16 bits the upper 8 are kept. An
    image of more than `max_pixels` pixels is refused before one is decoded. The sides of a JPEG
    that is not turned yet are divided by `reduction(height, width)` (1, 2, 4 or 8), by libjpeg as
    it decodes, and rounded up.
    Raises `ImageNotFoundError`, `NotAnImageError`, `AnimatedImageError`, `TooManyPixelsError`,
    `SixteenBitImageError`, `AlphaImageError` or `GrayImageError`.
    """
    data = read_photo(path)
    header = _read_header(data)
    if header is None:
        other = _other_format(data)
        raise NotAnImageError(
            f"not a JPEG or PNG image: {path}",
            hint=f"{f'it is {other}: ' if other else ''}convert it to PNG, or give another file",
        )
    if header.animated:
        raise AnimatedImageError(f"image is an animation: {path}", hint="give one picture of it")
    if header.height * header.width > max_pixels:
        raise TooManyPixelsError(
            f"image of {header.width} x {header.height} pixels is larger than the {max_pixels} "
            f"pixels allowed: {path}",
            hint="give a smaller photo, or set `max_pixels` in the [preprocess] table if there is "
            "memory for it",
        )
    for kind in KINDS:
        if kind in header.kinds and kind not in accept:
            error_class, what, conversion = _REFUSED[kind]
            raise error_class(
                f"image {what}: {path}",
                hint=f'to {conversion}, add "{kind}" to `accept` in the [preprocess] table; '
                "else give a photo like those the model was trained on",
            )
    if header.damaged:
        raise NotAnImageError(f"image is damaged: {path}")
    size = header.height, header.width
    divisor = reduction(*size) if reduction is not None and header.jpeg else 1
    logging = cv2.utils.logging
    log_level = logging.setLogLevel(logging.LOG_LEVEL_SILENT)  # a damaged image is an error here
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), _READ_MODES[divisor])
    except cv2.error as error:
        raise NotAnImageError(f"image cannot be decoded: {path}: {error.err}") from None
    finally:
        logging.setLogLevel(log_level)
    if pixels is None:
        raise NotAnImageError(f"image is damaged: {path}")
    made = np.asarray(pixels, np.uint8)
    if divisor == 1:
        return made, made.shape[:2]
    turned = (made.shape[0] > made.shape[1]) != (size[0] > size[1])
    return made, size[::-1] if turned else size


def image_kinds(path: Path) -> frozenset[str]:
    """Those of `KINDS` that the header of the JPEG or PNG file declares; none of another file."""
    header = _read_header(read_photo(path))
    return frozenset() if header is None else header.kinds


def _read_header(data: bytes) -> _Header | None:
    """What the header declares; None if it is not one of a JPEG or PNG image."""
    if data.startswith(_PNG):
        return _png_header(data)
    if data.startswith(_JPEG):
        return _jpeg_header(data)
    return None


def _other_format(data: bytes) -> str:
    """The name of what cameras and web pages give as well, by how it begins; empty for others."""
    if data[4:8] == b"ftyp":  # ISO/IEC 14496-12: a box of a length, with a brand
        return _BRANDS.get(data[8:12], "")
    if data[8:12] == b"WEBP":
        return "WebP"
    return next((name for start, name in _STARTS.items() if data.startswith(start)), "")


def _png_header(data: bytes) -> _Header | None:
    # After the signature: chunks of length (4), type (4), data, checksum (4); IHDR first.
    if len(data) < 33 or data[12:16] != b"IHDR":
        return None
    depth, color = data[24], data[25]
    kinds = set()
    if depth == 16:
        kinds.add("16bit")
    if color in _PNG_GRAY:
        kinds.add("gray")
    # Transparent colours and the sign of an animation stand before the pixels.
    before, whole = _png_chunks_before_the_pixels(data)
    if color in _PNG_ALPHA or b"tRNS" in before:
        kinds.add("alpha")
    return _Header(
        height=int.from_bytes(data[20:24], "big"),
        width=int.from_bytes(data[16:20], "big"),
        kinds=frozenset(kinds),
        animated=b"acTL" in before,
        damaged=not whole,
    )


def _png_chunks_before_the_pixels(data: bytes) -> tuple[set[bytes], bool]:
    """Their names, and whether those and the first of the pixels end within the file.

    OpenCV would take as much memory as one says that does not.
    """
    names: set[bytes] = set()
    at = len(_PNG)
    while at + 12 <= len(data):
        length, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        at += 12 + length
        if at > len(data):
            break
        if name == b"IDAT":
            return names, True
        names.add(name)
    return names, False


def _jpeg_header(data: bytes) -> _Header | None:
    # After SOI: segments FF, marker, length (2, itself included), data; FF may be repeated.
    # Whatever could be read in two ways is no header: the decoder would see another size.
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:
            at += 1
            continue
        if marker in _JPEG_FRAMES:
            # length (2), precision (1), height (2), width (2), number of components
            if at + 10 > len(data):
                return None
            return _Header(
                height=int.from_bytes(data[at + 5 : at + 7], "big"),
                width=int.from_bytes(data[at + 7 : at + 9], "big"),
                jpeg=True,
                kinds=frozenset({"gray"} if data[at + 9] == 1 else ()),
            )
        if marker in _JPEG_ALONE or length < 2:
            return None
        at += 2 + length
    return None
