"""Matrices of weights that are integers of 8 bits or less, with a scale for each block of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    if str(numbers.dtype) not in _MOST or steps.dtype != np.float32:
        return None
    shapes = [item.shape for item in (steps, zeros) if item is not None]
    if not _are_of_blocks(numbers.shape, shapes, block, axis):
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
    if values.data_type not in _EIGHT_BITS or scale.data_type != onnx.TensorProto.FLOAT:
        return False
    if any(zeros.data_type != values.data_type for zeros in known[2:]):
        return False
    block, axis = attribute(node, "block_size", 0), attribute(node, "axis", 1)
    return _are_of_blocks(values.dims, [item.dims for item in known[1:]], block, axis)


def _are_of_blocks(
    matrix: Sequence[int], per_block: Sequence[Sequence[int]], block: int, axis: int
) -> bool:
    """Whether shapes are those of a value for each block of a matrix along an axis. Others are left
    to who refuses them: kernels read as many as there are blocks."""
    if len(matrix) != 2 or block < 1 or not -2 <= axis < 2:
        return False
    wanted = [-(-size // block) if at == axis % 2 else size for at, size in enumerate(matrix)]
    return all(list(shape) == wanted for shape in per_block)


def _array(expr: Any) -> np.ndarray | None:
    return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None
