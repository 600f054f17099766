"""How operators on tensors as the model has them are read from Relax, beside attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import tvm
from tvm import relax

from edgepack.compiler.layers.tensors import ValueTable, constant_of, dtype_of, shape_of
from edgepack.frontend.private import private_call, read_private
from edgepack.kernels.layer import (
    DynamicIntegers,
    DynamicRange,
    DynamicSums,
    Extremum,
    Layer,
    Norm,
    Operator,
    RowProduct,
    Softmax,
)
from edgepack.kernels.tiles.element import FLOAT32, Element
from edgepack.kernels.tiles.expression import Expression
from edgepack.kernels.value import Value


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """What a call does: a layer whose tensors are variables, but for its result."""

    operator: Operator
    inputs: tuple[relax.Var, ...]
    expression: Expression = ()
    operands: tuple[relax.Var, ...] = ()
    constants: tuple[np.ndarray, ...] = field(default=(), repr=False)
    element: Element = FLOAT32
    reads: Element | None = None

    def layer(self, values: ValueTable, output: relax.Var, computes: Sequence[Value] = ()) -> Layer:
        """The layer that makes `output`; of several values that it `computes` that is the last."""
        return Layer(
            operator=self.operator,
            inputs=tuple(map(values.of, self.inputs)),
            output=values.of(output),
            expression=self.expression,
            operands=tuple(map(values.of, self.operands)),
            constants=self.constants,
            element=self.element,
            reads=self.reads,
            computes=tuple(computes) or (values.of(output),),
        )


# Operators on integers whose scale is known only when the model runs; TVM has no code for them.
DYNAMIC = (DynamicRange, DynamicIntegers, DynamicSums)


def with_variables(module: tvm.IRModule) -> tvm.IRModule:
    """The module with variables for constants that such operators read: what they make of them is
    not folded, for TVM has no code for it."""
    main = module["main"]
    bindings = [b for block in main.body.blocks for b in block.bindings]
    typed, changed = relax.BlockBuilder().normalize, []
    for binding in bindings:
        found = read_private(binding.value, *DYNAMIC)
        if found is None or all(isinstance(item, relax.Var) for item in found[1]):
            changed.append(binding)
            continue
        given = []
        for item in found[1]:
            if not isinstance(item, relax.Var):
                one = relax.const(1, str(item.ty.dtype))
                value = typed(relax.op.multiply(item, one))
                item = relax.DataflowVar("constant", value.ty)  # noqa: PLW2901
                changed.append(relax.VarBinding(item, value))
            given.append(item)
        call = private_call(found[0], given, binding.var.ty)
        changed.append(relax.VarBinding(binding.var, call))
    if len(changed) == len(bindings):
        return module
    body = relax.SeqExpr([relax.DataflowBlock(changed)], main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule({**module.functions, module.get_global_var("main"): function})


def read_plain(call: relax.Call, made: Mapping[relax.Var, relax.Expr]) -> Read | None:
    """The operator of a call; None where none of `kernels.layer.Plain` describes it. `made` has the
    expressions of variables: where one is read through a transposition or a reversal, so is the
    tensor that those are of."""
    found = read_private(call, *DYNAMIC)
    if found is not None:
        return Read(operator=found[0], inputs=tuple(found[1]))
    name = call.op.name.removeprefix("relax.") if isinstance(call.op, tvm.ir.Op) else ""
    reader = _READERS.get(name)
    return None if reader is None else reader(name, call, made)


_Made = Mapping[relax.Var, relax.Expr]


def _norm(name: str, call: relax.Call, _made: _Made) -> Read | None:
    """Over the last axes, with constant scales and shifts."""
    data, *given = call.args
    shape, values = shape_of(data), [constant_of(item) for item in given]
    axes = sorted(int(axis) % len(shape) for axis in call.attrs.axes) if shape else []
    if constant_of(data) is not None or dtype_of(data) != FLOAT32.name or not axes:
        return None
    size = prod(shape[axes[0] :])
    if axes != list(range(axes[0], len(shape))):
        return None
    known = [value for value in values if value is not None and value.size == size]
    if len(known) < len(values):
        return None
    centred = name == "nn.layer_norm"
    if centred and not (call.attrs.center and call.attrs.scale):
        return None
    operator = Norm(
        rows=prod(shape) // size,
        size=size,
        epsilon=float(call.attrs.epsilon),
        scale=known[0].reshape(size),
        shift=known[1].reshape(size) if centred else None,
    )
    return Read(operator=operator, inputs=(data,))


def _softmax(name: str, call: relax.Call, _made: _Made) -> Read | None:
    """Along the last axis."""
    (data,) = call.args
    shape = shape_of(data)
    if constant_of(data) is not None or dtype_of(data) != FLOAT32.name or not shape:
        return None
    axis = int(call.attrs.axis) % len(shape)
    if prod(shape[axis + 1 :]) != 1:
        return None
    operator = Softmax(
        rows=prod(shape[:axis]), size=shape[axis], logarithm=name == "nn.log_softmax"
    )
    return Read(operator=operator, inputs=(data,))


def _extremum(name: str, call: relax.Call, made: _Made) -> Read | None:
    """Where the axis was reversed before (how TVM writes `select_last_index`), it is the last one
    of what was reversed."""
    if call.attrs.axis is None:
        return None
    data, reverse = call.args[0], False
    shape = shape_of(data)
    if constant_of(data) is not None or not shape:
        return None
    axis = int(call.attrs.axis) % len(shape)
    flip = made.get(data)
    if isinstance(flip, relax.Call) and _is_flip(flip, axis):
        data, reverse = flip.args[0], True
    operator = Extremum(
        outer=prod(shape[:axis]),
        size=shape[axis],
        inner=prod(shape[axis + 1 :]),
        dtype=dtype_of(data),
        largest=name == "argmax",
        reverse=reverse,
    )
    return Read(operator=operator, inputs=(data,))


def _is_flip(value: relax.Call, axis: int) -> bool:
    if value.op != tvm.ir.Op.get("relax.flip"):
        return False
    data = value.args[0]
    return isinstance(data, relax.Var) and int(value.attrs.axis) % len(shape_of(data)) == axis


def _product(_name: str, call: relax.Call, made: _Made) -> Read | None:
    """A right matrix that was transposed before is read as it was."""
    left, right = call.args
    out, turned = shape_of(call), False
    if dtype_of(call) != FLOAT32.name or not out:
        return None
    if constant_of(left) is not None or len(shape_of(left)) < 2:
        return None
    before = made.get(right) if isinstance(right, relax.Var) else None
    if isinstance(before, relax.Call) and _is_transpose(before):
        right, turned = before.args[0], True
    operator = _sizes(shape_of(left), shape_of(right), turned)
    if operator is None or prod(out) != operator.batch * operator.rows * operator.columns:
        return None
    weight = constant_of(right)
    if weight is None:
        return Read(operator=operator, inputs=(left, right))
    if operator.right_batch > 1:
        return None
    weight = weight.reshape(operator.depth, operator.columns)
    operator = RowProduct(**{**vars(operator), "weight": weight})
    return Read(operator=operator, inputs=(left,))


def _is_transpose(value: relax.Call) -> bool:
    """Whether it swaps the last two axes of a variable, and nothing else."""
    if value.op != tvm.ir.Op.get("relax.permute_dims") or not isinstance(value.args[0], relax.Var):
        return False
    rank = len(shape_of(value))
    axes = [int(axis) for axis in value.attrs.axes or reversed(range(rank))]
    return axes == [*range(rank - 2), rank - 1, rank - 2]


def _sizes(left: tuple[int, ...], right: tuple[int, ...], turned: bool) -> RowProduct | None:
    """None where batches are not equal, nor one of them 1."""
    if len(right) < 2:
        return None
    ones, others = prod(left[:-2]), prod(right[:-2])
    depth, columns = reversed(right[-2:]) if turned else right[-2:]
    if others != 1 and ones != 1 and left[:-2] != right[:-2]:
        return None
    # With one right matrix the rows of all products are those of one.
    return RowProduct(
        left_batch=1 if others == 1 else ones,
        right_batch=others,
        rows=ones * left[-2] if others == 1 else left[-2],
        depth=depth,
        columns=columns,
        transposed=turned,
    )


_READERS: Mapping[str, Callable[[str, relax.Call, _Made], Read | None]] = {
    "argmax": _extremum,
    "argmin": _extremum,
    "matmul": _product,
    "nn.layer_norm": _norm,
    "nn.rms_norm": _norm,
    "nn.softmax": _softmax,
    "nn.log_softmax": _softmax,
}
