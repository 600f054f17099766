"""The list of operators is TVM's own, less what it gets wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from tvm.relax.frontend.onnx import onnx_frontend

from edgepack.frontend import operators
from edgepack.frontend.errors import UnsupportedOperatorError
from edgepack.frontend.expand import expand
from edgepack.frontend.importer import import_model
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from tests.onnx_models import Builder


def refused(tmp_path: Path, builder: Builder, shape: tuple[int, ...], dtype: int = 1) -> str:
    """Why the model, from `x` of a shape to `y`, is refused; empty if it is not."""
    proto = builder.model({"x": shape}, {"y": None}, {"y": dtype})
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    try:
        load_model(ModelSpec(path=path))
    except UnsupportedOperatorError as error:
        (reason,) = error.operators.values()
        return reason
    return ""


def test_the_list_holds_what_tvm_converts_and_not_what_no_plan_can_hold() -> None:
    supported = operators.supported_operators()
    assert {"Conv", "Gemm", "Softmax", "Resize", "Constant"} <= supported
    assert {"TopK", "LSTM", "GRU", "RNN"} <= supported
    assert {"com.microsoft::FastGelu", "com.microsoft::Attention"} <= supported
    assert not {"Attention", "FastGelu", "Multinomial", "AllClassNMS"} & supported


@pytest.mark.parametrize("opset", [11, 13])
def test_dropout_counts_only_when_it_trains(tmp_path: Path, opset: int) -> None:
    b = Builder()
    ratio = {"ratio": 0.5} if opset < 12 else {}
    b.op("Dropout", "x", outputs=["y"], **ratio)
    onnx.save(b.model({"x": [2]}, {"y": [2]}, opset=opset), tmp_path / "m.onnx")
    load_model(ModelSpec(path=tmp_path / "m.onnx"))


def test_dropout_that_trains(tmp_path: Path) -> None:
    for ratio, reason in ((0.5, "training form"), (0.0, "")):
        b = Builder()
        training = b.const(True, "bool")
        b.op("Dropout", "x", b.const(ratio, "float32"), training, outputs=["y"])
        assert reason in (said := refused(tmp_path, b, (2,)))
        assert bool(said) == bool(reason)


@pytest.mark.parametrize(
    ("equation", "fits"),
    [("ij->ji", True), ("...j->...", True), ("ij->ijk", False), ("i,j", False)],
)
def test_an_equation_that_does_not_fit(tmp_path: Path, equation: str, fits: bool) -> None:
    """TVM would crash at it."""
    b = Builder()
    b.op("Einsum", "x", equation=equation, outputs=["y"])
    said = refused(tmp_path, b, (2, 3))
    assert ("does not fit its inputs" in said) == (not fits)


def test_roi_align(tmp_path: Path) -> None:
    old = {"coordinate_transformation_mode": "output_half_pixel"}
    forms = [
        ("half_pixel", {}),
        ("mode max", {"mode": "max", **old}),
        ("", old),
        ("", {"sampling_ratio": 2}),
        ("", {"sampling_ratio": 2, "mode": "max"}),
    ]
    for reason, attributes in forms:
        b = Builder()
        boxes, batch = b.const([[0, 0, 4, 4]], "float32"), b.const([0], "int64")
        b.op("RoiAlign", "x", boxes, batch, outputs=["y"], **attributes)
        said = refused(tmp_path, b, (1, 1, 6, 6))
        assert reason in said
        assert bool(reason) == bool(said)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool", "Conv"])
@pytest.mark.parametrize(("size", "fits"), [(5, True), (3, False)])
def test_a_window_that_is_larger_than_its_image(
    operator: str, size: int, fits: bool, tmp_path: Path
) -> None:
    b = Builder()
    weights = [b.weight(2, 2, 5, 5)] if operator == "Conv" else []
    b.op(operator, "x", *weights, kernel_shape=[5, 5], outputs=["y"])
    said = refused(tmp_path, b, (1, 2, size, size))
    assert said == ("" if fits else "its window is larger than its image")


def test_a_type_that_no_kernel_has_is_refused_by_name(tmp_path: Path) -> None:
    b = Builder()
    small = b.op("Cast", "x", to=onnx.TensorProto.FLOAT4E2M1)
    b.op("Cast", small, to=onnx.TensorProto.FLOAT, outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": [4]}, {"y": [4]}, opset=23)
    with pytest.raises(UnsupportedOperatorError, match="Cast: its result is float4e2m1"):
        load_model(ModelSpec(path=path))


def test_integers_of_4_bits_become_8_with_their_limits() -> None:
    """As onnx's own reference has the model with 4 bits."""
    b = Builder()
    for kind, low, high in (("INT4", -8, 7), ("UINT4", 0, 15)):
        code = onnx.TensorProto.DataType.Value(kind)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
        zero = onnx.numpy_helper.from_array(np.array(1).astype(dtype), f"zero{kind}")
        b.weights.append(zero)
        scale = b.const(0.3, "float32")
        whole = b.op("QuantizeLinear", "x", scale, zero.name)
        b.op("DequantizeLinear", whole, scale, zero.name, outputs=[f"y{kind}"])
        assert low < 1 < high
    names = ["yINT4", "yUINT4"]
    model = b.model({"x": [7]}, dict.fromkeys(names, (7,)), opset=21)
    wide = expand(model)
    kinds = {tensor.data_type for tensor in wide.graph.initializer}
    assert not kinds & {onnx.TensorProto.INT4, onnx.TensorProto.UINT4}
    data = {"x": np.array([-9, -2.4, -0.1, 0, 0.7, 2.2, 9], "float32")}
    due, made = (onnx.reference.ReferenceEvaluator(m).run(names, data) for m in (model, wide))
    for one, other in zip(made, due, strict=True):
        np.testing.assert_array_equal(one, other)


