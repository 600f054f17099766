"""GridSample, RoiAlign and DeformConv of many channels, by kernels of ours, on every instruction
set."""

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


# Images, offsets and masks, and what a DeformConv of them has.
DEFORMED = {
    "plain": ({"x": (2, 13, 7, 9), "w": (5, 13, 3, 3), "by": (2, 18, 7, 9)}, {"pads": [1] * 4}),
    "mask, bias, uneven steps": (
        {
            "x": (1, 8, 9, 6),
            "w": (4, 8, 2, 3),
            "by": (1, 12, 4, 6),
            "bias": (4,),
            "mask": (1, 6, 4, 6),
        },
        {"pads": [0, 2, 1, 2], "strides": [2, 1], "dilations": [3, 2]},
    ),
    # Of 24 channels 8 have their offsets and 12 their weights in common: four at once both.
    "groups": (
        {
            "x": (2, 24, 5, 5),
            "w": (6, 12, 3, 1),
            "by": (2, 18, 3, 5),
            "bias": (6,),
            "mask": (2, 9, 3, 5),
        },
        {"group": 2, "offset_group": 3},
    ),
    "a pixel": ({"x": (1, 4, 1, 1), "w": (3, 4, 1, 1), "by": (1, 2, 1, 1)}, {}),
    # Enough for several cores; a mask without a bias.
    "large": (
        {"x": (1, 32, 20, 20), "w": (8, 32, 3, 3), "by": (1, 18, 20, 20), "mask": (1, 9, 20, 20)},
        {"pads": [1] * 4},
    ),
    # Three channels: by columns, as before.
    "few": ({"x": (1, 3, 6, 6), "w": (4, 3, 3, 3), "by": (1, 18, 4, 4)}, {}),
}


def _deformed(net: Builder) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """The inputs and values of all of DEFORMED."""
    inputs, cases = {}, {}
    for form, (shapes, attributes) in DEFORMED.items():
        names = {}
        for name, shape in shapes.items():
            if name in ("w", "bias"):
                names[name] = net.const(net.random.normal(size=shape), "float32")
            else:
                names[name] = f"{form} {name}"
                inputs[names[name]] = shape
        given = [names.get(name, "") for name in ("x", "w", "by", "bias", "mask")]
        while not given[-1]:
            given.pop()
        kernel = list(shapes["w"][2:])
        cases[form] = net.op("DeformConv", *given, kernel_shape=kernel, **attributes)
    return inputs, cases


@every_target
def test_moved_taps_of_many_channels(tmp_path: Path, board: str, cpu: str) -> None:
    """Taps lie up to some pixels beside where they would, and beside the image."""
    net = Builder(5)
    shapes, cases = _deformed(net)
    path = save_cases(tmp_path / "deformed.onnx", net, shapes, cases, opset=19)
    inputs = [1.5 * net.random.normal(size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    # All but that of few channels.
    assert sum(layer.kernel.startswith("deform") for layer in compiled.layers) == len(cases) - 1
    assert not wrong_outputs(path, inputs, got, tolerance=1e-5)


def test_a_tap_moved_to_nowhere_sees_zeros(tmp_path: Path) -> None:
    """By infinity and by more than any integer; a tap moved by no number sees none, in the one
    result that it is of."""
    net = Builder(6)
    shapes = {"x": (1, 8, 5, 5), "by": (1, 2, 5, 5)}
    weight = net.const(net.random.normal(size=(3, 8, 1, 1)), "float32")
    value = net.op("DeformConv", "x", weight, "by", kernel_shape=[1, 1])
    path = save_cases(tmp_path / "nowhere.onnx", net, shapes, {"y": value}, opset=19)
    image = net.random.normal(size=shapes["x"]).astype("float32")
    by = np.zeros(shapes["by"], "float32")
    plain = compile_and_run(path, [image, by], "local", "native", tmp_path / "plain")[1][0]
    by[0, 0, 0, :4] = [np.inf, -np.inf, 3e38, -(2.0**31)]
    by[0, 1, 1, :4] = [-np.inf, np.inf, -3e38, 2.0**31]
    by[0, 0, 2, 2] = np.nan
    got = compile_and_run(path, [image, by], "local", "native", tmp_path / "moved")[1][0]
    assert (got[0, :, :2, :4] == 0).all()
    assert np.isnan(got[0, :, 2, 2]).all()
    rest = np.ones((5, 5), bool)
    rest[:2, :4], rest[2, 2] = False, False
    np.testing.assert_array_equal(got[0][:, rest], plain[0][:, rest])
