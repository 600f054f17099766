"""ai.onnx.ml's operators on numbers, and the counting of n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from edgepack.frontend.arithmetic import dtype_of, shape_of
from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.positions import Reach


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
    indices = node.positions(indices, [Reach(0, shape_of(data)[-1] - 1)], "Y")
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
    """Rows over their norm: the largest element, the sum of the absolute values, or the length.

    The largest is that with its sign, as ONNX says and onnxruntime has it.
    """
    (data,) = node.inputs
    number = node.emit(relax.op.astype(data, "float32"))
    kind = node.attributes.get("norm", b"MAX").decode()
    if kind == "MAX":
        norm = relax.op.max(number, -1, keepdims=True)
    elif kind == "L1":
        norm = relax.op.sum(relax.op.abs(number), -1, keepdims=True)
    else:
        norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(number, number), -1, keepdims=True))
    norm = node.emit(norm)
    # Rows of zeros stay zeros.
    zero = node.emit(relax.op.equal(norm, relax.const(0.0, "float32")))
    safe = node.emit(relax.op.where(zero, relax.const(1.0, "float32"), norm))
    return relax.op.divide(number, safe)


def label_encoder(node: Node) -> relax.Expr:
    """LabelEncoder of numbers to numbers: the value of the first equal key, or a default.

    Raises UnsupportedFormError where strings are left (see `edgepack.model.string_labels`).
    """
    attributes = node.attributes
    keys, values = (_table(attributes, name) for name in ("keys", "values"))
    if keys is None or values is None:
        raise UnsupportedFormError("it works on strings")
    default = attributes.get("default_tensor")
    if default is not None:
        other = numpy_helper.to_array(default).reshape(-1)[0]
    elif values.dtype.kind == "f":
        other = attributes.get("default_float", -0.0)
    else:
        other = attributes.get("default_int64", -1)
    (data,) = node.inputs
    dtype = dtype_of(data)
    at = node.emit(relax.op.expand_dims(data, -1))
    equal = node.emit(relax.op.equal(at, relax.const(keys.astype(dtype), dtype)))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        nothing = relax.const(np.isnan(keys), "bool")
        both = node.emit(relax.op.logical_and(node.emit(relax.op.isnan(at)), nothing))
        equal = node.emit(relax.op.logical_or(equal, both))
    hits = node.emit(relax.op.astype(equal, "int32"))
    kind = str(values.dtype)
    flat = node.emit(relax.op.reshape(node.emit(relax.op.argmax(hits, -1)), [-1]))
    found = node.emit(relax.op.take(relax.const(values, kind), flat, 0, "clip"))
    found = node.emit(relax.op.reshape(found, shape_of(data)))
    is_known = node.emit(relax.op.astype(node.emit(relax.op.max(hits, -1)), "bool"))
    return relax.op.where(is_known, found, relax.const(other, kind))


def _table(attributes: dict[str, Any], name: str) -> np.ndarray | None:
    """The keys or values of a LabelEncoder; None of strings."""
    for kind, dtype in (("int64s", "int64"), ("floats", "float32")):
        if attributes.get(f"{name}_{kind}"):
            return np.array(attributes[f"{name}_{kind}"], dtype)
    tensor = attributes.get(f"{name}_tensor")
    if tensor is None or tensor.data_type == onnx.TensorProto.STRING:
        return None
    return np.asarray(numpy_helper.to_array(tensor)).reshape(-1)


def imputer(node: Node) -> relax.Expr:
    """Imputer: one number in the place of another, which may be NaN, per feature or for all."""
    (data,) = node.inputs
    dtype = dtype_of(data)
    kind, name = ("float", "floats") if dtype.startswith("float") else ("int64", "int64s")
    old = node.attributes.get(f"replaced_value_{kind}", 0)
    new = np.array(node.attributes[f"imputed_value_{name}"], dtype)
    if np.isnan(old):
        missing = node.emit(relax.op.isnan(data))
    else:
        missing = node.emit(relax.op.equal(data, relax.const(old, dtype)))
    return relax.op.where(missing, relax.const(new, dtype), data)


def feature_vectorizer(node: Node) -> relax.Expr:
    """FeatureVectorizer: the columns of all inputs beside each other, as float32."""
    columns = []
    for data in node.inputs:
        rows = data if data.ty.ndim == 2 else node.emit(relax.op.expand_dims(data, 0))
        columns.append(node.emit(relax.op.astype(rows, "float32")))
    return relax.op.concat(columns, 1)


def one_hot_encoder(node: Node) -> relax.Expr:
    """OneHotEncoder of numbers: along a new last axis, 1 at the category that an element is.

    Raises UnsupportedFormError for categories that are strings, and where an unknown one is an
    error, which a fixed plan cannot raise.
    """
    categories = node.attributes.get("cats_int64s")
    if not categories:
        raise UnsupportedFormError("it works on strings")
    if not node.attributes.get("zeros", 1):
        raise UnsupportedFormError("it has zeros=0, which makes an unknown category an error")
    (data,) = node.inputs
    whole = node.emit(relax.op.astype(data, "int64"))
    at = node.emit(relax.op.expand_dims(whole, -1))
    equal = node.emit(relax.op.equal(at, relax.const(np.array(categories), "int64")))
    return relax.op.astype(equal, "float32")


def tfidf_vectorizer(node: Node) -> relax.Expr:
    """TfIdfVectorizer of integers: how often each n-gram of a list occurs in each row.

    Raises UnsupportedFormError for a list of strings.
    """
    attributes = node.attributes
    if "pool_int64s" not in attributes:
        raise UnsupportedFormError("it works on strings")
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
