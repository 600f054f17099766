"""Floats that no CPU here has: bfloat16 and float8 are numbers of float32, rounded.

There are casts only: `edgepack.model.bfloat16` has made casts of operators on bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto
from tvm import relax, te, tirx

from edgepack.frontend import conversions
from edgepack.frontend.arithmetic import shape_of
from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import ImportModelError
from edgepack.frontend.owners import title_of
from edgepack.kernels.tiles import tir
from edgepack.model import infer_shapes, walk_nodes
from edgepack.model.bfloat16 import MOVES
from edgepack.model.index import GraphIndex


@dataclass(frozen=True, kw_only=True)
class NarrowFloat:
    """A type of floats: bits of the mantissa, the exponent of its smallest normal number, and its
    largest number; what is larger is infinite, or NaN. `unsigned_zero`: it has no -0."""

    mantissa: int
    least_exponent: int
    largest: float
    infinite: bool = False
    unsigned_zero: bool = False


# By ONNX's number: onnx.ai/onnx/technical/float8.html.
FLOAT8 = {
    TensorProto.FLOAT8E4M3FN: NarrowFloat(mantissa=3, least_exponent=-6, largest=448.0),
    TensorProto.FLOAT8E4M3FNUZ: NarrowFloat(
        mantissa=3, least_exponent=-7, largest=240.0, unsigned_zero=True
    ),
    TensorProto.FLOAT8E5M2: NarrowFloat(
        mantissa=2, least_exponent=-14, largest=57344.0, infinite=True
    ),
    TensorProto.FLOAT8E5M2FNUZ: NarrowFloat(
        mantissa=2, least_exponent=-15, largest=57344.0, unsigned_zero=True
    ),
}
_BFLOAT16 = NarrowFloat(mantissa=7, least_exponent=-126, largest=float("inf"), infinite=True)
_NARROW = {**FLOAT8, TensorProto.BFLOAT16: _BFLOAT16}


def cast(node: Node) -> relax.Expr | None:
    """Cast, None where TVM's conversion serves."""
    made = _rounding_cast(node)
    return conversions.cast(node) if made is None else made


def _rounding_cast(node: Node) -> relax.Expr | None:
    """A cast to float8, which stays a tensor of float32, or to bfloat16; None for any other."""
    (data,), to = node.inputs, node.attributes["to"]
    if to not in _NARROW:
        return None
    is_float32 = str(data.ty.dtype) == "float32"
    wide = data if is_float32 else node.emit(relax.op.astype(data, "float32"))
    saturates = to in FLOAT8 and bool(node.attributes.get("saturate", 1))
    return _cast_to(node, wide, _NARROW[to], saturates=saturates)


def _cast_to(node: Node, wide: relax.Expr, kind: NarrowFloat, *, saturates: bool) -> relax.Expr:
    """In a kernel of its own. What is rounded is read several times: of n casts in one kernel the
    last would be as many to the power of n."""
    shape = shape_of(wide)
    given = te.placeholder(shape, "float32", name="wide")
    made = te.compute(shape, lambda *at: _rounded(given(*at), kind, saturates))
    function = te.create_prim_func([given, made]).without_attr("global_symbol")
    function = function.with_attr("op_pattern", _OPAQUE)
    return node.call("as_narrow_floats", function, [wide], [(shape, "float32")])[0]


# What TVM fuses with nothing: OpPatternKind.
_OPAQUE = 8


def _rounded(value: tirx.Expr, kind: NarrowFloat, saturates: bool) -> tirx.Expr:
    """The nearest number of a type, even ones preferred, as float32."""

    def number(value: float) -> tirx.Expr:
        return tirx.FloatImm("float32", value)

    bits = tirx.reinterpret("int32", value)
    sign, size = bits & tir.integer(-(1 << 31)), bits & tir.integer((1 << 31) - 1)
    cut = 23 - kind.mantissa
    odd = (size >> tir.integer(cut)) & tir.integer(1)
    up = size + tir.integer((1 << (cut - 1)) - 1) + odd
    near = tirx.reinterpret("float32", up & tir.integer(-(1 << cut)))
    if kind.least_exponent > -126:
        # Adding this leaves no bits below those that the smallest numbers have.
        shift = number(1.5 * 2.0 ** (cut + kind.least_exponent))
        magnitude = tirx.reinterpret("float32", size)
        small = tirx.Sub(tir.fence(tirx.Add(magnitude, shift)), shift)
        near = tirx.Select(magnitude < number(2.0**kind.least_exponent), small, near)
    if kind.largest < float("inf"):
        beyond = number(float("inf") if kind.infinite else float("nan"))
        beyond = number(kind.largest) if saturates else beyond
        near = tirx.Select(near > number(kind.largest), beyond, near)
    if kind.unsigned_zero:
        sign = tirx.Select(tirx.EQ(near, number(0.0)), tir.integer(0), sign)
    signed = tirx.reinterpret("float32", tirx.reinterpret("int32", near) | sign)
    # Behind a fence, or TVM says of a value that it equals itself.
    return tirx.Select(tirx.EQ(tir.fence(value), value), signed, value)


def check_narrow_floats(path: Path, proto: onnx.ModelProto) -> None:
    """Raise ImportModelError, which names it, for what works on float8 or bfloat16 and is no
    cast."""
    graph = proto.graph
    index = GraphIndex(graph)
    if _NARROW.keys().isdisjoint({*index.types.values()} | _targets(graph)):
        return
    types = index.types | GraphIndex(infer_shapes(proto).graph).types
    for value in (*graph.input, *graph.output):
        if types[value.name] in _NARROW:
            raise ImportModelError(
                f"{path}: '{value.name}' is of {_name(types[value.name])}, which no input and no "
                "output can be",
                hint="cast it to float32 within the model",
            )
    for node in graph.node:
        names = (*node.input, *node.output)
        kind = next((types[name] for name in names if types.get(name) in _NARROW), None)
        if kind is not None and node.op_type not in {"Cast", *MOVES}:
            raise ImportModelError(
                f"{path}: {title_of(node)} works on {_name(kind)}, to which "
                "and from which only casts are compiled",
                hint="cast to float32 around it",
            )


def _targets(graph: onnx.GraphProto) -> set[int]:
    """The types that attributes name."""
    return {
        item.i
        for node in walk_nodes(graph)
        for item in node.attribute
        if item.name in ("to", "dtype", "output_dtype")
    }


def _element_type(value: onnx.ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def _name(kind: int) -> str:
    return str(TensorProto.DataType.Name(kind))
