"""Which layers take small tiles of Winograd's algorithm, and which none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.boards import get_board
from edgepack.compiler.planning import Planner
from edgepack.compiler.settings import CompileSettings
from edgepack.frontend.load import load_model
from edgepack.frontend.precision import Precision
from edgepack.model import ModelSpec
from tests.onnx_models import Builder

PIXELS = frozenset({"x"})


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


def after(name: str) -> Callable[[Builder], str]:
    def network(net: Builder) -> str:
        if name == "Clip":
            six = net.const(6.0, "float32"), net.const(0.0, "float32")
            return net.conv(net.op("Clip", "x", six[1], six[0]), 32, 32)
        if name == "InstanceNormalization":
            return net.conv(net.op(name, "x", net.weight(32), net.weight(32)), 32, 32)
        if name == "affine":
            shifted = net.op("Sub", "x", net.weight(1, 32, 1, 1))
            return net.conv(net.op("Div", shifted, net.const(3.0, "float32")), 32, 32)
        if name == "Transpose":
            return net.conv(net.op(name, "x", perm=[0, 1, 3, 2]), 32, 32)
        return net.conv(net.op(name, "x"), 32, 32)

    return network


def test_only_what_reads_an_unbounded_input_takes_small_tiles(tmp_path: Path) -> None:
    found = limits(tmp_path / "m.onnx", two, Precision())
    assert found == {
        "Conv_0": (2, "nothing bounds the input 'x'"),
        "Conv_2": (None, ""),
    }
    found = limits(tmp_path / "m.onnx", two, Precision(bounded=PIXELS))
    assert [most for most, _ in found.values()] == [None, None]


@pytest.mark.parametrize("name", ["Relu", "affine", "Transpose"])
def test_what_bounds_nothing(name: str, tmp_path: Path) -> None:
    found = limits(tmp_path / "m.onnx", after(name), Precision())
    assert [most for most, _ in found.values()] == [2]


@pytest.mark.parametrize("name", ["Clip", "InstanceNormalization", "Sigmoid"])
def test_what_bounds_an_input(name: str, tmp_path: Path) -> None:
    found = limits(tmp_path / "m.onnx", after(name), Precision())
    assert [most for most, _ in found.values()] == [None]


def test_exact_layers_take_no_tiles(tmp_path: Path) -> None:
    exact = Precision(bounded=PIXELS, direct=frozenset({"Conv_2"}))
    found = limits(tmp_path / "m.onnx", two, exact)
    assert found == {"Conv_0": (None, ""), "Conv_2": (0, "[compile] exact")}
    found = limits(tmp_path / "m.onnx", two, Precision(direct=True))
    assert [most for most, _ in found.values()] == [0, 0]
