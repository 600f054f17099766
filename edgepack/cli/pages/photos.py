"""Photos on pages: small, and with what was found in them."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from edgepack.base import charts, page
from edgepack.base.errors import ImageError
from edgepack.base.page import Html
from edgepack.postprocess.box_mask import BoxMask

_THUMBNAIL = 160
LARGEST = 640
"""Sides of pictures on a page, in pixels: what is larger is shown smaller."""
_SMALLEST = 160


class _FoundBox(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def box(self) -> Sequence[float]: ...
    @property
    def mask(self) -> BoxMask | None: ...


class _FoundArea(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def pixels(self) -> int: ...
    @property
    def runs(self) -> Sequence[int]: ...


def thumbnail(path: Path) -> Html:
    """Small, as a JPEG; what is no photo any more has none."""
    from edgepack.preprocess.image import KINDS, load_image

    try:
        photo = load_image(path, accept=KINDS)
    except ImageError:
        return Html()
    return page.picture(encode_photo(photo, _THUMBNAIL), alt=path.name)


def encode_photo(image: Any, largest: int = LARGEST) -> bytes:
    """An image (BGR or gray, uint8) as a JPEG whose sides are not above `largest`.

    One of few pixels is enlarged so that these can be seen.
    """
    import cv2

    sides = image.shape[:2]
    factor = min(largest / max(sides), 1.0)
    filter_ = cv2.INTER_AREA
    if max(sides) <= _SMALLEST // 2:
        factor, filter_ = float(_SMALLEST // max(sides)), cv2.INTER_NEAREST
    if factor != 1.0:
        height, width = (max(round(side * factor), 1) for side in sides)
        image = cv2.resize(image, (width, height), interpolation=filter_)
    _, data = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, 85))
    return bytes(data.tobytes())


def mark_photo(
    image: Any,
    boxes: Iterable[_FoundBox] = (),
    points: Iterable[Sequence[float]] = (),
    areas: Sequence[_FoundArea] = (),
    *,
    alt: str,
) -> Html:
    """A photo (BGR, uint8) with what was found in it; areas of its pixels are coloured."""
    height, width = image.shape[:2]
    boxes = list(boxes)
    said = [(box.box, f"{box.label or box.index} {box.score:.2f}") for box in boxes]
    if areas:
        image = _painted(image, areas)
    if any(box.mask for box in boxes):
        image = _with_masks(image, boxes)
    return charts.marked_picture(encode_photo(image), width, height, said, points, alt=alt)


def _painted(image: Any, areas: Sequence[_FoundArea]) -> Any:
    """With the classes' colours laid over it."""
    out = image.copy()
    flat = out.reshape(-1, 3)
    for area in areas:
        red, green, blue = area_color(area.index)
        runs = area.runs
        for begin, length in zip(runs[::2], runs[1::2], strict=True):
            part = flat[begin : begin + length]
            part[:] = (part // 2) + [blue // 2, green // 2, red // 2]
    return out


def _with_masks(image: Any, boxes: Sequence[_FoundBox]) -> Any:
    """With the things' pixels in their classes' colours, those of the best box on top."""
    import numpy as np

    height, width = image.shape[:2]
    flat = image.transpose(1, 0, 2).reshape(-1, 3).copy()  # column by column, as masks are
    for box in reversed(boxes):
        if box.mask is None or box.mask.size != (height, width):
            continue
        red, green, blue = area_color(box.index)
        for begin, end in box.mask.runs():
            flat[begin:end] = (flat[begin:end] // 2) + [blue // 2, green // 2, red // 2]
    return np.ascontiguousarray(flat.reshape(width, height, 3).transpose(1, 0, 2))


def area_color(index: int) -> tuple[int, int, int]:
    """Red, green and blue of a class: neighbours' differ."""
    shares = colorsys.hsv_to_rgb(index * 0.618 % 1.0, 0.85, 0.95)
    red, green, blue = (round(255 * share) for share in shares)
    return red, green, blue
