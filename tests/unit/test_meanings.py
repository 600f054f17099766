"""The table of what is compiled where ONNX and onnxruntime differ, and who reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from edgepack.base.errors import ModelError
from edgepack.boards import get_board
from edgepack.flow.inspection import inspect_for
from edgepack.flow.reference import model_outputs
from edgepack.model import ModelSpec, read_model
from edgepack.model.meanings import MEANINGS, ONNX, ONNXRUNTIME, departures
from tests.onnx_models import Builder

PAGE = Path(__file__).parents[2] / "docs/reference/meanings.md"


def test_each_row_says_what_is_compiled_and_stands_on_the_page() -> None:
    page = PAGE.read_text()
    for row in MEANINGS:
        assert f"| {row.operator} | {row.form} | {row.onnx} | {row.onnxruntime} |" in page
        assert row.taken in (ONNX, ONNXRUNTIME) or len(row.taken) > len(ONNXRUNTIME)


def resize(path: Path, mode: str) -> Path:
    b = Builder()
    scales = b.const([1, 1, 1.5, 2.3], "float32")
    b.op(
        *("Resize", "x", "", scales),
        outputs=["y"],
        mode="linear",
        coordinate_transformation_mode=mode,
    )
    return b.save(path, {"x": (1, 1, 5, 4)}, {"y": (1, 1, 7, 9)})


def test_the_last_result_of_a_resize_lies_on_the_last_element(tmp_path: Path) -> None:
    """As in PyTorch, whatever the scales would give before they are rounded down."""
    model = read_model(ModelSpec(path=resize(tmp_path / "m.onnx", "align_corners")))
    assert [row.operator for row in departures(model.proto)] == ["Resize"]
    data = np.random.default_rng(0).standard_normal((1, 1, 5, 4)).astype("float32")
    ((made,),) = model_outputs(model.path, model.proto, [[data]])
    assert made[0, 0, -1, -1] == pytest.approx(data[0, 0, -1, -1], abs=1e-6)
    other = read_model(ModelSpec(path=resize(tmp_path / "n.onnx", "half_pixel")))
    assert not departures(other.proto)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_equal_elements_have_no_deviation(tmp_path: Path, opset: int, kind: str) -> None:
    """As ONNX has it, inside of a branch, too; onnxruntime's kernel divides 0 by 0."""
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    node = onnx.helper.make_node("MeanVarianceNormalization", ["x"], ["{}"], axes=[2])
    x = onnx.helper.make_tensor_value_info("x", element, [1, 2, 4])

    def normalized(name: str) -> tuple[onnx.NodeProto, onnx.ValueInfoProto]:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.output[0] = name
        return copy, onnx.helper.make_tensor_value_info(name, element, [1, 2, 4])

    (outer, y), (inner, v) = normalized("y"), normalized("v")
    branch = onnx.helper.make_graph([inner], "branch", [], [v])
    choice = onnx.helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    z = onnx.helper.make_tensor_value_info("z", element, [1, 2, 4])
    c = onnx.helper.make_tensor("c", onnx.TensorProto.BOOL, [], [True])
    graph = onnx.helper.make_graph([outer, choice], "m", [x], [y, z], [c])
    opsets = [onnx.helper.make_opsetid("", opset)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx"
    )
    model = read_model(ModelSpec(path=tmp_path / "m.onnx"))
    data = np.array([[[3, 3, 3, 3], [1, 2, 3, 4]]], kind)
    (outputs,) = model_outputs(model.path, model.proto, [[data]])
    row = (np.arange(4) - 1.5) / np.sqrt(1.25)  # of 1, 2, 3 and 4
    for made in outputs:
        np.testing.assert_allclose(made, [[[0] * 4, row]], rtol=1e-3, atol=0)


