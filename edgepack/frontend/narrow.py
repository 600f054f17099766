"""Integers of 4 and 2 bits as those of 8: no CPU has registers of less.

ONNX packs them in the file. Weights that are stored so are most of what there is; what quantises to
such a type keeps its limits, and what casts to it keeps its low bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.frontend.forms import attribute
from edgepack.model import infer_shapes, walk_nodes
from edgepack.model.index import GraphIndex
from edgepack.model.structure import subgraphs

# The type of 8 bits for each, and the limits.
_WIDE = {
    TensorProto.INT4: (TensorProto.INT8, -8, 7),
    TensorProto.UINT4: (TensorProto.UINT8, 0, 15),
    TensorProto.INT2: (TensorProto.INT8, -2, 1),
    TensorProto.UINT2: (TensorProto.UINT8, 0, 3),
}


def without_narrow(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with 8-bit integers for narrower ones, the same if it has none."""
    if not any(tensor.data_type in _WIDE for tensor in _tensors(proto.graph)) and not any(
        attribute(node, name, 0) in _WIDE
        for node in walk_nodes(proto.graph)
        for name in ("to", "output_dtype")
    ):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    _widen(made.graph, GraphIndex(infer_shapes(proto, with_weights=True).graph).types)
    return made


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for item in node.attribute:
            if item.HasField("t"):
                yield item.t
        for body in subgraphs(node):
            yield from _tensors(body)


def _widen(graph: onnx.GraphProto, outer: Mapping[str, int]) -> None:
    types = {**outer, **GraphIndex(graph).types}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type.elem_type
        if kind in _WIDE:
            value.type.tensor_type.elem_type = _WIDE[kind][0]
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for item in node.attribute:
            if item.HasField("t"):
                _widen_tensor(item.t)
        for body in subgraphs(node):
            _widen(body, types)
        kind = _narrow_result(node, types)
        nodes.extend([node] if kind is None else _within(graph, node, kind))
    del graph.node[:]
    graph.node.extend(nodes)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _WIDE:
        kind = helper.tensor_dtype_to_np_dtype(_WIDE[tensor.data_type][0])
        values = numpy_helper.to_array(tensor).astype(kind)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _narrow_result(node: onnx.NodeProto, types: Mapping[str, int]) -> int | None:
    """The narrow type that a node makes of another one, None if it makes none."""
    kind = 0
    if node.op_type == "Cast":
        kind = attribute(node, "to", 0)
    elif node.op_type == "CastLike":
        kind = types.get(node.input[1], 0)
    elif node.op_type == "QuantizeLinear":
        kind = attribute(node, "output_dtype", 0)
        if len(node.input) > 2 and node.input[2]:
            kind = types.get(node.input[2], 0)
    return kind if kind in _WIDE else None


def _within(graph: onnx.GraphProto, node: onnx.NodeProto, kind: int) -> list[onnx.NodeProto]:
    """Such a node with a wide result that stays within the limits of the narrow type."""
    wide, least, most = _WIDE[kind]
    name = node.output[0]
    inner = f"{name}/wide"

    def constant(value: int, dtype: int) -> str:
        array = np.array(value, helper.tensor_dtype_to_np_dtype(dtype))
        tensor = numpy_helper.from_array(array, f"{name}/{value}")
        if all(tensor.name != other.name for other in graph.initializer):
            graph.initializer.append(tensor)
        return str(tensor.name)

    def made(op_type: str, *given: str, result: str, **attributes: int) -> onnx.NodeProto:
        return helper.make_node(op_type, given, [result], name=result, **attributes)

    if node.op_type == "QuantizeLinear":
        kept = [item for item in node.attribute if item.name != "output_dtype"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("output_dtype", wide)])
        node.output[0] = inner
        return [node, made("Clip", inner, constant(least, wide), constant(most, wide), result=name)]
    whole, moved, rest = (f"{name}/{word}" for word in ("whole", "moved", "rest"))
    low = constant(least, TensorProto.INT32)
    return [
        made("Cast", node.input[0], result=whole, to=TensorProto.INT32),
        made("Sub", whole, low, result=moved),
        made("Mod", moved, constant(most - least + 1, TensorProto.INT32), result=rest),
        made("Add", rest, low, result=inner),
        made("Cast", inner, result=name, to=wide),
    ]
