from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.base.errors import ConfigError, MismatchError
from edgepack.flow.reference import (
    ExpectedClassError,
    Reference,
    ReferenceInputError,
    ReferenceRunError,
    compare,
    has_endless_loop,
    make_golden,
    random_input,
    reference_outputs,
    run_reference,
    top_k,
)
from edgepack.frontend.load import load_model
from edgepack.model import LoadedModel, ModelSpec, TensorInfo
from edgepack.model.session import cpu_session, without_saturation
from edgepack.preprocess.image import ImageNotFoundError
from edgepack.preprocess.spec import PreprocessMismatchError, PreprocessSpec
from tests import control_flow
from tests.onnx_models import one_conv


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
) -> Path:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def means(tmp_path: Path) -> LoadedModel:
    """The mean of each colour of a 4 x 6 image: three "classes"."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["scores"]),
    ]
    path = save(tmp_path / "means.onnx", nodes, {"image": [1, 3, 4, 6]}, {"scores": [1, 3]})
    return load_model(ModelSpec(path=path))


@pytest.fixture
def add(tmp_path: Path) -> Path:
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"])]
    return save(tmp_path / "add.onnx", nodes, {"a": [2, "n"], "b": [2, "n"]}, {"sum": [2, "n"]})


@pytest.fixture
def green(tmp_path: Path) -> Path:
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:, :, 1] = 200
    cv2.imwrite(str(tmp_path / "green.png"), pixels)
    return tmp_path / "green.png"


# ---------------------------------------------------------------- reference_outputs


def test_odd_inputs_are_compared_with_what_is_meant_too(tmp_path: Path) -> None:
    """Of equal values a mean-variance normalization is 0, by ONNX's text; by onnxruntime's it is
    NaN."""
    nodes = [helper.make_node("MeanVarianceNormalization", ["x"], ["y"])]
    shape: list[int | str] = [1, 2, 3, 3]
    path = save(tmp_path / "equal.onnx", nodes, {"x": shape}, {"y": shape})
    model = load_model(ModelSpec(path=path))
    equal = np.ones((1, 2, 3, 3), np.float32)
    (found,) = reference_outputs(model, [[equal]])
    assert found is not None
    np.testing.assert_array_equal(found[0], np.zeros_like(equal))


def test_a_function_keeps_its_opset_for_odd_inputs(tmp_path: Path) -> None:
    """Before opset 13, Softmax is over all axes from its own on (ONNX's text), here by numpy."""
    softmax = helper.make_node("Softmax", ["a"], ["b"], axis=1)
    function = helper.make_function(
        "own", "Flat", ["a"], ["b"], [softmax], [helper.make_opsetid("", 11)]
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Flat", ["x"], ["y"], domain="own")],
        "flat",
        [value("x", TensorProto.FLOAT, [2, 3, 4])],
        [value("y", TensorProto.FLOAT, [2, 3, 4])],
    )
    proto = helper.make_model(
        graph,
        ir_version=8,
        functions=[function],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
    )
    onnx.save(proto, tmp_path / "model.onnx")
    model = load_model(ModelSpec(path=tmp_path / "model.onnx"))
    x = np.random.RandomState(0).normal(size=(2, 3, 4)).astype(np.float32)
    (found,) = reference_outputs(model, [[x]])
    assert found is not None
    powers = np.exp(x)
    due = powers / powers.sum(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(found[0], due, rtol=1e-5)


# ---------------------------------------------------------------- run_reference


def test_inputs_by_position_or_name(add: Path) -> None:
    a, b = np.full((2, 3), 1, np.float32), np.full((2, 3), 5, np.float32)
    for inputs in ([a, b], {"b": b, "a": a}):
        (output,) = run_reference(add, {}, inputs)
        np.testing.assert_array_equal(output, np.full((2, 3), 6))
    (output,) = run_reference(onnx.load(add), {"a": (2, 3), "b": (2, 3)}, [a, b])
    assert output.shape == (2, 3)


def test_inputs_that_do_not_fit_are_named(add: Path) -> None:
    good = np.zeros((2, 3), np.float32)
    with pytest.raises(ReferenceInputError, match="2 inputs, given 1"):
        run_reference(add, {}, [good])
    with pytest.raises(ReferenceInputError, match="input 'b' is missing"):
        run_reference(add, {}, {"a": good})
    with pytest.raises(ReferenceInputError, match=r"input 'a' is \(3, 3\)"):
        run_reference(add, {}, [np.zeros((3, 3), np.float32), good])
    with pytest.raises(
        ReferenceInputError, match=r"input 'a' is \(2, 3\), the model's is \(2, 4\)"
    ):
        run_reference(add, {"a": (2, 4)}, [good, good])
    with pytest.raises(ReferenceInputError, match="input 'a' is float64"):
        run_reference(add, {}, [good.astype(np.float64), good])


def test_what_onnxruntime_refuses_is_a_model_error(tmp_path: Path, add: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(ReferenceRunError, match="cannot load") as caught:
        run_reference(tmp_path / "no.onnx", {}, [])
    assert caught.value.exit_code == 3
    with pytest.raises(ReferenceRunError, match="cannot run"):
        run_reference(add, {}, [np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)])


# ---------------------------------------------------------------- make_golden


def bound(model: LoadedModel, **changes: object) -> PreprocessSpec:
    return PreprocessSpec(**changes).for_inputs(model.inputs)  # type: ignore[arg-type]


def test_golden_from_a_photo(means: LoadedModel, green: Path) -> None:
    golden = make_golden(
        means,
        preprocess=bound(means),
        image=green,
        expected_class=1,
        labels=["red", "green", "blue"],
    )
    assert golden.image == green
    assert golden.expected is not None
    assert (golden.expected.index, golden.expected.label) == (1, "green")
    np.testing.assert_array_equal(golden.outputs[0], [[0, 200, 0]])
    assert golden.inputs[0].shape == (1, 3, 4, 6)


def test_the_expected_class_is_the_references_first_unless_given(
    means: LoadedModel, green: Path
) -> None:
    spec = bound(means)
    golden = make_golden(means, preprocess=spec, image=green, labels=["r", "g", "b"])
    assert golden.expected is not None
    assert golden.expected.index == 1
    assert make_golden(means, preprocess=spec, image=green).expected is None
    with pytest.raises(ExpectedClassError, match=r"sees class 1 \(g\), expected 2"):
        make_golden(means, preprocess=spec, image=green, labels=["r", "g", "b"], expected_class=2)


def test_golden_without_a_photo_is_seeded(means: LoadedModel) -> None:
    one, two = make_golden(means), make_golden(means)
    np.testing.assert_array_equal(one.inputs[0], two.inputs[0])
    np.testing.assert_array_equal(one.outputs[0], two.outputs[0])
    assert one.expected is None
    assert one.image is None
    assert (make_golden(means, seed=1).inputs[0] != one.inputs[0]).any()


def test_bad_golden_photos(means: LoadedModel, green: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs preprocessing"):
        make_golden(means, image=green)
    with pytest.raises(ImageNotFoundError):
        make_golden(means, preprocess=bound(means), image=tmp_path / "none.png")
    cv2.imwrite(str(tmp_path / "large.png"), np.zeros((5, 6, 3), np.uint8))
    with pytest.raises(PreprocessMismatchError, match=r"makes \(1, 3, 5, 6\) of .*large"):
        make_golden(means, preprocess=bound(means), image=tmp_path / "large.png")


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("float32", -9, 9),
        ("float16", -9, 9),
        ("uint8", 0, 255),
        ("int8", -128, 127),
        ("int64", 0, 1),
        ("int32", 0, 1),
        ("bool", 0, 1),
    ],
)
def test_random_inputs_are_valid_for_their_dtype(dtype: str, low: int, high: int) -> None:
    info = TensorInfo(name="x", dtype=dtype, shape=(40, 50))
    values = random_input(info, np.random.RandomState(0))
    assert values.dtype.name == dtype
    assert values.shape == (40, 50)
    assert low <= values.min() < values.max() <= high
    if dtype in ("uint8", "int8"):
        assert (values.min(), values.max()) == (low, high)


# ---------------------------------------------------------------- compare, top_k


def test_compare_is_relative_to_the_largest_reference() -> None:
    reference = np.array([[100.0, -200.0, 0.5]], np.float32)
    result = compare(reference + np.array([0, 0.02, 0], np.float32), reference, 1e-4)
    assert result.max_abs_reference == 200
    assert result.max_abs_error == pytest.approx(0.02, rel=1e-3)
    assert not result.ok
    assert compare(reference + np.float32(0.0156), reference, 1e-4).ok
    assert compare(reference, reference, 1e-4).max_abs_error == 0


def test_compare_of_values_that_are_not_finite() -> None:
    inf, nan = np.inf, np.nan
    assert compare(np.array([1, inf, nan]), np.array([1, inf, nan]), 1e-4).ok
    for got, want in ((nan, 1), (1, nan), (inf, 1), (inf, -inf), (1, inf)):
        result = compare(np.array([2.0, got]), np.array([2.0, want]), 1e-4)
        assert result.max_abs_error == inf
        assert not result.ok


def test_compare_of_zeros_bytes_and_nothing() -> None:
    assert compare(np.zeros(3), np.zeros(3), 1e-4).ok
    assert not compare(np.full(3, 1e-9), np.zeros(3), 1e-4).ok
    # Differences of unsigned bytes must not wrap.
    assert compare(np.array([1], np.uint8), np.array([3], np.uint8), 0.1).max_abs_error == 2
    assert compare(np.zeros((0, 4)), np.zeros((0, 4)), 1e-4).ok
    with pytest.raises(MismatchError, match=r"\(2,\), its reference \(3,\)"):
        compare(np.zeros(2), np.zeros(3), 1e-4)


def test_top_k() -> None:
    output = np.array([[1.0, 3.0, 3.0, 2.0]], np.float32)
    raw = top_k(output, ["a", "b"], k=3, scores="raw")
    assert [(s.index, s.label, s.score) for s in raw] == [(1, "b", 3), (2, "", 3), (3, "", 2)]
    soft = top_k(output, k=9)
    assert [s.index for s in soft] == [1, 2, 3, 0]
    assert sum(s.score for s in soft) == pytest.approx(1)
    assert soft[0].score / soft[3].score == pytest.approx(np.exp(2))
    # Large logits must not overflow.
    assert top_k(np.array([1e4, 0], np.float32), k=1)[0].score == pytest.approx(1)


@pytest.mark.parametrize("as_file", [True, False])
def test_a_model_with_branches_is_not_optimised(tmp_path: Path, as_file: bool) -> None:
    """onnxruntime's optimiser can crash on such a model, and this process with it."""
    value = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    names = ("then_branch", "else_branch")
    branches = {
        name: onnx.helper.make_graph(
            [onnx.helper.make_node("Constant", [], ["y"], value_floats=[float(number)])],
            name,
            [],
            [value],
        )
        for number, name in enumerate(names)
    }
    choice = onnx.helper.make_tensor_value_info("choice", onnx.TensorProto.BOOL, [])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("If", ["choice"], ["y"], **branches)], "g", [choice], [value]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, tmp_path / "m.onnx")
    plain = one_conv(tmp_path / "plain.onnx")
    asked = []
    session = onnxruntime.InferenceSession
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "onnxruntime.InferenceSession",
            lambda source, options, providers, **given: (
                asked.append(options.graph_optimization_level),
                session(source, options, providers, **given),
            )[1],
        )
        reference = Reference(tmp_path / "m.onnx" if as_file else model)
        Reference(plain if as_file else onnx.load(plain))
    levels = onnxruntime.GraphOptimizationLevel
    assert asked == [levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_EXTENDED]
    assert [reference.run([np.array(b)])[0][0] for b in (True, False)] == [0.0, 1.0]


