"""Operators on quantised tensors, by their definitions: sums of integers are exact.

Products by constant weights are done in float32, for which there are fast kernels: integers up to
2 ** 24 are exact there, and so is every sum on the way, in whatever order, as long as none can be
larger. Longer sums are done in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from edgepack.frontend import integer_recognition
from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.private import private_call
from edgepack.kernels.integer import FromIntegers
from edgepack.kernels.layer import DynamicIntegers, DynamicRange, DynamicSums
from edgepack.kernels.tiles.cpu import INT8_BLOCK

_Convert = Callable[[Node], relax.Expr]

_EXACT = 1 << 24
# An integer of 8 bits is at most so far from its zero point.
_FARTHEST = 255


def integer_operator(node: Node) -> relax.Expr:
    """What `integer_recognition` found."""
    constants = [item for item in node.inputs if isinstance(item, tvm.ir.GenericConst)]
    inputs = node.inputs[: len(node.inputs) - len(constants)]
    arrays = [item.value.numpy() for item in constants]
    operator = integer_recognition.integer_operator(node.attributes, arrays)
    given = [item if isinstance(item, relax.Var) else node.emit(item) for item in inputs]
    shape = operator.shape([_shape(item) for item in given])
    dtype = "float32" if isinstance(operator, FromIntegers) else "int8"
    return private_call(operator, given, relax.TensorType(list(shape), dtype))


def dynamic_quantize_linear(node: Node) -> relax.Expr | None:
    """DynamicQuantizeLinear: uint8, scale and zero point; None of no numbers."""
    data = _variable(node, node.inputs[0])
    if data is None or 0 in _shape(data):
        return None
    shape = _shape(data)
    spread, whole = DynamicRange(size=prod(shape)), DynamicIntegers(size=prod(shape))
    steps = node.emit(private_call(spread, [data], relax.TensorType([2], "float32")))
    whole = node.emit(private_call(whole, [data, steps], relax.TensorType(list(shape), "uint8")))
    scale, zero = (
        node.emit(relax.op.reshape(node.emit(relax.op.strided_slice(steps, [0], [i], [i + 1])), ()))
        for i in (0, 1)
    )
    return relax.Tuple([whole, scale, node.emit(relax.op.astype(zero, "uint8"))])


def mat_mul_integer(node: Node) -> relax.Expr:
    """MatMulInteger: the product of integers, less their zero points, in int32."""
    left, right, left_zero, right_zero = (*node.inputs, None, None)[:4]
    weights = _narrow_weights(right, right_zero, -1)
    if weights is not None and weights[0].ndim == 2 and weights[0].shape[1] >= INT8_BLOCK:
        weight = np.ascontiguousarray(weights[0].T)[:, :, None, None]
        made = (*_shape(left)[:-1], len(weight))
        sums = _sums(node, left, left_zero, weight, weights[1], made, in_rows=True)
        if sums is not None:
            return sums
    return _summed(node, left, _as_rows(node, left_zero), right, right_zero)


def conv_integer(node: Node) -> relax.Expr:
    """ConvInteger: the convolution of integers, less their zero points, in int32."""
    data, weights, data_zero, weight_zero = (*node.inputs, None, None)[:4]
    rank = len(_shape(weights)) - 2
    found = _narrow_weights(weights, weight_zero, 0)
    attributes, kernel = node.attributes, _shape(weights)[2:]
    groups = attributes.get("group", 1)
    # Sums of the input, which a zero point of weights takes, there are for all channels only.
    fits = found is not None and (found[1] is None or groups == 1)
    if found is not None and fits and rank in (1, 2) and 0 not in _shape(data):
        weight, zeros = found
        strides, dilations, pads = _window(attributes, _shape(data)[2:], kernel)
        out = [
            (size + pads[i] + pads[rank + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
            for i, size in enumerate(_shape(data)[2:])
        ]
        one = [1] * (2 - rank)
        weight = weight.reshape(*weight.shape[:2], *one, *kernel)
        made = (_shape(data)[0], len(weight), *out)
        window: dict[str, Any] = {
            "stride": _pair(strides, 1),
            "before": _pair(pads[:rank], 0),
            "dilation": _pair(dilations, 1),
            "groups": groups,
        }
        sums = _sums(node, data, data_zero, weight, zeros, made, **window)
        if sums is not None and min(pads) >= 0:
            return sums
    return _convolved_sums(node, data, data_zero, weights, weight_zero)


def q_linear_mat_mul(node: Node) -> relax.Expr:
    """QLinearMatMul; float32(sum) * float32(scales), rounded half to even."""
    left, left_scale, left_zero, right, right_scale, right_zero, scale, zero = node.inputs
    left_scale, left_zero = (_as_rows(node, item) for item in (left_scale, left_zero))
    summed = _summed(node, left, left_zero, right, right_zero)
    return _requantised(node, summed, [left_scale, right_scale], scale, zero)


def q_linear_conv(node: Node) -> relax.Expr:
    """QLinearConv, with weights quantised as a whole or by output channel."""
    data, data_scale, data_zero, weights, weight_scale, weight_zero, scale, zero, *bias = (
        node.inputs
    )
    rank = len(_shape(weights))
    summed = _convolved_sums(node, data, data_zero, weights, weight_zero)
    if bias and bias[0] is not None:
        summed = node.emit(relax.op.add(summed, _along(node, bias[0], 1, rank)))
    return _requantised(
        node, summed, [data_scale, _along(node, weight_scale, 1, rank)], scale, zero
    )


def q_linear_of_two(operator: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> _Convert:
    """com.microsoft's QLinearAdd and QLinearMul: in float32, between two rounded tensors."""

    def convert(node: Node) -> relax.Expr:
        given = (*node.inputs, None)[:8]
        one, other = (_real(node, *given[start : start + 3]) for start in (0, 3))
        return _quantised(node, node.emit(operator(one, other)), given[6], given[7])

    return convert


