"""Activations on the rows of an image, in the kernel of the convolution that makes the image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgepack.boards import get_board
from edgepack.compiler import plan_model
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs

# Channels that are no whole blocks, and two images.
SHAPE = (2, 13, 5, 6)
SHAPES = {"x": SHAPE, "g": SHAPE, "s": (2, 13, 30), "r": (2, 30, 13)}


def _gelu(net: Builder, x: str) -> str:
    part = net.op("Erf", net.op("Div", x, net.const(2**0.5, "float32")))
    part = net.op("Mul", x, net.op("Add", part, net.const(1, "float32")))
    return net.op("Mul", part, net.const(0.5, "float32"))


def _rows(net: Builder, image: str, channels: int = 13) -> str:
    """As SegFormer's feed-forward layers have them."""
    flat = net.op("Reshape", image, net.const([2, channels, 30], "int64"))
    return net.op("Transpose", flat, perm=[0, 2, 1])


def _depthwise(net: Builder, image: str = "x") -> str:
    return net.conv(image, 13, 13, group=13)


def _moved(net: Builder) -> dict[str, str]:
    """Where all arithmetic is the convolution's."""
    silu = _rows(net, _depthwise(net))
    last = net.op("Transpose", _depthwise(net), perm=[0, 2, 3, 1])
    sequence = net.op("Conv", "s", net.weight(13, 13, 3), pads=[1, 1])
    four = net.op("Transpose", sequence, perm=[0, 2, 1])
    four = net.op("Reshape", four, net.const([1, 2, 30, 13], "int64"))
    return {
        "gelu": _gelu(net, _rows(net, _depthwise(net, "g"))),
        "silu": net.op("Mul", silu, net.op("Sigmoid", silu)),
        "clip": net.op("Clip", last, net.const(-0.5, "float32"), net.const(0.25, "float32")),
        # A number with more axes than the image has.
        "axes": net.op("Exp", net.op("Mul", four, net.const([[[[0.5]]]], "float32"))),
    }


def _left(net: Builder) -> dict[str, str]:
    """What is not, or not all of it: others read the rows, or it is more than an activation."""
    both = _rows(net, _depthwise(net))
    image = _depthwise(net)
    return {
        "rows": both,
        "both": net.op("Relu", both),
        "image": image,
        "of image": net.op("Tanh", _rows(net, image)),
        "by column": net.op("Relu", net.op("Add", _rows(net, _depthwise(net)), net.weight(13))),
        "linear": net.op("Mul", _rows(net, _depthwise(net)), net.const(2, "float32")),
        "rest": net.op("Add", net.op("Relu", _rows(net, _depthwise(net))), "r"),
    }


def _inputs(net: Builder) -> list[np.ndarray]:
    """With NaN and infinities among them."""
    made = {name: net.random.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}
    for name in "xgs":
        made[name][1, 0, 3] = np.nan
        made[name][0, 1, 2], made[name][1, 3, 1] = np.inf, -np.inf
    return list(made.values())


@every_target
def test_rows_of_images_equal_onnxruntime_s(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(1)
    cases = {**_moved(net), **_left(net)}
    path = save_cases(tmp_path / "rows.onnx", net, SHAPES, cases)
    inputs = _inputs(net)
    _, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(path, inputs, got, tolerance=1e-5, as_written=True)


@pytest.mark.parametrize("case", ["gelu", "silu", "clip", "axes"])
def test_an_activation_on_rows_is_the_convolution_s(case: str, tmp_path: Path) -> None:
    """A kernel makes the image, another one its rows, which alone are what a node makes."""
    net = Builder(1)
    cases = {case: _moved(net)[case]}
    path = save_cases(tmp_path / "rows.onnx", net, SHAPES, cases)
    _, _, layers, _ = plan_model(load_model(ModelSpec(path=path)), get_board("rasp4b-64"))
    assert {layer.operator for layer in layers if layer.rule == "generic"} <= {"transpose"}
    assert [layer.value for layer in layers if layer.value] in ([case], [])
    (image,) = [layer for layer in layers if layer.layer.startswith("Conv")]
    assert image.operator.split("+")[-1] in ("Mul", "Clip", "Exp")


def test_rows_of_images_are_unpacked_at_once(tmp_path: Path) -> None:
    """Patches of transformers, which are flattened before they are transposed."""
    net = Builder(1)
    path = save_cases(
        tmp_path / "rows.onnx", net, {"x": SHAPE}, {"rows": _rows(net, _depthwise(net))}
    )
    _, _, layers, _ = plan_model(load_model(ModelSpec(path=path)), get_board("rasp4b-64"))
    assert [layer.rule for layer in layers] == ["layout", "depthwise", "layout"]
