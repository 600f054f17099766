"""ai.onnx.ml's linear models and support vector machines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te

from edgepack.frontend import scores
from edgepack.frontend.arithmetic import shape_of
from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.kernels.whole import coupling


def linear_regressor(node: Node) -> relax.Expr:
    """Products of rows with coefficients, and their intercepts.

    Raises UnsupportedFormError for a post_transform.
    """
    attributes = node.attributes
    if scores.transform_of(node) != "NONE":
        raise UnsupportedFormError("it has a post_transform")
    targets = attributes.get("targets", 1)
    return _products(
        node,
        scores.rows_of(node),
        np.array(attributes["coefficients"]).reshape(targets, -1).T,
        attributes.get("intercepts") or [0.0] * targets,
    )


def linear_classifier(node: Node) -> relax.Expr:
    """LinearClassifier: labels, and scores. Raises what `labels_of` and `transform_scores` do."""
    attributes = node.attributes
    labels, how = scores.labels_of(attributes, "classlabels_ints"), scores.transform_of(node)
    shift = attributes.get("intercepts") or [0.0] * len(labels)
    weights = np.array(attributes["coefficients"]).reshape(len(shift), -1)
    total = _products(node, scores.rows_of(node), weights.T, shift)
    if len(shift) > 1:
        return relax.Tuple(
            [scores.best(node, total, labels), scores.transform_scores(node, total, how)]
        )
    if len(labels) != 2:
        raise UnsupportedFormError(f"it has {len(labels)} classes and coefficients for one")
    label = scores.best_of_two(node, total, labels)
    return relax.Tuple([label, scores.scores_of_both(node, total, how, is_share=True)])


def svm_regressor(node: Node) -> relax.Expr:
    """SVMRegressor. Raises UnsupportedFormError for a post_transform."""
    attributes = node.attributes
    if scores.transform_of(node) != "NONE":
        raise UnsupportedFormError("it has a post_transform")
    data, weights = scores.rows_of(node), np.array(attributes["coefficients"]).reshape(-1, 1)
    if attributes.get("n_supports", 0):
        data = _kernels(node, data)
    made = _products(node, data, weights, attributes["rho"][:1])
    if not attributes.get("one_class", 0):
        return made
    above = node.emit(relax.op.greater(made, relax.const(0.0, "float32")))
    return relax.op.where(above, relax.const(1.0, "float32"), relax.const(-1.0, "float32"))


def svm_classifier(node: Node) -> relax.Expr:
    """SVMClassifier: the label with most votes of pairs of classes, and scores.

    Those are of pairs, or, with prob_a and prob_b, probabilities of classes. Without support
    vectors it is a linear model, as liblinear has them. Raises UnsupportedFormError for a single
    class, and as `scores.labels_of` and `both` do.
    """
    attributes = node.attributes
    labels, how = scores.labels_of(attributes, "classlabels_ints"), scores.transform_of(node)
    counts = list(attributes.get("vectors_per_class") or [])
    if len(labels) < 2:
        raise UnsupportedFormError("it has one class")
    if not sum(counts):
        return _linear_machine(node, labels, how)
    pairs = list(itertools.combinations(range(len(labels)), 2))
    total = _products(
        node,
        _kernels(node, scores.rows_of(node)),
        _of_pairs(attributes["coefficients"], counts, pairs),
        attributes["rho"][: len(pairs)],
    )
    label = scores.best(node, _votes(node, total, pairs, len(labels)), labels)
    if attributes.get("prob_a"):
        made = scores.transform_scores(node, _probabilities(node, total, pairs, len(labels)), how)
    elif len(labels) == 2:
        made = scores.scores_of_both(node, total, how, is_share=how != "NONE")
    else:
        made = scores.transform_scores(node, total, how)
    return relax.Tuple([label, made])


def _linear_machine(node: Node, labels: list[int], how: str) -> relax.Expr:
    """SVMClassifier without support vectors: a row of coefficients per class, one rho for all.

    Of two classes it is the second where a score is above zero, or above a half if no coefficient
    is negative; so onnxruntime has it.
    """
    weights = np.array(node.attributes["coefficients"]).reshape(len(labels), -1)
    shift = [node.attributes["rho"][0]] * len(labels)
    total = _products(node, scores.rows_of(node), weights.T, shift)
    label = scores.best(node, total, labels)
    if len(labels) == 2:
        top = node.emit(relax.op.max(total, -1))
        positive = weights.min() >= 0
        reached = relax.op.greater_equal if positive else relax.op.greater
        above = node.emit(reached(top, relax.const(0.5 if positive else 0.0, "float32")))
        label = node.emit(relax.op.where(above, relax.const(labels[1], "int64"), label))
    return relax.Tuple([label, scores.transform_scores(node, total, how)])


def _of_pairs(
    given: Sequence[float], counts: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Coefficients as [vectors, pairs], zero for a vector of neither class.

    ONNX has a row for each other class, from which the vector's own is left out.
    """
    ends = np.cumsum(counts)
    rows = np.array(given).reshape(-1, int(ends[-1]))
    made = np.zeros((int(ends[-1]), len(pairs)))
    for pair, (one, other) in enumerate(pairs):
        for own, row in ((one, other - 1), (other, one)):
            span = slice(int(ends[own]) - counts[own], int(ends[own]))
            made[span, pair] = rows[row, span]
    return made


