"""Inputs that are given a value for good: they become constants of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from edgepack.base.errors import perhaps
from edgepack.model.errors import InputValueError
from edgepack.model.index import GraphIndex

# A number or truth value for all of an input, or its values in order.
Constant: TypeAlias = bool | int | float | tuple[bool | int | float, ...]


def set_inputs(path: Path, graph: Any, values: Mapping[str, Constant]) -> None:
    """Make weights of the inputs that `values` names, which are no inputs any more.

    One value fills an input of any fixed shape; several must be as many as it has elements. A
    dimension without a value is 1, or, if it is the only dimension, as many as there are values.
    Raises `InputValueError`.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    inputs = GraphIndex(graph).inputs
    for name, given in values.items():
        if name not in inputs:
            raise InputValueError(
                f"{path}: value given for '{name}', which is not an input",
                hint=perhaps(name, inputs),
            )
        kind = inputs[name].type.tensor_type
        many = tuple(given) if isinstance(given, Sequence) else (given,)
        dims = [dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim]
        sizes = [len(many)] if dims == [None] else [dim or 1 for dim in dims]
        count = int(np.prod(sizes))
        if len(many) not in (1, count):
            raise InputValueError(
                f"{path}: {len(many)} values given for input '{name}', which has {count}"
            )
        try:
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            array = np.array(many)
            if dtype.kind not in "biuf" or (array.dtype.kind, dtype.kind) in _LOSES:
                raise ValueError(dtype)
            if dtype.kind in "iu" and array.size:
                limits = np.iinfo(dtype)
                if array.min() < limits.min or array.max() > limits.max:
                    raise ValueError(dtype)
            array = array.astype(dtype)
        except (KeyError, ValueError, OverflowError):
            from edgepack.model import dtype_name

            raise InputValueError(
                f"{path}: {_text(given)} given for input '{name}', "
                f"which is {dtype_name(kind.elem_type)}"
            ) from None
        made = np.full(sizes, array[0]) if len(many) == 1 else array
        graph.initializer.append(numpy_helper.from_array(made.reshape(sizes), name))
    kept = [value for value in graph.input if value.name not in values]
    del graph.input[:]
    graph.input.extend(kept)


# What numpy would change without a word: numbers into truth values, fractions into whole numbers.
_LOSES = {("f", "i"), ("f", "u"), ("f", "b"), ("i", "b"), ("b", "f"), ("b", "i"), ("b", "u")}


def _text(value: Constant) -> str:
    values = value if isinstance(value, tuple) else (value,)
    return ",".join(str(item).lower() if isinstance(item, bool) else str(item) for item in values)
