"""Nodes of a body put into the graph around it: of a function, a branch, or a turn of a loop."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import onnx


def copy_nodes(
    nodes: Iterable[onnx.NodeProto], names: Mapping[str, str], prefix: str
) -> list[onnx.NodeProto]:
    """Copies of nodes, with other names for some values, and `prefix` before those they make.

    A name that is neither in `names` nor made by the nodes is one of the graph around them, and
    stays.
    """
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    known = {name: prefix + name for name in _made(copies) if name} | dict(names)
    for copy in copies:
        copy.name = prefix + copy.name if copy.name else ""
        _rename(copy, known)
    return copies


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies that a node has."""
    for item in node.attribute:
        if item.HasField("g"):
            yield item.g
        yield from item.graphs


def _made(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield from node.output
        for graph in subgraphs(node):
            yield from (item.name for item in (*graph.input, *graph.initializer))
            yield from _made(graph.node)


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    for items in (node.input, node.output):
        for i, name in enumerate(items):
            items[i] = names.get(name, name)
    for graph in subgraphs(node):
        for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            item.name = names.get(item.name, item.name)
        for inner in graph.node:
            _rename(inner, names)


def definition(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opset: int, prefix: str
) -> list[onnx.NodeProto] | None:
    """The nodes by which ONNX defines one, None if it does not.

    `types` are those of its inputs, by name.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema = onnx.defs.get_schema(node.op_type, domain=domain, max_inclusive_version=opset)
    body = onnx.FunctionProto()
    if schema.has_function:
        body.CopyFrom(schema.function_body)
    elif schema.has_context_dependent_function:
        given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        versions = schema.context_dependent_function_opset_versions
        fitting = max((v for v in versions if v <= opset), default=versions[0])
        text = schema.get_context_dependent_function_with_opset_version(
            fitting, node.SerializeToString(), given
        )
        body.ParseFromString(text)
    if not body.node:
        return None
    names = dict.fromkeys((*body.input, *body.output), "")
    for formals, actuals in ((body.input, node.input), (body.output, node.output)):
        names.update(zip(formals, actuals, strict=False))
    # An output that nobody asked for still needs a name.
    names.update({name: prefix + name for name in body.output if not names[name]})
    attributes = {item.name: item for item in node.attribute}
    for name, default in schema.attributes.items():
        if name not in attributes and default.default_value.type:
            attributes[name] = default.default_value
    copies = copy_nodes(body.node, names, prefix)
    for number, (copy, inner) in enumerate(zip(copies, body.node, strict=True)):
        _bind(copy, attributes)
        if copy.op_type == "Gather" and inner.input[1] in body.input:
            title = f"{node.op_type} '{node.name or node.output[0]}'"
            copy.name = f"{title}: {inner.input[1]}/{number}"
    return copies


def positions_of(title: str) -> tuple[str, str]:
    """What people know a Gather's positions as, by its title: the operator that it is part of the
    definition of, and that one's input."""
    found = re.fullmatch(r"Gather '(\w+ '.*'): (\w+)/\d+'", title)
    return (found[1], found[2]) if found else (title, "indices")


def _bind(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> None:
    """Give attributes that refer to the function's their values."""
    kept = []
    for item in node.attribute:
        if item.ref_attr_name:
            if item.ref_attr_name not in attributes:
                continue
            value = onnx.AttributeProto()
            value.CopyFrom(attributes[item.ref_attr_name])
            value.name = item.name
            kept.append(value)
        else:
            kept.append(item)
    del node.attribute[:]
    node.attribute.extend(kept)
    for graph in subgraphs(node):
        for inner in graph.node:
            _bind(inner, attributes)
