"""Crops that are straightened: by the corners of what is in a photo, or by a face's key points.

Coordinates are continuous: the corner of the first pixel is (0, 0), its centre (0.5, 0.5). The
runtime does the same to the byte (cpp_runtime/app/src/warp.cc): sums are in double precision and in
the order that is written, and pixels are mixed in integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import ImageError
from edgepack.preprocess.image import Pixels

Point = tuple[float, float]
_Ints = npt.NDArray[np.int64]

MOST_PIXELS = 1 << 22
"""Of a straightened crop, whose points may lie anywhere."""
_MOST_COORDINATE = 1e6
_FRACTIONS = 256  # of a pixel, of which positions are multiples

FACE_SIDE = 112
FACE_POINTS = (
    (38.2946, 51.6963),
    (73.5318, 51.5014),
    (56.0252, 71.7366),
    (41.5493, 92.3655),
    (70.7299, 92.2041),
)
"""The pixels of the eyes, the nose and the corners of the mouth, left ones first, in a face of
112 x 112 pixels: ArcFace and MobileFaceNet were trained so (insightface's utils/face_align.py)."""


class WarpError(ImageError):
    """Points that no crop can be straightened by."""


@dataclass(frozen=True, kw_only=True)
class Warp:
    """A crop of `height` x `width` pixels, and which points of a photo it shows.

    With the `matrix` (a, b, c, d, e, f, g, h) the point (x, y) of the crop is
    ((a x + b y + c) / w, (d x + e y + f) / w) of the photo, where w = g x + h y + 1.
    """

    height: int
    width: int
    matrix: tuple[float, float, float, float, float, float, float, float]

    def source(self, x: float, y: float) -> Point:
        """A point of the crop in the photo."""
        a, b, c, d, e, f, g, h = self.matrix
        w = g * x + h * y + 1.0
        return (a * x + b * y + c) / w, (d * x + e * y + f) / w

    def pixels(self, photo: Pixels) -> Pixels:
        """The crop (height, width, 3) of a photo (H, W, 3; uint8): for each pixel's centre the
        bilinear mean of the four pixels around it, with those at the photo's edge repeated."""
        a, b, c, d, e, f, g, h = self.matrix
        x = (np.arange(self.width) + 0.5)[None, :]
        y = (np.arange(self.height) + 0.5)[:, None]
        w = g * x + h * y + 1.0
        left, right, across = _around((a * x + b * y + c) / w, photo.shape[1])
        top, bottom, down = _around((d * x + e * y + f) / w, photo.shape[0])
        upper = photo[top, left] * (_FRACTIONS - across) + photo[top, right] * across
        lower = photo[bottom, left] * (_FRACTIONS - across) + photo[bottom, right] * across
        mixed = upper * (_FRACTIONS - down) + lower * down
        area = _FRACTIONS * _FRACTIONS
        return ((mixed + area // 2) // area).astype(np.uint8)


def _around(at: npt.NDArray[np.float64], size: int) -> tuple[_Ints, _Ints, _Ints]:
    """The pixels whose centres are before and after each position, and how many fractions of a
    pixel it is behind the first."""
    fractions = np.clip(np.floor((at - 0.5) * _FRACTIONS + 0.5), 0, (size - 1) * _FRACTIONS)
    first, behind = np.divmod(fractions.astype(np.int64), _FRACTIONS)
    return first, np.minimum(first + 1, size - 1), behind[..., None]


def warp_by_corners(
    corners: Sequence[Point], *, padding: float = 0.0, tall: float = 0.0, turned: bool = False
) -> Warp:
    """The rectangle whose corners in the photo are `corners`, clockwise from the upper left; it is
    enlarged by `padding` of its sides on each of them.

    Of opposite sides the longer counts. One that is at least `tall` times as high as wide, if that
    is not 0, is turned a quarter to the left, as by PaddleOCR's get_rotate_crop_image; then it is
    turned upside down if it is to be `turned`. Raises `WarpError`. The matrix is that of Heckbert,
    Fundamentals of Texture Mapping and Image Warping (1989), 2.2.3.
    """
    corners = _checked(corners, 4)
    width, height = _sides(corners)
    if tall and height >= tall * width:
        corners = (*corners[1:], corners[0])
        width, height = height, width
    if turned:
        corners = (*corners[2:], *corners[:2])
    for index in range(4):
        (ax, ay), (bx, by), (cx, cy) = (corners[(index + i) % 4] for i in range(3))
        if not (bx - ax) * (cy - by) - (by - ay) * (cx - bx) > 0:
            raise WarpError("its corners are not those of a convex shape, clockwise")
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners
    dx1, dx2, dx3 = x1 - x2, x3 - x2, x0 - x1 + x2 - x3
    dy1, dy2, dy3 = y1 - y2, y3 - y2, y0 - y1 + y2 - y3
    area = dx1 * dy2 - dx2 * dy1
    g = (dx3 * dy2 - dx2 * dy3) / area
    h = (dx1 * dy3 - dx3 * dy1) / area
    a, b = x1 - x0 + g * x1, x3 - x0 + h * x3
    d, e = y1 - y0 + g * y1, y3 - y0 + h * y3
    # From pixels of the crop to shares of the rectangle.
    whole = 1.0 + 2.0 * padding
    columns, rows = _pixels(width * whole), _pixels(height * whole)
    if columns * rows > MOST_PIXELS:
        raise WarpError(
            f"it would be {columns} x {rows} pixels; at most {MOST_PIXELS} are possible"
        )
    across, down = whole / columns, whole / rows
    w = 1.0 - (g + h) * padding
    g, h = g * across / w, h * down / w
    nearest = min(w, 1.0 + g * columns, 1.0 + h * rows, 1.0 + g * columns + h * rows)
    if not nearest > 0:
        raise WarpError("enlarged by the padding, it reaches behind the horizon")
    return Warp(
        height=rows,
        width=columns,
        matrix=(
            a * across / w, b * down / w, (x0 - (a + b) * padding) / w,
            d * across / w, e * down / w, (y0 - (d + e) * padding) / w,
            g, h,
        ),
    )  # fmt: skip


def warp_by_face(points: Sequence[Point], side: int, *, padding: float = 0.0) -> Warp:
    """The face with these five points, `side` x `side` pixels, in which they are as close to
    `FACE_POINTS` as turning, scaling and moving brings them; with `padding` there is that share of
    a face more on each side.

    Raises `WarpError`. Least squares as Umeyama's, doi:10.1109/34.88573, in two dimensions.
    """
    points = _checked(points, len(FACE_POINTS))
    scale = side / (FACE_SIDE * (1.0 + 2.0 * padding))
    places = [
        ((u + 0.5 + padding * FACE_SIDE) * scale, (v + 0.5 + padding * FACE_SIDE) * scale)
        for u, v in FACE_POINTS
    ]
    x, y = _middle(points)
    u, v = _middle(places)
    spread = along = turning = 0.0
    for (px, py), (pu, pv) in zip(points, places, strict=True):
        dx, dy, du, dv = px - x, py - y, pu - u, pv - v
        spread += dx * dx + dy * dy
        along += dx * du + dy * dv
        turning += dx * dv - dy * du
    size = along * along + turning * turning
    if not (spread > 0 and size > 0):
        raise WarpError("its key points are all in one place")
    # The inverse of what brings the points to their places.
    cos, sin = along * spread / size, turning * spread / size
    return Warp(
        height=side,
        width=side,
        matrix=(
            cos, sin, x - (cos * u + sin * v),
            -sin, cos, y - (cos * v - sin * u),
            0.0, 0.0,
        ),
    )  # fmt: skip


def _checked(points: Sequence[Point], count: int) -> tuple[Point, ...]:
    if len(points) != count:
        raise WarpError(f"it has {len(points)} points instead of {count}")
    if not all(abs(value) <= _MOST_COORDINATE for point in points for value in point):
        raise WarpError("a point of it lies beside all photos")
    return tuple(points)


def _sides(corners: Sequence[Point]) -> tuple[float, float]:
    """The width and the height."""

    def length(one: int, other: int) -> float:
        dx, dy = corners[one][0] - corners[other][0], corners[one][1] - corners[other][1]
        return math.sqrt(dx * dx + dy * dy)

    return max(length(0, 1), length(3, 2)), max(length(0, 3), length(1, 2))


def _pixels(length: float) -> int:
    return max(1, math.floor(length + 0.5))


def _middle(points: Sequence[Point]) -> Point:
    x = y = 0.0
    for px, py in points:
        x += px
        y += py
    return x / len(points), y / len(points)