def _votes(
    node: Node, total: relax.Expr, pairs: Sequence[tuple[int, int]], classes: int
) -> relax.Expr:
    """How many pairs each class wins: the first of two if the score is above zero."""
    gained, start = np.zeros((len(pairs), classes)), np.zeros(classes)
    for pair, (one, other) in enumerate(pairs):
        gained[pair, one], gained[pair, other] = 1, -1
        start[other] += 1
    above = node.emit(relax.op.greater(total, relax.const(0.0, "float32")))
    return _products(node, node.emit(relax.op.astype(above, "float32")), gained, start)


# Probabilities of pairs stay so far away from 0 and 1.
_MARGIN = 1e-7


def _probabilities(
    node: Node, total: relax.Expr, pairs: Sequence[tuple[int, int]], classes: int
) -> relax.Expr:
    slope, shift = (
        relax.const(np.array(node.attributes[name][: len(pairs)], "float32"), "float32")
        for name in ("prob_a", "prob_b")
    )
    value = node.emit(relax.op.add(node.emit(relax.op.multiply(total, slope)), shift))
    first = node.emit(relax.op.sigmoid(node.emit(relax.op.negative(value))))
    first = node.emit(
        relax.op.clip(first, relax.prim_value(_MARGIN), relax.prim_value(1 - _MARGIN))
    )
    second = node.emit(relax.op.subtract(relax.const(1.0, "float32"), first))
    # Of one class against another: those of pairs, and what is left of them.
    place = np.zeros((classes, classes), "int64")
    for pair, (one, other) in enumerate(pairs):
        place[one, other], place[other, one] = pair, len(pairs) + pair
    both = node.emit(relax.op.concat([first, second], 1))
    rows = shape_of(total)[0]
    table = node.emit(relax.op.take(both, relax.const(place.reshape(-1), "int64"), 1, "clip"))
    table = node.emit(relax.op.reshape(table, [rows, classes, classes]))
    scratch = [((classes, classes), "float32"), ((classes,), "float32")]
    results = [((rows, classes), "float32"), *scratch]
    return node.call("coupled", coupling.couple(rows, classes), [table], results)[0]


def _kernels(node: Node, data: relax.Expr) -> relax.Expr:
    """What the kernel function makes of each row and support vector: [rows, vectors]."""
    attributes = node.attributes
    features = shape_of(data)[1]
    vectors = np.array(attributes["support_vectors"], "float32").reshape(-1, features).T.copy()
    kind = attributes.get("kernel_type", b"LINEAR").decode()
    gamma, shift, degree = (*(attributes.get("kernel_params") or ()), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        distance = node.emit(node.compute(_distances, data, relax.const(vectors, "float32")))
        return node.emit(
            relax.op.exp(node.emit(relax.op.multiply(distance, relax.const(-gamma, "float32"))))
        )
    made = _products(node, data, vectors, [0.0])
    if kind == "LINEAR":
        return made
    scaled = node.emit(relax.op.multiply(made, relax.const(gamma, "float32")))
    scaled = node.emit(relax.op.add(scaled, relax.const(shift, "float32")))
    if kind == "SIGMOID":
        return node.emit(relax.op.tanh(scaled))
    return _power(node, scaled, degree)


def _power(node: Node, base: relax.Expr, degree: float) -> relax.Expr:
    """A polynomial kernel's power; the usual degrees without the C library's `pow`."""
    if degree not in range(1, _MOST_FACTORS + 1):
        return node.emit(relax.op.power(base, relax.const(degree, "float32")))
    made = base
    for _ in range(int(degree) - 1):
        made = node.emit(relax.op.multiply(made, base))
    return made


_MOST_FACTORS = 8


def _distances(data: te.Tensor, vectors: te.Tensor) -> te.Tensor:
    """Squares of the distances of rows and columns."""
    features = te.reduce_axis((0, vectors.shape[0]), "feature")

    def square(row: Any, vector: Any) -> Any:
        apart = data[row, features] - vectors[features, vector]
        return te.sum(apart * apart, axis=features)

    return te.compute((data.shape[0], vectors.shape[1]), square, name="distances")


def _products(
    node: Node, data: relax.Expr, weights: np.ndarray, shift: Sequence[float] | np.ndarray
) -> relax.Expr:
    """Rows times a matrix, and something added."""
    matrix = relax.const(np.ascontiguousarray(weights, "float32"), "float32")
    made = node.emit(relax.op.matmul(data, matrix))
    if not np.any(shift):
        return made
    return node.emit(relax.op.add(made, relax.const(np.array(shift, "float32"), "float32")))
