"""Operators on 8-bit integers equal their definition in numpy to the bit, on every target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.compiler.frontend import integer_reference
from edgepack.compiler.frontend.quantized import NODE
from tests.onnx_models import Builder
from tests.quantized_models import Chains
from tests.targets import compile_and_run, save_cases

TARGETS = [
    pytest.param("local", "native", id="x86"),
    pytest.param("local", "haswell", id="avx2", marks=pytest.mark.slow),
    pytest.param("local", "nehalem", id="sse4.2", marks=pytest.mark.slow),
    pytest.param("pynq", "cortex-a9", id="armv7-a9"),
    pytest.param("rk3399", "cortex-a72", id="aarch64-a72"),
    pytest.param("rasp5b", "cortex-a76", id="aarch64-a76"),
]
every_target = pytest.mark.parametrize(("board", "cpu"), TARGETS)

# Of the network's input: all of them read it.
CHANNELS, HEIGHT, WIDTH = 40, 9, 13


def cases(net: Builder, dtype: str) -> dict[str, str]:
    """A case per operator and form, of one input."""
    chains = Chains(net, dtype)
    x = chains.steps("x", 0.02)
    conv = chains.conv
    low = chains.info.min
    made = {
        "1x1": conv(x, CHANNELS, 24, [1, 1]),
        "1x1 to many": conv(x, CHANNELS, 83, [1, 1], after="Relu"),
        "3x3": conv(x, CHANNELS, 20, [3, 3], pads=[1] * 4, after="Clip"),
        "3x3 strided": conv(x, CHANNELS, 16, [3, 3], pads=[0, 1, 1, 0], strides=[2, 2]),
        "dilated": conv(x, CHANNELS, 17, [3, 2], pads=[2, 1, 2, 1], dilations=[2, 2]),
        "groups": conv(x, CHANNELS, 20, [3, 3], pads=[1] * 4, group=4),
        "depthwise": conv(x, CHANNELS, CHANNELS, [3, 3], pads=[1] * 4, group=CHANNELS),
        "depthwise strided": conv(
            x, CHANNELS, CHANNELS, [3, 3], pads=[1] * 4, group=CHANNELS, strides=[2, 2]
        ),
        "depthwise 5x5": conv(x, CHANNELS, CHANNELS, [5, 5], pads=[2] * 4, group=CHANNELS),
        # The products of -128 are the ones that sums of two in 16 bits have no room for.
        "all of int8": conv(x, CHANNELS, 16, [1, 1], least=-128),
        "depthwise, all of int8": conv(
            x, CHANNELS, CHANNELS, [3, 3], pads=[1] * 4, group=CHANNELS, least=-128
        ),
    }
    wide = conv(x, CHANNELS, 32, [3, 3], pads=[1] * 4)
    also = conv(x, CHANNELS, 32, [1, 1], scale=0.013)
    pool = {"kernel_shape": [3, 3], "strides": [2, 2]}
    made |= {
        "add": chains.steps(net.op("Add", wide, also), 0.03),
        "add, clipped": chains.steps(net.op("Relu", net.op("Add", wide, also)), 0.011, low + 30),
        "mean": chains.steps(net.op("GlobalAveragePool", wide), 0.004),
        "maximum": chains.steps(net.op("MaxPool", wide, pads=[1] * 4, **pool), 0.02),
        "average": chains.steps(net.op("AveragePool", wide, **pool), 0.01),
        "concat": chains.steps(net.op("Concat", wide, also, made["1x1"], axis=1), 0.02),
    }
    vector = chains.steps(net.op("GlobalAveragePool", also), 0.006)
    weight, scale = chains.weight(10, 32)
    bias = chains.bias(10, scale * np.float32(0.006))
    row = net.op("Flatten", vector)
    made["dense"] = chains.steps(net.op("Gemm", row, weight, bias, transB=1), 0.004, low + 100)
    columns, _scale = chains.weight(32, 12, axis=1)
    made["product"] = chains.steps(net.op("MatMul", row, columns), 0.004, low + 140)
    return made


def integer_model(path: Path, dtype: str) -> list[np.ndarray]:
    """Saves the model, and makes an input that saturates here and there."""
    net = Builder(seed=8 if dtype == "int8" else 9)
    save_cases(path, net, {"x": (1, CHANNELS, HEIGHT, WIDTH)}, cases(net, dtype))
    random = np.random.default_rng(5)
    return [random.normal(scale=1.5, size=(1, CHANNELS, HEIGHT, WIDTH)).astype("float32")]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@every_target
def test_integers_are_those_of_the_definition(
    tmp_path: Path, board: str, cpu: str, dtype: str
) -> None:
    path = tmp_path / "model.onnx"
    inputs = integer_model(path, dtype)
    proto = integer_reference.integer_model(path, onnx.load(path))
    assert proto is not None
    assert {node.op_type for node in proto.graph.node} <= {NODE, "Identity"}
    expected = integer_reference.run(proto, inputs)
    _compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    wrong = []
    for info, mine, theirs in zip(proto.graph.output, got, expected, strict=True):
        steps = np.unique(theirs)
        assert len(steps) > min(theirs.size // 2, 40), f"{info.name}: a case that tells nothing"
        if not np.array_equal(mine, theirs):
            wrong.append(f"{info.name}: {np.count_nonzero(mine != theirs)} of {theirs.size}")
    assert not wrong, "\n".join(wrong)
