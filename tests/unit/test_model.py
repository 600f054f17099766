from __future__ import annotations

import bz2
import dataclasses
import gzip
import hashlib
import io
import lzma
import pickle
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edgepack.base.errors import ModelError, UsageError
from edgepack.flow.reference import model_outputs, run_reference
from edgepack.frontend.errors import UnsupportedOperatorError
from edgepack.frontend.inspect import inspect_model
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec, infer_shapes, read_model, tensor_info
from edgepack.model.constants import Constant
from edgepack.model.errors import (
    DynamicShapeError,
    InputValueError,
    MissingExternalDataError,
    NotOnnxError,
    ShapeOverrideError,
    TruncatedModelError,
)
from edgepack.model.sources import local_model
from tests import onnx_models
from tests.onnx_models import Builder


def test_inspect_reads_inputs_operators_parameters_and_macs(tmp_path: Path) -> None:
    path = onnx_models.one_conv(tmp_path / "net.onnx", "batch")
    info = inspect_model(path)
    assert (info.name, info.opset, info.size_bytes) == ("net", 17, path.stat().st_size)
    assert info.inputs[0].shape == ("batch", 3, 16, 16)
    assert info.inputs[0].dtype == "float32"
    assert info.operators == {"Conv": 1, "Relu": 1}
    assert info.parameters == 8 * 3 * 3 * 3 + 8
    assert info.macs is None
    assert inspect_model(path, {"image": (2, 3, 16, 16)}).macs == 2 * 8 * 16 * 16 * 3 * 3 * 3


def test_macs_of_matrix_products_and_transposed_convolutions(tmp_path: Path) -> None:
    b = Builder()
    x = b.op("Gemm", "x", b.weight(4, 6), transB=1)
    b.op("MatMul", x, b.weight(4, 5), outputs=["y"])
    b.op("ConvTranspose", "z", b.weight(3, 2, 2, 2), strides=[2, 2], outputs=["w"])
    path = b.save(
        tmp_path / "m.onnx",
        {"x": [7, 6], "z": [1, 3, 5, 5]},
        {"y": [7, 5], "w": [1, 2, 10, 10]},
    )
    assert inspect_model(path).macs == 7 * 4 * 6 + 7 * 5 * 4 + 3 * 5 * 5 * 2 * 2 * 2


def test_inspect_counts_nodes_of_subgraphs_and_names_what_cannot_be_compiled(
    tmp_path: Path,
) -> None:
    b = Builder()
    branch = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"])],
        "branch",
        [],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, [2])],
    )
    flag = b.op("Cast", b.op("ReduceSum", "x", keepdims=0), to=TensorProto.BOOL)
    b.op("If", flag, then_branch=branch, else_branch=branch, outputs=["y"])
    b.op("RandomNormalLike", "x", outputs=["noise"])
    path = b.save(tmp_path / "m.onnx", {"x": [2]}, {"y": [2], "noise": [2]})
    info = inspect_model(path)
    assert info.operators == {"Cast": 1, "If": 1, "Neg": 2, "RandomNormalLike": 1, "ReduceSum": 1}
    assert {node.operator for node in info.unsupported} == {"RandomNormalLike"}


def test_inspect_counts_weights_in_constant_nodes(tmp_path: Path) -> None:
    net = Builder()
    weight = net.op("Constant", value=onnx.numpy_helper.from_array(np.ones((4, 5), "float32")))
    net.op("MatMul", "x", weight, outputs=["y"])
    info = inspect_model(net.save(tmp_path / "m.onnx", {"x": [2, 4]}, {"y": [2, 5]}))
    assert (info.parameters, info.parameters_bytes, info.macs) == (20, 80, 2 * 4 * 5)


