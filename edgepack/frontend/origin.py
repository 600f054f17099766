"""Which ONNX node an expression came from: carried in its Relax span through the passes."""

from __future__ import annotations

import json

import tvm
from tvm import relax

from edgepack.kernels.value import Origin


def mark(call: relax.Call, origin: Origin) -> relax.Call:
    """The same call with its origin; it has to be normalised again."""
    names = [origin.operator, origin.name, origin.result, *origin.others]
    span = tvm.ir.Span(tvm.ir.SourceName(json.dumps(names)), 0, 0, 0, 0)
    return relax.Call(call.op, call.args, call.attrs, call.ty_args, span)


def origin_of(expr: relax.Expr) -> Origin | None:
    """Where an expression came from; None for what a pass made."""
    source = "" if expr.span is None else str(expr.span.source_name.name)
    if not source.startswith("["):
        return None
    operator, name, result, *others = json.loads(source)
    return Origin(operator=operator, name=name, result=result, others=tuple(others))