def test_a_loop_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = control_flow.doubling()
    inputs = [np.array(True), np.array(1, "float32"), np.ones(3, "float32")]
    (due,) = Reference(proto).run(inputs)
    np.testing.assert_array_equal(due, np.full(3, 2, "float32"))
    monkeypatch.setattr("edgepack.flow.reference._LOOP_LIMIT_S", 0.1)
    with pytest.raises(ReferenceRunError, match=r"a loop did not end within 0\.1 s"):
        Reference(proto).run([*inputs[:2], np.zeros(3, "float32")])


@pytest.mark.parametrize(
    ("most", "is_endless"), [("", True), (2**63 - 1, True), (1000, False), ("n", False)]
)
def test_loops_without_a_maximum(most: str | int, is_endless: bool) -> None:
    proto = control_flow.limited()
    (loop,) = (node for node in proto.graph.node if node.op_type == "Loop")
    loop.input[0] = str(most)
    if isinstance(most, int):
        number = numpy_helper.from_array(np.array(most), str(most))
        proto.graph.initializer.append(number)
    assert has_endless_loop(proto) == is_endless


def test_products_of_integers_are_exact(tmp_path: Path) -> None:
    """Of the largest values, which saturate in onnxruntime's fast way on a CPU without VNNI."""
    x = np.linspace(0, 1, 64, dtype="float32").reshape(1, 64)
    w = np.where(np.arange(64 * 3).reshape(64, 3) % 5 < 3, 127, -128).astype("int8")
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, (1, 3))],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    q = np.rint(x / (x.max() / np.float32(255))).astype("int32")
    (y,) = run_reference(model, {}, [x])
    assert y.tolist() == (q @ w.astype("int32")).tolist()


