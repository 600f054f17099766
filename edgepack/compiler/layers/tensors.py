"""Relax tensors as layers see them: images with channels, and constants."""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax


def shape_of(value: relax.Expr) -> tuple[int, ...]:
    """The static shape of a tensor; () for what is no tensor or not static."""
    return shape_of_type(value.ty)


def shape_of_type(ty: relax.Type) -> tuple[int, ...]:
    """`shape_of` for a type."""
    dims = getattr(ty, "shape", None)
    if dims is None or not all(isinstance(dim, int | tvm.tirx.IntImm) for dim in dims):
        return ()
    return tuple(int(dim) for dim in dims)


def is_image(value: relax.Expr) -> bool:
    """Whether layers can read and write a tensor: float32 (N, C, H, W) or (N, C), not empty."""
    shape = shape_of(value)
    return len(shape) in (2, 4) and str(value.ty.dtype) == "float32" and math.prod(shape) > 0


def extent(value: relax.Expr) -> tuple[int, int, int, int]:
    """(N, C, H, W) of an image. A matrix (N, C) is an image (1, C, 1, N): its rows are pixels.

    So a matrix product is tiled over rows too, and reads its weights once for several rows.
    """
    shape = shape_of(value)
    n, c, h, w = shape if len(shape) == 4 else (1, shape[1], 1, shape[0])
    return n, c, h, w


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
