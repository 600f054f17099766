"""What of ours travels in a Relax graph: calls of functions that no pass looks into.

Each stands for a record, a frozen dataclass such as an operator of `kernels.layer`. The call's name
is that of the record's class, its arguments are the inputs and then the record's arrays, as
constants, its attributes the other fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import tvm
from tvm import relax

from edgepack.kernels.record import from_parts, to_parts

_T = TypeVar("_T")
_CALL = "relax.call_dps_packed"
_PREFIX = "edgepack."


def private_call(
    record: Any, inputs: Sequence[relax.Expr], types: relax.TensorType | Sequence[relax.TensorType]
) -> relax.Call:
    """The call that stands for a record with these inputs; more than one result are a tuple."""
    plain, arrays = to_parts(record)
    given = relax.Tuple([*inputs, *map(relax.const, arrays)])
    made = [types] if isinstance(types, relax.TensorType) else list(types)
    function = relax.ExternFunc(_PREFIX + type(record).__name__)
    ty = made[0] if len(made) == 1 else relax.TupleType(made)
    return relax.Call(tvm.ir.Op.get(_CALL), [function, given], plain, [ty])


def read_private(expr: relax.Expr, *kinds: type[_T]) -> tuple[_T, list[relax.Expr]] | None:
    """The record of one of `kinds` that a call stands for, and its inputs; None for any other
    expression."""
    name = packed_name(expr).removeprefix(_PREFIX)
    kind = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None:
        return None
    plain = dict(expr.attrs.items()) if expr.attrs is not None else {}
    given = list(expr.args[1])
    count = len(given) - len(plain.get("arrays", ()))
    arrays = [item.value.numpy() for item in given[count:]]
    return from_parts(kind, plain, arrays), given[:count]


def stands_for(expr: relax.Expr, *kinds: type) -> bool:
    """Whether an expression is a call that stands for a record of one of `kinds`."""
    return packed_name(expr) in {_PREFIX + kind.__name__ for kind in kinds}


def packed_name(expr: relax.Expr) -> str:
    """The name of a function that an expression calls, which no pass looks into; "" for any other
    expression."""
    call = isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)
    packed = call and expr.op.name == _CALL
    return str(expr.args[0].global_symbol) if packed else ""