def q_linear_of_one(operator: Callable[[relax.Expr, dict[str, Any]], relax.Expr]) -> _Convert:
    """com.microsoft's QLinearSigmoid and others of one tensor."""

    def convert(node: Node) -> relax.Expr:
        data, scale, zero, out_scale, out_zero = (*node.inputs, None)[:5]
        made = node.emit(operator(_real(node, data, scale, zero), node.attributes))
        return _quantised(node, made, out_scale, out_zero)

    return convert


def q_gemm(node: Node) -> relax.Expr:
    """com.microsoft's QGemm; without a scale of the output its result is float32."""
    left, left_scale, left_zero, right, right_scale, right_zero, bias, scale, zero = (
        *node.inputs,
        *[None] * 3,
    )[:9]
    attributes = node.attributes
    rows = _centred(node, left, left_zero)
    if attributes.get("transA", 0):
        rows = node.emit(relax.op.permute_dims(rows))
    if attributes.get("transB", 0):
        # One zero point for each column of what is multiplied.
        right_zero = _as_rows(node, right_zero)
        columns = node.emit(relax.op.permute_dims(_centred(node, right, right_zero)))
    else:
        columns = _centred(node, right, right_zero)
    summed = node.emit(relax.op.matmul(rows, columns))
    if bias is not None:
        summed = node.emit(relax.op.add(summed, bias))
    alpha = relax.const(attributes.get("alpha", 1.0), "float32")
    factor = node.emit(relax.op.multiply(left_scale, right_scale))
    if scale is not None:
        return _requantised(node, summed, [factor, alpha], scale, zero)
    factor = node.emit(relax.op.multiply(factor, alpha))
    return relax.op.multiply(node.emit(relax.op.astype(summed, "float32")), factor)


def q_linear_where(node: Node) -> relax.Expr:
    """com.microsoft's QLinearWhere."""
    condition, *given = node.inputs
    one, other = (_real(node, *given[start : start + 3]) for start in (0, 3))
    return _quantised(node, node.emit(relax.op.where(condition, one, other)), *given[6:8])