def test_macs_where_the_model_computes_its_own_shapes(tmp_path: Path) -> None:
    # onnx cannot tell how long the Range is, onnxruntime computes it: 1 + 6.
    net = Builder()
    size = net.op("ReduceSum", net.op("Shape", "x"), keepdims=0)
    rows = net.op("Range", net.const(0), size, net.const(1))
    table = net.op("Unsqueeze", net.op("Cast", rows, to=1), net.const([1]))
    net.op("MatMul", table, "x", outputs=["y"])
    info = inspect_model(net.save(tmp_path / "m.onnx", {"x": [1, 6]}, {"y": None}))
    assert info.macs == 7 * 1 * 6


def test_all_that_is_unsupported_is_reported_at_once(tmp_path: Path) -> None:
    net = Builder()
    out = helper.make_tensor_value_info("n", TensorProto.FLOAT, [2])
    inner = helper.make_node("Fancy", ["x"], ["n"], name="inner", domain="org.example", size=3)
    branch = helper.make_graph([inner], "branch", [], [out])
    flag = net.op("Cast", net.op("ReduceSum", "x", keepdims=0), to=TensorProto.BOOL)
    net.op("If", flag, then_branch=branch, else_branch=branch, outputs=["y"])
    net.op("RandomNormalLike", "x", outputs=["noise"])
    path = net.save(tmp_path / "m.onnx", {"x": [2]}, {"y": [2], "noise": [2]})
    nodes = inspect_model(path).unsupported
    assert [(node.operator, node.node, node.attributes, node.inside) for node in nodes] == [
        ("org.example::Fancy", "inner", "size=3", "If 'If_2'"),
        ("org.example::Fancy", "inner", "size=3", "If 'If_2'"),
        ("RandomNormalLike", "RandomNormalLike_3", "", ""),
    ]
    with pytest.raises(UnsupportedOperatorError, match=r"\(2, in 3 nodes\)") as caught:
        load_model(ModelSpec(path=path))
    assert "'inner' (size=3), in If 'If_2'" in caught.value.message
    hint = caught.value.hint or ""
    assert [line.split(":")[0].strip() for line in hint.splitlines()] == [
        "RandomNormalLike",
        "org.example",
    ]


def test_load_fixes_every_shape_and_hashes_the_file(tmp_path: Path) -> None:
    path = onnx_models.one_conv(tmp_path / "net.onnx", "batch")
    model = load_model(ModelSpec(path=path, shapes={"image": (4, 3, 16, 16)}))
    assert model.inputs[0].shape == (4, 3, 16, 16)
    assert model.outputs[0].shape == (4, 8, 16, 16)
    assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_fixed_shape_can_be_changed(tmp_path: Path) -> None:
    path = onnx_models.one_conv(tmp_path / "net.onnx", 10)
    model = load_model(ModelSpec(path=path, shapes={"image": (1, 3, 32, 24)}))
    assert model.outputs[0].shape == (1, 8, 32, 24)


def test_a_symbol_given_in_one_input_holds_in_the_others(tmp_path: Path) -> None:
    b = Builder()
    b.op("Add", "left", "right", outputs=["sum"])
    path = b.save(tmp_path / "m.onnx", {"left": ["n", 3], "right": ["n", 3]}, {"sum": ["n", 3]})
    model = load_model(ModelSpec(path=path, shapes={"left": (5, 3)}))
    assert [t.shape for t in model.inputs + model.outputs] == [(5, 3)] * 3
    with pytest.raises(ShapeOverrideError, match="'n' is 5 in input 'left' and 6 in input 'right'"):
        load_model(ModelSpec(path=path, shapes={"left": (5, 3), "right": (6, 3)}))