def test_products_of_integers_in_branches_are_exact() -> None:
    """onnxruntime's optimiser is off there, so weights are made uint8 beforehand."""
    x = np.linspace(-0.1, 1, 64, dtype="float32").reshape(1, 64)
    w = np.where(np.arange(64 * 3).reshape(64, 3) % 5 < 3, 127, -128).astype("int8")
    zeros = np.array([3, -7, 0], "int8")
    scalar = helper.make_tensor_value_info("y", TensorProto.INT32, (1, 3))

    def branch(name: str, *zero: str) -> onnx.GraphProto:
        product = helper.make_node("MatMulInteger", ["q", "w", "zero", *zero], ["y"])
        return helper.make_graph([product], name, [], [scalar])

    branches = {"then_branch": branch("then", "zeros"), "else_branch": branch("else")}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("If", ["choice"], ["y"], **branches),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
            helper.make_tensor_value_info("choice", TensorProto.BOOL, ()),
        ],
        [scalar],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(zeros, "zeros")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    scale = (x.max() - x.min()) / np.float32(255)
    zero = np.rint(-x.min() / scale)
    q = (np.rint(x / scale) + zero).clip(0, 255).astype("int32") - int(zero)
    for choice in (True, False):
        (y,) = run_reference(model, {}, [x, np.array(choice)])
        wanted = q @ (w.astype("int32") - (zeros if choice else 0))
        assert y.tolist() == wanted.tolist()
    then, other = (item.g for item in without_saturation(model).graph.node[1].attribute)
    for inner in (then, other):
        stored = {tensor.name: tensor for tensor in inner.initializer}
        _q, weight, _zero, weight_zero = inner.node[0].input
        assert stored[weight].data_type == stored[weight_zero].data_type == TensorProto.UINT8


