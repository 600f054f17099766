"""GridSample of many channels, by a kernel of ours, on every instruction set."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.onnx_models import Builder
from tests.targets import (
    compile_and_run,
    every_target,
    every_target_in_parts,
    save_cases,
    some,
    wrong_outputs,
)

# Of 13 and of 32 channels; places in rows and columns, and in one row; an axis of one pixel.
SHAPES = {
    "a": (2, 13, 7, 9),
    "a.places": (2, 5, 11, 2),
    "b": (1, 32, 6, 1),
    "b.places": (1, 1, 17, 2),
    # Enough for several cores.
    "c": (2, 24, 5, 8),
    "c.places": (2, 9, 37, 2),
}
FORMS = list(
    itertools.product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (0, 1), "abc")
)


def _cases(net: Builder) -> dict[str, str]:
    return {
        f"{mode} {padding} {corners} {image}": net.op(
            "GridSample",
            image,
            f"{image}.places",
            mode=mode,
            padding_mode=padding,
            align_corners=corners,
        )
        for mode, padding, corners, image in FORMS
    }


@every_target_in_parts
def test_samples_equal_onnxruntime_s(tmp_path: Path, board: str, cpu: str, part: slice) -> None:
    """Places lie up to two images beside the image."""
    net = Builder(1)
    cases = some(_cases(net), part)
    path = save_cases(tmp_path / "sampling.onnx", net, SHAPES, cases)
    inputs = [1.2 * net.random.normal(size=shape).astype("float32") for shape in SHAPES.values()]
    compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    assert sum(layer.kernel.startswith("sample") for layer in compiled.layers) == len(cases)
    assert not wrong_outputs(path, inputs, got, tolerance=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_what_is_not_finite_stays_where_it_is(tmp_path: Path, padding: str) -> None:
    """No number in the image reaches the places beside it only, none among the places no other one;
    infinity is beyond the border. (onnxruntime takes the first pixel for no number.)"""
    net = Builder(1)
    places = "a.places"
    value = net.op("GridSample", "a", places, padding_mode=padding)
    shapes = {name: SHAPES[name] for name in ("a", places)}
    path = save_cases(tmp_path / "nan.onnx", net, shapes, {"y": value})
    image = net.random.normal(size=shapes["a"]).astype("float32")
    # Pixel (row 3, column 4) is the middle one.
    grid = np.full(shapes[places], 0.0, "float32")
    grid[0, 0, 0], grid[0, 0, 1] = (np.nan, 0), (np.inf, 0)
    grid[0, 0, 2], grid[0, 0, 3] = (0.9, 0.9), (-3, 0.1)
    image[0, 5, 3, 4] = np.nan
    image[0, :, 0, 0] = np.inf
    _, (got,) = compile_and_run(path, [image, grid], "local", "native", tmp_path)
    assert np.isnan(got[0, :, 0, 0]).all()
    assert np.isfinite(got[0, :, 0, 2:4]).all()
    if padding == "border":
        np.testing.assert_array_equal(got[0, :, 0, 1], image[0, :, 3, -1])
    if padding == "zeros":
        assert (got[0, :, 0, 3] == 0).all()
    middle = got[0, :, 1:].reshape(image.shape[1], -1)
    assert np.isnan(middle[5]).all()
    others = np.delete(np.arange(image.shape[1]), 5)
    np.testing.assert_array_equal(middle[others], np.repeat(image[0, others, 3, 4, None], 44, 1))


@every_target
def test_boxes_of_many_channels(tmp_path: Path, board: str, cpu: str) -> None:
    """RoiAlign and its mean, of boxes that reach beyond the image and of some that are none; the
    number that is none is in what is near it alone."""
    net = Builder(3)
    shapes = {"x": (2, 13, 9, 12), "boxes": (5, 4), "few": (1, 3, 6, 7)}
    given = {
        "output_height": 3,
        "output_width": 2,
        "sampling_ratio": 2,
        "spatial_scale": 0.5,
    }
    numbers = {"x": net.const([0, 1, 1, 0, 1], "int64"), "few": net.const([0] * 5, "int64")}
    cases = {
        f"{image} {mode}": net.op(
            "RoiAlign", image, "boxes", of, coordinate_transformation_mode=mode, **given
        )
        for image, of in numbers.items()
        for mode in ("half_pixel", "output_half_pixel")
    }
    path = save_cases(tmp_path / "boxes.onnx", net, shapes, cases)
    inputs = [net.random.normal(size=shape).astype("float32") for shape in shapes.values()]
    inputs[0][1, 4, 5, 6], inputs[0][0, 2, 0, 0] = np.nan, np.inf
    inputs[1][:] = [[1, 2, 9, 8], [-7, 0, 4, 4.2], [10, 9, 60, 20], [3, 3, 3, 3], [9, 8, 1, 2]]
    compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(path, inputs, got, tolerance=1e-5)
    # Of the three channels none is turned.
    assert sum(layer.kernel.startswith("transpose") for layer in compiled.layers) == 4
