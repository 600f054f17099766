"""bfloat16 as float32 that is rounded: no CPU here computes in it, and onnxruntime has few kernels
for it.

An operator on bfloat16 is one on float32 whose results are cast to bfloat16 and back, as ONNX has
it: what it has inside, a recurrent layer's gates or a norm's sums, is not rounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from edgepack.model.index import GraphIndex
from edgepack.model.structure import subgraphs

# Operators that hand elements on as they are: what they make is rounded already.
MOVES = frozenset(
    (
        *("Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
        *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
# Operators that read bits, or whose steps are of bfloat16, of which it is open where they are
# rounded: by the places of what they read.
_OPEN = {"BitCast": (0,), "DequantizeLinear": (1,), "QuantizeLinear": (1,)}
_WORDS = ("dtype", "output_dtype", "to")


def as_rounded_floats(proto: Any) -> Any:
    """The model with float32 for bfloat16, its own functions inlined; the same if it has none, if
    an input or an output of it is bfloat16, and if it has operators that cannot be told so."""
    import onnx.inliner

    from edgepack.model import infer_shapes

    if not _has_any(proto):
        return proto
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    typed = infer_shapes(proto, with_weights=True).graph
    if any(map(_is_told_of, (*typed.input, *typed.output))):
        return proto
    made = type(proto)()
    made.CopyFrom(proto)
    return made if _round(made.graph, typed, {}) else proto


def _has_any(proto: Any) -> bool:
    from onnx import TensorProto

    from edgepack.model import walk_nodes

    kinds = {tensor.data_type for tensor in _tensors(proto.graph)}
    bodies = (node for function in proto.functions for node in function.node)
    for node in itertools.chain(walk_nodes(proto.graph), bodies):
        kinds.update(item.i for item in node.attribute if item.name in _WORDS)
    return TensorProto.BFLOAT16 in kinds


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        yield from (item.t for item in node.attribute if item.HasField("t"))
        for body in subgraphs(node):
            yield from _tensors(body)


def _round(graph: Any, typed: Any, outer: Mapping[str, int]) -> bool:
    """Do so in place; False for a graph that has what cannot be told so. `typed` is the same graph
    with the types of all its tensors, `outer` are those around it."""
    from onnx import TensorProto

    from edgepack.model import walk_nodes

    types = {**outer, **GraphIndex(graph).types, **GraphIndex(typed).types}
    # What is read by others than casts of this graph.
    bodies = (body for node in graph.node for body in subgraphs(node))
    free = {name for body in bodies for node in walk_nodes(body) for name in node.input}
    free |= {value.name for value in graph.output}
    free |= {n for node in graph.node if node.op_type != "Cast" for n in node.input}
    nodes: list[Any] = []
    for node, alike in zip(graph.node, typed.node, strict=True):
        read = [node.input[at] for at in _OPEN.get(node.op_type, ()) if at < len(node.input)]
        read += node.output if node.op_type == "BitCast" else ()
        if any(types.get(name) == TensorProto.BFLOAT16 for name in read):
            return False
        inner = zip(subgraphs(node), subgraphs(alike), strict=True)
        if not all(_round(body, its, types) for body, its in inner):
            return False
        nodes += _rounded(node, types, free)
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    for tensor in _tensors(graph):
        _widen(tensor)
    said = [value for value in graph.value_info if not _is_told_of(value)]
    del graph.value_info[:]
    graph.value_info.extend(said)
    for value in (*graph.input, *graph.output):
        if _is_told_of(value) and value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return True


def _is_told_of(value: Any) -> bool:
    """Whether a tensor, or what is in a sequence, is said to be of bfloat16."""
    from onnx import TensorProto

    kind = value.type
    while (which := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kind = getattr(kind, which).elem_type
    return bool(which == "tensor_type" and kind.tensor_type.elem_type == TensorProto.BFLOAT16)


def _widen(tensor: Any) -> None:
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.BFLOAT16:
        values = numpy_helper.to_array(tensor).astype("float32")
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _rounded(node: Any, types: Mapping[str, int], free: Collection[str]) -> list[Any]:
    """A node of one graph, and the casts behind it."""
    from onnx import TensorProto, helper

    narrow = [name for name in node.output if types.get(name) == TensorProto.BFLOAT16]
    if not narrow or node.op_type in MOVES or any(True for _ in subgraphs(node)):
        return [node]
    made = type(node)()
    made.CopyFrom(node)
    is_cast = node.op_type == "Cast"
    if is_cast and node.output[0] not in free:
        return [node]
    casts = []
    for at, name in enumerate(node.output):
        if name not in narrow:
            continue
        inner, down = f"{name}/float32", f"{name}/bfloat16"
        made.output[at] = down if is_cast else inner
        if not is_cast:
            casts.append(helper.make_node("Cast", [inner], [down], down, to=TensorProto.BFLOAT16))
        casts.append(helper.make_node("Cast", [down], [name], f"{name}/wide", to=TensorProto.FLOAT))
    for item in made.attribute:
        if item.name in ("dtype", "output_dtype") and item.i == TensorProto.BFLOAT16:
            item.i = TensorProto.FLOAT
    return [made, *casts]
