"""Relax tensors as layers see them: images with channels, and constants."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import tvm
from tvm import relax

from edgepack.frontend.origin import origin_of
from edgepack.kernels.value import Origin, Value, extent_of


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


def dtype_of(value: relax.Expr) -> str:
    """The type of a tensor's elements; "" for what is no tensor."""
    return str(getattr(value.ty, "dtype", "") or "")


def is_image(value: relax.Expr) -> bool:
    """`value.is_image` for a tensor of Relax."""
    shape = shape_of(value)
    return len(shape) in (2, 3, 4) and dtype_of(value) == "float32" and math.prod(shape) > 0


def extent(value: relax.Expr) -> tuple[int, int, int, int]:
    """(N, C, H, W) of an image; see `value.extent_of`."""
    return extent_of(shape_of(value))


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


def readers_of(
    bindings: Iterable[tuple[relax.Var, relax.Expr]],
) -> defaultdict[relax.Var, list[relax.Var]]:
    """Who reads each variable, as often as it does."""
    readers = defaultdict[relax.Var, list[relax.Var]](list)
    for var, value in bindings:
        for read in variables(value):
            readers[read].append(var)
    return readers


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


class ValueTable:
    """The values that stand for a function's variables, and what those are bound to."""

    def __init__(self) -> None:
        self._of: dict[relax.Var, Value] = {}
        self.expressions: dict[Value, relax.Expr] = {}

    def of(self, var: relax.Var) -> Value:
        """The value of a variable; one that nothing was bound to is given to the function."""
        if var not in self._of:
            self._of[var] = _value(var)
        return self._of[var]

    def bind(self, var: relax.Var, expr: relax.Expr) -> Value:
        """The value of a variable that is bound to an expression."""
        if var not in self._of:
            self._of[var] = _value(var, origin_of(expr))
        self.expressions[self._of[var]] = expr
        return self._of[var]


def _value(var: relax.Var, origin: Origin | None = None) -> Value:
    return Value(name=var.name, shape=shape_of(var), dtype=dtype_of(var), origin=origin)