@pytest.mark.parametrize("operator", ["Cast", "CastLike"])
def test_a_cast_to_4_bits_cuts_off_what_is_behind_the_point(tmp_path: Path, operator: str) -> None:
    """As ONNX has it of integers; onnxruntime rounds."""
    cast = "Cast<to=22>(x)" if operator == "Cast" else "CastLike(x, like)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[8] x) => (float[8] y) <int4[1] like = {{1}}> {{ c = {cast} y = Cast<to=1>(c) }}"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    data = np.array([0.5, 0.9, 1.5, 7.6, -0.6, -2.5, -7.9, 3.0], "float32")
    ((made,),) = model_outputs(tmp_path / "m.onnx", model, [[data]])
    assert made.tolist() == np.trunc(data).tolist()


def test_a_dilated_pool_has_as_many_results_as_its_stride_leaves(tmp_path: Path) -> None:
    """onnxruntime pads for a window without dilations; onnx's reference is what is due."""
    b = Builder()
    form = {"kernel_shape": [3, 2], "dilations": [2, 2], "auto_pad": "SAME_UPPER"}
    b.op("MaxPool", "x", outputs=["y"], **form)
    path = b.save(tmp_path / "m.onnx", {"x": (1, 2, 7, 9)}, {"y": (1, 2, 7, 9)})
    data = np.random.default_rng(0).standard_normal((1, 2, 7, 9)).astype("float32")
    proto = onnx.load(path)
    ((made,),) = model_outputs(path, proto, [[data]])
    (due,) = ReferenceEvaluator(proto).run(None, {"x": data})
    np.testing.assert_array_equal(made, due)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_windows_smaller_than_their_strides_are_padded_by_nothing(
    tmp_path: Path, kind: str
) -> None:
    """onnxruntime fails at borders below 0."""
    b = Builder()
    form = {"kernel_shape": [2, 1], "strides": [3, 2], "auto_pad": "SAME_LOWER"}
    b.op(kind, "x", outputs=["y"], **form)
    path = b.save(tmp_path / "m.onnx", {"x": (1, 2, 6, 5)}, {"y": (1, 2, 2, 3)})
    data = np.random.default_rng(0).standard_normal((1, 2, 6, 5)).astype("float32")
    ((made,),) = model_outputs(path, onnx.load(path), [[data]])
    pairs = np.stack([data[:, :, ::3, ::2], data[:, :, 1::3, ::2]])
    due = pairs.max(0) if kind == "MaxPool" else pairs.mean(0)
    np.testing.assert_allclose(made, due, rtol=1e-6)


def test_an_opset_that_cannot_be_made_newer_is_named(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Loop", ["", "c", "x"], ["y"], body=_body())
    graph = onnx.helper.make_graph(
        [node],
        "old",
        [
            onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2]),
        ],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    opsets = [onnx.helper.make_opsetid("", 6)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=3)
    onnx.save(model, tmp_path / "m.onnx")
    try:
        read = read_model(ModelSpec(path=tmp_path / "m.onnx"))
    except ModelError as error:
        assert "of opset 6" in error.message
        assert "opset 13 or newer" in str(error.hint)
    else:
        assert read.proto.opset_import[0].version >= 7


def _body() -> onnx.GraphProto:
    return onnx.parser.parse_graph(
        "body (int64 i, bool c, float[2] v) => (bool d, float[2] w) "
        "{ d = Identity(c) w = Identity(v) }"
    )


def test_what_is_refused_is_told_where_a_shape_is_missing_too(tmp_path: Path) -> None:
    """A form that only the importer knows, behind a dimension without a value."""
    b = Builder()
    b.op("Det", "x", outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": ("n", 5, 5)}, {"y": None})
    found = inspect_for(ModelSpec(path=path), get_board("local"))
    assert found.obstacle is not None
    assert "no value for dimension 0 ('n')" in found.obstacle
    assert "its matrices have more than 4 rows" in found.obstacle


def test_a_pool_that_sees_more_than_there_is_is_listed_without_a_batch(tmp_path: Path) -> None:
    b = Builder()
    b.op("MaxPool", "x", kernel_shape=[9, 9], outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": ("n", 3, 4, 4)}, {"y": None})
    found = inspect_for(ModelSpec(path=path), get_board("local"))
    assert [node.why for node in found.info.unsupported] == ["its window is larger than its image"]
