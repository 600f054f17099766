"""Operators that are converted to Relax here, because TVM's conversion loses something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, tirx

from edgepack.compiler.errors import UnsupportedFormError
from edgepack.compiler.frontend.resizing import Emit, resized
from edgepack.compiler.kernels import sorting


@dataclass(frozen=True, kw_only=True)
class Node:
    """An ONNX node to convert, whose inputs are Relax expressions already, None where left out.

    `by_tvm` is TVM's conversion for other inputs of the same node, `emit` binds an expression to a
    variable. `call` calls a kernel: its name, function, inputs, and its results' shapes and
    types.
    """

    inputs: Sequence[Any]
    attributes: dict[str, Any]
    opset: int
    by_tvm: Callable[[list[relax.Expr | None]], relax.Expr]
    emit: Emit
    call: Callable[
        [str, tirx.PrimFunc, Sequence[relax.Expr], Sequence[tuple[Sequence[int], str]]],
        list[relax.Expr],
    ]


# The integer type that a float becomes first. Narrower types take its low bits: what is out of
# their range wraps around.
_BY_WAY_OF = {
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "int32": "int32",
    "uint32": "int64",
    "int64": "int64",
}


def is_static(ty: relax.TensorType) -> bool:
    """Whether all extents of a tensor are numbers."""
    return ty.shape is not None and all(isinstance(dim, tvm.tirx.IntImm) for dim in ty.shape)


def cast(node: Node) -> relax.Expr | None:
    """A cast of floats to integers, None for any other.

    TVM would put a dozen operations around it that give meaning to NaN, infinity and what is out
    of range. ONNX gives them none.
    """
    data, to = node.inputs[0], node.attributes["to"]
    is_tensor = isinstance(getattr(data, "ty", None), relax.TensorType)
    floats = is_tensor and not isinstance(data, tvm.ir.GenericConst)
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(to))
    if not floats or "float" not in str(data.ty.dtype) or dtype not in _BY_WAY_OF:
        return None
    way = _BY_WAY_OF[dtype]
    made = relax.op.astype(data, way)
    return made if way == dtype else relax.op.astype(made, dtype)


def is_inf(node: Node) -> relax.Expr | None:
    """IsInf of one sign or none, which TVM converts as if it were of both; None for both."""
    data = node.inputs[0]
    infinity = {"detect_positive": np.inf, "detect_negative": -np.inf}
    signs = [value for name, value in infinity.items() if node.attributes.get(name, 1)]
    if len(signs) == 2:
        return None
    # Nothing is equal to NaN.
    return relax.op.equal(data, relax.const(signs[0] if signs else np.nan, str(data.ty.dtype)))


def lp_normalization(node: Node) -> relax.Expr:
    """Each element over the 1-norm or the 2-norm of its row along `axis`; rows of zeros stay zeros.

    ONNX defines it by a norm that may be zero; onnxruntime gives zeros then.
    """
    (data,) = node.inputs
    axis, order = node.attributes.get("axis", -1), node.attributes.get("p", 2)
    terms = relax.op.abs(data) if order == 1 else relax.op.multiply(data, data)
    norm = relax.op.sum(terms, axis, keepdims=True)
    norm = norm if order == 1 else relax.op.sqrt(norm)
    dtype = str(data.ty.dtype)
    least = relax.const(np.finfo(dtype).tiny, dtype)
    return relax.op.divide(data, relax.op.maximum(norm, least))


# ONNX's modes of Pad by TVM's names.
_PADDINGS = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


def pad(node: Node) -> relax.Expr | None:
    """Borders around images as one operator, None for any other padding.

    TVM would make loops of it at once, in which the borders cannot be recognised.
    """
    mode = node.attributes.get("mode", b"constant").decode()
    data, pads, value, axes = (*node.inputs, None, None)[:4]
    if node.opset < 11:
        return None
    known = [item for item in (pads, value, axes) if item is not None]
    if mode not in _PADDINGS or not all(isinstance(item, tvm.ir.GenericConst) for item in known):
        return None
    if not isinstance(data.ty, relax.TensorType) or data.ty.ndim != 4 or not is_static(data.ty):
        return None
    widths = np.zeros((2, 4), "int64")
    chosen = list(range(4)) if axes is None else [int(axis) % 4 for axis in axes.value.numpy()]
    widths[:, chosen] = pads.value.numpy().reshape(2, -1)
    most = min(int(size) for size in list(data.ty.shape)[2:])
    # Mirrored images of mirrored images, and borders cut off, are left to TVM.
    if widths[:, :2].any() or widths.min() < 0 or (mode == "reflect" and widths.max() >= most):
        return None
    number = 0.0 if value is None else float(value.value.numpy().reshape(-1)[0])
    return relax.op.nn.pad(data, widths.T.reshape(-1).tolist(), _PADDINGS[mode], number)


def resize(node: Node) -> relax.Expr | None:
    """Resizes as those of images; None for the form before opset 11.

    Raises UnsupportedFormError as `resized` does.
    """
    if node.opset < 11:
        return None
    mode = node.attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    return resized(node.inputs, mode, node.by_tvm, node.emit)


def top_k(node: Node) -> relax.Expr:
    """The k largest or smallest elements along an axis and where they are, by a kernel.

    `sorted=0` leaves the order open; they are sorted all the same. Raises UnsupportedFormError for
    a k that is no constant.
    """
    data, given = (*node.inputs, None)[:2]
    attributes = node.attributes
    shape, dtype = [int(dim) for dim in data.ty.shape], str(data.ty.dtype)
    axis = attributes.get("axis", -1) % len(shape)
    if given is not None and not isinstance(given, tvm.ir.GenericConst):
        raise UnsupportedFormError("a number of elements that is no constant")
    count = attributes["k"] if given is None else int(given.value.numpy().reshape(-1)[0])
    outer, size, inner = (
        int(np.prod(part)) for part in (shape[:axis], shape[axis], shape[axis + 1 :])
    )
    plain = node.emit(relax.op.reshape(data, [outer, size, inner]))
    kernel = sorting.top(
        (outer, size, inner), dtype, count, largest=bool(attributes.get("largest", 1))
    )
    made = (outer, count, inner)
    values, positions, _ = node.call(
        "top_k", kernel, [plain], [(made, dtype), (made, "int64"), ((2, size), "int32")]
    )
    shape[axis] = count
    return relax.Tuple([node.emit(relax.op.reshape(part, shape)) for part in (values, positions)])
