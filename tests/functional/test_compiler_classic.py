"""ai.onnx.ml's operators on numbers, in the forms that exporters write, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.targets import compile_and_run, wrong_outputs

ROWS, FEATURES = 11, 5
LABELS = [4, 7, 1]


class Nodes:
    """Nodes of ai.onnx.ml that read `x` or another input, and their outputs by type."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(8)
        self.nodes: list[onnx.NodeProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def numbers(self, *shape: int) -> list[float]:
        values: list[float] = self.random.normal(size=shape).reshape(-1).tolist()
        return values

    def add(
        self, op_type: str, *, to: int = TensorProto.FLOAT, data: str = "x", **attributes: Any
    ) -> None:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(
                op_type, data.split(), [name], name=name, domain="ai.onnx.ml", **attributes
            )
        )
        self.outputs.append(helper.make_tensor_value_info(name, to, None))

    def classifier(self, op_type: str, **attributes: Any) -> None:
        self.add(op_type, to=TensorProto.INT64, **attributes)
        name = f"{self.nodes[-1].name}_scores"
        self.nodes[-1].output.append(name)
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    def machine(self, classes: int, kernel: str, *, proba: bool = False, **attributes: Any) -> None:
        """A support vector machine with some vectors for each class."""
        counts = [3, 2, 4][:classes]
        pairs = classes * (classes - 1) // 2
        if proba:
            attributes |= {"prob_a": [-1.5] * pairs, "prob_b": self.numbers(pairs)}
        self.classifier(
            "SVMClassifier",
            kernel_type=kernel,
            kernel_params=[0.2, 0.5, 3.0],
            vectors_per_class=counts,
            support_vectors=self.numbers(sum(counts), FEATURES),
            coefficients=self.numbers(classes - 1, sum(counts)),
            rho=self.numbers(pairs),
            classlabels_ints=LABELS[:classes],
            **attributes,
        )

    def stumps(self, *, kind: str, column: int = 0, shares: bool = False) -> dict[str, Any]:
        """Attributes of trees of one split, through which NaN goes one way or the other."""
        trees, total = 6, 18
        weights = self.random.normal(size=2 * trees)
        return {
            "nodes_treeids": [tree for tree in range(trees) for _ in range(3)],
            "nodes_nodeids": [0, 1, 2] * trees,
            "nodes_featureids": [v for t in range(trees) for v in (t % FEATURES, 0, 0)],
            "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * trees,
            "nodes_values": self.numbers(total),
            "nodes_truenodeids": [1, 0, 0] * trees,
            "nodes_falsenodeids": [2, 0, 0] * trees,
            "nodes_missing_value_tracks_true": [v for t in range(trees) for v in (t % 2, 0, 0)],
            f"{kind}_treeids": [tree for tree in range(trees) for _ in range(2)],
            f"{kind}_nodeids": [1, 2] * trees,
            f"{kind}_ids": [column] * 2 * trees,
            f"{kind}_weights": (np.abs(weights) / trees if shares else weights).tolist(),
        }

    def probit(self) -> None:
        """PROBIT of scores within 0 and 1, and beyond, which gives NaN."""
        scale = {"offset": [0.0] * FEATURES, "scale": [0.1] * FEATURES}
        self.add("Scaler", **scale)
        self.classifier(
            "LinearClassifier",
            data=self.nodes[-1].output[0],
            coefficients=self.numbers(3, FEATURES),
            intercepts=[0.2, 0.5, 0.9],
            classlabels_ints=LABELS,
            post_transform="PROBIT",
        )


def linear(nodes: Nodes) -> None:
    for how in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        for columns, labels in ((3, LABELS), (1, LABELS[:2])):
            nodes.classifier(
                "LinearClassifier",
                coefficients=nodes.numbers(columns, FEATURES),
                intercepts=nodes.numbers(columns),
                classlabels_ints=labels,
                post_transform=how,
            )
    nodes.probit()
    nodes.add("LinearRegressor", coefficients=nodes.numbers(2, FEATURES), targets=2)


