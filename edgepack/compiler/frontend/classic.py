"""ai.onnx.ml's operators on numbers, and the counting of n-grams."""

from __future__ import annotations

import numpy as np
from tvm import relax

from edgepack.compiler.errors import UnsupportedFormError
from edgepack.compiler.frontend.arithmetic import dtype_of, shape_of
from edgepack.compiler.frontend.conversions import Node


def binarizer(node: Node) -> relax.Expr:
    """1 above a threshold, else 0."""
    (data,) = node.inputs
    dtype = dtype_of(data)
    threshold = relax.const(node.attributes.get("threshold", 0.0), dtype)
    return relax.op.astype(node.emit(relax.op.greater(data, threshold)), dtype)


def array_feature_extractor(node: Node) -> relax.Expr:
    """Some elements of the last axis."""
    data, indices = node.inputs
    if data.ty.ndim == 1:
        data = node.emit(relax.op.expand_dims(data, 0))
    flat = node.emit(relax.op.reshape(indices, [-1]))
    return relax.op.take(data, flat, data.ty.ndim - 1)


def scaler(node: Node) -> relax.Expr:
    """(x - offset) * scale, one of each per feature or for all."""
    (data,) = node.inputs
    number = node.emit(relax.op.astype(data, "float32"))
    offset, scale = (
        relax.const(np.array(node.attributes[name], "float32"), "float32")
        for name in ("offset", "scale")
    )
    return relax.op.multiply(node.emit(relax.op.subtract(number, offset)), scale)


def normalizer(node: Node) -> relax.Expr:
    """Rows over their norm: of the largest, the sum of the absolute values, or the length."""
    (data,) = node.inputs
    number = node.emit(relax.op.astype(data, "float32"))
    kind = node.attributes.get("norm", b"MAX").decode()
    if kind == "MAX":
        norm = relax.op.max(relax.op.abs(number), -1, keepdims=True)
    elif kind == "L1":
        norm = relax.op.sum(relax.op.abs(number), -1, keepdims=True)
    else:
        norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(number, number), -1, keepdims=True))
    norm = node.emit(norm)
    # Rows of zeros stay zeros.
    zero = node.emit(relax.op.equal(norm, relax.const(0.0, "float32")))
    safe = node.emit(relax.op.where(zero, relax.const(1.0, "float32"), norm))
    return relax.op.divide(number, safe)


def linear_regressor(node: Node) -> relax.Expr:
    """Products of rows with coefficients, and their intercepts.

    Raises UnsupportedFormError for a post_transform.
    """
    attributes = node.attributes
    if attributes.get("post_transform", b"NONE") != b"NONE":
        raise UnsupportedFormError("with a post_transform")
    targets = attributes.get("targets", 1)
    weights = np.array(attributes["coefficients"], "float32").reshape(targets, -1)
    number = node.emit(relax.op.astype(node.inputs[0], "float32"))
    made = node.emit(relax.op.matmul(number, relax.const(weights.T.copy(), "float32")))
    shift = np.array(attributes.get("intercepts") or [0.0] * targets, "float32")
    return relax.op.add(made, relax.const(shift, "float32"))


def tfidf_vectorizer(node: Node) -> relax.Expr:
    """TfIdfVectorizer of integers: how often each n-gram of a list occurs in each row.

    Raises UnsupportedFormError for a list of strings.
    """
    attributes = node.attributes
    if "pool_int64s" not in attributes:
        raise UnsupportedFormError("of strings")
    (data,) = node.inputs
    is_row = data.ty.ndim == 1
    tokens = node.emit(relax.op.expand_dims(data, 0)) if is_row else data
    tokens = node.emit(relax.op.astype(tokens, "int64"))
    rows, length = shape_of(tokens)
    shortest, longest = (attributes[f"{name}_gram_length"] for name in ("min", "max"))
    places = list(attributes["ngram_indexes"])
    pool, starts = list(attributes["pool_int64s"]), list(attributes["ngram_counts"])
    counts: list[relax.Expr] = []
    where: list[int] = []
    done = 0
    for size, (start, end) in enumerate(
        zip(starts, [*starts[1:], len(pool)], strict=True), start=1
    ):
        grams = np.array(pool[start:end], "int64").reshape(-1, size)
        at = places[done : done + len(grams)]
        done += len(grams)
        if not len(grams) or not shortest <= size <= longest:
            continue
        where += at
        found = []
        # A single token has nothing to skip.
        for step in range(1, 2 if size == 1 else attributes["max_skip_count"] + 2):
            windows = length - (size - 1) * step
            if windows > 0:
                found.append(_occurrences(node, tokens, grams, step, windows))
        total = found[0] if found else relax.const(np.zeros((rows, len(grams)), "float32"))
        for other in found[1:]:
            total = node.emit(relax.op.add(total, other))
        counts.append(total)
    made = counts[0] if len(counts) == 1 else node.emit(relax.op.concat(counts, 1))
    # To their places, of which there may be more.
    spread = np.zeros((len(where), max(places) + 1), "float32")
    spread[np.arange(len(where)), where] = 1
    weights = np.ones(max(places) + 1, "float32")
    if attributes["mode"] != b"TF":
        if attributes["mode"] == b"IDF":
            made = node.emit(relax.op.minimum(made, relax.const(1.0, "float32")))
        given = attributes.get("weights")
        weights[places] = given if given else 1
    result = node.emit(relax.op.matmul(made, relax.const(spread * weights, "float32")))
    return relax.op.squeeze(result, [0]) if is_row else result


def _occurrences(
    node: Node, tokens: relax.Expr, grams: np.ndarray, step: int, windows: int
) -> relax.Expr:
    """How many windows of tokens, `step` apart, are each of some n-grams: [rows, n-grams]."""
    equal = None
    for tap in range(grams.shape[1]):
        seen = node.emit(relax.op.strided_slice(tokens, [1], [tap * step], [tap * step + windows]))
        seen = node.emit(relax.op.expand_dims(seen, 2))
        same = node.emit(relax.op.equal(seen, relax.const(grams[None, None, :, tap], "int64")))
        equal = same if equal is None else node.emit(relax.op.logical_and(equal, same))
    return node.emit(relax.op.sum(node.emit(relax.op.astype(equal, "float32")), 1))
