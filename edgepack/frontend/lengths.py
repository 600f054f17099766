"""Lengths that come at run time, of operators that are replaced by their definitions.

A definition only compares them with positions: a length that there is not would count as none, or
as all. They are looked up in a table of those that there are, whose error names operator and input
(`inlining.positions_of`). What computes the model by other means than ours sees plain ONNX.
"""

from __future__ import annotations

import onnx
from onnx import helper, numpy_helper

from edgepack.frontend.errors import ImportModelError
from edgepack.frontend.inlining import subgraphs

# By the operator: the input of lengths, and that of which it counts elements along the last axis
# but one, by number.
_LENGTHS = {"Attention": (6, 1)}
_DOMAINS = ("", "ai.onnx")


def with_checked_lengths(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all such lengths looked up.

    Raises ImportModelError where one is a constant below 0, which a table would take for one that
    counts from its end.
    """
    if not _has_lengths(proto.graph):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    _look_up(made.graph, "lengths/")
    return made


def _lengths_of(node: onnx.NodeProto) -> tuple[int, int] | None:
    found = _LENGTHS.get(node.op_type) if node.domain in _DOMAINS else None
    return found if found and len(node.input) > found[0] and node.input[found[0]] else None


def _has_lengths(graph: onnx.GraphProto) -> bool:
    return any(
        _lengths_of(node) is not None or any(map(_has_lengths, subgraphs(node)))
        for node in graph.node
    )


def _look_up(graph: onnx.GraphProto, prefix: str) -> None:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for number, node in enumerate(graph.node):
        for index, body in enumerate(subgraphs(node)):
            _look_up(body, f"{prefix}{number}/{index}/")
        found = _lengths_of(node)
        if found is not None:
            _check_constant(node, found[0], constants.get(node.input[found[0]]))
            nodes.extend(_table(node, *found, f"{prefix}{number}/"))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _check_constant(node: onnx.NodeProto, lengths: int, tensor: onnx.TensorProto | None) -> None:
    lowest = 0 if tensor is None else int(numpy_helper.to_array(tensor).min(initial=0))
    if lowest < 0:
        name = onnx.defs.get_schema(node.op_type).inputs[lengths].name
        raise ImportModelError(
            f"{node.op_type} '{node.name or node.output[0]}': its input '{name}' has {lowest}, "
            "which is below 0",
            hint="check the exporter; a length is from 0 to the number of elements",
        )


def _table(node: onnx.NodeProto, lengths: int, of: int, prefix: str) -> list[onnx.NodeProto]:
    """The nodes that look lengths up, for a node that reads their result from then on."""
    schema = onnx.defs.get_schema(node.op_type)
    known = f"{node.op_type} '{node.name or node.output[0]}': {schema.inputs[lengths].name}/0"
    zero, one, extent, ones, most, table, checked = (
        f"{prefix}{name}" for name in ("zero", "one", "extent", "ones", "most", "table", "checked")
    )
    given = node.input[lengths]
    node.input[lengths] = checked
    return [
        helper.make_node("Constant", [], [zero], value_int=0),
        helper.make_node("Constant", [], [one], value_int=1),
        helper.make_node("Constant", [], [ones], value_ints=[1]),
        # A tensor of no axes, as Range needs them.
        helper.make_node("Shape", [node.input[of]], [extent], start=-2, end=-1),
        helper.make_node("Add", [extent, ones], [f"{most}s"]),
        helper.make_node("Squeeze", [f"{most}s"], [most]),
        helper.make_node("Range", [zero, most, one], [table]),
        helper.make_node("Gather", [table, given], [checked], name=known),
    ]
