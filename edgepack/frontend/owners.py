"""Which node of the user's a node is part of that a definition, a function or a body was written
out into: what messages name, for the user has no other."""

from __future__ import annotations

import onnx

from edgepack.model import operator_name, walk_nodes

# In a node's metadata, which onnx's inliner leaves out and onnxruntime keeps.
_KEY = "edgepack.part_of"


def with_owners(written: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    """`written` itself, whose nodes know which one of `original` they are part of.

    What a definition makes ends in results of the node that it defines, which keep their names.
    """
    makers = {name: node for node in walk_nodes(original.graph) for name in node.output if name}
    kept = {(operator_name(node), name_of(node)) for node in walk_nodes(original.graph)}
    # Of what is not in the original graph, by name: who reads it comes behind who makes it.
    owners = dict(makers)
    for node in reversed(list(walk_nodes(written.graph))):
        owner = next((owners[name] for name in node.output if name in owners), None)
        if owner is None:
            continue
        for name in node.input:
            owners.setdefault(name, owner)
        if (operator_name(node), name_of(node)) not in kept and not owner_of(node):
            node.metadata_props.add(key=_KEY, value=f"{operator_name(owner)} '{name_of(owner)}'")
    return written


def name_of(node: onnx.NodeProto) -> str:
    """A node's name; if it has none, its first result's."""
    return node.name or next(filter(None, node.output), "")


def owner_of(node: onnx.NodeProto) -> str:
    """`Attention 'att'`, of a node that is part of one; "" for one of the model itself."""
    return next((item.value for item in node.metadata_props if item.key == _KEY), "")


def place_of(node: onnx.NodeProto) -> str:
    """`, in Attention 'att'`, or nothing: what follows a node's name in messages."""
    owner = owner_of(node)
    return f", in {owner}" if owner else ""


def title_of(node: onnx.NodeProto) -> str:
    """`Gather 'g'`, and what it is part of."""
    return f"{operator_name(node)} '{name_of(node)}'{place_of(node)}"
