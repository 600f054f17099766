"""Of which tensor's memory a value of Relax is a view, through the operators that move nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import relax

from edgepack.compiler.layers.tensors import constant_of, shape_of
from edgepack.kernels.places import Places, View, broadcast, places, reshape_view, transpose_view


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A way to have a value: as `views`, the latest one first, of the variable `value`, times
    `factor`."""

    value: relax.Var
    views: tuple[View, ...] = ()
    factor: float = 1.0

    def places(self, *before: View, behind: Sequence[View] = ()) -> Places | None:
        """Where its elements lie; None if it is no view.

        `before` are views of the variable that the first of its own is of, `behind` those of the
        last one.
        """
        return places(shape_of(self.value), [*before, *reversed(self.views), *behind])


def sources(value: relax.Expr, made: Mapping[relax.Var, relax.Expr]) -> list[Source]:
    """All ways to have a value, itself first; `made` has the expressions of variables."""
    if not isinstance(value, relax.Var):
        return []
    found = [Source(value=value)]
    while (step := _step(found[-1].value, made.get(found[-1].value))) is not None:
        data, view, factor = step
        last = found[-1]
        views = last.views if view is None else (*last.views, view)
        found.append(Source(value=data, views=views, factor=last.factor * factor))
    return found


def _step(var: relax.Var, call: relax.Expr | None) -> tuple[relax.Var, View | None, float] | None:
    """What a variable, which is the result of a call, is a view or a multiple of."""
    if not isinstance(call, relax.Call) or not hasattr(call.op, "name"):
        return None
    name, data = call.op.name.removeprefix("relax."), call.args[0] if call.args else None
    multiple = factor_of(call)
    if multiple is not None:
        return multiple[0], None, multiple[1]
    shape = shape_of(var)
    if not isinstance(data, relax.Var) or not shape_of(data) or not shape:
        return None
    view = None
    if name in ("reshape", "expand_dims", "squeeze"):
        view = reshape_view(shape)
    elif name == "broadcast_to":
        view = broadcast(shape)
    elif name == "permute_dims":
        rank = len(shape)
        view = transpose_view([int(axis) for axis in call.attrs.axes or reversed(range(rank))])
    elif name == "take":
        view = _taken(call)
    elif name == "strided_slice":
        view = _sliced(call)
    return None if view is None else (data, view, 1.0)


def factor_of(call: relax.Expr | None) -> tuple[relax.Var, float] | None:
    """The variable that a call multiplies by a number, and that number, which is not 0."""
    name = getattr(getattr(call, "op", None), "name", "").removeprefix("relax.")
    if call is None or name not in ("multiply", "divide"):
        return None
    left, right = call.args
    if name == "multiply" and constant_of(left) is not None:
        left, right = right, left
    number = constant_of(right)
    if not isinstance(left, relax.Var) or number is None or number.size != 1:
        return None
    value = float(number.reshape(()))
    if number.dtype != "float32" or number.ndim > len(shape_of(left)) or not value:
        return None
    return left, value if name == "multiply" else 1 / value


def _taken(call: relax.Call) -> View | None:
    """The elements at one index of an axis."""
    index, data = constant_of(call.args[1]), call.args[0]
    if index is None or index.ndim or call.attrs.axis is None:
        return None
    axis, at = int(call.attrs.axis) % len(shape_of(data)), int(index)
    if not -shape_of(data)[axis] <= at < shape_of(data)[axis]:
        return None
    return lambda tensor: tensor[(slice(None),) * axis + (at,)]


def _sliced(call: relax.Call) -> View | None:
    """Elements from one index to another."""
    data = shape_of(call.args[0])
    try:
        axes, begin, end = ([int(item) for item in argument] for argument in call.args[1:4])
        steps = [int(item) for item in call.args[4]] if len(call.args) > 4 else [1] * len(axes)
    except (TypeError, ValueError):
        return None
    if any(step != 1 for step in steps):
        return None
    parts = [slice(None)] * len(data)
    for axis, first, behind in zip(axes, begin, end, strict=True):
        parts[axis] = slice(first, behind)
    return lambda tensor: tensor[tuple(parts)]
