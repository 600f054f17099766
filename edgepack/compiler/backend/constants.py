"""The least and the largest element of constants that may be positions: tables of whole numbers."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from edgepack.compiler.backend.inside import Numbers

# What positions are stored in. Weights have narrower types, whose own bounds are known.
_TYPES = ("int32", "int64")


def bounds_of(data: np.ndarray) -> tuple[int, int] | None:
    """Those of a constant; None for one of other numbers, or without elements."""
    if str(data.dtype) not in _TYPES or not data.size:
        return None
    return int(data.min()), int(data.max())


def of_calls(module: tvm.IRModule) -> dict[str, Numbers]:
    """For each function of a lowered module, the bounds of arguments that are constants in every
    call."""
    found: dict[str, dict[int, tuple[int, int] | None]] = {}

    def call(item: relax.Call) -> None:
        if not isinstance(item.op, tvm.ir.Op) or item.op.name != "relax.call_tir":
            return
        given = {i: _bounds(arg) for i, arg in enumerate(item.args[1])}
        name = item.args[0].name_hint
        before = found.setdefault(name, given)
        found[name] = {i: join_bounds(before[i], given[i]) for i in given}

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            tvm_ffi.structural_walk(function, (relax.Call, call))
    return {
        name: {i: bounds for i, bounds in given.items() if bounds is not None}
        for name, given in found.items()
    }


def join_bounds(
    one: tuple[int, int] | None, other: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Bounds of both; None if one of them has none."""
    if one is None or other is None:
        return None
    return min(one[0], other[0]), max(one[1], other[1])


def _bounds(item: relax.Expr) -> tuple[int, int] | None:
    if not isinstance(item, tvm.ir.GenericConst) or str(item.ty.dtype) not in _TYPES:
        return None
    return bounds_of(item.value.numpy())
