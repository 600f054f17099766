"""`evaluate --rows` against a release that runs on this machine: trees, and a sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import edgepack
from edgepack.flow.evaluate_rows import RowEvaluation

pytestmark = pytest.mark.slow

ROWS, FEATURES = 12, 5


def test_trees_and_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(7)
    # A tree of one question: is feature 2 at most 0?
    trees = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_featureids=[2, 0, 0],
        nodes_values=[0.0, 0.0, 0.0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
        class_treeids=[0, 0, 0, 0], class_nodeids=[1, 1, 2, 2], class_ids=[0, 1, 0, 1],
        class_weights=[0.9, 0.1, 0.2, 0.8], classlabels_int64s=[4, 7, 9], post_transform="NONE",
    )  # fmt: skip
    mean = helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1)
    graph = helper.make_graph(
        [trees, mean],
        "table",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, FEATURES])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [1]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 3]),
            helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, 1]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "table.onnx")
    values = random.normal(size=(ROWS, FEATURES)).astype(np.float32)
    kinds = np.where(values[:, 2] <= 0, 4, 7)
    kinds[:3] = 4
    means = values.astype(np.float64).mean(axis=1) + 0.5
    for name, column in (("kind", kinds), ("mean", means)):
        lines = [",".join([name, *"abcde"])]
        for due, row in zip(column, values, strict=True):
            lines.append(",".join(map(repr, [due.item(), *row.tolist()])))
        Path(f"{name}.csv").write_text("\n".join(lines))

    words = {"board": "local", "root": str(tmp_path / "root")}
    with edgepack.deploy("table.onnx", device="local", **words) as deployed:
        by_kind = edgepack.evaluate("table.onnx", rows="kind.csv", target="kind", deployed=deployed)
        by_mean = edgepack.evaluate("table.onnx", rows="mean.csv", target="mean", deployed=deployed)
    assert isinstance(by_kind, RowEvaluation)
    assert isinstance(by_mean, RowEvaluation)
    wrong = int((kinds[:3] != np.where(values[:3, 2] <= 0, 4, 7)).sum())
    assert by_kind.to_dict()["device"] == {"accuracy": 1 - wrong / ROWS}
    assert not by_kind.differing
    there = by_mean.to_dict()["device"]
    assert there == {"mae": pytest.approx(0.5, rel=1e-5), "rmse": pytest.approx(0.5, rel=1e-5)}
    assert by_mean.largest_difference == pytest.approx(0, abs=1e-6)