def test_weights_listed_among_the_inputs_are_weights(tmp_path: Path) -> None:
    path = onnx_models.one_conv(tmp_path / "net.onnx")
    proto = onnx.load(path)
    proto.ir_version = 3
    weight = proto.graph.initializer[0]
    proto.graph.input.append(
        helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
    )
    onnx.save(proto, path)
    model = load_model(ModelSpec(path=path))
    assert [t.name for t in model.inputs] == ["image"]
    assert model.proto.ir_version >= 4


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ("batch", r"input 'image' \(batch, 3, 16, 16\): no value for dimension 0 \('batch'\)"),
        (None, r"input 'image' \(\?, 3, 16, 16\): no value for dimension 0"),
        (0, r"no value for dimension 0"),
    ],
)
def test_dynamic_dimension_without_a_value(
    tmp_path: Path, batch: int | str | None, text: str
) -> None:
    path = onnx_models.one_conv(tmp_path / "net.onnx", batch)
    with pytest.raises(DynamicShapeError, match=text) as caught:
        load_model(ModelSpec(path=path))
    assert caught.value.hint is not None
    assert "--shape image=1,3,16,16" in caught.value.hint
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("shapes", "text", "hint"),
    [
        ({"imgae": (1, 3, 16, 16)}, "'imgae', which is not an input", "perhaps you meant 'image'"),
        ({"image": (1, 3, 16)}, "which has 4 dimensions", None),
        ({"image": (1, 3, 16, 0)}, "every dimension must be 1 or more", None),
    ],
)
def test_bad_shape_override(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], text: str, hint: str | None
) -> None:
    path = onnx_models.one_conv(tmp_path / "net.onnx")
    with pytest.raises(ShapeOverrideError, match=text) as caught:
        load_model(ModelSpec(path=path, shapes=shapes))
    assert caught.value.hint == hint


