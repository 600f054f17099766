"""Operators whose result has a size of its own, with room for the largest one and a count.

`fix_sizes` puts them into the model, in place of those of ONNX. Their last output is the count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from edgepack.frontend.conversions import Node
from edgepack.frontend.positions import Reach
from edgepack.kernels.whole import selection, suppression

# Where these operators come from.
DOMAIN = "edgepack"


def nonzero(node: Node) -> relax.Expr:
    """Inputs: a tensor. Outputs: positions [rank, elements], count (int64)."""
    (data,) = node.inputs
    shape, dtype = [int(extent) for extent in data.ty.shape], str(data.ty.dtype)
    results = [((len(shape), int(np.prod(shape))), "int64"), ((1,), "int64")]
    made = node.call("nonzero", selection.nonzero(shape, dtype), [data], results)
    return relax.Tuple([made[0], _scalar(node, made[1])])


def unique(node: Node) -> relax.Expr:
    """Inputs: rows [rows, width], how many count. Outputs: as ONNX has them, count."""
    data, valid = node.inputs
    rows, width = (int(extent) for extent in data.ty.shape)
    dtype = str(data.ty.dtype)
    ordered = bool(node.attributes.get("sorted", 1))
    truth = dtype == "bool"
    if truth:
        data, dtype = node.emit(relax.op.astype(data, "uint8")), "uint8"
    kernel = selection.unique(rows, width, dtype, ordered=ordered)
    row = ((rows,), "int64")
    results = [((rows, width), dtype), row, row, row, ((1,), "int64")]
    scratch = [((2, rows), "int32"), ((3, rows), "int32")]
    made = node.call("unique", kernel, [data, _one(node, valid)], [*results, *scratch])
    if truth:
        made[0] = node.emit(relax.op.astype(made[0], "bool"))
    return relax.Tuple([*made[:4], _scalar(node, made[4])])


def size(node: Node) -> relax.Expr:
    """Input: how many elements an input of the operator `title` asks for [1]. Output: the same, not
    below 0 and not above `most`; at any other one the model ends with an error."""
    limits = [Reach(0, int(node.attributes["most"]))]
    title, known = (node.attributes[name].decode() for name in ("title", "known"))
    return node.positions(node.inputs[0], limits, known, title)


def places(node: Node) -> relax.Expr:
    """Inputs: where parts start, how much of each is in use [parts]. Output: the positions of what
    is in use, one part behind the other, and zeros [room]."""
    starts, sizes = node.inputs
    room = int(node.attributes["room"])
    kernel = selection.places(int(starts.ty.shape[0]), room)
    return node.call("places", kernel, [starts, sizes], [((room,), "int64")])[0]


def non_max_suppression(node: Node) -> relax.Expr:
    """Inputs: boxes, scores, how many boxes count, most, overlap, score (may be left out).

    Outputs: rows of batch, class and box [bound, 3], count.
    """
    boxes, scores, *rest = node.inputs
    batches, classes, count = (int(extent) for extent in scores.ty.shape)
    numbers = [_one(node, item) for item in rest if item is not None]
    layer = suppression.Suppression(
        batches=batches,
        classes=classes,
        boxes=count,
        bound=int(node.attributes["bound"]),
        center=bool(node.attributes.get("center_point_box", 0)),
        has_least=len(numbers) == 4,
    )
    made = node.call(
        "non_max_suppression",
        layer.function(),
        [boxes, scores, *numbers],
        list(layer.results().values()),
    )
    return relax.Tuple([made[0], _scalar(node, made[1])])


def _one(node: Node, value: Any) -> relax.Expr:
    """A number as a tensor of one element."""
    return node.emit(relax.op.reshape(value, [1]))


def _scalar(node: Node, value: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.reshape(value, []))
