"""GridSample of many channels, by a kernel of ours, on every instruction set."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target_in_parts, save_cases, some, wrong_outputs

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
