"""Matrices of weights that are integers of 8 bits or less, with a scale for each block of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import tvm

from edgepack.frontend.forms import attribute
from edgepack.kernels.layer import BlockQuantized

_EIGHT_BITS = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
_FEWEST, _MOST = {"int8": -8, "uint8": 0}, {"int8": 7, "uint8": 15}


def matrix_in_blocks(
    values: Any, scale: Any, zero_point: Any, block: int, axis: int
) -> BlockQuantized | None:
    """The constant matrix of a DequantizeLinear by blocks, of 4 bits where its integers have no
    more; None for anything else. Zero points that all are in the middle of unsigned integers are
    none: the integers are signed then.
    """
    given = [None if item is None else _array(item) for item in (values, scale, zero_point)]
    numbers, steps, zeros = given
    if numbers is None or steps is None or (zero_point is not None and zeros is None):
        return None
    if numbers.ndim != 2 or str(numbers.dtype) not in _MOST or steps.dtype != np.float32:
        return None
    low, high = numbers.min(initial=0), numbers.max(initial=0)
    if zeros is not None:
        low, high = min(low, zeros.min()), max(high, zeros.max())
    kind = str(numbers.dtype)
    bits = 4 if _FEWEST[kind] <= low and high <= _MOST[kind] else 8
    middle = 1 << (bits - 1)
    if kind == "uint8" and zeros is not None and (zeros == middle).all():
        numbers, zeros = (numbers.astype("int16") - middle).astype("int8"), None
    elif zeros is not None and not zeros.any():
        zeros = None
    return BlockQuantized(
        values=numbers, scale=steps, zero_point=zeros, block=block, axis=axis, bits=bits
    )


def is_matrix_in_blocks(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a node is such a DequantizeLinear, to float32."""
    if node.op_type != "DequantizeLinear" or not attribute(node, "block_size", 0):
        return False
    given = [constants.get(name) for name in node.input if name]
    known = [tensor for tensor in given if tensor is not None]
    if len(known) < len(given) or len(known) < 2:
        return False
    values, scale = known[:2]
    return (
        values.data_type in _EIGHT_BITS
        and len(values.dims) == len(scale.dims) == 2
        and scale.data_type == onnx.TensorProto.FLOAT
    )


def _array(expr: Any) -> np.ndarray | None:
    return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None
