"""Operators replaced by the definition that ONNX gives of them by other operators."""

from __future__ import annotations

import onnx
import onnx.inliner

from edgepack.frontend.control import straighten
from edgepack.frontend.inlining import definition
from edgepack.frontend.lengths import with_checked_lengths
from edgepack.frontend.microsoft import define_operators
from edgepack.frontend.narrow import without_narrow
from edgepack.frontend.operators import OPERATORS, Operator, supported_operators
from edgepack.frontend.owners import with_owners
from edgepack.frontend.sequences import with_lengths
from edgepack.model import infer_shapes, operator_name, opset_of, walk_nodes
from edgepack.model.bfloat16 import as_rounded_floats
from edgepack.model.index import GraphIndex
from edgepack.model.opsets import of_one_opset


def expand(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace a model's own functions, and operators without a conversion, by their definitions.

    Also nodes whose form TVM gets wrong, and the definition right.
    """
    original = proto
    if proto.functions:
        proto = of_one_opset(proto)
    proto = without_narrow(proto)
    if not proto.functions:
        proto = as_rounded_floats(proto)
    proto = with_checked_lengths(proto)
    opset = opset_of(proto)
    failed: set[tuple[str, str]] = set()
    # A definition may hold operators that have one themselves.
    for _ in range(4):
        proto = define_operators(proto)
        names = {
            (node.domain, node.op_type)
            for node in walk_nodes(proto.graph)
            if _needs_definition(node) and _has_definition(node.domain, node.op_type, opset)
        }
        for name in sorted(names - failed):
            inlined = _inline(proto, *name)
            if inlined is None:
                failed.add(name)
            else:
                proto = inlined
        proto = straighten(proto)
    # What functions of the model have inside, too.
    proto = with_lengths(as_rounded_floats(proto))
    return proto if proto is original else with_owners(proto, original)


def _needs_definition(node: onnx.NodeProto) -> bool:
    better = OPERATORS.get(node.op_type, Operator()).define(node)
    known = operator_name(node) in supported_operators()
    return node.domain in _DEFINED and (better or not known)


# ONNX's domains in which operators have definitions.
_DEFINED = ("", "ai.onnx", "ai.onnx.preview")


def _has_definition(domain: str, op_type: str, opset: int) -> bool:
    if not onnx.defs.has(op_type, domain=_schema_domain(domain), max_inclusive_version=opset):
        return False
    schema = onnx.defs.get_schema(
        op_type, domain=_schema_domain(domain), max_inclusive_version=opset
    )
    return bool(schema.has_function or schema.has_context_dependent_function)


def _schema_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _inline(proto: onnx.ModelProto, domain: str, name: str) -> onnx.ModelProto | None:
    """The model with an operator inlined, or None where onnx has no definition for these inputs."""
    # A definition that depends on its inputs' types needs them written down.
    typed = onnx.ModelProto()
    typed.CopyFrom(infer_shapes(proto, with_weights=True))
    typed.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in typed.graph.initializer
    )
    if domain == "ai.onnx.preview" or _has_defaults(name, opset_of(proto)):
        return _inline_each(proto, typed, name)
    if name in _OF_POSITIONS and (inlined := _inline_each(proto, typed, name)) is not None:
        return inlined
    try:
        inlined = onnx.inliner.inline_selected_functions(
            typed, [("", name)], inline_schema_functions=True
        )
    except RuntimeError:  # some optional inputs
        return _inline_each(proto, typed, name)
    del inlined.graph.value_info[:]
    return inlined


# Operators whose definition reads at positions from outside: an error names their node.
_OF_POSITIONS = ("RotaryEmbedding",)


def _has_defaults(name: str, opset: int) -> bool:
    """Whether a definition needs the defaults of attributes, which onnx's inliner leaves out."""
    schema = onnx.defs.get_schema(name, max_inclusive_version=opset)
    used = {
        item.ref_attr_name
        for node in (schema.function_body.node if schema.has_function else ())
        for item in node.attribute
    }
    return any(schema.attributes[item].default_value.type for item in used if item)


def _inline_each(
    proto: onnx.ModelProto, typed: onnx.ModelProto, name: str
) -> onnx.ModelProto | None:
    """The same for the nodes of the graph itself, one by one."""
    types = {name: value.type for name, value in GraphIndex(typed.graph).infos.items()}
    nodes: list[onnx.NodeProto] = []
    for number, node in enumerate(proto.graph.node):
        made = None
        if node.op_type == name and _needs_definition(node):
            prefix = f"{node.name or name}/{number}/"
            made = definition(node, types, opset_of(proto), prefix)
        nodes.extend([node] if made is None else made)
    if len(nodes) == len(proto.graph.node):
        return None
    expanded = onnx.ModelProto()
    expanded.CopyFrom(proto)
    del expanded.graph.node[:]
    expanded.graph.node.extend(nodes)
    return expanded
