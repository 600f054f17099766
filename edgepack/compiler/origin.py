"""Which ONNX node an expression came from: carried in its Relax span through the passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import tvm
from tvm import relax


@dataclass(frozen=True, kw_only=True)
class Origin:
    """An ONNX operator ("Conv") and a node's name, or of several what `merge` makes of them.

    `result` is the tensor that a node makes; "" if it makes several, or if there are several nodes.
    """

    operator: str
    name: str
    result: str = ""


def mark(call: relax.Call, origin: Origin) -> relax.Call:
    """The same call with its origin; it has to be normalised again."""
    source = tvm.ir.SourceName(f"{origin.operator}:{origin.name}\n{origin.result}")
    span = tvm.ir.Span(source, 0, 0, 0, 0)
    return relax.Call(call.op, call.args, call.attrs, call.ty_args, span)


def origin_of(expr: relax.Expr) -> Origin | None:
    """Where an expression came from; None for what a pass made."""
    if expr.span is None:
        return None
    operator, colon, rest = str(expr.span.source_name.name).partition(":")
    name, _, result = rest.rpartition("\n")
    return Origin(operator=operator, name=name, result=result) if colon else None


def merge(origins: Iterable[Origin | None]) -> Origin | None:
    """The origin of a fused layer: all operators, and the name of the first node."""
    known = list(dict.fromkeys(origin for origin in origins if origin is not None))
    if not known:
        return None
    return Origin(operator="+".join(origin.operator for origin in known), name=known[0].name)