def q_linear_concat(node: Node) -> relax.Expr:
    """com.microsoft's QLinearConcat."""
    scale, zero, *parts = node.inputs
    reals = [_real(node, *parts[i : i + 3]) for i in range(0, len(parts), 3)]
    joint = node.emit(relax.op.concat(reals, node.attributes["axis"]))
    return _quantised(node, joint, scale, zero)


def global_average(data: relax.Expr, _attributes: dict[str, Any]) -> relax.Expr:
    """The mean of each channel's image."""
    return relax.op.mean(data, list(range(2, len(_shape(data)))), keepdims=True)


def leaky_relu(data: relax.Expr, attributes: dict[str, Any]) -> relax.Expr:
    """LeakyRelu."""
    return relax.op.nn.leakyrelu(data, attributes.get("alpha", 0.01))


def sigmoid(data: relax.Expr, _attributes: dict[str, Any]) -> relax.Expr:
    """Sigmoid."""
    return relax.op.sigmoid(data)


def softmax(data: relax.Expr, attributes: dict[str, Any]) -> relax.Expr:
    """Softmax; before opset 13, which `opset` tells, over all axes from one on."""
    axis, shape = attributes.get("axis", -1), _shape(data)
    if attributes.get("opset", 13) >= 13:
        return relax.op.nn.softmax(data, axis)
    flat = relax.op.reshape(data, [int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))])
    return relax.op.reshape(relax.op.nn.softmax(flat, -1), shape)


def average_pool(data: relax.Expr, attributes: dict[str, Any]) -> relax.Expr:
    """AveragePool of one to three dimensions. Raises UnsupportedFormError for other layouts."""
    if attributes.get("channels_last", 0):
        raise UnsupportedFormError("its channels come last")
    if attributes.get("ceil_mode", 0):
        raise UnsupportedFormError("it has ceil_mode")
    kernel = list(attributes["kernel_shape"])
    pool = {1: relax.op.nn.avg_pool1d, 2: relax.op.nn.avg_pool2d, 3: relax.op.nn.avg_pool3d}
    strides, dilations, pads = _window(attributes, _shape(data)[2:], kernel)
    return pool[len(kernel)](
        data,
        kernel,
        strides=strides,
        padding=pads,
        dilation=dilations,
        count_include_pad=bool(attributes.get("count_include_pad", 0)),
    )


# ---------------------------------------------------------------- their parts


def _shape(item: relax.Expr) -> list[int]:
    return [int(extent) for extent in item.ty.shape]


def _as_rows(node: Node, item: relax.Expr | None) -> relax.Expr | None:
    """A scale or zero point for each row of a matrix."""
    if item is None or len(_shape(item)) != 1 or _shape(item)[0] == 1:
        return item
    return node.emit(relax.op.expand_dims(item, -1))


def _along(node: Node, item: relax.Expr | None, axis: int, rank: int) -> relax.Expr | None:
    """One value per position of an axis, for a tensor of that rank; a scalar stays one."""
    if item is None or not _shape(item):
        return item
    shape = [1] * rank
    shape[axis] = _shape(item)[0]
    return node.emit(relax.op.reshape(item, shape))


