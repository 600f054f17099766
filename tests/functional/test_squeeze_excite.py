"""Squeeze-and-excite blocks: the kernel before one computes its mean, the one after it its scale.

Every case against onnxruntime, on every instruction set.
"""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import onnx
import pytest

from bench.models import mobilenet_v3_small
from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from tests.onnx_models import Builder
from tests.plan_on_arm import run_plan_on_arm
from tests.support import require_tool
from tests.targets import (
    compile_and_run,
    every_target_in_parts,
    save_cases,
    some,
    wrong_outputs,
)

# Channels that are no multiple of a block, fewer blocks than cores on a large image, a batch.
INPUTS: dict[str, tuple[int, ...]] = {
    "wide": (1, 40, 14, 13),
    "odd": (1, 11, 9, 10),
    "large": (1, 8, 96, 100),
    "batch": (3, 21, 12, 9),
}


def squeeze_excite(net: Builder, value: str, channels: int, squeezed: int = 8) -> str:
    mean = net.op("GlobalAveragePool", value)
    gate = net.op("Relu", net.conv(mean, channels, squeezed, 1))
    gate = net.op("HardSigmoid", net.conv(gate, squeezed, channels, 1))
    return net.op("Mul", value, gate)


def silu(net: Builder, value: str) -> str:
    return net.op("Mul", value, net.op("Sigmoid", value))


def inverted_residual(net: Builder, data: str, channels: int, kernel: int) -> str:
    """EfficientNet's block (arXiv:1905.11946): expand, depthwise, squeeze and excite, project."""
    wide = 4 * channels
    x = silu(net, net.conv(data, channels, wide, 1))
    x = silu(net, net.conv(x, wide, wide, kernel, group=wide))
    mean = net.op("GlobalAveragePool", x)
    gate = silu(net, net.conv(mean, wide, 6, 1))
    gate = net.op("Sigmoid", net.conv(gate, 6, wide, 1))
    return net.op("Add", net.conv(net.op("Mul", x, gate), wide, channels, 1), data)


def blocks(net: Builder) -> dict[str, str]:
    """Each is one squeeze-and-excite block after a depthwise or a 1x1 convolution."""

    def depthwise(data: str, channels: int, kernel: int, stride: int = 1) -> str:
        return net.conv(data, channels, channels, kernel, group=channels, strides=[stride] * 2)

    def block(value: str, channels: int) -> str:
        return net.conv(squeeze_excite(net, value, channels), channels, 16, 1)

    def relu(value: str) -> str:
        return net.op("Relu", value)

    def hardswish(value: str) -> str:
        return net.op("HardSwish", value)

    pointwise = relu(net.conv("odd", 11, 21, 1))
    return {
        "no activation": block(depthwise("wide", 40, 3), 40),
        "relu": block(relu(depthwise("wide", 40, 3, 2)), 40),
        "relu6": block(
            net.op(
                "Clip", depthwise("wide", 40, 5), net.const(0, "float32"), net.const(6, "float32")
            ),
            40,
        ),
        "hardswish": block(hardswish(depthwise("wide", 40, 5)), 40),
        "silu": block(silu(net, depthwise("wide", 40, 3)), 40),
        "odd, relu": block(relu(depthwise("odd", 11, 3)), 11),
        "odd, hardswish": block(hardswish(depthwise("odd", 11, 5, 2)), 11),
        "odd, silu": block(silu(net, depthwise("odd", 11, 3, 2)), 11),
        "large, relu": block(relu(depthwise("large", 8, 5)), 8),
        "large, hardswish": block(hardswish(depthwise("large", 8, 3)), 8),
        "batch, relu": block(relu(depthwise("batch", 21, 3)), 21),
        "batch, hardswish": block(hardswish(depthwise("batch", 21, 5, 2)), 21),
        "1x1": net.op("Add", squeeze_excite(net, pointwise, 21), pointwise),
        "1x1, silu": block(silu(net, net.conv("batch", 21, 40, 1)), 40),
        "EfficientNet": inverted_residual(net, "wide", 40, 5),
        "EfficientNet, batch": inverted_residual(net, "batch", 21, 3),
    }


