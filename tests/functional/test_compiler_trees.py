"""Forests as scikit-learn's exporter writes them, against onnxruntime."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.targets import compile_and_run, wrong_outputs

FEATURES, CLASSES, TREES = 5, 3, 7


def forest(random: np.random.Generator, kind: str) -> dict[str, list[object]]:
    """Attributes of random trees; `kind` is class or target."""
    made: dict[str, list[object]] = defaultdict(list)

    def grow(tree: int, depth: int) -> int:
        at, number = len(made["nodes_nodeids"]), made["nodes_treeids"].count(tree)
        is_leaf = depth == 0 or (depth < 4 and random.random() < 0.2)
        row = {
            "treeids": tree,
            "nodeids": number,
            "featureids": int(random.integers(FEATURES)),
            "values": float(random.normal()),
            "modes": "LEAF" if is_leaf else "BRANCH_LEQ",
            "truenodeids": 0,
            "falsenodeids": 0,
        }
        for name, value in row.items():
            made[f"nodes_{name}"].append(value)
        if is_leaf:
            for index in range(CLASSES):
                for name, value in {
                    "treeids": tree,
                    "nodeids": number,
                    "ids": index,
                    "weights": float(random.normal()),
                }.items():
                    made[f"{kind}_{name}"].append(value)
        else:
            made["nodes_truenodeids"][at] = grow(tree, depth - 1)
            made["nodes_falsenodeids"][at] = grow(tree, depth - 1)
        return number

    for tree in range(TREES):
        grow(tree, 5)
    return made


def test_forests_equal_onnxruntime(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    nodes = [
        helper.make_node(
            "TreeEnsembleRegressor",
            ["x"],
            ["sums"],
            name="regressor",
            domain="ai.onnx.ml",
            n_targets=CLASSES,
            base_values=[0.5, 1.0, -2.0],
            **forest(random, "target"),
        ),
        helper.make_node(
            "TreeEnsembleClassifier",
            ["x"],
            ["label", "scores"],
            name="classifier",
            domain="ai.onnx.ml",
            classlabels_int64s=[10, 20, 30],
            post_transform="SOFTMAX",
            **forest(random, "class"),
        ),
    ]
    rows = 9
    graph = helper.make_graph(
        nodes,
        "forests",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, FEATURES])],
        [
            helper.make_tensor_value_info("sums", TensorProto.FLOAT, [rows, CLASSES]),
            helper.make_tensor_value_info("label", TensorProto.INT64, [rows]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [rows, CLASSES]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path = tmp_path / "forests.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    inputs = [random.normal(size=(rows, FEATURES)).astype("float32")]
    _, got = compile_and_run(path, inputs, "local", "native", tmp_path)
    assert not wrong_outputs(path, inputs, got)
    assert len(np.unique(got[1])) > 1
