"""What ai.onnx.ml's classifiers make of sums: scores, and the label of the best class.

Where ONNX is vague, it is as onnxruntime does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from edgepack.frontend.arithmetic import dtype_of
from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError


def rows_of(node: Node) -> relax.Expr:
    """The node's input as rows of float32."""
    (data,) = node.inputs
    data = data if data.ty.ndim == 2 else node.emit(relax.op.expand_dims(data, 0))
    return data if dtype_of(data) == "float32" else node.emit(relax.op.astype(data, "float32"))


def labels_of(attributes: dict[str, Any], name: str) -> list[int]:
    """The labels of a classifier whose attribute for numbers has this name.

    Raises UnsupportedFormError for labels that are strings: those of a model's end are numbers
    before it gets here (see `edgepack.model.string_labels`).
    """
    labels = list(attributes.get(name) or [])
    if not labels:
        raise UnsupportedFormError("its labels are strings")
    return labels


def transform_of(node: Node) -> str:
    """The node's post_transform."""
    return str(node.attributes.get("post_transform", b"NONE").decode())


def best(node: Node, scores: relax.Expr, labels: list[int]) -> relax.Expr:
    """The label of each row's largest score, the first of equal ones."""
    place = node.emit(relax.op.argmax(scores, -1))
    return node.emit(relax.op.take(relax.const(np.array(labels), "int64"), place, 0, "clip"))


def best_of_two(
    node: Node, score: relax.Expr, labels: list[int], *, above: float = 0.0
) -> relax.Expr:
    """The second of two labels where the only score of a row is above a number, else the first."""
    is_above = node.emit(relax.op.greater(score, relax.const(above, dtype_of(score))))
    chosen = [relax.const(label, "int64") for label in reversed(labels)]
    return node.emit(relax.op.squeeze(node.emit(relax.op.where(is_above, *chosen)), [1]))


def scores_of_both(node: Node, score: relax.Expr, how: str, *, is_share: bool) -> relax.Expr:
    """The scores of two classes by that of the second, [rows, 1].

    `is_share`: but for LOGISTIC they are shares of one. Raises UnsupportedFormError for PROBIT, of
    which onnxruntime writes one of the two.
    """
    if how == "PROBIT":
        raise UnsupportedFormError("it has post_transform PROBIT, and one score for two classes")
    if is_share and how != "LOGISTIC":
        other = relax.op.subtract(relax.const(1.0, dtype_of(score)), score)
    else:
        other = relax.op.negative(score)
    pair = node.emit(relax.op.concat([node.emit(other), score], 1))
    return transform_scores(node, pair, "LOGISTIC") if how == "LOGISTIC" else pair


def transform_scores(node: Node, total: relax.Expr, how: str) -> relax.Expr:
    """Scores as ONNX's post_transform makes them of sums, two columns or more."""
    if how == "NONE":
        return total
    if how == "SOFTMAX":
        return node.emit(relax.op.nn.softmax(total, -1))
    if how == "LOGISTIC":
        return node.emit(relax.op.sigmoid(total))
    if how == "SOFTMAX_ZERO":
        return _softmax_zero(node, total)
    return _probit(node, total)


# The approximation of erf's inverse that onnxruntime and onnx's reference take: Winitzki (2008), "A
# handy approximation for the error function and its inverse". NaN outside of 0 to 1, as theirs.
_WINITZKI = 0.147


def _probit(node: Node, total: relax.Expr) -> relax.Expr:
    """The quantile of the normal distribution: sqrt(2) erfinv(2 x - 1)."""
    dtype = dtype_of(total)

    def number(value: float) -> relax.Expr:
        return relax.const(value, dtype)

    def emit(operator: Callable[..., relax.Expr], *operands: relax.Expr) -> relax.Expr:
        return node.emit(operator(*operands))

    x = emit(relax.op.subtract, emit(relax.op.multiply, total, number(2.0)), number(1.0))
    below, above = emit(relax.op.subtract, number(1.0), x), emit(relax.op.add, number(1.0), x)
    log = emit(relax.op.log, emit(relax.op.multiply, below, above))
    half = emit(relax.op.multiply, log, number(0.5))
    v = emit(relax.op.add, half, number(2 / (math.pi * _WINITZKI)))
    square = emit(relax.op.multiply, v, v)
    inner = emit(relax.op.subtract, square, emit(relax.op.multiply, log, number(1 / _WINITZKI)))
    size = emit(relax.op.sqrt, emit(relax.op.subtract, emit(relax.op.sqrt, inner), v))
    is_below = emit(relax.op.less, x, number(0.0))
    signed = emit(relax.op.where, is_below, emit(relax.op.negative, size), size)
    return emit(relax.op.multiply, signed, number(math.sqrt(2)))


def _softmax_zero(node: Node, total: relax.Expr) -> relax.Expr:
    """Softmax of what is not zero."""
    dtype = dtype_of(total)
    least = relax.const(1e-7, dtype)
    counts = node.emit(relax.op.greater(node.emit(relax.op.abs(total)), least))
    top = node.emit(relax.op.max(total, -1, keepdims=True))
    power = node.emit(relax.op.exp(node.emit(relax.op.subtract(total, top))))
    kept = node.emit(relax.op.where(counts, power, relax.const(0.0, dtype)))
    whole = node.emit(relax.op.sum(kept, -1, keepdims=True))
    return node.emit(relax.op.divide(kept, whole))