def machines(nodes: Nodes) -> None:
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        nodes.machine(3, kernel)
    nodes.machine(3, "RBF", proba=True)
    nodes.machine(2, "RBF", proba=True)
    nodes.machine(2, "RBF")
    nodes.machine(2, "LINEAR", post_transform="LOGISTIC")
    nodes.machine(3, "LINEAR", post_transform="SOFTMAX")
    for classes, weights in (
        (3, nodes.numbers(3, FEATURES)),
        (2, nodes.numbers(2, FEATURES)),
        (2, np.abs(nodes.numbers(2, FEATURES)).tolist()),
    ):
        nodes.classifier(
            "SVMClassifier",
            kernel_type="LINEAR",
            kernel_params=[0.0] * 3,
            coefficients=weights,
            rho=[0.1],
            classlabels_ints=LABELS[:classes],
            post_transform="SOFTMAX",
        )
    some: dict[str, Any] = {
        "kernel_type": "RBF",
        "kernel_params": [0.1, 0.0, 0.0],
        "n_supports": 6,
        "support_vectors": nodes.numbers(6, FEATURES),
        "coefficients": nodes.numbers(6),
        "rho": nodes.numbers(1),
    }
    nodes.add("SVMRegressor", **some)
    nodes.add("SVMRegressor", one_class=1, **some)
    none: dict[str, Any] = {"kernel_type": "LINEAR", "kernel_params": [0.0] * 3}
    nodes.add("SVMRegressor", coefficients=nodes.numbers(FEATURES), rho=[0.5], **none)


def boosted(nodes: Nodes) -> None:
    two = {"classlabels_int64s": [0, 1], "data": "gaps"}
    for how in ("LOGISTIC", "NONE"):
        for base in ({}, {"base_values": [0.3]}):
            for shares in (False, True):
                stumps = nodes.stumps(kind="class", shares=shares)
                nodes.classifier(
                    "TreeEnsembleClassifier", post_transform=how, **base, **stumps, **two
                )
    stumps = nodes.stumps(kind="class", column=1)
    nodes.classifier("TreeEnsembleClassifier", post_transform="LOGISTIC", **stumps, **two)
    trees: dict[str, Any] = {"data": "gaps", **nodes.stumps(kind="target")}
    for how in ("SUM", "AVERAGE", "MIN", "MAX"):
        nodes.add("TreeEnsembleRegressor", n_targets=1, aggregate_function=how, **trees)
    # No leaf has a weight for the second target.
    nodes.add("TreeEnsembleRegressor", n_targets=2, aggregate_function="MAX", **trees)
    nodes.add(
        "TreeEnsembleRegressor", n_targets=1, base_values=[0.5], post_transform="PROBIT", **trees
    )


def tables(nodes: Nodes) -> None:
    to_int = TensorProto.INT64
    encoder: dict[str, Any] = {"data": "whole", "keys_int64s": [3, -1, 3, 2]}
    nodes.add("LabelEncoder", values_floats=[0.5, 7, 8, -1], **encoder)
    nodes.add("LabelEncoder", to=to_int, values_int64s=[9, 8, 7, 6], default_int64=5, **encoder)
    keys: dict[str, Any] = {"keys_floats": [float("nan"), 1.0], "values_int64s": [1, 2]}
    nodes.add("LabelEncoder", to=to_int, data="gaps", **keys)
    nodes.add(
        "Imputer",
        data="gaps",
        imputed_value_floats=nodes.numbers(FEATURES),
        replaced_value_float=float("nan"),
    )
    nodes.add("FeatureVectorizer", data="x gaps", inputdimensions=[FEATURES, FEATURES])
    for norm in ("MAX", "L1", "L2"):
        nodes.add("Normalizer", norm=norm)
    nodes.add("Scaler", offset=nodes.numbers(FEATURES), scale=nodes.numbers(FEATURES))
    nodes.add("Binarizer", threshold=0.25)
    nodes.add("OneHotEncoder", data="whole", cats_int64s=[-1, 0, 3])


def save(nodes: Nodes, folder: Path) -> tuple[Path, list[np.ndarray]]:
    """The model, and inputs for it."""
    shape = [ROWS, FEATURES]
    graph = helper.make_graph(
        nodes.nodes,
        "classic",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("gaps", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("whole", TensorProto.INT64, shape),
        ],
        nodes.outputs,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 4)]
    path = folder / "classic.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    data = nodes.random.normal(size=shape).astype("float32")
    gaps = np.where(nodes.random.random(size=shape) < 0.2, np.float32("nan"), data)
    gaps[0, 0] = 1
    return path, [data, gaps, nodes.random.integers(-2, 5, size=shape)]


@pytest.mark.parametrize(("board", "cpu"), [("local", "native"), ("pynq", "cortex-a9")])
def test_outputs_equal_onnxruntime(tmp_path: Path, board: str, cpu: str) -> None:
    nodes = Nodes()
    for family in (linear, machines, boosted, tables):
        family(nodes)
    path, inputs = save(nodes, tmp_path)
    _, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(path, inputs, got)
    labels = [output for output in got if output.ndim == 1]
    assert sum(len(np.unique(label)) > 1 for label in labels) > len(labels) // 2