def test_expand_replaces_what_tvm_lacks(tmp_path: Path) -> None:
    b = Builder()
    size = b.const([4], "int64")
    b.op("CenterCropPad", b.op("HardSwish", "x"), size, outputs=["y"])
    types = {node.op_type for node in expand(b.model({"x": [2]}, {"y": [4]}, opset=18)).graph.node}
    assert "CenterCropPad" not in types
    assert "HardSwish" in types


def test_an_identity_does_not_compute_its_input_again(tmp_path: Path) -> None:
    # onnxruntime leaves one in whose result is an output of a name of its own.
    net = Builder()
    made = net.op("Conv", "x", net.weight(8, 3, 1, 1))
    net.op("Identity", made, outputs=["same"])
    net.op("Conv", made, net.weight(8, 8, 1, 1), outputs=["y"])
    shape = (1, 8, 9, 9)
    path = net.save(tmp_path / "m.onnx", {"x": (1, 3, 9, 9)}, {"y": shape, "same": shape})
    module = import_model(load_model(ModelSpec(path=path)))
    assert str(module["main"]).count("R.nn.conv2d(") == 2


def test_every_refusal_says_why_and_what_to_do_instead(tmp_path: Path) -> None:
    b = Builder()
    b.op("RandomNormalLike", "x", outputs=["t"])
    ratio, training = b.const(0.5, "float32"), b.const(True, "bool")
    b.op("Dropout", "t", ratio, training, outputs=["v", "mask"])
    b.nodes.append(onnx.helper.make_node("Fancy", ["v"], ["y"], domain="org.example"))
    path = b.save(tmp_path / "m.onnx", {"x": [4]}, {"y": None, "mask": None}, {"mask": 9})
    with pytest.raises(UnsupportedOperatorError) as caught:
        load_model(ModelSpec(path=path))
    assert caught.value.hint is not None
    for name, instead in {
        "RandomNormalLike": "an input of the model",
        "Dropout": r"model\.eval\(\)",
        "org.example::Fancy": "standard operators",
    }.items():
        assert re.search(rf"^  {name}: \w+", caught.value.message, re.MULTILINE)
        assert re.search(rf"^ *{name}: .*{instead}", caught.value.hint, re.MULTILINE)


def test_the_table_names_operators_that_there_are() -> None:
    onnx_names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    converted = set(onnx_frontend._get_convert_map())
    standard = {name for name, entry in operators.OPERATORS.items() if not entry.domain}
    assert not standard - onnx_names - converted
    assert list(operators.OPERATORS) == sorted(operators.OPERATORS)
    for name, operator in operators.OPERATORS.items():
        assert operator != operators.Operator(), f"{name}: an entry that says nothing"
        for refusal in operator.refused:
            assert refusal.why
            assert refusal.instead
            # Once TVM converts it, this reason is no longer one.
            assert name not in converted or refusal.why != "not known to the compiler"
