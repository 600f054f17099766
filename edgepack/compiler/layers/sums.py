"""Integers whose scale is known only when the model runs, and sums of their products, as Relax has
them: calls of functions that no pass looks into.

    DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul -> Add

is a range, integers of it, and a sum with what follows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from edgepack.compiler.layers.tensors import constant_of, packed_name, shape_of

_SUMS = "edgepack.sums"
_RANGE = "edgepack.range"
_INTEGERS = "edgepack.quantize"
# What only rules can make.
NAMES = frozenset({_SUMS, _RANGE, _INTEGERS})


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """Sums of the products of integers and constant weights, as int32.

    `data` is int8 or uint8: (N, C, H, W), (N, C, L), or rows of any number of axes, whose window is
    one point. Its zero point, which lies around images as well, is `zero`: a number, or a variable
    of one element of the data's type. `weight` is int8 [out channels, in channels / groups, rows,
    columns]; its zero point is 0, or `weight_zero` (int32 [out channels]). Pairs are (vertical,
    horizontal).
    """

    data: relax.Var
    zero: relax.Var | int
    weight: np.ndarray
    in_rows: bool
    stride: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    weight_zero: np.ndarray | None = None


def sums_call(sums: Sums, shape: tuple[int, ...]) -> relax.Call:
    """The call whose result has that shape."""
    zero = sums.zero if isinstance(sums.zero, int) else 0
    numbers = (*sums.stride, *sums.before, *sums.dilation, sums.groups, zero, int(sums.in_rows))
    given = [sums.data] if isinstance(sums.zero, int) else [sums.data, sums.zero]
    arrays = [np.array(numbers, "int32"), sums.weight]
    if sums.weight_zero is not None:
        arrays.append(sums.weight_zero.astype("int32"))
    parts = [relax.const(array) for array in arrays]
    return relax.call_dps_packed(_SUMS, [*given, *parts], relax.TensorType(list(shape), "int32"))


def sums_of(expr: relax.Expr) -> Sums | None:
    """What such a call stands for; None for any other expression."""
    if not _is(expr, _SUMS):
        return None
    given = [item for item in expr.args[1] if isinstance(item, relax.Var)]
    arrays = [constant_of(item) for item in list(expr.args[1])[len(given) :]]
    numbers, values, weight_zero = (*arrays, None)[:3]
    assert numbers is not None
    assert values is not None
    top, beside, above, left, down, along, groups, zero, in_rows = map(int, numbers)
    return Sums(
        data=given[0],
        zero=given[1] if len(given) > 1 else zero,
        weight=values,
        in_rows=bool(in_rows),
        stride=(top, beside),
        before=(above, left),
        dilation=(down, along),
        groups=groups,
        weight_zero=weight_zero,
    )


def range_call(data: relax.Var) -> relax.Call:
    """(scale, zero point) as float32 of what spreads a tensor, and 0, over 0 to 255."""
    return relax.call_dps_packed(_RANGE, [data], relax.TensorType([2], "float32"))


def integers_call(data: relax.Var, steps: relax.Var) -> relax.Call:
    """A tensor as uint8, by what `range_call` made."""
    ty = relax.TensorType(list(shape_of(data)), "uint8")
    return relax.call_dps_packed(_INTEGERS, [data, steps], ty)


def is_range(expr: relax.Expr) -> bool:
    """Whether it is a `range_call`."""
    return _is(expr, _RANGE)


def is_integers(expr: relax.Expr) -> bool:
    """Whether it is an `integers_call`."""
    return _is(expr, _INTEGERS)


def _is(expr: relax.Expr, name: str) -> bool:
    return packed_name(expr) == name
