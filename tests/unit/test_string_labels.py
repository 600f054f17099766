"""Words at a model's end become numbers, by which onnxruntime's words are found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.base.errors import ModelError
from edgepack.model import LoadedModel, ModelSpec, check_model, read_model

COLOURS = ["red", "green", "blue"]
ML = {"domain": "ai.onnx.ml"}
ROWS = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")


def classifier(labels: list[str], label: str, scores: str, seed: int = 0) -> onnx.NodeProto:
    random = np.random.default_rng(seed)
    return helper.make_node(
        "LinearClassifier",
        ["x"],
        [label, scores],
        **ML,
        coefficients=random.normal(size=len(labels) * 4).tolist(),
        intercepts=random.normal(size=len(labels)).tolist(),
        classlabels_strings=labels,
    )


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    constants: dict[str, Any] | None = None,
    source: int = TensorProto.FLOAT,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("x", source, [6, 4])],
        outputs,
        [numpy_helper.from_array(np.array(v), name) for name, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def text(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.STRING, None)


def run(proto: onnx.ModelProto) -> list[Any]:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    results: list[Any] = session.run(None, {"x": ROWS})
    return results


def same_words(path: Path) -> LoadedModel:
    """The model read, whose numbers stand for the words that onnxruntime has."""
    loaded = read_model(ModelSpec(path=path))
    check_model(loaded)
    for mine, theirs in zip(run(loaded.proto), run(onnx.load(path)), strict=True):
        if isinstance(theirs, list):  # of ZipMap
            columns = [[row[word] for word in loaded.words] for row in theirs]
            np.testing.assert_array_equal(mine, np.array(columns, "float32"))
        elif theirs.dtype == object:
            assert mine.dtype == np.int64
            assert [loaded.words[number] for number in mine.flat] == list(theirs.flat)
        else:
            np.testing.assert_array_equal(mine, theirs)
    return loaded


def test_labels_and_maps_of_a_classifier(tmp_path: Path) -> None:
    """As skl2onnx ends a model that nobody told otherwise."""
    maps = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    )
    path = save(
        tmp_path / "m.onnx",
        [
            classifier(COLOURS, "label", "scores"),
            helper.make_node("Identity", ["label"], ["output_label"]),
            helper.make_node("ZipMap", ["scores"], ["maps"], **ML, classlabels_strings=COLOURS),
        ],
        [
            text("output_label"),
            helper.make_value_info("maps", helper.make_sequence_type_proto(maps)),
        ],
    )
    loaded = same_words(path)
    assert loaded.words == tuple(COLOURS)
    assert [(info.name, info.dtype) for info in loaded.outputs] == [
        ("output_label", "int64"),
        ("maps", "float32"),
    ]
    assert loaded.outputs[1].shape == (None, 3)


def test_labels_that_are_taken_from_a_list(tmp_path: Path) -> None:
    """As skl2onnx has it for networks and neighbours."""
    path = save(
        tmp_path / "m.onnx",
        [
            helper.make_node("ArgMax", ["x"], ["best"], axis=1),
            helper.make_node("ArrayFeatureExtractor", ["words", "best"], ["found"], **ML),
            helper.make_node("Cast", ["found"], ["cast"], to=TensorProto.STRING),
            helper.make_node("Reshape", ["cast", "shape"], ["label"]),
        ],
        [text("label")],
        {"words": np.array([*COLOURS, "red"], dtype=object), "shape": np.array([-1], "int64")},
    )
    # Of equal words the first one's number counts.
    assert same_words(path).words == tuple(COLOURS)


def test_words_of_two_lists_that_are_looked_up(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [
            classifier(COLOURS, "one", "scores"),
            classifier(["stop", "go"], "other", "more", seed=1),
            helper.make_node(
                "LabelEncoder",
                ["one"],
                ["looked"],
                **ML,
                keys_strings=["red", "blue"],
                values_strings=["stop", "wait"],
                default_string="nothing",
            ),
            helper.make_node(
                "LabelEncoder",
                ["other"],
                ["size"],
                **ML,
                keys_strings=["go"],
                values_floats=[0.5],
                default_float=7.0,
            ),
        ],
        [text("one"), text("other"), text("looked"), helper.make_tensor_value_info("size", 1, [6])],
    )
    assert set(same_words(path).words) == {*COLOURS, "stop", "go", "wait", "nothing"}


@pytest.mark.parametrize("comes_in", [True, False])
def test_words_that_are_more_than_passed_on_stay(tmp_path: Path, comes_in: bool) -> None:
    if comes_in:
        nodes = [helper.make_node("Identity", ["x"], ["y"])]
    else:
        nodes = [
            classifier(COLOURS, "label", "scores"),
            helper.make_node("StringNormalizer", ["label"], ["y"], case_change_action="UPPER"),
        ]
    source = TensorProto.STRING if comes_in else TensorProto.FLOAT
    path = save(tmp_path / "m.onnx", nodes, [text("y")], source=source)
    loaded = read_model(ModelSpec(path=path))
    assert loaded.words == ()
    with pytest.raises(ModelError, match="has element type string") as caught:
        check_model(loaded)
    assert "application" in str(caught.value.hint)
