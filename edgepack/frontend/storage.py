"""Tensors that share bytes, as calls in a Relax function that move nothing.

The plan resolves them. A view shows a part of another tensor. A joint of tensors has their bytes
one after the other; what looks like a copy is none, for the plan puts the parts where the joint
will be before they are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax

from edgepack.frontend.private import private_call, read_private


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """A view's first byte."""

    offset: int


@dataclass(frozen=True, kw_only=True)
class _Joined:
    """A joint."""


@dataclass(frozen=True, kw_only=True)
class _Block:
    """A loop or branch of the plan."""

    key: str


def view(source: relax.Expr, shape: Sequence[int], *, offset: int = 0) -> relax.Call:
    """`source`'s bytes from byte `offset` on, as a tensor of `shape` and its type."""
    ty = relax.TensorType(list(shape), str(source.ty.dtype))
    return private_call(_Shown(offset=offset), [source], ty)


def joint(parts: Sequence[relax.Expr], shape: Sequence[int]) -> relax.Call:
    """The bytes of all parts as a tensor of `shape`, and of their type.

    Each part has to be a kernel's result, or a joint, and in one joint only.
    """
    ty = relax.TensorType(list(shape), str(parts[0].ty.dtype))
    return private_call(_Joined(), parts, ty)


def read_view(call: relax.Call) -> tuple[relax.Expr, int] | None:
    """What a call made by `view` shows, and from which byte on."""
    found = read_private(call, _Shown)
    return None if found is None else (found[1][0], found[0].offset)


def read_joint(call: relax.Call) -> list[relax.Expr] | None:
    """The parts of a call made by `joint`."""
    found = read_private(call, _Joined)
    return None if found is None else found[1]


def block(key: str, inputs: Sequence[relax.Expr], types: Sequence[relax.TensorType]) -> relax.Call:
    """A loop or branch of the plan, by its key; its results are a tuple if they are several."""
    return private_call(_Block(key=key), inputs, types)


def read_block(call: relax.Call) -> tuple[str, list[relax.Expr]] | None:
    """The key and the inputs of a call made by `block`."""
    found = read_private(call, _Block)
    return None if found is None else (found[0].key, found[1])