def _centred(node: Node, data: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """int32, less the zero point."""
    wide = node.emit(relax.op.astype(data, "int32"))
    if zero is None or (isinstance(zero, tvm.ir.GenericConst) and not zero.value.numpy().any()):
        return wide
    return node.emit(relax.op.subtract(wide, node.emit(relax.op.astype(zero, "int32"))))


def _whole_weights(
    weights: relax.Expr, zero: relax.Expr | None, axis: int
) -> npt.NDArray[np.int32] | None:
    """Constants less their zero points, which may be along an axis; None if they are none."""
    parts = [item for item in (weights, zero) if item is not None]
    if not all(isinstance(item, tvm.ir.GenericConst) for item in parts):
        return None
    values, *zeros = (item.value.numpy().astype("int32") for item in parts)
    for item in zeros:
        shape = [1] * values.ndim
        if item.size > 1:
            shape[axis] = item.size
        values = values - item.reshape(shape)
    return np.asarray(values)


def _pair(values: Sequence[int], of_one_row: int) -> tuple[int, int]:
    """(vertical, horizontal)"""
    return (of_one_row, values[0]) if len(values) == 1 else (values[0], values[1])


def _narrow_weights(
    weights: relax.Expr, zero: relax.Expr | None, axis: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32] | None] | None:
    """Constants as int8, and a zero point for each position of an axis; that is None if it is 0."""
    whole = _whole_weights(weights, zero, axis)
    if whole is None or whole.size == 0:
        return None
    if whole.min() >= -128 and whole.max() <= 127:
        return whole.astype("int8"), None
    values = weights.value.numpy().astype("int32")
    zeros = np.zeros(1, "int32") if zero is None else zero.value.numpy().astype("int32")
    moved = 128 if str(weights.ty.dtype) == "uint8" else 0
    spread = np.broadcast_to(zeros.reshape(-1) - moved, (values.shape[axis],))
    return (values - moved).astype("int8"), spread.astype("int32")


def _variable(node: Node, item: relax.Expr) -> relax.Var | None:
    """What is no constant, as a variable."""
    if isinstance(item, tvm.ir.GenericConst):
        return None
    return item if isinstance(item, relax.Var) else node.emit(item)


def _sums(
    node: Node,
    data: relax.Expr,
    zero: relax.Expr | None,
    weight: npt.NDArray[np.int8],
    weight_zero: npt.NDArray[np.int32] | None,
    shape: Sequence[int],
    *,
    in_rows: bool = False,
    **window: Any,
) -> relax.Call | None:
    """What there are kernels for: sums of that shape."""
    read = _variable(node, data)
    if read is None or str(read.ty.dtype) not in ("int8", "uint8"):
        return None
    if 0 in _shape(data) or (zero is not None and np.prod(_shape(zero), dtype=int) != 1):
        return None
    inputs, known = [read], 0 if zero is None else None
    if isinstance(zero, tvm.ir.GenericConst):
        known = int(zero.value.numpy().reshape(()))
    elif zero is not None:
        inputs.append(node.emit(zero))
    given, made = tuple(_shape(read)), tuple(shape)
    if in_rows:
        given, made = (prod(given[:-1]), given[-1]), (prod(made[:-1]), made[-1])
    elif len(given) == 3:  # a sequence is an image of one row
        given, made = (*given[:2], 1, given[2]), (*made[:2], 1, made[2])
    operator = DynamicSums(
        given=given,
        made=made,
        dtype=str(read.ty.dtype),
        zero=known,
        weight=weight,
        weight_zero=weight_zero,
        in_rows=in_rows,
        **window,
    )
    return private_call(operator, inputs, relax.TensorType(list(shape), "int32"))


