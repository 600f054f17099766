"""Contracts that are wrong on purpose: the stage to change is named."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack.flow.check import check_project
from edgepack.flow.project import load_project
from edgepack.flow.reference import ExpectedClassError
from tests.onnx_models import Builder

SIDE = 8


@pytest.fixture
def signs(tmp_path: Path) -> None:
    """Class 0 if the first channel's mean is above 0, class 1 if it is below."""
    b = Builder()
    means = b.op("Flatten", b.op("GlobalAveragePool", "x"))
    b.op("MatMul", means, b.const([[1, -1], [0, 0], [0, 0]], "float32"), outputs=["y"])
    path = tmp_path / "signs.onnx"
    model = b.model({"x": [1, 3, SIDE, SIDE]}, {"y": [1, 2]})
    path.write_bytes(model.SerializeToString())


def mending(folder: Path, photo: np.ndarray, expected: int, preprocess: str) -> str | None:
    """What `check` hints at."""
    cv2.imwrite(str(folder / "photo.png"), photo)
    (folder / "edgepack.toml").write_text(
        '[project]\nmodel = "signs.onnx"\ngolden_image = "photo.png"\n'
        f"expected_class = {expected}\n[preprocess]\n{preprocess}"
        f'resize = {{ mode = "exact", height = {SIDE}, width = {SIDE} }}\n'
    )
    checked = check_project(load_project(folder / "edgepack.toml"))
    if checked.mending is None:
        checked.check_expected()
        return None
    with pytest.raises(ExpectedClassError) as caught:
        checked.check_expected()
    assert caught.value.hint == str(checked.mending)
    assert "\n" not in caught.value.hint
    return caught.value.hint


SHIFTED = "mean = [100, 100, 100]\n"


@pytest.mark.usefixtures("signs")
def test_blue_for_red(tmp_path: Path) -> None:
    red = np.zeros((SIDE, SIDE, 3), np.uint8)
    red[:, :, 2] = 200
    assert mending(tmp_path, red, 0, SHIFTED) is None
    hint = mending(tmp_path, red, 0, SHIFTED + 'color = "bgr"\n')
    assert hint is not None
    assert hint.startswith('color: with color = "rgb" in [preprocess] the photo is seen as')


@pytest.mark.usefixtures("signs")
def test_no_mean(tmp_path: Path) -> None:
    dark = np.full((SIDE, SIDE, 3), 90, np.uint8)
    assert mending(tmp_path, dark, 1, SHIFTED) is None
    hint = mending(tmp_path, dark, 1, "scale = 0.00392156862745098\n")
    assert hint is not None
    assert hint.startswith("scale, mean and std: with scale = ")


@pytest.mark.usefixtures("signs")
def test_opencvs_filter_for_pillows(tmp_path: Path) -> None:
    # Of each eight columns those that OpenCV takes are bright; on the whole it is dark.
    striped = np.zeros((8 * SIDE, 8 * SIDE, 3), np.uint8)
    for column in (0, 3, 4):
        striped[:, column::8] = 255
    mean = "mean = [128, 128, 128]\n"
    assert mending(tmp_path, striped, 1, mean + 'interpolation = "pil-bilinear"\n') is None
    hint = mending(tmp_path, striped, 1, mean)
    assert hint is not None
    assert hint.startswith('interpolation: with interpolation = "')


@pytest.mark.usefixtures("signs")
def test_what_nothing_mends(tmp_path: Path) -> None:
    bright = np.full((SIDE, SIDE, 3), 255, np.uint8)
    with pytest.raises(ExpectedClassError, match="the reference sees class 0") as caught:
        mending(tmp_path, bright, 1, "")
    assert caught.value.hint == "check [preprocess], the labels, or expected_class"
