"""What onnxruntime's `quantize_dynamic` writes of LSTM and attention, beside onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.model import ModelSpec
from edgepack.model.session import cpu_session
from edgepack.native.toolchain import select
from tests.plan_runner import run_plan

STEPS, WIDTH, SIZE = 6, 5, 8
BATCH, LENGTH, HEADS = 2, 5, 2


def _quantised(model: onnx.ModelProto, folder: Path, *, per_channel: bool) -> Path:
    onnx.save(model, folder / "float.onnx")
    path = folder / "model.onnx"
    quantize_dynamic(folder / "float.onnx", path, per_channel=per_channel)
    return path


def _compare(path: Path, given: dict[str, np.ndarray], folder: Path) -> None:
    board = get_board("local")
    made = compile_model(
        ModelSpec(path=path), board, select(board, "gnu").toolchain, folder / "out"
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    due = cpu_session(path.read_bytes(), options).run(None, given)
    for mine, theirs in zip(run_plan(made.folder, list(given.values())), due, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=4e-6)


@pytest.mark.parametrize(
    ("direction", "batch", "per_channel", "starts", "lengths"),
    [
        ("forward", 1, False, False, []),
        ("reverse", 1, True, True, []),
        ("bidirectional", 3, False, False, []),
        # What is behind a sequence counts in no range.
        ("forward", 3, False, True, [4, 0, 2]),
        ("bidirectional", 2, False, False, [3, 5]),
    ],
)
def test_an_lstm_quantises_its_state_at_each_step(
    direction: str,
    batch: int,
    per_channel: bool,
    starts: bool,
    lengths: list[int],
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(1)
    ways = 2 if direction == "bidirectional" else 1

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.5).astype("float32")

    weights = {
        "w": normal(ways, 4 * SIZE, WIDTH),
        "r": normal(ways, 4 * SIZE, SIZE),
        "b": normal(ways, 8 * SIZE),
    }
    inputs = ["x", *weights]
    states: dict[str, np.ndarray] = {}
    if starts:
        states = {"h": normal(ways, batch, SIZE), "c": normal(ways, batch, SIZE)}
        weights |= states
    if lengths or starts:
        inputs += ["lengths" if lengths else "", *states]
    shapes = {"y": [STEPS, ways, batch, SIZE], "yh": [ways, batch, SIZE], "yc": [ways, batch, SIZE]}
    node = helper.make_node(
        "LSTM", inputs, list(shapes), name="lstm", hidden_size=SIZE, direction=direction
    )
    given = {"x": normal(STEPS, batch, WIDTH) * 3}
    if lengths:
        given["lengths"] = np.array(lengths, "int32")
    graph = helper.make_graph(
        [node],
        "lstm",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in given.items()
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = _quantised(model, tmp_path, per_channel=per_channel)
    assert [n.op_type for n in onnx.load(path).graph.node] == ["DynamicQuantizeLSTM"]
    _compare(path, given, tmp_path)


@pytest.mark.parametrize(
    ("mask", "attributes"),
    [
        (None, {"unidirectional": 1}),
        (np.array([3, 5], "int32"), {}),
        (np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32"), {}),
    ],
)
def test_attention(mask: np.ndarray | None, attributes: dict[str, Any], tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    weights = {
        "w": random.standard_normal((SIZE, 3 * SIZE)).astype("float32"),
        "b": random.standard_normal(3 * SIZE).astype("float32"),
    }
    given = {"x": random.standard_normal((BATCH, LENGTH, SIZE)).astype("float32")}
    if mask is not None:
        given["mask"] = mask
    node = helper.make_node(
        "Attention",
        ["x", "w", "b", *(["mask"] if mask is not None else [])],
        ["y"],
        name="attention",
        domain="com.microsoft",
        num_heads=HEADS,
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in given.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [BATCH, LENGTH, SIZE])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = _quantised(model, tmp_path, per_channel=False)
    assert onnx.load(path).graph.node[-1].op_type == "QAttention"
    _compare(path, given, tmp_path)
