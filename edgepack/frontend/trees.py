"""ai.onnx.ml's ensembles of trees, in their old and new forms, as one kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from edgepack.frontend import scores
from edgepack.frontend.arithmetic import dtype_of, shape_of
from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.kernels.whole import trees

# Of the new form, by number.
_MODES = tuple(trees.COMPARISONS)
_MEMBER = 6
# Added to a mode: NaN goes the true way.
_OR_NAN = 8
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_JOINED = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum}


@dataclass
class _Forest:
    """Nodes as lists; a leaf's children are itself. `weights` are (node, target, weight)."""

    feature: list[int] = field(default_factory=list)
    mode: list[int] = field(default_factory=list)
    number: list[float] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    weights: list[tuple[int, int, float]] = field(default_factory=list)

    def add(self, feature: int = 0, mode: int = 0, number: float = 0.0) -> int:
        """A node, a leaf until it gets children."""
        index = len(self.feature)
        self.feature.append(feature)
        self.mode.append(mode)
        self.number.append(number)
        self.children.append([index, index])
        return index

    def depth(self) -> int:
        """Steps of the longest way down. Raises UnsupportedFormError for a way in a circle."""
        most, level = 0, set(self.roots)
        while level := {child for node in level for child in self.children[node] if child != node}:
            most += 1
            if most > len(self.feature):
                raise UnsupportedFormError("the nodes of one of its trees form a cycle")
        return most

    def total(self, node: Node, targets: int, aggregate: str = "SUM") -> relax.Expr:
        """What the rows of the node's input find, put together over the trees.

        `aggregate` is one of ONNX's; a target that no leaf has a weight for gets 0.
        """
        if aggregate == "AVERAGE":
            total = self.total(node, targets)
            count = relax.const(float(len(self.roots)), dtype_of(total))
            return node.emit(relax.op.divide(total, count))
        (data,) = node.inputs
        data = data if data.ty.ndim == 2 else node.emit(relax.op.expand_dims(data, 0))
        dtype = dtype_of(data)
        if not dtype.startswith("float"):
            dtype = "float32"
            data = node.emit(relax.op.astype(data, dtype))
        join, of_none = _JOINED[aggregate], trees.AGGREGATES[aggregate][1]
        table = np.full((len(self.feature), targets), of_none, dtype)
        for index, target, weight in self.weights:
            table[index, target] = join(table[index, target], weight)
        rows, features = shape_of(data)
        modes = {mode: (_MODES[mode % _OR_NAN], mode >= _OR_NAN) for mode in sorted(set(self.mode))}
        sizes = {
            "trees": len(self.roots),
            "nodes": len(self.feature),
            "targets": targets,
            "steps": self.depth(),
        }
        constants = [
            relax.const(np.array(values, kind), kind)
            for values, kind in (
                (self.roots, "int32"),
                (self.feature, "int32"),
                (self.mode, "int32"),
                (self.number, dtype),
                (self.children, "int32"),
                (table, dtype),
            )
        ]
        kernel = trees.ensemble(rows, features, dtype, sizes, modes, aggregate)
        made = node.call("trees", kernel, [data, *constants], [((rows, targets), dtype)])[0]
        if not of_none:
            return made
        nothing = node.emit(relax.op.equal(made, relax.const(of_none, dtype)))
        return node.emit(relax.op.where(nothing, relax.const(0.0, dtype), made))


def _tensor(attributes: dict[str, Any], name: str) -> list[float]:
    """The numbers of an attribute that is a tensor, none if it is left out."""
    value = attributes.get(name)
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    return [] if value is None else [float(number) for number in np.asarray(value).reshape(-1)]


def tree_ensemble(node: Node) -> relax.Expr:
    """TreeEnsemble of opset 5. Raises UnsupportedFormError for trees that go in a circle."""
    attributes = node.attributes
    aggregate = _AGGREGATES[attributes.get("aggregate_function", 1)]
    made, targets = _Forest(), attributes["n_targets"]
    members = iter(_tensor(attributes, "membership_values"))
    modes, splits = (_tensor(attributes, f"nodes_{name}") for name in ("modes", "splits"))
    features = list(attributes["nodes_featureids"])
    leaves = list(
        zip(attributes["leaf_targetids"], _tensor(attributes, "leaf_weights"), strict=True)
    )
    # Those of a set of numbers become a chain: the first that is equal goes the true way.
    chains: list[list[int]] = []
    missing = _missing(attributes, len(modes))
    for feature, mode, split, more in zip(features, modes, splits, missing, strict=True):
        if mode != _MEMBER:
            chains.append([made.add(feature, int(mode) + more, split)])
            continue
        values = []
        while not np.isnan(value := next(members)):
            values.append(value)
        equal = _MODES.index("BRANCH_EQ") + more
        chains.append([made.add(feature, equal, value) for value in values])

    def child(index: int, is_leaf: int) -> int:
        if not is_leaf:
            return chains[index][0]
        leaf = made.add()
        made.weights.append((leaf, *leaves[index]))
        return leaf

    ways = ("true", "false")
    for index, chain in enumerate(chains):
        yes, no = (
            child(attributes[f"nodes_{way}nodeids"][index], attributes[f"nodes_{way}leafs"][index])
            for way in ways
        )
        for one, other in zip(chain, [*chain[1:], no], strict=True):
            made.children[one] = [yes, other]
    made.roots = [chains[root][0] for root in attributes["tree_roots"]]
    total = made.total(node, targets, aggregate)
    return scores.transform_scores(node, total, _TRANSFORMS[attributes.get("post_transform", 0)])


