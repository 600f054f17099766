"""How many tensors a sequence holds, where the model itself says it."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.frontend.forms import Context, attribute


def with_lengths(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with SequenceLength as a constant where it is known; the same if it is nowhere."""
    if not any(node.op_type == "SequenceLength" for node in proto.graph.node):
        return proto
    told = onnx.ModelProto()
    told.CopyFrom(proto)
    context = Context(proto)
    lengths: dict[str, int] = {}
    nodes = []
    for node in told.graph.node:
        if node.op_type == "SequenceLength" and node.input[0] in lengths:
            value = np.array(lengths[node.input[0]], "int64")
            tensor = numpy_helper.from_array(value)
            nodes.append(
                onnx.helper.make_node("Constant", [], node.output, node.name, value=tensor)
            )
            continue
        length = _length(node, lengths, context)
        if length is not None:
            lengths[node.output[0]] = length
        nodes.append(node)
    del told.graph.node[:]
    told.graph.node.extend(nodes)
    return told


def _length(node: onnx.NodeProto, lengths: dict[str, int], context: Context) -> int | None:
    """Of the sequence that a node makes; None if it makes none, or that is not known."""
    if node.op_type == "SequenceConstruct":
        return len(node.input)
    if node.op_type == "SequenceEmpty":
        return 0
    if node.op_type in ("SequenceInsert", "SequenceErase", "Identity"):
        length = lengths.get(node.input[0])
        more = {"SequenceInsert": 1, "SequenceErase": -1}.get(node.op_type, 0)
        return None if length is None else length + more
    return _pieces(node, context) if node.op_type == "SplitToSequence" else None


def _pieces(node: onnx.NodeProto, context: Context) -> int | None:
    """How many pieces SplitToSequence makes."""
    split = context.array(node, 1)
    if split is not None and split.ndim:
        return len(split)
    shape = context.shapes.get(node.input[0])
    if shape is None or (len(node.input) > 1 and node.input[1] and split is None):
        return None
    size = 1 if split is None else max(int(split), 1)
    axis = int(attribute(node, "axis", 0))
    return math.ceil(shape[axis] / size)
