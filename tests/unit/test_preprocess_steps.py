"""A photo's steps are those that make the tensor, and the tensor turned back is the photo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgepack.preprocess.spec import PreprocessSpec
from edgepack.preprocess.steps import (
    NORMALISATIONS,
    in_frame,
    pixels_of,
    trace_steps,
    undone,
    values_of,
)

LETTERBOX = {"resize": {"mode": "letterbox", "height": 96, "width": 128}}
CROPPED = {
    "resize": {"mode": "shortest", "size": 256},
    "crop": {"height": 224, "width": 224},
}
TABLES: dict[str, dict[str, Any]] = {
    "letterbox": {**LETTERBOX, "scale": 1 / 255},
    "crop": {"preset": "torchvision-imagenet"},
    "exact, bgr": {
        "color": "bgr",
        "resize": {"mode": "exact", "height": 60, "width": 50},
        "mean": [103.9, 116.8, 123.7],
    },
    "scaled": {**CROPPED, "decode": "scaled", "scale": 1 / 255},
    "gray": {"color": "gray", **LETTERBOX, "scale": 1 / 255},
    "uint8": {**LETTERBOX, "dtype": "uint8", "layout": "NHWC"},
    "int8": {
        **CROPPED,
        "dtype": "int8",
        "scale": 1 / 255,
        "quantization": {"scale": 1 / 255, "zero_point": -128},
    },
    "tensorflow": {
        "resize": {"mode": "exact", "height": 60, "width": 50},
        "interpolation": "tf-bilinear",
    },
    "as it is": {"scale": 1 / 127.5, "mean": [1.0, 1.0, 1.0]},
}


def spec(**table: Any) -> PreprocessSpec:
    return PreprocessSpec.from_table(table, file="test")


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """1200 x 900 pixels: a red square on blue, at 500, 300, of 200 x 200."""
    image = np.full((900, 1200, 3), (200, 30, 10), np.uint8)
    image[300:500, 500:700] = (20, 40, 220)
    cv2.imwrite(str(tmp_path / "photo.jpg"), image, (cv2.IMWRITE_JPEG_QUALITY, 98))
    return tmp_path / "photo.jpg"


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_they_make_the_tensor_and_it_is_turned_back(photo: Path, table: dict[str, Any]) -> None:
    own = spec(**table)
    steps = trace_steps(own, photo)
    assert np.array_equal(steps.tensor, own.load(photo))
    assert steps.size == (900, 1200)
    assert steps.reduction == (2 if own.decode == "scaled" else 1)
    back = undone(own, steps.tensor)
    assert np.abs(back.astype(int) - steps.cropped.astype(float)).max() <= 1
    frame, inside = in_frame(back, steps.geometry, 0.5)
    assert frame.shape[:2] == inside.shape == (450, 600)
    shown = steps.photo[::2, ::2]
    shown = cv2.cvtColor(shown, cv2.COLOR_BGR2GRAY)[..., None] if own.channels == 1 else shown
    if own.color == "rgb":
        shown = shown[:, :, ::-1]
    # Edges are soft: 60 x 50 pixels of 1200 x 900. All else lies where it was.
    off = np.abs(shown.astype(int) - frame).max(2) > 30
    assert off[inside].mean() < 0.04
    assert (frame[~inside] == 128).all()


def test_what_is_seen_and_what_is_cut(photo: Path) -> None:
    whole = trace_steps(spec(**LETTERBOX), photo)
    assert whole.seen_box == (0, 0, 1200, 900)
    assert whole.crop_box is None
    # 256 x 1200 / 900 = 341 pixels wide, of which 58 are cut on the left, 59 on the right.
    cut = trace_steps(spec(**CROPPED), photo)
    assert cut.crop_box == (58, 16, 282, 240)
    scale = 1200 / 341
    want = (58 * scale, 16 * 900 / 256, 282 * scale, 240 * 900 / 256)
    assert cut.seen_box == pytest.approx(want)
    # A letterbox of 128 x 128 has a border of 16 above, of which 14 are cut.
    boxed = {"mode": "letterbox", "height": 128, "width": 128}
    both = trace_steps(spec(resize=boxed, crop={"height": 100, "width": 100}), photo)
    assert both.crop_box == (14, 14, 114, 114)
    assert both.seen_box == pytest.approx((14 * 9.375, 0, 114 * 9.375, 900))


def test_what_a_narrow_type_cannot_hold_is_missing(photo: Path) -> None:
    """Pixels from 0 to 255 in steps of 1/255, as of values from 0 to 1: all but black are white."""
    own = spec(**CROPPED, dtype="int8", quantization={"scale": 1 / 255, "zero_point": -128})
    back = undone(own, trace_steps(own, photo).tensor)
    assert back.max() <= 1


def test_only_the_right_normalisation_looks_like_the_photo(photo: Path) -> None:
    own = spec(preset="torchvision-imagenet")
    steps = trace_steps(own, photo)
    values = values_of(own, steps.tensor)
    off = {
        name: np.abs(pixels_of(values, *one).astype(int) - steps.cropped).mean()
        for name, one in NORMALISATIONS.items()
    }
    right = off.pop("ImageNet's mean and std")
    assert right < 1
    assert min(off.values()) > 20
    assert (pixels_of(np.full((1, 1, 3), np.nan), *NORMALISATIONS["0 to 1"]) == 0).all()
