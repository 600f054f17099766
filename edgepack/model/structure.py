"""Whether a model's graph is one: found out without onnx's own checks, which are native code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgepack.model.errors import InvalidModelError

# Elements that a field of a TensorProto counts per value, where it is not one. Small types are
# held in int32_data, one element each (those of 4 and 2 bits several).
_PAIRS = ("COMPLEX64", "COMPLEX128")


def check_structure(path: Path, proto: Any) -> None:
    """Raise `InvalidModelError` if the graph, or one inside it, cannot be one.

    Outputs that nothing makes, nodes without any, names given twice or never, tensors with too few
    or too many values, functions that call themselves, and texts that are no UTF-8.
    """
    _check_functions(path, proto)
    for graph, outer in _graphs(proto.graph, frozenset()):
        _check_texts(path, graph)
        _check_graph(path, graph, outer)


def subgraphs(node: Any) -> Iterator[Any]:
    """The graphs in a node's attributes: branches of an If, the body of a Loop or Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _graphs(graph: Any, outer: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """A graph and those inside it, each with the names that it sees of those around it."""
    yield graph, outer
    inner = [body for node in graph.node for body in subgraphs(node)]
    if inner:
        seen = outer | _defined(graph)
        for body in inner:
            yield from _graphs(body, seen)


def _given(graph: Any) -> list[str]:
    """Names of the weights, in order."""
    sparse = (tensor.values.name for tensor in graph.sparse_initializer)
    return [*(tensor.name for tensor in graph.initializer), *sparse]


def _defined(graph: Any) -> frozenset[str]:
    made = (name for node in graph.node for name in node.output)
    return frozenset((*_given(graph), *(value.name for value in graph.input), *made))


def _check_graph(path: Path, graph: Any, outer: frozenset[str]) -> None:
    if not graph.output:
        raise InvalidModelError(f"{path}: graph '{graph.name}' has no outputs")
    inputs = [value.name for value in graph.input]
    for kind, names in (("initializer", _given(graph)), ("input", inputs)):
        twice = _twice(names)
        if twice is not None:
            raise InvalidModelError(
                f"{path}: two {kind}s are called '{twice}'", hint="export the model again"
            )
    known = outer | _defined(graph)
    made = set[str]()
    for tensor in graph.initializer:
        _check_tensor(path, tensor)
    for node in graph.node:
        _check_node(path, node, known, made)
    for value in graph.output:
        if value.name not in known:
            raise InvalidModelError(f"{path}: nothing makes output '{value.name}'")


def _check_texts(path: Path, graph: Any) -> None:
    """Raise unless all names are text: what is not comes out of protobuf as bytes."""
    texts = [value.name for value in (*graph.input, *graph.output, *graph.initializer)]
    for node in graph.node:
        texts += [node.op_type, node.domain, node.name, *node.input, *node.output]
        texts += [attribute.name for attribute in node.attribute]
    for text in texts:
        if isinstance(text, bytes):
            raise InvalidModelError(
                f"{path}: a name in the model is not UTF-8: {text!r}",
                hint="the file is damaged, or its exporter is: export the model again",
            )


def _check_node(path: Path, node: Any, known: frozenset[str], made: set[str]) -> None:
    what = f"node '{node.name}' ({node.op_type})"
    if not any(node.output):
        raise InvalidModelError(f"{path}: {what} has no outputs")
    for name in node.output:
        if name and name in made:
            raise InvalidModelError(f"{path}: {what} makes '{name}', as a node before it does")
        made.add(name)
    for name in node.input:
        if name and name not in known:
            raise InvalidModelError(f"{path}: {what} reads '{name}', which nothing makes")
    for attribute in node.attribute:
        for tensor in ([attribute.t] if attribute.HasField("t") else []) + list(attribute.tensors):
            _check_tensor(path, tensor)


def _check_tensor(path: Path, tensor: Any) -> None:
    """Raise unless a tensor has as many values as its shape says."""
    from onnx import TensorProto, helper

    name = tensor.name
    if any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"{path}: tensor '{name}' has shape {tuple(tensor.dims)}")
    kinds = TensorProto.DataType
    if tensor.data_type not in kinds.values() or tensor.data_type == TensorProto.UNDEFINED:
        raise InvalidModelError(f"{path}: tensor '{name}' has no element type")
    count, kind = math.prod(tensor.dims), kinds.Name(tensor.data_type)
    if kind == "STRING":
        found, wanted, unit = len(tensor.string_data), count, "values"
    elif tensor.HasField("raw_data"):
        bits = _bits(kind, helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
        found, wanted, unit = len(tensor.raw_data), (count * bits + 7) // 8, "bytes"
    else:
        field = helper.tensor_dtype_to_field(tensor.data_type)
        bits = _bits(kind, 8)
        per = 8 // bits if bits < 8 else 1
        found, unit = len(getattr(tensor, field)), "values"
        wanted = 2 * count if kind in _PAIRS else -(-count // per)
    if found != wanted:
        raise InvalidModelError(
            f"{path}: tensor '{name}' of shape {tuple(tensor.dims)} has {found} {unit}, "
            f"not {wanted}",
            hint="the file is damaged: copy or export it again",
        )


def _bits(kind: str, itemsize: int) -> int:
    """Bits of an element as it is stored: FLOAT4E2M1, INT4 and INT2 are packed."""
    if kind.startswith(("INT4", "UINT4", "FLOAT4")):
        return 4
    return 2 if kind in ("INT2", "UINT2") else 8 * itemsize


def _check_functions(path: Path, proto: Any) -> None:
    """Raise if a function of the model's own calls itself, maybe by way of others."""
    bodies = {(f.domain, f.name, f.overload): list(_calls(f.node)) for f in proto.functions}
    state: dict[tuple[str, str, str], bool] = {}  # False: being looked at, True: done
    for start, first in bodies.items():
        # No recursion here: a chain of functions may be long.
        left = [(start, iter(first))] if start not in state else []
        state.setdefault(start, False)
        while left:
            key, calls = left[-1]
            called = next(calls, None)
            if called is None:
                state[key] = True
                left.pop()
            elif called in bodies and called not in state:
                state[called] = False
                left.append((called, iter(bodies[called])))
            elif state.get(called) is False:
                raise InvalidModelError(
                    f"{path}: function '{called[1]}' calls itself",
                    hint="ONNX has no recursion; export the model again",
                )


def _calls(nodes: Iterable[Any]) -> Iterator[tuple[str, str, str]]:
    for node in nodes:
        yield node.domain, node.op_type, node.overload
        for graph in subgraphs(node):
            yield from _calls(graph.node)


def _twice(names: Iterable[str]) -> str | None:
    counts: Mapping[str, int] = Counter(names)
    return next((name for name, count in counts.items() if name and count > 1), None)