@pytest.mark.parametrize("fixed", [(), ("zero",), ("w", "zero")])
def test_products_of_uint8_by_int8_do_not_saturate(fixed: Sequence[str]) -> None:
    """Wherever the int8 come from: onnxruntime's kernels add pairs of products in 16 bits where a
    CPU has no VNNI."""
    random = np.random.default_rng(0)
    x = random.integers(200, 256, (3, 8), "uint8")
    w = random.integers(90, 128, (8, 5), dtype="int8")
    tensors = {"x": x, "w": w, "zero": np.array(-3, "int8")}
    names = ["x", "one", "no", "w", "one", "zero", "step", "no"]
    constants = {
        "one": np.array(1, "float32"),
        "no": np.array(0, "uint8"),
        "step": np.array(2000, "float32"),
        **{name: tensors[name] for name in fixed},
    }
    free = {name: value for name, value in tensors.items() if name not in fixed}
    graph = helper.make_graph(
        [helper.make_node("QLinearMatMul", names, ["y"])],
        "product",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in free.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, (3, 5))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    wanted = np.rint(x.astype(int) @ (w.astype(int) + 3) / 2000).clip(0, 255)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = cpu_session(without_saturation(model).SerializeToString(), options)
    (y,) = session.run(None, free)
    assert y.tolist() == wanted.tolist()


def test_convolutions_of_int8_by_int8_are_taken() -> None:
    x = np.arange(-60, 60, 5, dtype="int8").reshape(1, 2, 3, 4)
    w = np.array([[3, -2], [1, 5]], "int8").reshape(2, 2, 1, 1)
    one, zero = np.array(1, "float32"), np.array(0, "int8")
    names = ["x", "one", "zero", "w", "one", "zero", "ten", "zero"]
    constants = {"one": one, "zero": zero, "w": w, "ten": np.array(10, "float32")}
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", names, ["y"])],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.INT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT8, x.shape)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    (y,) = run_reference(model, {}, [x])
    products = np.einsum("oi,nihw->nohw", w[:, :, 0, 0].astype("int32"), x.astype("int32"))
    assert y.tolist() == np.rint(products / 10).clip(-128, 127).tolist()
