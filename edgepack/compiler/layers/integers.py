"""Operators on integers as Relax has them: calls of a function that no pass looks into."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from edgepack.compiler.layers.tensors import constant_of, packed_name, shape_of
from edgepack.kernels.integer import FromIntegers, IntegerOperator

_NAME = "edgepack.integers"


def integer_call(operator: IntegerOperator, inputs: Sequence[relax.Expr]) -> relax.Call:
    """An operator of some variables."""
    text, arrays = operator.parts()
    parts = [np.frombuffer(text.encode(), "uint8"), *arrays]
    shape = operator.shape([shape_of(value) for value in inputs])
    dtype = "float32" if isinstance(operator, FromIntegers) else "int8"
    return relax.call_dps_packed(
        _NAME, [*inputs, *map(relax.const, parts)], relax.TensorType(list(shape), dtype)
    )


def integer_operator(expr: relax.Expr) -> tuple[IntegerOperator, list[relax.Var]] | None:
    """The operator of such a call, and its inputs; None for any other expression."""
    if packed_name(expr) != _NAME:
        return None
    inputs = [item for item in expr.args[1] if isinstance(item, relax.Var)]
    text, *arrays = (constant_of(item) for item in list(expr.args[1])[len(inputs) :])
    assert text is not None
    values = [array for array in arrays if array is not None]
    return IntegerOperator.of_parts(text.tobytes().decode(), values), inputs
