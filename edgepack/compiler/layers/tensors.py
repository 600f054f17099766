"""Relax tensors as layers see them: images with channels, and constants."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import tvm
from tvm import relax


def shape_of(value: relax.Expr) -> tuple[int, ...]:
    """The static shape of a tensor; () for what is no tensor or not static."""
    return _shape_of_variable(value) if isinstance(value, relax.Var) else shape_of_type(value.ty)


@lru_cache(maxsize=1 << 14)
def _shape_of_variable(value: relax.Var) -> tuple[int, ...]:
    """The same: one variable is asked for a hundred times, and each time takes 40 us."""
    return shape_of_type(value.ty)


def shape_of_type(ty: relax.Type) -> tuple[int, ...]:
    """`shape_of` for a type."""
    # Its items one by one would be five times as slow.
    dims = tuple(getattr(getattr(ty, "shape", None), "values", ()))
    if not all(isinstance(dim, tvm.tirx.IntImm) for dim in dims):
        return ()
    return tuple(int(dim.value) for dim in dims)


def is_image(value: relax.Expr) -> bool:
    """Whether layers can read and write a tensor: float32 and not empty; (N, C, H, W), a sequence
    (N, C, L), or (N, C)."""
    shape = shape_of(value)
    return len(shape) in (2, 3, 4) and str(value.ty.dtype) == "float32" and math.prod(shape) > 0


def extent(value: relax.Expr) -> tuple[int, int, int, int]:
    """(N, C, H, W) of an image. A sequence is one row of pixels, in memory as well.

    A matrix (N, C) is an image (1, C, 1, N): its rows are pixels. So a matrix product is tiled over
    rows too, and reads its weights once for several rows.
    """
    shape = shape_of(value)
    if len(shape) == 2:
        return 1, shape[1], 1, shape[0]
    n, c, *rows, w = shape
    return n, c, rows[0] if rows else 1, w


def same_bytes(one: relax.Expr, other: relax.Expr) -> bool:
    """Whether two images of equal extent lie in memory in the same way.

    The rows of a matrix are its pixels, the rows of any other image its channels.
    """
    is_matrix = [len(shape_of(value)) == 2 for value in (one, other)]
    return extent(one) == extent(other) and (
        is_matrix[0] == is_matrix[1] or extent(one)[2:] == (1, 1)
    )


def constant_of(expr: relax.Expr) -> np.ndarray | None:
    """The value of a constant, None for another expression."""
    return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None


def variables(expr: relax.Expr) -> list[relax.Var]:
    """The variables an expression reads, in order."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Tuple):
        return [var for item in expr.fields for var in variables(item)]
    if isinstance(expr, relax.TupleGetItem):
        return variables(expr.tuple_value)
    if isinstance(expr, relax.Call):
        return [var for arg in expr.args for var in variables(arg)]
    return []
