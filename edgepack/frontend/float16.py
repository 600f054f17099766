"""Models of float16 compute in float32; their casts to float16 round.

The CPUs of most boards convert float16, and do no arithmetic on it. float32 is faster there and
more exact; a model's inputs and outputs stay what they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.model import infer_shapes, opset_of, walk_nodes
from edgepack.model.index import GraphIndex

_HALF, _SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
# Attributes that hold an element type: `to` of Cast, `dtype` of EyeLike and of random tensors.
_TYPES = ("to", "dtype")


def widen(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 for float16 everywhere but in its inputs and outputs.

    The same model if it has no float16.
    """
    if not any(getattr(item, field) == _HALF for item, field in _types(proto.graph)):
        return proto
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    graph = wide.graph
    # Older models list their constants among the inputs.
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [v for v in graph.input if _is_half(v) and v.name not in constants]
    outputs = [v for v in graph.output if _is_half(v)]
    rounding = {
        node.output[0]
        for node in walk_nodes(graph)
        if node.op_type == "Cast" and any(item.i == _HALF for item in node.attribute)
    }
    halves = _of_halves(wide, "Unique")
    _bound_clips(wide)
    for item, field in _types(graph):
        if getattr(item, field) == _HALF:
            _widen(item, field)
    _round_casts(graph, rounding)
    _round_inputs(graph, halves)
    for value in (*inputs, *outputs):
        _set_type(value, _HALF)
    taken = {name for node in walk_nodes(graph) for name in (*node.input, *node.output)}
    given = {value.name: _unused(value.name, taken) for value in inputs}
    # An input that is an output too needs no cast.
    made = {v.name: _unused(v.name, taken) for v in outputs if v.name not in given}
    inside = {**given, **made}
    for node in graph.node:
        _rename(node, inside)
    for tensor in graph.initializer:
        tensor.name = inside.get(tensor.name, tensor.name)
    before = [_cast(name, inner, _SINGLE) for name, inner in given.items()]
    after = [_cast(inner, name, _HALF) for name, inner in made.items()]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return wide


def _is_half(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == _HALF)


def _set_type(value: onnx.ValueInfoProto, dtype: int) -> None:
    value.type.tensor_type.elem_type = dtype


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}/cast", to=to)


def _bound_clips(proto: onnx.ModelProto) -> None:
    """Give Clips of float16 the bounds that they leave out: the type's largest numbers."""
    graph = proto.graph
    clips = [node for node in graph.node if node.op_type == "Clip"]
    if not clips or opset_of(proto) < _BOUNDS_AS_INPUTS:
        return
    types = GraphIndex(infer_shapes(proto).graph).types
    most = float(np.finfo("float16").max)
    for node in clips:
        if types.get(node.output[0]) != _HALF:
            continue
        bounds = [*node.input[1:], "", ""][:2]
        for place, end in enumerate((-most, most)):
            if not bounds[place]:
                bounds[place] = f"{node.output[0]}/{'most' if place else 'least'}"
                tensor = numpy_helper.from_array(np.array(end, "float16"), bounds[place])
                graph.initializer.append(tensor)
        node.input[1:] = bounds


# Clip's, in ONNX.
_BOUNDS_AS_INPUTS = 11


def _round_casts(graph: onnx.GraphProto, names: set[str]) -> None:
    """Let casts to float16 round whose results have these names."""
    nodes = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type == "Cast" and node.output[0] in names:
            (name,) = node.output
            node.output[0] = f"{name}/float16"
            next(item for item in node.attribute if item.name == "to").i = _HALF
            back = _cast(node.output[0], name, _SINGLE)
            back.name = f"{node.name or name}/float32"
            nodes.append(back)
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _round_casts(inner, names)
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copied)


def _of_halves(proto: onnx.ModelProto, operator: str) -> frozenset[str]:
    """The first results of an operator's nodes, of those that are float16."""
    made = [node.output[0] for node in proto.graph.node if node.op_type == operator]
    if not made:
        return frozenset()
    types = GraphIndex(infer_shapes(proto).graph).types
    return frozenset(name for name in made if types.get(name) == _HALF)


def _round_inputs(graph: onnx.GraphProto, results: Collection[str]) -> None:
    """Round what the nodes with these results read: two halves that are equal are one value."""
    nodes = []
    for node in graph.node:
        if node.output[0] in results:
            rounded, wide = (f"{node.output[0]}/{word}" for word in ("rounded", "rounded/float32"))
            nodes.append(_cast(node.input[0], rounded, _HALF))
            nodes.append(_cast(rounded, wide, _SINGLE))
            node.input[0] = wide
        nodes.append(node)
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copied)


def _unused(name: str, taken: set[str]) -> str:
    name += "/float32"
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _types(graph: onnx.GraphProto) -> Iterator[tuple[Any, str]]:
    """Everything in a graph that has an element type, with the name of the field that holds it."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.type.tensor_type, "elem_type"
    yield from ((tensor, "data_type") for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPES:
                yield attribute, "i"
            single = [attribute.t] if attribute.HasField("t") else []
            yield from ((tensor, "data_type") for tensor in (*single, *attribute.tensors))
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _types(inner)


def _widen(item: Any, field: str) -> None:
    """Change one element type, and a tensor's values with it."""
    if isinstance(item, onnx.TensorProto):
        values = numpy_helper.to_array(item).astype("float32")
        item.CopyFrom(numpy_helper.from_array(values, item.name))
    else:
        setattr(item, field, _SINGLE)


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Use other names in a node, and in its inner graphs."""
    for items in (node.input, node.output):
        for i, name in enumerate(items):
            items[i] = names.get(name, name)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            for inner in graph.node:
                _rename(inner, names)
            for value in graph.output:
                value.name = names.get(value.name, value.name)
