"""Tensors without elements: they are constants, and what joins them with others leaves them out."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.frontend.folding import compute_node
from edgepack.frontend.forms import attribute, known_shapes
from edgepack.model import infer_shapes
from edgepack.model.index import GraphIndex


def without_empty(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a constant for each empty tensor inside; the same if there is none."""
    shapes = known_shapes(proto)
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    graph = infer_shapes(proto).graph
    types = {
        name: value.type.tensor_type.elem_type for name, value in GraphIndex(graph).results.items()
    }
    shapes |= {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in graph.output
        if all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
    empty = {name for name, shape in shapes.items() if 0 in shape}
    if not empty:
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for name in sorted(empty & types.keys()):
        kind = onnx.helper.tensor_dtype_to_np_dtype(types[name])
        made = numpy_helper.from_array(np.zeros(shapes[name], kind), name)
        if not any(tensor.name == name for tensor in changed.graph.initializer):
            changed.graph.initializer.append(made)
    empty &= {tensor.name for tensor in changed.graph.initializer}
    kept = []
    for old in changed.graph.node:
        if old.output and set(old.output) <= empty:
            continue
        splits = old.op_type == "Split" and set(old.output) & empty
        node = _parts(old, shapes, empty, changed.graph) if splits else old
        left = [name for name in node.input if name not in empty]
        if node.op_type == "Concat" and left and len(left) < len(node.input):
            del node.input[:]
            node.input.extend(left)
        kept.append(node)
    del changed.graph.node[:]
    changed.graph.node.extend(kept)
    return changed


def _parts(
    node: onnx.NodeProto,
    shapes: dict[str, tuple[int, ...]],
    empty: set[str],
    graph: onnx.GraphProto,
) -> onnx.NodeProto:
    """A Split without its empty results."""
    kept = [name for name in node.output if name not in empty]
    if len(kept) == 1:
        return onnx.helper.make_node("Identity", [node.input[0]], kept, name=node.name)
    axis = attribute(node, "axis", 0)
    sizes = np.array([shapes[name][axis] for name in kept], "int64")
    if attribute(node, "split") is not None:  # before opset 13
        return onnx.helper.make_node(
            "Split", [node.input[0]], kept, name=node.name, axis=axis, split=sizes.tolist()
        )
    graph.initializer.append(numpy_helper.from_array(sizes, f"{kept[0]}/sizes"))
    inputs = [node.input[0], f"{kept[0]}/sizes"]
    return onnx.helper.make_node("Split", inputs, kept, name=node.name, axis=axis)


def without_empty_reductions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what reductions of empty constants give; the same if there is none.

    onnxruntime's of truth values is not initialised.
    """
    known = GraphIndex(proto.graph).constants

    def is_empty(node: onnx.NodeProto) -> bool:
        given = known.get(node.input[0]) if node.op_type.startswith("Reduce") else None
        return given is not None and 0 in given.dims

    if not any(map(is_empty, proto.graph.node)):
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    left = []
    for node in changed.graph.node:
        made = compute_node(node, known, proto) if is_empty(node) else None
        if made is None:
            left.append(node)
        else:
            changed.graph.initializer.extend(made)
    del changed.graph.node[:]
    changed.graph.node.extend(left)
    return changed
