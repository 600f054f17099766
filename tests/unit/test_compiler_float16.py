"""Models of float16, as models of float32 with the same inputs and outputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.frontend.float16 import widen

HALF = TensorProto.FLOAT16


def half(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, HALF, shape)


def constant(name: str, *values: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, "float16"), name)


def model(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto],
    more_inputs: tuple[onnx.ValueInfoProto, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [half("x", 4), *more_inputs], outputs, constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def run(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, {"x": x}))


def branches(inner: str, outer: str) -> onnx.NodeProto:
    """An If whose graphs use a value of the graph around them, and constants of their own."""

    def branch(name: str, factor: float) -> onnx.GraphProto:
        node = helper.make_node("Mul", [inner, f"{name}_factor"], [f"{name}_out"])
        factors = [constant(f"{name}_factor", factor)]
        return helper.make_graph([node], name, [], [half(f"{name}_out", 4)], factors)

    return helper.make_node(
        "If", ["yes"], [outer], then_branch=branch("then", 2), else_branch=branch("else", 3)
    )


CASES = {
    "a chain": model(
        [
            helper.make_node("Add", ["x", "b"], ["s"]),
            helper.make_node("Constant", [], ["two"], value=constant("", 2.0)),
            helper.make_node("Mul", ["s", "two"], ["y"]),
        ],
        [half("y", 4)],
        [constant("b", 1, 2, 3, 4)],
    ),
    "an output that is used": model(
        [helper.make_node("Exp", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])],
        [half("y", 4), half("z", 4)],
        [],
    ),
    "an input as output": model(
        [helper.make_node("Neg", ["x"], ["y"])], [half("x", 4), half("y", 4)], []
    ),
    "a constant as output": model(
        [helper.make_node("Add", ["x", "b"], ["y"])],
        [half("y", 4), half("b", 4)],
        [constant("b", 1, 2, 3, 4)],
    ),
    "a constant among the inputs": model(
        [helper.make_node("Add", ["x", "b"], ["y"])],
        [half("y", 4)],
        [constant("b", 1, 2, 3, 4)],
        (half("b", 4),),
    ),
    "casts": model(
        [
            helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["wide"], ["y"], to=HALF),
            helper.make_node("Cast", ["y"], ["n"], to=TensorProto.INT32),
        ],
        [half("y", 4), helper.make_tensor_value_info("n", TensorProto.INT32, [4])],
        [],
    ),
    "graphs inside": model(
        [helper.make_node("Neg", ["x"], ["s"]), branches("s", "y")],
        [half("y", 4)],
        [numpy_helper.from_array(np.array(True), "yes")],
    ),
    "graphs inside that read an input": model(
        [branches("x", "y")], [half("y", 4)], [numpy_helper.from_array(np.array(True), "yes")]
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_stay(name: str) -> None:
    before = CASES[name]
    kept = before.SerializeToString(deterministic=True)
    after = widen(before)
    assert before.SerializeToString(deterministic=True) == kept
    onnx.checker.check_model(after, full_check=True)
    x = np.array([0.5, -1.25, 3, 100], "float16")
    for got, expected in zip(run(after, x), run(before, x), strict=True):
        assert got.dtype == expected.dtype
        # One rounding to float16 instead of several.
        np.testing.assert_allclose(got.astype("f8"), expected.astype("f8"), rtol=2e-3)
    wide = onnx.shape_inference.infer_shapes(after).graph
    ends = {value.name for value in (*wide.input, *wide.output)}
    inner = [value for value in wide.value_info if value.name not in ends]
    halves = [v.name for v in inner if v.type.tensor_type.elem_type == HALF]
    # What a cast of the model rounds to.
    assert all(name.endswith("/float16") for name in halves)


def test_a_model_without_is_the_same() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    proto = helper.make_model(graph)
    assert widen(proto) is proto
