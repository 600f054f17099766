"""What onnxruntime's dynamic quantisation writes, by ONNX's operators and its own float ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgepack.frontend.forms import attribute

_Shapes = Mapping[str, tuple[int, ...]]
_FLOAT, _INT32 = 1, 6  # onnx.TensorProto's
# onnxruntime's defaults
_MASKED = -10000.0


def dynamic_matmul(line: Any, _: _Shapes) -> bool:
    """DynamicQuantizeMatMul: rounded by the range of its input, and multiplied as integers."""
    if line.opset < _DYNAMIC:
        return False
    whole, step, zero = line.several("DynamicQuantizeLinear", 3, line.input(0))
    product = line.op("MatMulInteger", whole, line.input(1), zero, *optional_input(line, 3))
    _scaled(line, product, line.op("Mul", step, line.input(2)), line.input(4))
    return True


_DYNAMIC = 11  # the opset of DynamicQuantizeLinear


def matmul_to_float(line: Any, _: _Shapes) -> bool:
    """MatMulIntegerToFloat."""
    zeros = [line.input(4), line.input(5)] if line.input(5) else optional_input(line, 4)
    product = line.op("MatMulInteger", line.input(0), line.input(1), *zeros)
    _scaled(line, product, line.op("Mul", line.input(2), line.input(3)), line.input(6))
    return True


def optional_input(line: Any, position: int) -> list[str]:
    """An input, if it is not left out."""
    return [line.input(position)] if line.input(position) else []


def _scaled(line: Any, product: str, step: str, bias: str) -> None:
    real = line.op("Cast", product, kind=_FLOAT)
    made = line.op("Mul", real, step, to="" if bias else line.output(0))
    if bias:
        line.op("Add", made, bias, to=line.output(0))


def _real(line: Any, whole: str, scale: str, zero: str) -> str:
    """Integers as the floats they stand for: a scale for all, or for each of the last axis."""
    made = line.op("Cast", whole, kind=_FLOAT)
    if zero:
        made = line.op("Sub", made, line.op("Cast", zero, kind=_FLOAT))
    return str(line.op("Mul", made, scale))


def attention(line: Any, shapes: _Shapes) -> bool:
    """QAttention: attention of one input in floats, whose products were rounded before."""
    node = line.node
    shape, heads = shapes.get(line.input(0), ()), attribute(node, "num_heads", 0)
    weights = line.shape_of(line.input(1), shapes)
    if line.input(8) or line.output(1) or attribute(node, "do_rotary", 0):
        return False
    if len(shape) != 3 or len(weights) != 2 or not heads or weights[1] % (3 * heads):
        return False
    data = _real(line, line.input(0), line.input(3), line.input(6))
    matrix = _real(line, line.input(1), line.input(4), line.input(7))
    batch, length, _ = shape
    size = weights[1] // (3 * heads)
    all_three = line.op("Add", line.op("MatMul", data, matrix), line.input(2))
    parts = line.constant([batch, length, 3, heads, size], "int64")
    turned = line.op("Transpose", line.op("Reshape", all_three, parts), perm=[2, 0, 3, 1, 4])
    alone = line.constant([batch, heads, length, size], "int64")
    query, key, value = (
        line.op("Reshape", line.op("Gather", turned, line.constant([i], "int64"), axis=0), alone)
        for i in range(3)
    )
    scores = line.op("MatMul", query, line.op("Transpose", key, perm=[0, 1, 3, 2]))
    factor = attribute(node, "scale", 0.0) or 1 / math.sqrt(size)
    scores = line.op("Mul", scores, line.constant(factor, "float32"))
    masked = attribute(node, "mask_filter_value", _MASKED)
    mask = _mask(line, shapes, batch, length, masked)
    if mask is None:
        return False
    for item in mask:
        scores = line.op("Add", scores, item)
    made = line.op("MatMul", line.op("Softmax", scores, axis=3), value)
    rows = line.constant([batch, length, heads * size], "int64")
    line.op("Reshape", line.op("Transpose", made, perm=[0, 2, 1, 3]), rows, to=line.output(0))
    return True


def _mask(line: Any, shapes: _Shapes, batch: int, length: int, masked: float) -> list[str] | None:
    """What is added to the scores; None for a mask of another form."""
    import numpy as np

    made = []
    if attribute(line.node, "unidirectional", 0):
        later = np.triu(np.full((length, length), masked, "float32"), 1)
        made.append(line.constant(later))
    name = line.input(5)
    if not name:
        return made
    shape = line.shape_of(name, shapes)
    if shape == (batch,):
        ends = line.op("Reshape", name, line.constant([batch, 1], "int64"))
        places = line.constant(np.arange(length, dtype="int32"))
        kept = line.op("Cast", line.op("Less", places, ends), kind=_FLOAT)
    elif shape == (batch, length):
        kept = line.op("Cast", name, kind=_FLOAT)
    else:
        return None
    away = line.op("Sub", line.constant(1.0, "float32"), kept)
    away = line.op("Mul", away, line.constant(masked, "float32"))
    made.append(line.op("Reshape", away, line.constant([batch, 1, 1, length], "int64")))
    return made


def float_embedding(line: Any, _: _Shapes) -> bool:
    """QEmbedLayerNormalization: the float operator of tables that are floats again."""
    tables = []
    for position in range(5):
        whole, scale, zero = (line.input(position + at) for at in (2, 8, 13))
        tables.append(_real(line, whole, scale, zero) if whole else "")
    mask = optional_input(line, 7)
    epsilon = attribute(line.node, "epsilon", 1e-12)
    line.several(
        "EmbedLayerNormalization",
        len(line.node.output),
        line.input(0),
        line.input(1),
        *tables,
        *mask,
        to=list(line.node.output),
        domain="com.microsoft",
        epsilon=epsilon,
    )
    return True
