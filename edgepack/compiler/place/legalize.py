"""How Relax operators become loops where TVM's way loses something."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import tvm
from tvm import relax, te, tirx, topi

from edgepack.kernels.tiles import tir

Legalize: TypeAlias = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _pad(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Reflected borders as choices, which `schedule.pieces` knows, not as absolute values."""
    if call.attrs.pad_mode != "reflect":
        return call.op.get_attr("FLegalize")(builder, call)
    before, after = (list(call.attrs.pad_width)[i::2] for i in (0, 1))
    return builder.call_te(topi.nn.mirror_pad, call.args[0], before, after, "REFLECT")


def _extremum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The largest of floats from -infinity on, where TVM begins with the least finite number."""
    data, name = call.args[0], call.op.name.removeprefix("relax.")
    shape, dtype = list(data.ty.shape), str(data.ty.dtype)
    if "float" not in dtype:
        return call.op.get_attr("FLegalize")(builder, call)
    axes = call.attrs.axis
    chosen = range(len(shape)) if axes is None else sorted(int(axis) % len(shape) for axis in axes)
    kept = [axis for axis in range(len(shape)) if axis not in chosen]
    first = tirx.const(float("-inf") if name == "max" else float("inf"), dtype)

    def combine(one: tirx.Var, other: tirx.Var) -> tirx.Expr:
        return tirx.max(one, other) if name == "max" else tirx.min(one, other)

    reducer = te.comm_reducer(combine, lambda _: first, name=name)

    def reduced(tensor: te.Tensor) -> te.Tensor:
        over = {axis: te.reduce_axis((0, shape[axis]), name=f"k{axis}") for axis in chosen}
        keeps = bool(call.attrs.keepdims)

        def element(*at: tirx.Var) -> tirx.Expr:
            places = dict(zip(kept, [at[axis] for axis in kept] if keeps else at, strict=True))
            index = [over[axis] if axis in over else places[axis] for axis in range(len(shape))]
            return reducer(tensor[tuple(index)], axis=list(over.values()))

        extents = [
            1 if axis in chosen else shape[axis]
            for axis in range(len(shape))
            if keeps or axis in kept
        ]
        return te.compute(extents, element, name=name)

    return builder.call_te(reduced, data, primfunc_name_hint=name)


def _extreme_place(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Where the largest is, from no place on: TVM begins with the type's least number, at a place
    that there is not, and stays there where nothing is larger."""
    data, largest = call.args[0], call.op.name == "relax.argmax"
    shape, kind = list(data.ty.shape), str(call.ty.dtype)
    if call.attrs.axis is None or int(shape[int(call.attrs.axis)]) == 0:
        return call.op.get_attr("FLegalize")(builder, call)
    axis, keeps = int(call.attrs.axis) % len(shape), bool(call.attrs.keepdims)

    def combine(one: tuple[tirx.Var, ...], other: tuple[tirx.Var, ...]) -> tuple[tirx.Expr, ...]:
        (place, value), (later, found) = one, other
        beats = found > value if largest else found < value
        sooner = tirx.And(tirx.EQ(found, value), later < place)
        there = later >= tirx.const(0, kind)
        takes = tirx.Or(place < tirx.const(0, kind), tirx.And(there, tirx.Or(beats, sooner)))
        return tirx.Select(takes, later, place), tirx.Select(takes, found, value)

    def nothing(place: str, value: str) -> tuple[tirx.Expr, ...]:
        return tirx.const(-1, place), tirx.const(0, value)

    reducer = te.comm_reducer(combine, nothing, name=call.op.name.removeprefix("relax."))

    def reduced(tensor: te.Tensor) -> te.Tensor:
        over = te.reduce_axis((0, shape[axis]), name="k")

        def element(*at: tirx.Var) -> tuple[tirx.Expr, ...]:
            index = [*at[:axis], over, *at[axis + keeps :]]
            found: tuple[tirx.Expr, ...]
            found = reducer((tirx.Cast(kind, over), tensor[tuple(index)]), axis=over)
            return found

        extents = [*shape[:axis], *([1] if keeps else []), *shape[axis + 1 :]]
        places, _ = te.compute(extents, element, name="best")

        def place(*at: tirx.Var) -> tirx.Expr:
            return places(*at)

        return te.compute(extents, place, name="place")

    return builder.call_te(reduced, data, primfunc_name_hint=call.op.name.removeprefix("relax."))


def _arithmetic(
    node: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
    builder: relax.BlockBuilder,
    call: relax.Call,
) -> relax.Expr:
    """Of floats as they are. TVM takes them for real numbers: x * 0 is 0, and x / 0 an error."""
    shape, dtype = list(call.ty.shape), str(call.ty.dtype)
    if "float" not in dtype:
        return call.op.get_attr("FLegalize")(builder, call)
    scalars = [_scalar(argument) for argument in call.args]

    def computed(*tensors: te.Tensor) -> te.Tensor:
        left = iter(tensors)
        operands = [next(left) if scalar is None else scalar for scalar in scalars]

        def element(*at: tirx.Var) -> tirx.Expr:
            return node(*(_at(operand, at) for operand in operands))

        return te.compute(shape, element, name=call.op.name.removeprefix("relax."))

    tensors = [a for a, scalar in zip(call.args, scalars, strict=True) if scalar is None]
    hint = call.op.name.removeprefix("relax.")
    return builder.call_te(computed, *tensors, primfunc_name_hint=hint)


def _scalar(value: relax.Expr) -> tirx.Expr | None:
    """A constant of one number, if it is one of no axes."""
    if not isinstance(value, tvm.ir.GenericConst) or value.value.numpy().ndim:
        return None
    number = tirx.FloatImm(str(value.ty.dtype), float(value.value.numpy()))
    return tir.fence(number) if number.value == 0 else number


def _at(operand: te.Tensor | tirx.Expr, at: tuple[tirx.Var, ...]) -> tirx.Expr:
    """An element of what is broadcast to the result's shape."""
    if not isinstance(operand, te.Tensor):
        return operand
    last = at[len(at) - len(operand.shape) :]
    places = zip(operand.shape, last, strict=True)
    return operand(*(tir.integer(0) if int(extent) == 1 else place for extent, place in places))


LEGALIZATIONS: dict[str, Legalize] = {
    "relax.argmax": _extreme_place,
    "relax.argmin": _extreme_place,
    "relax.add": partial(_arithmetic, tirx.Add),
    "relax.divide": partial(_arithmetic, tirx.Div),
    "relax.max": _extremum,
    "relax.maximum": partial(_arithmetic, tirx.Max),
    "relax.min": _extremum,
    "relax.minimum": partial(_arithmetic, tirx.Min),
    "relax.multiply": partial(_arithmetic, tir.rounded_product),
    "relax.nn.pad": _pad,
    "relax.subtract": partial(_arithmetic, tirx.Sub),
}