def _old(attributes: dict[str, Any], kind: str) -> _Forest:
    """The forest of an operator before opset 5; `kind` is target or class."""
    made, index = _Forest(), {}
    values = attributes.get("nodes_values") or _tensor(attributes, "nodes_values_as_tensor")
    keys = list(zip(attributes["nodes_treeids"], attributes["nodes_nodeids"], strict=True))
    names = [name.decode() for name in attributes["nodes_modes"]]
    missing = _missing(attributes, len(keys))
    for key, feature, mode, value, more in zip(
        keys, attributes["nodes_featureids"], names, values, missing, strict=True
    ):
        branch = () if mode == "LEAF" else (feature, _MODES.index(mode) + more, value)
        index[key] = made.add(*branch)
    ways = [attributes[f"nodes_{way}nodeids"] for way in ("true", "false")]
    for key, mode, yes, no in zip(keys, names, *ways, strict=True):
        if mode != "LEAF":
            made.children[index[key]] = [index[key[0], yes], index[key[0], no]]
    # The first node of each tree is its root.
    for tree in dict.fromkeys(tree for tree, _ in keys):
        made.roots.append(next(index[key] for key in keys if key[0] == tree))
    weights = attributes.get(f"{kind}_weights") or _tensor(attributes, f"{kind}_weights_as_tensor")
    made.weights = [
        (index[tree, leaf], target, weight)
        for tree, leaf, target, weight in zip(
            attributes[f"{kind}_treeids"],
            attributes[f"{kind}_nodeids"],
            attributes[f"{kind}_ids"],
            weights,
            strict=True,
        )
    ]
    return made


def tree_ensemble_regressor(node: Node) -> relax.Expr:
    """TreeEnsembleRegressor. Raises as `tree_ensemble` does."""
    attributes = node.attributes
    aggregate = attributes.get("aggregate_function", b"SUM").decode()
    total = _old(attributes, "target").total(node, attributes.get("n_targets", 1), aggregate)
    base = _base(attributes)
    total = _shifted(node, total, base) if base else total
    return scores.transform_scores(node, total, scores.transform_of(node))


def tree_ensemble_classifier(node: Node) -> relax.Expr:
    """TreeEnsembleClassifier: labels that are numbers, and a score for each class.

    Raises UnsupportedFormError as `scores.labels_of` and `tree_ensemble` do, and for two classes
    with leaves of one only whose base values are of both, or of the other one.
    """
    attributes = node.attributes
    labels, how = scores.labels_of(attributes, "classlabels_int64s"), scores.transform_of(node)
    base, leaves = _base(attributes), set(attributes["class_ids"])
    total = node.emit(
        relax.op.astype(_old(attributes, "class").total(node, len(labels)), "float32")
    )
    if len(labels) == 2 and len(leaves) == 1:
        return _binary(node, total, labels, base, leaves.pop())
    if base:
        total = _shifted(node, total, base)
    return relax.Tuple(
        [scores.best(node, total, labels), scores.transform_scores(node, total, how)]
    )


def _binary(
    node: Node, total: relax.Expr, labels: list[int], base: list[float], column: int
) -> relax.Expr:
    """Of two classes with the leaves of one only: boosted trees, or shares of the second class."""
    how = scores.transform_of(node)
    if len(base) > 1 or (column and base):
        raise UnsupportedFormError("it has two classes, base values for both, and leaves for one")
    weights = node.attributes.get("class_weights") or _tensor(
        node.attributes, "class_weights_as_tensor"
    )
    are_shares = min(weights) >= 0
    score = node.emit(relax.op.strided_slice(total, [1], [column], [column + 1]))
    score = _shifted(node, score, base) if base else score
    if column:  # then the first class has a score, too: zero
        pair = scores.transform_scores(node, total, how)
    else:
        pair = scores.scores_of_both(node, score, how, is_share=are_shares)
    label = scores.best_of_two(node, score, labels, above=0.5 if are_shares else 0.0)
    return relax.Tuple([label, pair])


def _missing(attributes: dict[str, Any], count: int) -> list[int]:
    """Of each node what its mode gets added."""
    given = attributes.get("nodes_missing_value_tracks_true") or [0] * count
    return [_OR_NAN if is_true else 0 for is_true in given]


def _base(attributes: dict[str, Any]) -> list[float]:
    return list(attributes.get("base_values") or _tensor(attributes, "base_values_as_tensor"))


def _shifted(node: Node, total: relax.Expr, base: list[float]) -> relax.Expr:
    return node.emit(relax.op.add(total, relax.const(np.array(base), dtype_of(total))))
