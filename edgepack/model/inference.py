"""onnx's inference of types and shapes, without the operators by which it ends the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from edgepack.model.structure import subgraphs

# They look at the type of their first input, which has none behind an operator that onnx does not
# know. Found by trying all operators of onnx 1.23.
_FATAL = {
    ("", "EyeLike"),
    ("", "RegexFullMatch"),
    ("ai.onnx.ml", "DictVectorizer"),
    ("ai.onnx.ml", "LabelEncoder"),
    ("ai.onnx.ml", "TreeEnsemble"),
}
_HIDDEN = "edgepack.hidden."


def infer_types(proto: Any, **how: bool) -> Any:
    """`onnx.shape_inference.infer_shapes`, and what it raises; `how` are its arguments.

    Of such an operator nothing is inferred as long as the type of its first input is not known.
    """
    import onnx

    if not any(map(_is_fatal, _nodes(proto))):
        return onnx.shape_inference.infer_shapes(proto, **how)
    made = type(proto)()
    made.CopyFrom(proto)
    for node in filter(_is_fatal, _nodes(made)):
        node.domain = _HIDDEN + node.domain
    for domain in {_HIDDEN, _HIDDEN + "ai.onnx", _HIDDEN + "ai.onnx.ml"}:
        made.opset_import.add(domain=domain, version=1)
    hidden = [node for node in _of_graph(made.graph) if node.domain.startswith(_HIDDEN)]
    while True:
        found = onnx.shape_inference.infer_shapes(made, **how)
        typed = set(_typed(found.graph))
        shown = [node for node in hidden if node.input[0] in typed]
        if not shown:
            break
        _show(shown)
        hidden = [node for node in hidden if node.domain.startswith(_HIDDEN)]
    _show(_nodes(found))
    kept = [item for item in found.opset_import if not item.domain.startswith(_HIDDEN)]
    del found.opset_import[:]
    found.opset_import.extend(kept)
    return found


def _is_fatal(node: Any) -> bool:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return (domain, node.op_type) in _FATAL and bool(node.input)


def _show(nodes: Iterable[Any]) -> None:
    for node in nodes:
        if node.domain == _HIDDEN:
            node.ClearField("domain")
        elif node.domain.startswith(_HIDDEN):
            node.domain = node.domain.removeprefix(_HIDDEN)


def _nodes(proto: Any) -> Iterator[Any]:
    """Those of the graph, of all inside it, and of functions."""
    yield from _of_graph(proto.graph)
    for function in proto.functions:
        yield from _of_graph(function)


def _of_graph(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _of_graph(inner)


def _typed(graph: Any) -> Iterator[str]:
    """The names of which a type is known, in graphs inside, too."""
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.WhichOneof("value")
        if kind is not None and (kind != "tensor_type" or value.type.tensor_type.elem_type):
            yield value.name
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _typed(inner)