def test_shape_that_the_model_contradicts(tmp_path: Path) -> None:
    b = Builder()
    b.op("MatMul", "x", b.weight(6, 4), outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": ["n", "k"]}, {"y": ["n", 4]})
    with pytest.raises(ShapeOverrideError, match=r"cannot have the shapes x=\(1, 5\)"):
        load_model(ModelSpec(path=path, shapes={"x": (1, 5)}))


def test_a_batch_that_an_exporter_wrote_into_reshapes(tmp_path: Path) -> None:
    """Where a Reshape could be nothing else; (2, 6) of 12 elements stays what it is."""
    b = Builder()
    flat = b.op("Reshape", "x", b.const([4, 6]))
    again = b.op("Reshape", b.op("MatMul", flat, b.weight(6, 4)), b.const([4, 2, 2]))
    b.op("Reshape", again, b.const([4, 4]), outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": [4, 2, 3]}, {"y": [4, 4]})
    x = np.random.default_rng(1).normal(size=(4, 2, 3)).astype(np.float32)
    (whole,) = run_reference(load_model(ModelSpec(path=path)).proto, {}, [x])
    for batch in (1, 2, 8):
        shapes: dict[str, Any] = {"x": [batch, 2, 3]}  # as Python's users may write it
        model = load_model(ModelSpec(path=path, shapes=shapes))
        assert model.outputs[0].shape == (batch, 4)
        rows = np.concatenate([x, x])[:batch]
        (found,) = run_reference(model.proto, {}, [rows])
        np.testing.assert_array_equal(found, np.concatenate([whole, whole])[:batch])


def scaled_sum(path: Path) -> Path:
    """y = x * k + b, with k of one element and b of a dimension without a size."""
    net = Builder()
    net.op("Add", net.op("Mul", "x", "k"), net.op("Cast", "b", to=1), outputs=["y"])
    kinds = {"b": TensorProto.INT64}
    return net.save(path, {"x": [3], "k": [1], "b": ["n"]}, {"y": [3]}, kinds)


def test_an_input_with_a_value_is_a_constant(tmp_path: Path) -> None:
    path = scaled_sum(tmp_path / "m.onnx")
    model = load_model(ModelSpec(path=path, constants={"k": 2, "b": (1, 2, 3)}))
    assert [info.name for info in model.inputs] == ["x"]
    (got,) = run_reference(model.proto, {}, [np.array([1, 2, 3], "float32")])
    np.testing.assert_array_equal(got, [3, 6, 9])


@pytest.mark.parametrize(
    ("constants", "text"),
    [
        ({"kk": 1}, "'kk', which is not an input"),
        ({"k": (1, 2)}, "2 values given for input 'k', which has 1"),
        ({"b": 0.5}, "0.5 given for input 'b', which is int64"),
        ({"k": True}, "true given for input 'k', which is float32"),
        ({"b": 2**70}, "given for input 'b', which is int64"),
    ],
)
def test_a_value_that_an_input_cannot_have(
    tmp_path: Path, constants: dict[str, Constant], text: str
) -> None:
    path = scaled_sum(tmp_path / "m.onnx")
    with pytest.raises(InputValueError, match=text):
        load_model(ModelSpec(path=path, constants=constants))


def test_dimensions_called_unknown_are_not_equal_to_each_other(tmp_path: Path) -> None:
    # As PaddlePaddle exports them: all are called "?".
    net = Builder()
    net.op("Relu", net.conv("x", 3, 8), outputs=["y"])
    path = net.save(tmp_path / "m.onnx", {"x": ["?", 3, "?", "?"]}, {"y": ["?", 8, "?", "?"]})
    assert inspect_model(path).inputs[0].shape == (None, 3, None, None)
    model = load_model(ModelSpec(path=path, shapes={"x": (1, 3, 48, 192)}))
    assert model.outputs[0].shape == (1, 8, 48, 192)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_model(ModelSpec(path=tmp_path / "none.onnx"))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x89PNG\r\n\x1a\n" + b"\0" * 64, b"hello, this is a text file\n", b"PK\x03\x04" * 40],
    ids=["empty", "png", "text", "zip"],
)
def test_file_that_is_no_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(NotOnnxError, match=r"model\.onnx: not an ONNX model"):
        load_model(ModelSpec(path=path))


def test_git_lfs_pointer(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(NotOnnxError, match="Git LFS pointer"):
        load_model(ModelSpec(path=path))


@pytest.mark.parametrize(
    ("name", "what", "how"),
    [
        ("m.keras", "a Keras model", "keras.saving.load_model('m.keras').export("),
        ("m.h5", "a Keras model", "keras.saving.load_model('m.h5').export("),
        ("m.pb", "a TensorFlow graph", "tf2onnx.convert --saved-model"),
        ("m.eim", "a program of Edge Impulse", "dashboard"),
        ("m.engine", "a TensorRT engine", "yolo export"),
        ("m.pdmodel", "a Paddle model", "--model_filename m.pdmodel --params_filename m.pdiparams"),
        ("m.pkl", "a Python pickle", "skl2onnx.to_onnx("),
        ("m.joblib", "a Python pickle", "skl2onnx.to_onnx("),
        ("m.TORCHSCRIPT", "a TorchScript program", "torch.jit.load('m.TORCHSCRIPT')"),
        ("m.safetensors", "weights without their graph", "optimum-cli export onnx"),
        ("m.plan", "a TensorRT engine, which runs on one kind of GPU", "yolo export"),
        ("m.rknn", "a model compiled by Rockchip's RKNN", "export what it was built from"),
        ("m.mlmodel", "a model in the form of Core ML", "export what it was built from"),
        ("m.xml", "a model in the form of OpenVINO", "export what it was built from"),
        ("m.ckpt", "a checkpoint: weights without their graph", "model.to_onnx("),
        ("m.cbm", "a model of CatBoost", "save_model('model.onnx', format='onnx')"),
        ("m.ubj", "a model of XGBoost", "onnxmltools.convert_xgboost(model"),
        ("m.ptl", "a TorchScript program", "torch.jit.load('m.ptl')"),
    ],
)
def test_what_another_tool_has_to_convert(tmp_path: Path, name: str, what: str, how: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n.")  # read by nobody
    with pytest.raises(NotOnnxError, match=f"{name}: {what}") as caught:
        load_model(ModelSpec(path=tmp_path / name))
    assert how in (caught.value.hint or "")


def _zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return file.getvalue()


def _tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"))
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "what", "how"),
    [
        (b"", "an empty file", "download it again"),
        (b"\r\n<!DOCTYPE html>\n<html>", "a web page", "the file itself"),
        (gzip.compress(b"x", mtime=0), "compressed by gzip", "gunzip"),
        (lzma.compress(b"x"), "compressed by xz", "unxz"),
        (bz2.compress(b"x"), "compressed by bzip2", "bunzip2"),
        (_zipped("model.onnx"), "a ZIP archive", "unzip"),
        (_tarred(), "a TAR archive", "tar xf"),
        (_zipped("config.json", "model.weights.h5"), "a Keras model", "keras.saving"),
        (_zipped("m/data.pkl", "m/version"), "weights of PyTorch without", "torch.onnx.export"),
        (_zipped("m/data.pkl", "m/constants.pkl"), "a TorchScript program", "torch.jit.load"),
        (pickle.dumps({"a": 1}), "a Python pickle", "skl2onnx"),
        (b"\x1c\0\0\0TFL3" + bytes(60), "a TFLite model", "call it .tflite"),
        (b"\x20\0\0\0ORTM" + bytes(60), "in the form of onnxruntime", "what it was built from"),
        (b"tree\nversion=v4\nnum_class=1\n", "a model of LightGBM", "convert_lightgbm"),
        (b'{"learner":{"attributes":{}}}', "a model of XGBoost", "convert_xgboost"),
        (b'{"format": "graph-model"}', "a model of TensorFlow.js", "tf2onnx"),
        (b'\x40\0\0\0\0\0\0\0{"w":{}}', "weights without their graph", "optimum-cli"),
    ],
)
def test_what_a_file_is_by_how_it_begins(tmp_path: Path, data: bytes, what: str, how: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(data)
    with pytest.raises(NotOnnxError, match=re.escape(what)) as caught:
        load_model(ModelSpec(path=path))
    assert how in (caught.value.hint or "")


@pytest.mark.parametrize("producer", ["TFL3", "ORTM", 'abcd{"'])
def test_a_model_that_begins_like_another_is_one(tmp_path: Path, producer: str) -> None:
    path = onnx_models.one_conv(tmp_path / "net.onnx")
    proto = onnx.load(path)
    proto.producer_name = producer
    path.write_bytes(proto.SerializeToString())
    assert producer.encode() in path.read_bytes()[:12]
    load_model(ModelSpec(path=path))


@pytest.mark.parametrize(
    ("address", "how"),
    [
        ("https://example.org/a b.onnx", "curl -fLO 'https://example.org/a b.onnx'"),
        ("https://huggingface.co/org/repo", "edgepack fetches hf://org/repo"),
        (
            "https://huggingface.co/org/repo/resolve/main/onnx/m.onnx?download=true",
            "edgepack fetches hf://org/repo@main/onnx/m.onnx",
        ),
        ("s3://bucket/m.onnx", "lies on this machine"),
    ],
)
def test_addresses_that_are_not_fetched(address: str, how: str) -> None:
    for model in (address, Path(address)):
        with pytest.raises(UsageError, match="is not fetched") as caught:
            local_model(model)
        assert address.partition("?")[0] in str(caught.value)
        assert (caught.value.hint or "").endswith(how)


def test_folders_that_others_call_a_model(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    with pytest.raises(UsageError, match=r"saved: not a file, and no model in it"):
        local_model(saved)
    (saved / "iris.data").write_bytes(b"")
    (saved / "photo.jpg").write_bytes(b"")
    with pytest.raises(UsageError, match=r"saved: not a file, and no model in it"):
        local_model(saved)
    (saved / "fingerprint.pb").write_bytes(b"")
    with pytest.raises(NotOnnxError, match="a TensorFlow graph") as caught:
        local_model(saved)
    assert f"--saved-model {saved} " in (caught.value.hint or "")
    package = tmp_path / "m.mlpackage"
    package.mkdir()
    with pytest.raises(NotOnnxError, match=r"m\.mlpackage: a model in the form of Core ML"):
        local_model(package)


@pytest.mark.parametrize(
    ("name", "what", "how"), [("x.JPG", "a photo", "--image"), ("x.csv", "a table", "--rows")]
)
def test_what_is_no_model_at_all(tmp_path: Path, name: str, what: str, how: str) -> None:
    (tmp_path / name).write_bytes(b"1,2")
    with pytest.raises(NotOnnxError, match=f"{name}: {what}, not a model") as caught:
        load_model(ModelSpec(path=tmp_path / name))
    assert caught.value.hint == f"edgepack check {how} {tmp_path / name}"


def test_truncated_at_any_byte(tmp_path: Path) -> None:
    data = onnx_models.one_conv(tmp_path / "whole.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    # The first two bytes are the IR version: before them there is nothing to know it by.
    for size in [2, 3, 5, 20, len(data) // 2, *range(len(data) - 12, len(data))]:
        path.write_bytes(data[:size])
        with pytest.raises(TruncatedModelError, match=f"{size} bytes"):
            load_model(ModelSpec(path=path))


def test_external_data_missing_and_truncated(tmp_path: Path) -> None:
    proto = onnx.load(onnx_models.one_conv(tmp_path / "whole.onnx"))
    path = tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="net.weights", size_threshold=0)
    whole = load_model(ModelSpec(path=path))
    assert whole.sha256 != hashlib.sha256(path.read_bytes()).hexdigest()
    weights = tmp_path / "net.weights"
    data = weights.read_bytes()

    weights.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    assert load_model(ModelSpec(path=path)).sha256 != whole.sha256

    weights.write_bytes(data[:-4])
    with pytest.raises(TruncatedModelError, match=r"net\.weights: external data"):
        load_model(ModelSpec(path=path))
    weights.unlink()
    with pytest.raises(MissingExternalDataError, match=r"net\.weights"):
        load_model(ModelSpec(path=path))


def test_every_unsupported_operator_is_listed(tmp_path: Path) -> None:
    b = Builder()
    b.op("Dropout", "x", b.const(0.5, "float32"), b.const(True, "bool"), outputs=["y"])
    b.op("RandomNormalLike", "x", outputs=["w"])
    b.nodes.append(helper.make_node("Fancy", ["x"], ["z"], domain="org.example"))
    path = b.save(tmp_path / "m.onnx", {"x": [2, 3]}, {"y": [2, 3], "w": [2, 3], "z": [1]})
    with pytest.raises(UnsupportedOperatorError) as caught:
        load_model(ModelSpec(path=path))
    assert set(caught.value.operators) == {"Dropout", "RandomNormalLike", "org.example::Fancy"}
    assert "training form" in caught.value.operators["Dropout"]


def test_unsupported_operator_on_constants_is_no_problem(tmp_path: Path) -> None:
    b = Builder()
    b.op("Add", "x", b.op("Cast", b.op("NonZero", b.weight(3)), to=1), outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": [1, 3]}, {"y": [1, 3]})
    load_model(ModelSpec(path=path))


def test_strings_and_sequences_are_refused(tmp_path: Path) -> None:
    b = Builder()
    b.op("Identity", "x", outputs=["y"])
    string = TensorProto.STRING
    path = b.save(tmp_path / "m.onnx", {"x": [1]}, {"y": [1]}, {"x": string, "y": string})
    with pytest.raises(ModelError, match="input 'x' has element type string"):
        load_model(ModelSpec(path=path))


def test_values_are_frozen(tmp_path: Path) -> None:
    spec = ModelSpec(path=tmp_path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.path = tmp_path  # type: ignore[misc]


def test_unknown_operators_are_named_where_shapes_cannot_be_inferred(tmp_path: Path) -> None:
    b = Builder()
    b.nodes.append(helper.make_node("Fancy", ["x"], ["f"]))
    b.op("MatMul", "x", b.weight(6, 4), outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": ["n", "k"]}, {"f": [None], "y": ["n", 4]})
    with pytest.raises(UnsupportedOperatorError) as caught:
        load_model(ModelSpec(path=path, shapes={"x": (1, 5)}))
    assert set(caught.value.operators) == {"Fancy"}


def test_shapes_are_inferred_without_the_values_of_weights(tmp_path: Path) -> None:
    b = Builder()
    wide = b.op("MatMul", "x", b.weight(40, 60))
    b.op("Reshape", wide, b.const([3, 20], "int64"), outputs=["y"])
    proto = b.model({"x": [1, 40]}, {"y": None})
    light = infer_shapes(proto)
    assert light.ByteSize() < 1000 < proto.ByteSize()
    assert [node.op_type for node in light.graph.node] == ["MatMul", "Reshape"]
    shapes = {
        value.name: tensor_info(value).shape
        for value in (*light.graph.value_info, *light.graph.output)
    }
    assert shapes == {wide: (1, 60), "y": (3, 20)}
    assert infer_shapes(proto, with_weights=True).graph.initializer == proto.graph.initializer


def test_an_input_without_dimensions_becomes_a_constant(tmp_path: Path) -> None:
    """As silero-vad's rate is one."""
    net = Builder()
    net.op("Add", "x", "rate", outputs=["y"])
    path = tmp_path / "net.onnx"
    path.write_bytes(net.model({"x": [2], "rate": []}, {"y": [2]}).SerializeToString())
    model = load_model(ModelSpec(path=path, constants={"rate": 16000.0}))
    assert [info.name for info in model.inputs] == ["x"]
    (y,) = run_reference(model.proto, {}, [np.ones(2, np.float32)])
    assert y.tolist() == [16001, 16001]


def test_an_output_whose_size_the_model_computes_has_a_shape(tmp_path: Path) -> None:
    """As Paddle's exporters write a flattening, in their opset."""
    b = Builder()
    pooled = b.op("GlobalAveragePool", b.conv("image", 3, 8))
    batch = b.op("Slice", b.op("Shape", pooled), b.const([0]), b.const([1]))
    flat = b.op("Concat", b.op("Cast", batch, to=7), b.const([8]), axis=0)
    b.op("MatMul", b.op("Reshape", pooled, flat), b.weight(8, 4), outputs=["scores"])
    model = b.model({"image": ["n", 3, 6, 6]}, {"scores": None}, opset=11)
    model.ir_version = 7
    onnx.save(model, tmp_path / "model.onnx")
    shapes = {"image": (2, 3, 6, 6)}
    (output,) = read_model(ModelSpec(path=tmp_path / "model.onnx", shapes=shapes)).outputs
    zeros = np.zeros(shapes["image"], np.float32)
    (values,) = run_reference(tmp_path / "model.onnx", shapes, [zeros])
    assert output.shape == values.shape == (2, 4)


def test_a_model_of_trees_alone_needs_no_opset_of_onnx(tmp_path: Path) -> None:
    """xgboost's converter names none: x < 2 gives 5, else 7, as onnxruntime has it."""
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LT", "LEAF", "LEAF"],
        nodes_values=[2.0, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[5.0, 7.0],
        n_targets=1,
    )
    x, y = (helper.make_tensor_value_info(name, 1, [3, 1]) for name in "xy")
    graph = helper.make_graph([node], "trees", [x], [y])
    domains = [helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8), tmp_path / "m.onnx")
    rows = np.array([[1], [2], [3]], np.float32)
    (due,) = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": rows})
    assert due.reshape(-1).tolist() == [5, 7, 7]
    model = read_model(ModelSpec(path=tmp_path / "m.onnx"))
    onnx.checker.check_model(model.proto)
    ((got,),) = model_outputs(model.path, model.proto, [[rows]])
    np.testing.assert_array_equal(got, due)
