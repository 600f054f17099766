"""Operators of which TVM's conversion makes a number of NaN, or NaN of infinity."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from edgepack.frontend.conversions import Node


def sign(node: Node) -> relax.Expr | None:
    """Sign of floats, which is NaN for NaN, and of integers without one; None for others."""
    (data,) = node.inputs
    dtype = str(data.ty.dtype)
    if dtype.startswith("u"):
        above = node.emit(relax.op.greater(data, relax.const(0, dtype)))
        return relax.op.astype(above, dtype)
    if not dtype.startswith("float"):
        return None
    zero, one, minus_one = (relax.const(value, dtype) for value in (0.0, 1.0, -1.0))
    below = node.emit(relax.op.where(node.emit(relax.op.less(data, zero)), minus_one, data))
    return relax.op.where(node.emit(relax.op.greater(data, zero)), one, below)


def thresholded_relu(node: Node) -> relax.Expr:
    """ThresholdedRelu, which is 0 for all that is not above its `alpha`: infinity below and NaN."""
    (data,) = node.inputs
    dtype = str(data.ty.dtype)
    alpha = relax.const(node.attributes.get("alpha", 1.0), dtype)
    above = node.emit(relax.op.greater(data, alpha))
    return relax.op.where(above, data, relax.const(0.0, dtype))


def clip(node: Node) -> relax.Expr | None:
    """Clip with a bound left out, which is the type's largest number then, in ONNX's words, and
    float32's before opset 11; TVM leaves infinities. None for any other."""
    data, *given = node.inputs
    dtype = str(data.ty.dtype)
    bounds = [*given, None, None][:2]
    if not dtype.startswith("float"):
        return None
    limits = np.finfo("float32" if node.opset < 11 else dtype)
    ends = (float(limits.min), float(limits.max))
    if node.opset < 11:
        for key, end in zip(("min", "max"), ends, strict=True):
            node.attributes.setdefault(key, end)
        return None
    if None not in bounds:
        return None
    whole = [
        relax.const(end, dtype) if bound is None else bound
        for bound, end in zip(bounds, ends, strict=True)
    ]
    return node.by_tvm([data, *whole])


def log_sum_exp(node: Node) -> relax.Expr | None:
    """ReduceLogSumExp, of infinity too, from which nothing finite can be subtracted. None where no
    axis is reduced, or a type is none of floats."""
    data, *given = node.inputs
    dtype = str(data.ty.dtype)
    if not dtype.startswith("float"):
        return None
    axes = node.attributes.get("axes")
    if given and isinstance(given[0], tvm.ir.GenericConst):
        axes = given[0].value.numpy().reshape(-1).tolist()
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return None
    axes = [int(axis) for axis in axes] if axes else None
    most = node.emit(relax.op.max(data, axes, keepdims=True))
    size = node.emit(relax.op.abs(most))
    finite = node.emit(relax.op.less(size, relax.const(np.inf, dtype)))
    most = node.emit(relax.op.where(finite, most, relax.const(0.0, dtype)))
    terms = node.emit(relax.op.exp(node.emit(relax.op.subtract(data, most))))
    total = node.emit(relax.op.log(node.emit(relax.op.sum(terms, axes, keepdims=True))))
    made = relax.op.add(total, most)
    if node.attributes.get("keepdims", 1):
        return made
    return relax.op.squeeze(node.emit(made), axes)
