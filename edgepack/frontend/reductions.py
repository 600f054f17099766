"""Reductions, and the places of extremes, with the types and axes that ONNX gives them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.nonfinite import log_sum_exp

# The opset since which axes are an input, where it is not 18.
_AXES_AS_INPUT = {"Sum": 13}


def reduction(kind: str) -> Callable[[Node], relax.Expr | None]:
    """The conversion of Reduce`kind`: of integers, of truth values, and of no axes at all.

    None where TVM's conversion serves: floats over some axes. Of integers TVM would take the mean
    as int64, and has no root. Where the set of axes is empty and that means none, each element
    is reduced by itself: ReduceSumSquare squares it.
    """

    def convert(node: Node) -> relax.Expr | None:
        data = node.inputs[0]
        axes: list[int] | None = _axes_of(node, kind)
        none = not axes and bool(node.attributes.get("noop_with_empty_axes", 0))
        dtype = str(data.ty.dtype)
        if none:
            # By itself: over an axis of its own.
            data = node.emit(relax.op.expand_dims(data, [data.ty.ndim]))
            axes, keepdims = [data.ty.ndim - 1], False
        elif dtype.startswith("float"):
            return log_sum_exp(node) if kind == "LogSumExp" else None
        else:
            axes, keepdims = axes or None, bool(node.attributes.get("keepdims", 1))
        if dtype == "bool":
            number = node.emit(relax.op.astype(data, "uint8"))
            return relax.op.astype(_reduced(node, kind, number, axes, keepdims), "bool")
        return _reduced(node, kind, data, axes, keepdims)

    return convert


def _axes_of(node: Node, kind: str) -> list[int]:
    """The axes that are reduced, none for all.

    Raises UnsupportedFormError if they are not known.
    """
    if node.opset < _AXES_AS_INPUT.get(kind, 18):
        return list(node.attributes.get("axes") or [])
    axes = (*node.inputs, None)[1]
    if axes is None:
        return []
    if not isinstance(axes, tvm.ir.GenericConst):
        raise UnsupportedFormError("its axes are not constants")
    return [int(axis) for axis in axes.value.numpy().reshape(-1)]


_EXTREMES = {"Max": relax.op.max, "Min": relax.op.min, "Prod": relax.op.prod}


def _reduced(
    node: Node, kind: str, data: relax.Expr, axes: list[int] | None, keepdims: bool
) -> relax.Expr:
    """What comes of numbers of any type, in that type; what is behind a point is cut off.

    Where only sums on the way would be beyond an integer type they are float64, as onnxruntime's.
    """
    emit, dtype = node.emit, str(data.ty.dtype)
    if kind in ("L2", "LogSum", "Mean") and not dtype.startswith("float"):
        wide = emit(relax.op.astype(data, "float64"))
        made = emit(_reduced(node, kind, wide, axes, keepdims))
        largest = np.iinfo(dtype).max
        if kind == "L2":
            below = math.nextafter(float(largest), 0) if dtype.endswith("64") else largest
            made = emit(relax.op.minimum(made, relax.const(float(below), "float64")))
        return relax.op.astype(made, dtype)
    if kind in _EXTREMES:
        return _EXTREMES[kind](data, axes, keepdims)
    if kind == "LogSumExp":
        return _in_floats(node, data, lambda x: _log_sum_exp(node, x, axes, keepdims))
    if kind == "L1" and not dtype.startswith("u"):
        data = emit(relax.op.abs(data))
    if kind in ("L2", "SumSquare"):
        data = emit(relax.op.multiply(data, data))
    total = emit(relax.op.sum(data, axes, keepdims))
    if kind == "Mean":
        count = np.asarray(_count(data, axes)).astype(dtype)
        return relax.op.divide(total, relax.const(count, dtype))
    if kind in ("L2", "LogSum"):
        return relax.op.sqrt(total) if kind == "L2" else relax.op.log(total)
    return total


def _in_floats(
    node: Node, values: relax.Expr, compute: Callable[[relax.Expr], relax.Expr]
) -> relax.Expr:
    """What a function of floats makes of numbers, in their type."""
    dtype = str(values.ty.dtype)
    if dtype.startswith("float"):
        return compute(values)
    wide = node.emit(relax.op.astype(values, "float64"))
    return relax.op.astype(node.emit(compute(wide)), dtype)


def _count(data: relax.Expr, axes: list[int] | None) -> int:
    shape = [int(extent) for extent in data.ty.shape]
    return math.prod(shape if axes is None else [shape[axis] for axis in axes])


def _log_sum_exp(
    node: Node, data: relax.Expr, axes: list[int] | None, keepdims: bool
) -> relax.Expr:
    largest = node.emit(relax.op.max(data, axes, True))
    powers = node.emit(relax.op.exp(node.emit(relax.op.subtract(data, largest))))
    total = node.emit(relax.op.log(node.emit(relax.op.sum(powers, axes, True))))
    made = node.emit(relax.op.add(total, largest))
    if keepdims:
        return made
    return relax.op.squeeze(made, list(range(made.ty.ndim)) if axes is None else axes)


def extreme_place(node: Node) -> relax.Expr | None:
    """ArgMax or ArgMin along an axis that counts from the end, which TVM takes from opset 11 on.

    Of a tensor of one axis the first NaN is found, as by onnxruntime, but not where the last of
    equal elements is asked for.
    """
    data = node.inputs[0]
    node.attributes["axis"] = node.attributes.get("axis", 0) % data.ty.ndim
    place = node.by_tvm(list(node.inputs))
    is_last = bool(node.attributes.get("select_last_index", 0))
    if data.ty.ndim > 1 or is_last or not str(data.ty.dtype).startswith("float"):
        return place
    keepdims = bool(node.attributes.get("keepdims", 1))
    is_nan = node.emit(relax.op.astype(node.emit(relax.op.isnan(data)), "int8"))
    first = node.emit(relax.op.argmax(is_nan, 0, keepdims))
    found = node.emit(relax.op.max(is_nan, 0, keepdims))
    return relax.op.where(node.emit(relax.op.astype(found, "bool")), first, node.emit(place))
