"""Crops that are straightened, by Python and by the runtime: the same sizes, matrices and bytes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgepack.base.errors import ImageError
from edgepack.preprocess.warp import FACE_POINTS, Warp, warp_by_corners, warp_by_face
from tests.app_targets import app_probe

Crop = dict[str, Any]


def _photo(height: int, width: int) -> np.ndarray:
    """What the probe makes up."""
    each = np.arange(height * width * 3, dtype=np.int64)
    return (each * each % 251).astype(np.uint8).reshape(height, width, 3)


def _crop(points: Sequence[tuple[float, float]], **changes: Any) -> Crop:
    whole = {"height": 40, "width": 50, "padding": 0.0, "side": 0, "tall": 0.0, "turned": False}
    return {**whole, "points": [float(x) for point in points for x in point], **changes}


def _by_python(crop: Crop) -> Crop | str:
    points = list(zip(crop["points"][::2], crop["points"][1::2], strict=True))
    try:
        warp: Warp = (
            warp_by_face(points, crop["side"], padding=crop["padding"])
            if crop["side"]
            else warp_by_corners(
                points, padding=crop["padding"], tall=crop["tall"], turned=crop["turned"]
            )
        )
    except ImageError as error:
        return error.message
    pixels = warp.pixels(_photo(crop["height"], crop["width"]))
    assert pixels.shape == (warp.height, warp.width, 3)
    return {
        "height": warp.height,
        "width": warp.width,
        "matrix": list(warp.matrix),
        "pixels": pixels.ravel().tolist(),
    }


def _compare(crops: Sequence[Crop]) -> tuple[int, int]:
    """How many are cut, and how many refused, by both for the same reason."""
    texts = [json.dumps(crop).encode() for crop in crops]
    stdin = b"".join(b"%d\n%b" % (len(text), text) for text in texts)
    done = subprocess.run([app_probe(), "warp"], input=stdin, capture_output=True, check=True)
    cut = refused = 0
    for crop, line in zip(crops, done.stdout.splitlines(), strict=True):
        native, python = json.loads(line), _by_python(crop)
        if isinstance(python, str):
            assert native == {"kind": "image", "message": python}
            refused += 1
        else:
            assert native == python, {key: crop[key] for key in crop}
            cut += 1
    return cut, refused


def test_lines_of_text_are_cut_to_the_byte() -> None:
    """Rectangles at any angle, as a detector of text gives them; some in part beside the photo."""
    random = np.random.default_rng(7)
    crops = []
    for _ in range(60):
        angle, wide, high = random.uniform(0, 6.3), random.uniform(1, 30), random.uniform(1, 12)
        x, y = random.uniform(0, 50), random.uniform(0, 40)
        along = np.array([np.cos(angle), np.sin(angle)])
        down = np.array([-along[1], along[0]])
        corners = [
            (float(p[0]), float(p[1]))
            for p in (
                np.array([x, y]) + u * wide / 2 * along + v * high / 2 * down
                for u, v in ((-1, -1), (1, -1), (1, 1), (-1, 1))
            )
        ]
        crops.append(
            _crop(
                corners,
                padding=float(random.choice([0, 0.1, 0.5])),
                tall=float(random.choice([0, 1.5])),
                turned=bool(random.integers(2)),
            )
        )
    assert _compare(crops) == (60, 0)


def test_plates_in_perspective_are_cut_to_the_byte() -> None:
    random = np.random.default_rng(8)
    square = np.array([(5, 5), (45, 5), (45, 35), (5, 35)], float)
    crops = [
        _crop([(float(x), float(y)) for x, y in square + random.uniform(-14, 14, (4, 2))],
              padding=float(random.uniform(0, 0.3)))
        for _ in range(60)
    ]  # fmt: skip
    cut, refused = _compare(crops)
    assert cut > 40
    assert cut + refused == 60


def test_faces_are_cut_to_the_byte() -> None:
    random = np.random.default_rng(9)
    places = np.array(FACE_POINTS)
    crops = []
    for _ in range(30):
        angle, scale = random.uniform(-3.2, 3.2), random.uniform(0.05, 0.6)
        turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points = (places - 56) @ turn.T + random.uniform(5, 40, 2) + random.normal(size=(5, 2))
        side = int(random.choice([1, 16, 33]))
        crops.append(
            _crop([(float(x), float(y)) for x, y in points], side=side, padding=0.25 * (side == 16))
        )
    assert _compare(crops) == (30, 0)


@pytest.mark.parametrize(
    ("crop", "words"),
    [
        (_crop([(0, 0)] * 4), "convex"),
        (_crop([(0, 0), (9, 0), (9, 9)]), "3 points instead of 4"),
        (_crop([(0, 0), (0, 9), (9, 9), (9, 0)]), "convex"),  # the other way round
        (_crop([(0, 0), (9, 0), (3, 3), (0, 9)]), "convex"),
        (_crop([(0, 0), (9, 0), (9, 9), (0, 1e7)]), "beside all photos"),
        (_crop([(0, 0), (5000, 0), (5000, 5000), (0, 5000)]), "5000 x 5000 pixels"),
        (_crop([(20, 10), (30, 10), (49, 39), (1, 39)], padding=2.0), "horizon"),
        (_crop([(3, 3)] * 5, side=8), "in one place"),
        (_crop([(3, 3)] * 4, side=8), "4 points instead of 5"),
    ],
)
def test_what_no_crop_can_be_cut_by(crop: Crop, words: str) -> None:
    assert _compare([crop]) == (0, 1)
    message = _by_python(crop)
    assert isinstance(message, str)
    assert words in message
