"""`evaluate --rows`: models of tables, here and on a device that may err."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import edgepack
from edgepack.base import paths
from edgepack.base.errors import EdgepackError, MismatchError, PositionError
from edgepack.cli import main
from edgepack.flow.evaluate_rows import RowEvaluation, evaluate_rows
from edgepack.flow.project import load_project
from tests.scripted_tool import RELEASE, STATUS, ScriptedDevice

FLOAT, INT64 = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.INT64)
TREES = "tree,a,b,c\noak,3,1,2\nelm,3,1,2\nash,0,1,2\nelm,0,1,0\n"
PRICES = "a,b,c,price\n1,0,0,1.5\n0,2,0,2\n0,0,4,1\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)


def _save(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[tuple[str, int, list[int]]], more: str = ""
) -> None:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("X", FLOAT, [1, 3])],
        [helper.make_tensor_value_info(*one) for one in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), "model.onnx")
    Path("edgepack.toml").write_text(f'[project]\nmodel = "model.onnx"\n{more}')


def classifier() -> None:
    """A label and the scores, as sklearn's converters write them: the greatest of three numbers."""
    linear = helper.make_node(
        "LinearClassifier", ["X"], ["label", "scores"], domain="ai.onnx.ml",
        coefficients=np.eye(3).ravel().tolist(), intercepts=[0.0] * 3,
        classlabels_ints=[0, 1, 2], multi_class=1, post_transform="NONE",
    )  # fmt: skip
    Path("labels.txt").write_text("oak\nelm\nash\n")
    _save([linear], [("label", INT64, [1]), ("scores", FLOAT, [1, 3])], 'labels = "labels.txt"\n')
    Path("rows.csv").write_text(TREES)


def regressor() -> None:
    """The sum of three numbers."""
    _save(
        [helper.make_node("ReduceSum", ["X"], ["sum"], keepdims=1)],
        [("sum", FLOAT, [1, 1])],
    )
    Path("rows.csv").write_text(PRICES)


def device(
    monkeypatch: pytest.MonkeyPatch, answers: Callable[[Any], Sequence[Any]]
) -> tuple[Any, list[Any]]:
    """One whose app makes `answers` of an input, and the inputs that it got."""
    asked: list[Any] = []
    digest = hashlib.sha256(Path("model.onnx").read_bytes()).hexdigest()
    status = {**STATUS, "current": {**RELEASE, "model_sha256": digest}}

    def ask(_device: Any, _root: str, inputs: Any, outputs: int) -> tuple[Any, None]:
        (rows,) = inputs
        asked.extend(rows)
        found = [answers(row) for row in rows]
        assert all(len(one) == outputs for one in found)
        return found, None

    monkeypatch.setattr("edgepack.flow.evaluate_rows.ask_app_of_rows", ask)
    return ScriptedDevice("pi", lambda _: json.dumps(status)), asked


def _evaluate(target: str, pi: Any = None) -> RowEvaluation:
    project = load_project("edgepack.toml")
    return evaluate_rows(project, Path("rows.csv"), target, device=pi, root="r")


