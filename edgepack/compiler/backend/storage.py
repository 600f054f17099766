"""Tensors that share bytes, as calls in a Relax function that move nothing.

The plan resolves them. A view shows a part of another tensor. A joint of tensors has their bytes
one after the other; what looks like a copy is none, for the plan puts the parts where the joint
will be before they are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, tirx

_VIEW = "edgepack.view"
_JOINT = "edgepack.joint"
_BLOCK = "edgepack.block."


def view(source: relax.Expr, shape: Sequence[int], *, offset: int = 0) -> relax.Call:
    """`source`'s bytes from byte `offset` on, as a tensor of `shape` and its type."""
    start = tirx.IntImm("int64", offset)
    ty = relax.TensorType(list(shape), str(source.ty.dtype))
    return relax.call_dps_packed(_VIEW, [source, start], ty)


def joint(parts: Sequence[relax.Expr], shape: Sequence[int]) -> relax.Call:
    """The bytes of all parts as a tensor of `shape`, and of their type.

    Each part has to be a kernel's result, or a joint, and in one joint only.
    """
    return relax.call_dps_packed(
        _JOINT, list(parts), relax.TensorType(list(shape), str(parts[0].ty.dtype))
    )


def read_view(call: relax.Call) -> tuple[relax.Expr, int] | None:
    """What a call made by `view` shows, and from which byte on."""
    if not _is(call, _VIEW):
        return None
    source, offset = call.args[1]
    return source, int(offset)


def read_joint(call: relax.Call) -> list[relax.Expr] | None:
    """The parts of a call made by `joint`."""
    return list(call.args[1]) if _is(call, _JOINT) else None


def block(key: str, inputs: Sequence[relax.Expr], types: Sequence[relax.TensorType]) -> relax.Call:
    """A loop or branch of the plan, by its key; its results are a tuple."""
    return relax.call_dps_packed(_BLOCK + key, list(inputs), list(types))


def read_block(call: relax.Call) -> tuple[str, list[relax.Expr]] | None:
    """The key and the inputs of a call made by `block`."""
    packed = isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_dps_packed"
    if not packed or not call.args[0].global_symbol.startswith(_BLOCK):
        return None
    return call.args[0].global_symbol.removeprefix(_BLOCK), list(call.args[1])


def _is(call: relax.Call, name: str) -> bool:
    packed = isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.call_dps_packed"
    return packed and call.args[0].global_symbol == name