def means(net: Builder) -> dict[str, str]:
    """Means that more than a gate reads, or nobody but the caller."""
    first = net.op("Relu", net.conv("wide", 40, 32, 1))
    second = net.conv(first, 32, 32, 3, group=32)
    both = [net.op("GlobalAveragePool", value) for value in (first, second)]
    return {
        "image and mean": net.op("Add", second, net.op("GlobalAveragePool", second)),
        "means side by side": net.conv(net.op("Concat", *both, axis=1), 64, 8, 1),
        "mean only": net.op("ReduceMean", net.conv("odd", 11, 7, 1), axes=[2, 3], keepdims=0),
        "mean of a gated image": net.op(
            "GlobalAveragePool", net.conv(squeeze_excite(net, second, 32), 32, 24, 1)
        ),
    }


@pytest.fixture
def inputs() -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.normal(size=shape).astype("float32") for shape in INPUTS.values()]


def save_blocks(path: Path, part: slice) -> Path:
    net = Builder(seed=3)
    return save_cases(path, net, INPUTS, some(blocks(net) | means(net), part))


@every_target_in_parts
def test_blocks_equal_onnxruntime(
    tmp_path: Path, inputs: list[np.ndarray], board: str, cpu: str, part: slice
) -> None:
    model = save_blocks(tmp_path / "blocks.onnx", part)
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(model, inputs, got)
    averaged = [layer for layer in compiled.layers if "GlobalAveragePool" in layer.operator]
    # One per block, by the kernel that computes the image; the mean of a gated image is not.
    assert averaged
    gated = any(value.name == "mean of a gated image" for value in onnx.load(model).graph.output)
    assert sum(layer.rule == "mean" for layer in averaged) == gated
    assert {layer.rule for layer in averaged} <= {"depthwise", "conv", "streamed", "mean"}
    assert all("mean" in layer.tile for layer in averaged if layer.rule != "mean")


@pytest.mark.parametrize(
    ("board", "cpu"),
    [
        pytest.param("local", "native", id="x86", marks=pytest.mark.slow),
        pytest.param("rasp3b", "max", id="armv7-a53", marks=pytest.mark.slow),
        pytest.param("rk3399", "cortex-a72", id="aarch64-a72"),
    ],
)
def test_mobilenetv3_small(tmp_path: Path, board: str, cpu: str) -> None:
    path = tmp_path / "mobilenetv3-small.onnx"
    onnx.save(mobilenet_v3_small(), path)
    (shape,) = [
        [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in onnx.load(path).graph.input
    ]
    inputs = [np.random.default_rng(1).normal(size=shape).astype("float32")]
    compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(path, inputs, got)
    # Nine blocks and the classifier's pool: no kernel reads an image just for its mean.
    rules = [layer.rule for layer in compiled.layers]
    assert "mean" not in rules
    assert sum("GlobalAveragePool" in layer.operator for layer in compiled.layers) == 10


def test_means_do_not_depend_on_the_number_of_threads(
    tmp_path: Path, inputs: list[np.ndarray]
) -> None:
    """To the last bit: the order of additions is the tiles'."""
    model = save_blocks(tmp_path / "blocks.onnx", slice(0, None, 3))
    if platform.machine() != "x86_64":
        pytest.skip("not an x86-64 machine")
    board = get_board("local")
    toolchain = select(board, "gnu").toolchain
    compiled = compile_model(ModelSpec(path=model), board, toolchain, tmp_path / "out")
    results = []
    for tasks in (1, 2, 3):
        work = tmp_path / str(tasks)
        work.mkdir()
        results.append(
            run_plan_on_arm(
                compiled.folder,
                inputs,
                compiler=require_tool("gcc"),
                qemu=[],
                work=work,
                tasks=tasks,
            )
        )
    for first, *others in zip(*results, strict=True):
        for other in others:
            np.testing.assert_array_equal(first, other)
