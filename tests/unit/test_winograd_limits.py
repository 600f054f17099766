"""Which layers take small tiles of Winograd's algorithm, and which none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from edgepack.boards import get_board
from edgepack.compiler.planning import Planner
from edgepack.compiler.settings import CompileSettings
from edgepack.frontend.load import load_model
from edgepack.frontend.precision import Precision
from edgepack.model import ModelSpec
from tests.onnx_models import Builder

PIXELS = frozenset({"x"})
BROKEN = 1e7
LARGEST_SENSED = 4096.0  # of 12 bits


def limits(
    path: Path, network: Callable[[Builder], str], precision: Precision
) -> dict[str, tuple[int | None, str]]:
    """By the name of each convolution, what a tile may have at most, and why."""
    net = Builder(2)
    net.op("Identity", network(net), outputs=["y"])
    net.save(path, {"x": [1, 32, 56, 56]}, {"y": [1, 32, 56, 56]})
    planner = Planner(
        load_model(ModelSpec(path=path)),
        get_board("rasp4b-64"),
        CompileSettings(precision=precision),
    )
    _, _, layers = planner.plan()
    named = (layer for layer in layers if layer.operator.startswith("Conv"))
    return {layer.layer: (layer.most_results, layer.limited) for layer in named}


def two(net: Builder) -> str:
    return net.conv(net.op("Relu", net.conv("x", 32, 32)), 32, 32)


def before(name: str, *given: float | None, **attributes: Any) -> Callable[[Builder], str]:
    """An operator on the input, with numbers as its other inputs, some left out."""

    def network(net: Builder) -> str:
        more = ["" if number is None else net.const(number, "float32") for number in given]
        return net.op(name, "x", *more, **attributes)

    return network


def affine(net: Builder) -> str:
    shifted = net.op("Sub", "x", net.weight(1, 32, 1, 1))
    return net.op("Div", shifted, net.const(3.0, "float32"))


def normalised(net: Builder) -> str:
    return net.op("InstanceNormalization", "x", net.weight(32), net.weight(32))


def gathered(net: Builder) -> str:
    return net.op("Gather", "x", net.const(list(range(31, -1, -1)), "int64"), axis=1)


def with_itself(net: Builder) -> str:
    return net.op("Add", normalised(net), "x")


def one_over(net: Builder) -> str:
    """Of numbers next to 0 as well."""
    small = net.op("Mul", net.op("Relu", "x"), net.const(1e-12, "float32"))
    return net.op(
        "Min", net.op("Div", net.const(-1.0, "float32"), small), net.const(5.0, "float32")
    )


def quantised(net: Builder) -> str:
    scale, zero = net.const(0.1, "float32"), net.const(0, "int8")
    integers = net.op("QuantizeLinear", "x", scale, zero)
    return net.op("DequantizeLinear", integers, scale, zero)


def compared(net: Builder) -> str:
    return net.op("Cast", net.op("Less", "x", net.const(1.0, "float32")), to=1)


def through(net: Builder) -> str:
    """What reads a filtered image adds it to what a layer makes of it."""
    return net.op("Add", net.conv("x", 32, 32, kernel=5), net.conv("x", 32, 32, group=32))


OPEN: dict[str, Callable[[Builder], str]] = {
    "Abs": before("Abs"),
    "affine": affine,
    "AveragePool": before("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "Clip from 0": before("Clip", 0.0),
    "Clip to 1e30": before("Clip", 0.0, 1e30),
    "Clip to 6": before("Clip", None, 6.0),
    "Clip to 65535": before("Clip", 0.0, 65535.0),
    "Conv 1x1": lambda net: net.conv("x", 32, 32, kernel=1),
    "Conv of each channel": lambda net: net.conv("x", 32, 32, group=32),
    "Conv of each channel, added": through,
    "divided": one_over,
    "Floor": before("Floor"),
    "Gather": gathered,
    "InstanceNormalization, added": with_itself,
    "LeakyRelu": before("LeakyRelu"),
    "LogSoftmax": before("LogSoftmax", axis=1),
    "Max": before("Max", 0.0),
    "MaxPool": before("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "Neg": before("Neg"),
    "Pow 1.5": before("Pow", 1.5),
    "Pow 2": before("Pow", 2.0),
    "Pow 3": before("Pow", 3.0),
    "Relu": before("Relu"),
    "Round": before("Round"),
    "SiLU": lambda net: net.op("Mul", "x", net.op("Sigmoid", "x")),
    "Transpose": before("Transpose", perm=[0, 1, 3, 2]),
    "Trilu": before("Trilu"),
}
CLOSED: dict[str, Callable[[Builder], str]] = {
    "Clip 0 to 6": before("Clip", 0.0, 6.0),
    "Clip 0 to 4095": before("Clip", 0.0, 4095.0),
    "compared": compared,
    "Cos": before("Cos"),
    "Erf": before("Erf"),
    "HardSigmoid": before("HardSigmoid"),
    "InstanceNormalization": normalised,
    "InstanceNormalization, Relu": lambda net: net.op("Relu", normalised(net)),
    "MeanVarianceNormalization": before("MeanVarianceNormalization"),
    "quantised": quantised,
    "Sigmoid": before("Sigmoid"),
    "Sign": before("Sign"),
    "Softmax": before("Softmax", axis=1),
    "Softsign": before("Softsign"),
    "Tanh": before("Tanh"),
}


def most_of(network: Callable[[Builder], str], path: Path) -> float:
    """What onnxruntime makes at most of an image of which a few pixels are broken."""
    net = Builder(2)
    net.op("Identity", network(net), outputs=["y"])
    net.save(path, {"x": [1, 32, 56, 56]}, {"y": [1, 32, 56, 56]})
    image = np.random.default_rng(39).normal(size=(1, 32, 56, 56)).astype("float32")
    image[0, ::2, 9, 20], image[0, ::2, 9, 22] = BROKEN, -BROKEN
    (found,) = onnxruntime.InferenceSession(path).run(None, {"x": image})
    return float(np.nanmax(np.abs(found)))


def test_only_what_reads_an_unbounded_input_takes_small_tiles(tmp_path: Path) -> None:
    found = limits(tmp_path / "m.onnx", two, Precision())
    assert found == {
        "Conv_0": (2, "nothing bounds the input 'x'"),
        "Conv_2": (None, ""),
    }
    found = limits(tmp_path / "m.onnx", two, Precision(bounded=PIXELS))
    assert [most for most, _ in found.values()] == [None, None]


@pytest.mark.parametrize("name", OPEN)
def test_what_bounds_nothing(name: str, tmp_path: Path) -> None:
    assert most_of(OPEN[name], tmp_path / "m.onnx") > LARGEST_SENSED
    found = limits(tmp_path / "m.onnx", lambda net: net.conv(OPEN[name](net), 32, 32), Precision())
    assert [most for most, _ in found.values()][-1] == 2


@pytest.mark.parametrize("name", CLOSED)
def test_what_bounds_an_input(name: str, tmp_path: Path) -> None:
    assert most_of(CLOSED[name], tmp_path / "m.onnx") <= LARGEST_SENSED
    found = limits(
        tmp_path / "m.onnx", lambda net: net.conv(CLOSED[name](net), 32, 32), Precision()
    )
    assert [most for most, _ in found.values()] == [None]


def test_a_full_layer_is_of_the_networks_own_size(tmp_path: Path) -> None:
    found = limits(
        tmp_path / "m.onnx", lambda net: net.conv(net.conv("x", 32, 32), 32, 32), Precision()
    )
    assert [most for most, _ in found.values()] == [2, None]


def test_exact_layers_take_no_tiles(tmp_path: Path) -> None:
    exact = Precision(bounded=PIXELS, direct=frozenset({"Conv_2"}))
    found = limits(tmp_path / "m.onnx", two, exact)
    assert found == {"Conv_0": (None, ""), "Conv_2": (0, "[compile] exact")}
    found = limits(tmp_path / "m.onnx", two, Precision(direct=True))
    assert [most for most, _ in found.values()] == [0, 0]
