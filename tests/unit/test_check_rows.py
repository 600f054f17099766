"""`check --rows`: models of tables, as sklearn's converters write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from edgepack.cli import main

FLOAT, INT64 = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.INT64)
Described = tuple[str, int, Sequence[int | str]]


def _save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Described],
    outputs: Sequence[Described],
) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """Class 0, 1 or 2: the greatest of its three numbers; a label and the scores, as sklearn."""
    linear = helper.make_node(
        "LinearClassifier", ["X"], ["label", "scores"], domain="ai.onnx.ml",
        coefficients=np.eye(3).ravel().tolist(), intercepts=[0.0] * 3,
        classlabels_ints=[0, 1, 2], multi_class=1, post_transform="NONE",
    )  # fmt: skip
    return _save(
        tmp_path / "model.onnx",
        [linear],
        [("X", FLOAT, ["N", 3])],
        [("label", INT64, ["N"]), ("scores", FLOAT, ["N", 3])],
    )


@pytest.fixture
def regressor(tmp_path: Path) -> Path:
    """Three times `rooms`, and `age`: an input each, as sklearn's tables with named columns."""
    nodes = [
        helper.make_node("Cast", ["age"], ["years"], to=FLOAT),
        helper.make_node("Mul", ["rooms", "three"], ["much"]),
        helper.make_node("Add", ["much", "years"], ["price"]),
    ]
    nodes.insert(0, helper.make_node("Constant", [], ["three"], value_float=3.0))
    inputs: list[Described] = [("rooms", FLOAT, ["N", 1]), ("age", INT64, ["N", 1])]
    return _save(tmp_path / "price.onnx", nodes, inputs, [("price", FLOAT, ["N", 1])])


def _check(model: Path, rows: str, *words: str) -> int:
    file = model.with_name("rows.csv")
    file.write_text(rows)
    shapes = ["--shape", "X=1,3"]
    if model.name == "price.onnx":
        shapes = ["--shape", "rooms=1,1", "--shape", "age=1,1"]
    return main(["check", str(model), *shapes, "--rows", str(file), *words])


ROWS = "a,b,c,kind\n5,1,2,0\n0,0.5,-1,1\n\n1e2,1,101,1\n"