def _summed(
    node: Node,
    left: relax.Expr,
    left_zero: relax.Expr | None,
    right: relax.Expr,
    right_zero: relax.Expr | None,
) -> relax.Expr:
    """The product of matrices, less their zero points, in int32."""
    weights = _whole_weights(right, right_zero, -1)
    if weights is None or weights.ndim != 2:
        left, right = _centred(node, left, left_zero), _centred(node, right, right_zero)
        return node.emit(relax.op.matmul(left, right))
    rows = node.emit(relax.op.astype(_centred(node, left, left_zero), "float32"))
    depth = len(weights)
    most = _FARTHEST * np.abs(weights).sum(axis=0, dtype="int64").max(initial=0)
    count = max(-(-int(most) // _EXACT), 1)
    while any(
        _FARTHEST * np.abs(part).sum(axis=0, dtype="int64").max(initial=0) > _EXACT
        for part in np.array_split(weights, count)
    ):
        count += 1
    total, start = None, 0
    for part in np.array_split(weights, count):
        some, end = rows, start + len(part)
        if len(part) < depth:
            some = node.emit(relax.op.strided_slice(rows, [len(_shape(rows)) - 1], [start], [end]))
        constant = relax.const(part.astype("float32"))
        made = node.emit(relax.op.matmul(some, constant))
        made = node.emit(relax.op.astype(made, "int32"))
        total = made if total is None else node.emit(relax.op.add(total, made))
        start = end
    return total


def _convolved_sums(
    node: Node,
    data: relax.Expr,
    data_zero: relax.Expr | None,
    weights: relax.Expr,
    weight_zero: relax.Expr | None,
) -> relax.Expr:
    """A convolution of integers, less their zero points, in int32."""
    centred = _centred(node, data, data_zero)
    whole = _whole_weights(weights, weight_zero, 0)
    if whole is not None:
        sums = np.abs(whole.reshape(len(whole), -1)).sum(axis=1, dtype="int64")
        if _FARTHEST * sums.max(initial=0) <= _EXACT:
            image = node.emit(relax.op.astype(centred, "float32"))
            made = _convolved(node, image, relax.const(whole.astype("float32")), "float32")
            return node.emit(relax.op.astype(made, "int32"))
    rank = len(_shape(weights))
    return _convolved(node, centred, _centred(node, weights, _along(node, weight_zero, 0, rank)))


def _real(
    node: Node, data: relax.Expr, scale: relax.Expr, zero: relax.Expr | None = None
) -> relax.Expr:
    real = node.emit(relax.op.astype(_centred(node, data, zero), "float32"))
    return node.emit(relax.op.multiply(real, scale))


def _requantised(
    node: Node,
    summed: relax.Expr,
    scales: Sequence[relax.Expr],
    scale: relax.Expr,
    zero: relax.Expr,
) -> relax.Expr:
    factor = node.emit(relax.op.divide(node.emit(relax.op.multiply(*scales)), scale))
    real = relax.op.multiply(node.emit(relax.op.astype(summed, "float32")), factor)
    return _saturated(node, node.emit(real), zero)


def _quantised(
    node: Node, real: relax.Expr, scale: relax.Expr, zero: relax.Expr | None
) -> relax.Expr:
    divided = node.emit(relax.op.divide(real, scale))
    return _saturated(node, divided, relax.const(np.uint8(0)) if zero is None else zero)


def _saturated(node: Node, real: relax.Expr, zero: relax.Expr) -> relax.Expr:
    """Rounded half to even, moved by the zero point, and cut off at the type's ends."""
    dtype = str(zero.ty.dtype)
    info = np.iinfo(dtype)
    whole = node.emit(relax.op.round(real))
    moved = node.emit(relax.op.add(whole, node.emit(relax.op.astype(zero, "float32"))))
    cut = node.emit(relax.op.clip(moved, float(info.min), float(info.max)))
    return relax.op.astype(node.emit(relax.op.astype(cut, "int32")), dtype)


def _convolved(
    node: Node, data: relax.Expr, weights: relax.Expr, dtype: str = "int32"
) -> relax.Expr:
    """A convolution of one to three dimensions, whose sums are of a type."""
    rank = len(_shape(data)) - 2
    strides, dilations, pads = _window(node.attributes, _shape(data)[2:], _shape(weights)[2:])
    operator = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}[rank]
    made = operator(
        data,
        weights,
        strides=strides,
        padding=pads,
        dilation=dilations,
        groups=node.attributes.get("group", 1),
        out_dtype=dtype,
    )
    return node.emit(made)


def _window(
    attributes: dict[str, Any], sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and pads (all before, then all behind) of a window on these sizes."""
    rank = len(sizes)
    strides, dilations = (
        list(attributes.get(name, [1] * rank)) for name in ("strides", "dilations")
    )
    pads = list(attributes.get("pads", [0] * 2 * rank))
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    if auto.startswith("SAME"):
        for axis, size in enumerate(sizes):
            covered = (kernel[axis] - 1) * dilations[axis] + 1
            out = -(-size // strides[axis])
            total = max((out - 1) * strides[axis] + covered - size, 0)
            small, large = total // 2, total - total // 2
            first, last = (small, large) if auto == "SAME_UPPER" else (large, small)
            pads[axis], pads[rank + axis] = first, last
    return strides, dilations, pads
