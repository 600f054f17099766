"""Dense blocks: batch norms before convolutions stay blocked, concatenations copy nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgepack.compiler.place.emit import LAYOUT
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs

_GROWTH = 16
_LAYERS = 4


def _normalized(net: Builder, value: str, channels: int) -> str:
    """Batch normalization, as after training, and Relu."""

    def values(low: float, high: float) -> str:
        return net.const(net.random.uniform(low, high, channels), "float32")

    parts = (values(0.5, 2), values(-1, 1), values(-1, 1), values(0.2, 3))
    return net.op("Relu", net.op("BatchNormalization", value, *parts))


@every_target
def test_dense_block(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(seed=3)
    channels, parts = 32, [net.conv("x", 3, 32)]
    for _ in range(_LAYERS):
        whole = net.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        narrow = net.conv(_normalized(net, whole, channels), channels, 2 * _GROWTH, kernel=1)
        parts.append(net.conv(_normalized(net, narrow, 2 * _GROWTH), 2 * _GROWTH, _GROWTH))
        channels += _GROWTH
    last = _normalized(net, net.op("Concat", *parts, axis=1), channels)
    pooled = net.op("AveragePool", last, kernel_shape=[2, 2], strides=[2, 2])
    model = save_cases(tmp_path / "model.onnx", net, {"x": (1, 3, 12, 8)}, {"y": pooled})
    inputs = [np.random.default_rng(3).normal(size=(1, 3, 12, 8)).astype("float32")]
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(model, inputs, got)
    rules = [layer.rule for layer in compiled.layers]
    # A batch norm over the concatenation per layer, and one at the end; no concat, no copy.
    assert rules.count("pointwise") == _LAYERS + 1
    assert set(rules) <= {LAYOUT, "conv", "winograd", "pointwise", "pool"}
    assert rules.count(LAYOUT) == rules[:1].count(LAYOUT) + rules[-1:].count(LAYOUT)
    # A scale, a shift and the maximum: of the four steps of a batch norm two are left.
    norms = [layer.kernel for layer in compiled.layers if layer.rule == "pointwise"]
    assert all(name.startswith("multiply_add_maximum") for name in norms)