def test_a_classifier(classifier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(classifier, ROWS, "--target", "kind") == 0
    assert capsys.readouterr().out.splitlines() == [
        "line 2: label 0; scores 5 1 2; due: 0",
        "line 3: label 1; scores 0 0.5 -1; due: 1",
        "line 5: label 2; scores 100 1 101; due: 1",
        "'label' is right in 2 of 3 rows",
    ]
    assert _check(classifier, "5,1,2\n1,,3\n", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert "agreement" not in said
    assert [row["line"] for row in said["seen"]] == [1, 2]
    assert said["seen"][0]["ranges"][1]["values"] == [5, 1, 2]
    # A product with NaN is NaN.
    assert said["seen"][1]["ranges"][1]["values"] == [None, None, None]


def test_answers_that_are_labels(
    classifier: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(classifier.parent)
    Path("labels.txt").write_text("oak\nelm\nash\n")
    Path("edgepack.toml").write_text(
        '[project]\nmodel = "model.onnx"\nlabels = "labels.txt"\n[shapes]\nX = [1, 3]\n'
    )
    Path("rows.csv").write_text("tree,a,b,c\nash,1,2,3\nelm,3,1,1\n")
    assert main(["check", "--rows", "rows.csv", "--target", "tree"]) == 0
    assert "right in 1 of 2 rows" in capsys.readouterr().out
    Path("rows.csv").write_text("tree,a,b,c\nyew,1,2,3\n")
    assert main(["check", "--rows", "rows.csv", "--target", "tree"]) == 2
    assert "line 2: tree: 'yew' is no number, and no label" in capsys.readouterr().err


def test_a_header_that_counts_is_no_row(
    classifier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As pandas writes columns without names."""
    assert _check(classifier, "0,1,2\n3,1,1\n") == 0
    assert capsys.readouterr().out == "line 2: label 0; scores 3 1 1\n"


def test_columns_by_name(regressor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(regressor, "age,price,rooms\n7,20,4\n1,1,0\n", "--target", "price") == 0
    assert capsys.readouterr().out.splitlines() == [
        "line 2: price 19; due: 20",
        "line 3: price 1; due: 1",
        "'price' differs by 0.5 on average, in 2 rows",
    ]
    assert _check(regressor, "4,7\n") == 0  # without a header, in order
    assert capsys.readouterr().out == "line 1: price 19\n"


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ("", (), "rows.csv: there is no row"),
        ("a,b,c\n", (), "rows.csv: there is no row"),
        ("1,2\n", (), "2 columns, but the model takes 3 numbers"),
        (ROWS, (), "4 columns, but the model takes 3 numbers"),
        ("1,2,3\n1,2\n", (), "line 2: 2 values, and 3 in the first"),
        ("a,b,c\n1,2,oak\n", (), "line 2: c: 'oak' is no float32"),
        ("1,2,3_0\n1,2,3_0\n", (), "line 2: 3_0: '3_0' is no float32"),
        ("a,b,c\n1,2,\u0663\n", (), "is no float32"),
        ("a;b;c\n1;2;3\n", (), "1 columns, but the model takes 3 numbers"),
        (",a,b\n0,1,2\n", (), "column 1 has no name"),
        (",0,1\n0,1,2\n", (), "column 1 has no name"),
        ("1,2,1e39\n", (), "line 1: 3: '1e39' is no float32: it is too large"),
        (ROWS, ("--target", "sort"), "no column 'sort'"),
        ("a,a,b,c\n1,2,3,4\n", ("--target", "a"), "more than one column 'a'"),
        ('a,b,c\n1,2,"3\n', (), "not CSV"),
        ("1,2,3\n", ("--image", "cat.jpg"), "--rows and --image"),
    ],
)
def test_mistakes(
    rows: str,
    words: tuple[str, ...],
    message: str,
    classifier: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _check(classifier, rows, *words) == 2
    assert message in capsys.readouterr().err


def test_integers_and_missing_files(
    regressor: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for cell, message in (("1.5", "no int64"), ("", "no int64"), ("9" * 30, "it is too large")):
        assert _check(regressor, f"rooms,age\n4,{cell}\n") == 2
        assert f"line 2: age: '{cell}' is " in (said := capsys.readouterr().err)
        assert message in said
    words = ["--shape", "rooms=1,1", "--shape", "age=1,1", "--rows", str(tmp_path / "no.csv")]
    assert main(["check", str(regressor), *words]) == 2
    assert "no.csv" in capsys.readouterr().err
    assert main(["check", str(regressor), *words[:4], "--target", "age"]) == 2


def test_pictures_take_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = _save(
        tmp_path / "model.onnx",
        [helper.make_node("Relu", ["X"], ["y"])],
        [("X", FLOAT, [1, 3, 8, 8])],
        [("y", FLOAT, [1, 3, 8, 8])],
    )
    (tmp_path / "rows.csv").write_text("1,2,3\n")
    assert main(["check", str(model), "--rows", str(tmp_path / "rows.csv")]) == 2
    assert "takes no rows of a table, but 'X' (1, 3, 8, 8)" in capsys.readouterr().err


def test_init_proposes_what_the_model_takes(
    classifier: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(classifier.parent)
    assert main(["init", "model.onnx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["next"] == ["edgepack check --rows FILE.csv"]
    Path("rows.csv").write_text("1,2,3\n")
    assert main(["check", "--rows", "rows.csv"]) == 0
    assert capsys.readouterr().out == "line 1: label 2; scores 1 2 3\n"
    assert main(["check"]) == 0
    assert "  label " in capsys.readouterr().out
