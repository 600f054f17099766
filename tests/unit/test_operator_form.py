"""Operator form: what onnxruntime's quantiser writes becomes operators on integers, as pairs do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType

from edgepack.frontend import integer_reference
from edgepack.frontend.integer_recognition import NODE
from edgepack.frontend.operator_form import as_pairs
from tests.quantized_models import block, by_onnxruntime, chain, photos


def theirs(proto: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [info.name for info in session.get_inputs()]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


def read(path: Path) -> tuple[onnx.ModelProto, onnx.ModelProto, Counter[str]]:
    """A model as it is stored, and on integers, with its operators."""
    stored = onnx.load(path)
    whole = integer_reference.integer_model(path, stored)
    assert whole is not None
    return stored, whole, Counter(node.op_type for node in whole.graph.node)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("dtype", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("per_channel", [True, False])
def test_operator_form_is_done_on_integers_to_the_bit(
    tmp_path: Path, dtype: QuantType, per_channel: bool, opset: int
) -> None:
    if opset < 13 and per_channel:
        pytest.skip("onnxruntime's quantiser has scales for each channel since opset 13")
    path = by_onnxruntime(
        tmp_path / "m.onnx",
        chain(opset),
        photos(),
        activation_type=dtype,
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
    )
    stored, whole, kinds = read(path)
    assert {"QLinearConv", "QGemm", "MaxPool"} <= {node.op_type for node in stored.graph.node}
    assert set(kinds) == {NODE}
    for photo in photos(2):
        (wanted,), (got,) = theirs(stored, [photo]), integer_reference.run(whole, [photo])
        assert len(np.unique(wanted)) > 3
        np.testing.assert_array_equal(got, wanted)


def test_all_that_pairs_can_do_is_done_of_operator_form(tmp_path: Path) -> None:
    path = by_onnxruntime(tmp_path / "m.onnx", block(), photos())
    stored, whole, kinds = read(path)
    names = {node.op_type for node in stored.graph.node}
    assert names > {"QLinearAdd", "QLinearConcat", "QLinearAveragePool", "QLinearMatMul"}
    assert names > {"QLinearGlobalAveragePool", "QLinearConv"}
    assert set(kinds) == {NODE}
    (photo,) = photos(1)
    (wanted,), (got,) = theirs(stored, [photo]), integer_reference.run(whole, [photo])
    # Sums and means may be a step off.
    assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()


def mixed_form(*, dynamic_scale: bool = False) -> onnx.ModelProto:
    """Convolutions, between them what only operator form has, and results as integers."""
    random = np.random.default_rng(3)
    weights: dict[str, np.ndarray] = {
        "s": np.array(0.03, "float32"),
        "z": np.array(120, "uint8"),
        "t": np.array(0.05, "float32"),
        "weight": random.integers(-63, 64, (8, 8, 3, 3)).astype("int8"),
        "ws": random.uniform(0.004, 0.01, 8).astype("float32"),
        "wz": np.zeros(8, "int8"),
        "bias": random.integers(-900, 900, 8).astype("int32"),
        "each": random.integers(0, 255, (8, 1, 1)).astype("uint8"),
        "sizes": np.array([1, 8, 10, 12], "int64"),
    }
    nodes = []

    def node(op_type: str, inputs: list[str], output: str, **given: object) -> None:
        domain = "com.microsoft" if op_type in ("QLinearMul", "QLinearAdd") else ""
        nodes.append(helper.make_node(op_type, inputs, [output], domain=domain, **given))

    scale = "dynamic" if dynamic_scale else "s"
    if dynamic_scale:
        node("ReduceMax", ["scales"], scale, keepdims=0)
    node("QLinearConv", ["x", "s", "z", "weight", "ws", "wz", "s", "z", "bias"], "a", pads=[1] * 4)
    # Of a constant for each channel.
    node("QLinearMul", ["a", "s", "z", "each", "s", "z", "t", "z"], "b")
    node(
        "QLinearConv", ["b", "t", "z", "weight", "ws", "wz", scale, "z", "bias"], "c", pads=[1] * 4
    )
    node("Resize", ["c", "", "", "sizes"], "d", mode="nearest")
    node("QLinearConv", ["d", "s", "z", "weight", "ws", "wz", "s", "z"], "y")
    node("QLinearAdd", ["c", "s", "z", "a", "s", "z", "t", "z"], "sum")
    node("Identity", ["sum"], "copy")
    outputs = ["y", "c", "sum", "copy"]
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 8, 5, 6])]
    if dynamic_scale:
        inputs.append(helper.make_tensor_value_info("scales", TensorProto.FLOAT, [2]))
    graph = helper.make_graph(
        nodes,
        "mixed",
        inputs,
        [
            helper.make_tensor_value_info(
                name, TensorProto.UINT8, [1, 8, 8, 10] if name == "y" else [1, 8, 5, 6]
            )
            for name in outputs
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("dynamic_scale", [False, True])
def test_what_pairs_cannot_do_reads_the_same_integers(tmp_path: Path, dynamic_scale: bool) -> None:
    proto = mixed_form(dynamic_scale=dynamic_scale)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    random = np.random.default_rng(8)
    inputs = [random.integers(0, 255, (1, 8, 5, 6)).astype("uint8")]
    inputs += [np.array([0.02, 0.03], "float32")] * dynamic_scale
    stored, whole, kinds = read(path)
    assert kinds["QLinearMul"] == 1
    assert kinds["QLinearConv"] == int(dynamic_scale)
    wanted, got = theirs(stored, inputs), integer_reference.run(whole, inputs)
    names = [info.name for info in stored.graph.output]
    for name, one, other in zip(names, wanted, got, strict=True):
        assert one.dtype == other.dtype
        # onnxruntime's sum may be a step off.
        off = np.abs(one.astype(int) - other).max()
        assert off <= (name in ("sum", "copy")), name
        assert len(np.unique(one)) > 40, name


def test_what_a_branch_reads_keeps_its_name_and_its_integers() -> None:
    random = np.random.default_rng(6)
    stored = {
        "s": np.array(0.03, "float32"),
        "z": np.array(120, "uint8"),
        "weight": random.integers(-63, 64, (8, 8, 3, 3)).astype("int8"),
        "ws": np.array(0.006, "float32"),
        "wz": np.array(0, "int8"),
    }
    shape = [1, 8, 5, 6]

    def conv(given: str, made: str) -> onnx.NodeProto:
        names = [given, "s", "z", "weight", "ws", "wz", "s", "z"]
        return helper.make_node("QLinearConv", names, [made], pads=[1] * 4)

    def branch(op_type: str) -> onnx.GraphProto:
        whole = helper.make_tensor_value_info(op_type, TensorProto.UINT8, shape)
        return helper.make_graph(
            [helper.make_node(op_type, ["a", "a"], [op_type])], "b", [], [whole]
        )

    chosen = helper.make_node(
        "If", ["go"], ["y"], then_branch=branch("Max"), else_branch=branch("Min")
    )
    graph = helper.make_graph(
        [conv("x", "a"), chosen, conv("a", "c")],
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.UINT8, shape),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, TensorProto.UINT8, shape) for name in "yc"],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    pairs, converted = as_pairs(proto)
    assert set(converted) == {"a", "c"}
    assert "QLinearConv" not in {node.op_type for node in pairs.graph.node}
    x = random.integers(0, 255, shape).astype("uint8")
    for go in (True, False):
        inputs = [x, np.array(go)]
        for one, other in zip(theirs(proto, inputs), theirs(pairs, inputs), strict=True):
            # A sum of numbers may be a step off.
            assert np.abs(one.astype(int) - other).max() <= 1
        assert len(np.unique(one)) > 40


def test_models_without_operator_form_are_left_alone(tmp_path: Path) -> None:
    proto = chain()
    assert as_pairs(proto) == (proto, {})
    assert as_pairs(proto)[0] is proto


def test_layers_of_an_old_opset_can_be_left_in_float(tmp_path: Path) -> None:
    path = by_onnxruntime(tmp_path / "m.onnx", chain(), photos())
    stored = onnx.load(path)
    # Nothing in it is another in opset 12 but that DequantizeLinear has no axis.
    stored.opset_import[0].version = 12
    names = [node.name for node in stored.graph.node if node.op_type == "QLinearConv"]
    mixed = integer_reference.integer_model(path, stored, names[1:3])
    assert mixed is not None
    kinds = Counter(node.op_type for node in mixed.graph.node)
    assert kinds["Conv"] == 2
    (photo,) = photos(1)
    (wanted,), (got,) = theirs(stored, [photo]), integer_reference.run(mixed, [photo])
    assert np.abs(got - wanted).max() < 0.1 * np.abs(wanted).max()
