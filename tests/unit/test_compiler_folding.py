"""Constants that are computed before TVM would compile kernels for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from edgepack.frontend import folding
from edgepack.frontend.folding import FoldByNumpy
from tests.onnx_models import Builder
from tests.targets import save_cases

FLOATS = np.arange(-3, 9, dtype="float32").reshape(3, 4)
INTEGERS = np.array([2, 0], "int64")


def const(value: np.ndarray) -> relax.Expr:
    return relax.const(value, str(value.dtype))


def folded(make: Callable[[relax.BlockBuilder], relax.Expr]) -> relax.Expr:
    """What becomes of one call, emitted in a function of its own."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(make(builder))
        builder.emit_func_output(result)
    module = builder.get()
    main = FoldByNumpy(module).visit_expr(module["main"])
    return main.body.blocks[0].bindings[-1].value


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (relax.op.permute_dims(const(FLOATS)), FLOATS.T),
        (relax.op.permute_dims(const(FLOATS[None]), [2, 0, 1]), FLOATS.T.reshape(4, 1, 3)),
        (relax.op.concat([const(FLOATS), const(FLOATS)], 1), np.hstack([FLOATS, FLOATS])),
        (relax.op.take(const(FLOATS), const(INTEGERS), 0), FLOATS[[2, 0]]),
        (relax.op.take(const(FLOATS), const(INTEGERS), 1), FLOATS[:, [2, 0]]),
        (relax.op.squeeze(const(FLOATS[:, None]), [1]), FLOATS),
        (relax.op.broadcast_to(const(FLOATS[:1]), (2, 4)), FLOATS[[0, 0]]),
        (relax.op.less(const(FLOATS), const(FLOATS[:, :1])), np.less(FLOATS, FLOATS[:, :1])),
        (relax.op.astype(const(INTEGERS), "float32"), INTEGERS.astype("float32")),
        (relax.op.negative(const(INTEGERS)), -INTEGERS),
    ],
)
def test_calls_of_constants_are_constants(call: relax.Expr, expected: np.ndarray) -> None:
    found = folded(lambda _: call)
    assert isinstance(found, tvm.ir.GenericConst)
    value = found.value.numpy()
    assert value.dtype == expected.dtype
    np.testing.assert_array_equal(value, expected)


def test_a_known_shape_is_a_constant() -> None:
    found = folded(
        lambda builder: relax.op.shape_to_tensor(builder.emit(relax.op.shape_of(const(FLOATS))))
    )
    np.testing.assert_array_equal(found.value.numpy(), [3, 4])


@pytest.mark.parametrize(
    "call",
    [
        # What is outside of the tensor, or of the integers, is TVM's to say.
        relax.op.take(const(FLOATS), const(np.array([-1, 3], "int64")), 0),
        relax.op.astype(const(FLOATS * 1e12), "int32"),
    ],
)
def test_what_numpy_may_see_otherwise_is_left(call: relax.Expr) -> None:
    assert isinstance(folded(lambda _: call), relax.Call)


# ------------------------------------------------ large weights


def test_a_shape_that_is_an_output_becomes_a_constant() -> None:
    """Also where onnxruntime lacks an operator, and does not fold."""
    net = Builder()
    net.op("Shape", "x", outputs=["shape"])
    net.op("Add", "shape", net.const([1, 1, 1], "int64"), outputs=["more"])
    types = {"shape": TensorProto.INT64, "more": TensorProto.INT64}
    folded = folding.fold_by_reference(
        net.model({"x": (2, 3, 5)}, {"shape": [3], "more": [3]}, types)
    )
    first, second = folded.graph.node
    assert (first.op_type, list(first.output)) == ("Constant", ["shape"])
    assert numpy_helper.to_array(first.attribute[0].t).tolist() == [2, 3, 5]
    assert second.op_type == "Add"


def _with_large_weights(net: Builder) -> dict[str, str]:
    """Weights in every place where one may be; onnxruntime reads some, and others it need not."""
    shared = net.weight(64, 1024)
    scaled = net.conv("x", 64, 128)
    scaled = net.op(
        "BatchNormalization",
        scaled,
        *(net.const(1 + net.random.random(128), "float32") for _ in range(4)),
    )
    turned = net.op("Transpose", net.weight(1024, 64), perm=[1, 0])
    kept = net.weight(64, 1024)
    inner = net.op("MatMul", "r", shared)
    product = helper.make_node("MatMul", ["r", kept], ["inside"])
    result = helper.make_tensor_value_info("inside", TensorProto.FLOAT, [8, 1024])
    branch = helper.make_graph([product], "branch", [], [result])
    other = helper.make_graph(
        [helper.make_node("Relu", [inner], ["inside"])], "other", [], [result]
    )
    return {
        "plain": net.op("Relu", net.conv("x", 64, 128)),
        "scaled": scaled,
        "added": net.op("Add", net.op("MatMul", "r", net.weight(64, 1024)), net.weight(1024)),
        "multiplied": net.op("Mul", net.op("MatMul", "r", net.weight(64, 1024)), net.weight(1024)),
        "turned": net.op("MatMul", "r", turned),
        "gemm": net.op("Gemm", "r", net.weight(1024, 64), net.weight(1024), transB=1),
        "summed": net.op("Add", net.conv("x", 64, 128), net.conv("x", 64, 128)),
        "twice": net.op("Add", inner, net.op("MatMul", "r", shared)),
        "branch": net.op("If", "flag", then_branch=branch, else_branch=other),
        "read elsewhere": net.op("Relu", kept),
    }


@pytest.mark.parametrize("ir_version", [3, 8])
def test_large_weights_pass_by_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ir_version: int
) -> None:
    """What is folded is the same as if it had all of them."""
    net = Builder(seed=2)
    cases = _with_large_weights(net)
    inputs = {"x": (1, 64, 8, 8), "r": (8, 64), "flag": ()}
    path = save_cases(tmp_path / "m.onnx", net, inputs, cases, {"flag": TensorProto.BOOL})
    proto = onnx.load(path)
    if ir_version < 4:  # weights are inputs, too
        proto.ir_version = ir_version
        proto.graph.input.extend(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            for tensor in proto.graph.initializer
        )
    apart = folding._large_weights(proto)
    multiplied = {node.input[1]: node for node in proto.graph.node if node.input[1:]}
    assert {multiplied[name].op_type for name in apart} == {"Conv", "MatMul", "Gemm"}
    assert len(apart) == 5
    some = folding.fold_by_onnxruntime(path, proto)
    monkeypatch.setattr(folding, "_large_weights", lambda _proto: {})
    whole = folding.fold_by_onnxruntime(path, proto)
    assert some.graph.node == whole.graph.node
    assert [v.name for v in some.graph.input] == [v.name for v in whole.graph.input]
    ours, theirs = (
        {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for model in (some, whole)
    )
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        np.testing.assert_array_equal(values, theirs[name])