def test_classes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    classifier()
    found = _evaluate("tree").to_dict()
    # The last row's best is 1, an elm; the second is an oak by the model.
    assert found["reference"] == {"accuracy": 0.75}
    assert (found["kind"], found["output"], found["device"]) == ("classes", "label", None)
    wrong = [one for one in found["confusion"] if one["expected"] != one["seen"]]
    assert wrong == [{"expected": 1, "seen": 0, "count": 1}]

    def always_ash(_: Any) -> Sequence[Any]:
        return np.array([2]), np.zeros((1, 3), np.float32)

    pi, asked = device(monkeypatch, always_ash)
    there = _evaluate("tree", pi)
    assert [one.line for one in there.differing] == [2, 3, 5]
    assert there.to_dict()["device"] == {"accuracy": 0.25}
    # The first two rows are of the same values.
    assert [one.tolist() for one in asked] == [[[3, 1, 2]], [[0, 1, 2]], [[0, 1, 0]]]
    assert _evaluate("tree", pi).to_dict() == there.to_dict()
    assert len(asked) == 3

    monkeypatch.setattr("edgepack.cli.evaluate.open_release", lambda *_: (pi, "r"))
    words = ["evaluate", "--rows", "rows.csv", "--target", "tree"]
    assert main([*words, "--device", "pi", "--html", "page.html"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rows       4, 'label' against 'tree'",
        "reference  accuracy 75.0% (3)",
        "device     accuracy 25.0% (1)",
        "differ     3 rows",
        "",
        "LINE  EXPECTED  REFERENCE  DEVICE",
        "2     oak       oak        ash",
        "3     elm       oak        ash",
        "5     elm       elm        ash",
    ]
    made = Path("page.html").read_text()
    assert "accuracy 75.0% (3)" in made
    (matrix,) = re.findall('<table class="matrix">(.*?)</table>', made, re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in matrix.split("<tr>")[2:]]
    # The device takes all of them for ashes: one oak, two elms, one ash.
    assert [row[1:] for row in cells] == [
        ["oak", "", "", "1"],
        ["elm", "", "", "2"],
        ["ash", "", "", "1"],
    ]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reference"] == {"accuracy": 0.75}


def test_values(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    regressor()
    reference = _evaluate("price").to_dict()["reference"]
    assert reference == {"mae": 3.5 / 3, "rmse": pytest.approx(math.sqrt(9.25 / 3))}
    pi, _ = device(monkeypatch, lambda x: [np.sum(x, keepdims=True) + np.float32(0.25)])
    there = _evaluate("price", pi)
    assert there.to_dict()["device"] == {"mae": 1.25, "rmse": pytest.approx((10.6875 / 3) ** 0.5)}
    assert there.largest_difference == 0.25
    monkeypatch.setattr("edgepack.cli.evaluate.open_release", lambda *_: (pi, "r"))
    words = ["evaluate", "--rows", "rows.csv", "--target", "price", "--device", "pi"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["largest_difference"] == 0.25
    assert main([*words, "--html", "page.html"]) == 0
    # Three errors: of the device, of which the largest is 3.25.
    made = Path("page.html").read_text()
    assert "reference: MAE 1.16667, RMSE 1.75594; device: MAE 1.25, RMSE 1.88746" in made
    drawn = made.partition("errors of pi")[2].partition("</svg>")[0]
    assert sum(int(count) for count in re.findall(r"<title>(\d+) from", drawn)) == 3
    assert capsys.readouterr().out.splitlines()[1:] == [
        "reference  MAE 1.16667, RMSE 1.75594",
        "device     MAE 1.25, RMSE 1.88746",
        "differ     by 0.25 at most",
    ]
    found = edgepack.evaluate(project="edgepack.toml", rows="rows.csv", target="price")
    assert [row["reference"] for row in found.rows()] == [1, 2, 4]


def test_a_device_that_gives_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    regressor()
    pi, _ = device(monkeypatch, lambda _: [np.full((1, 1), np.nan, np.float32)])
    found = _evaluate("price", pi).to_dict()
    assert found["device"] == {"mae": None, "rmse": None}
    assert found["largest_difference"] is None
    assert [one["device"] for one in found["differ"]] == [None, None, None]
    pi, _ = device(monkeypatch, lambda _: [np.zeros((1, 3), np.float32)])
    paths.cache_dir().rename("other")
    with pytest.raises(MismatchError, match=r"output 'sum' is \(1, 3\), not \(1, 1\)"):
        _evaluate("price", pi)


def test_a_row_that_fails_there_is_named_and_those_before_it_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    regressor()
    pi, asked = device(monkeypatch, lambda x: [np.sum(x, keepdims=True)])
    whole = evaluate_rows.__globals__["ask_app_of_rows"]

    def ask(_device: Any, _root: str, inputs: Any, outputs: int) -> tuple[Any, Any]:
        found, _ = whole(_device, _root, [inputs[0][:2]], outputs)
        return found, PositionError("pi: index 9 of 4", hint="a hint")

    monkeypatch.setattr("edgepack.flow.evaluate_rows.ask_app_of_rows", ask)
    with pytest.raises(PositionError, match=r"rows\.csv: line 4: pi: index 9 of 4") as caught:
        _evaluate("price", pi)
    assert caught.value.hint == "a hint"
    monkeypatch.setattr("edgepack.flow.evaluate_rows.ask_app_of_rows", whole)
    asked.clear()
    assert len(_evaluate("price", pi).judged) == 3
    assert [one.tolist() for one in asked] == [[[0, 0, 4]]]


def test_the_column_called_as_an_output_is_compared_with_that() -> None:
    classifier()
    Path("rows.csv").write_text("a,b,c,scores\n3,1,2,0\n0,1,2,1\n")
    found = _evaluate("scores")
    assert found.answering.name == "scores"
    assert found.to_dict()["reference"] == {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("make", "rows", "target", "message"),
    [
        (classifier, "tree,a,b,c\n1.5,1,2,3\n", "tree", "line 2: tree: '1.5' is no class"),
        (classifier, "tree,a,b,c\n,1,2,3\n", "tree", "line 2: tree: it is empty"),
        (classifier, "tree,a,b,c\nyew,1,2,3\n", "tree", "'yew' is no number, and no label"),
        (classifier, "scores,a,b,c\n3,1,2,3\n", "scores", "class 3, but 'scores' has 3"),
        (classifier, "scores,a,b,c\n-1,1,2,3\n", "scores", "class -1, but 'scores' has 3"),
        (regressor, "p,a,b,c\nnan,1,2,3\n", "p", "line 2: p: 'nan' is no answer"),
        (regressor, "p,a,b,c\n1,1,2,3\n", "price", "no column 'price'"),
    ],
)
def test_mistakes(make: Callable[[], None], rows: str, target: str, message: str) -> None:
    make()
    Path("rows.csv").write_text(rows)
    with pytest.raises(EdgepackError, match=message):
        _evaluate(target)


def test_one_number_is_no_label() -> None:
    regressor()
    with Path("edgepack.toml").open("a") as file:
        file.write('labels = "labels.txt"\n')
    Path("labels.txt").write_text("cheap\ndear\n")
    with pytest.raises(EdgepackError, match="'sum' is one number, and the project has 2 labels"):
        _evaluate("price")


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    regressor()
    for words, message in (
        (["--rows", "rows.csv"], "--rows and --target go together"),
        (["--images", ".", "--target", "price"], "--rows and --target go together"),
        (["--rows", "rows.csv", "--target", "price", "--split", "val"], "only for a detector"),
        ([], "one of the arguments --images --rows is required"),
        (["--rows", "rows.csv", "--images", "."], "not allowed with argument"),
    ):
        assert main(["evaluate", *words]) == 2
        assert message in capsys.readouterr().err
