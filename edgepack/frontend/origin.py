"""Which ONNX node an expression came from: carried in its Relax span through the passes."""

from __future__ import annotations

import tvm
from tvm import relax

from edgepack.kernels.value import Origin


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
