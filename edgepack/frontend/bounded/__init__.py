"""Sizes that depend on the data: each tensor gets room for its largest size, and a count.

NonZero, Compress, Unique, NonMaxSuppression, and TopK of a number that is an input, make results
of the largest size that they can have, with zeros behind what is in use, and a count beside them.
Counts travel with the tensors through the nodes that follow, as sums of counts by axis; each
operator's rule says how. What is in use are always the first elements of an axis.

    NonMaxSuppression [?, 3] -> Gather [?, 1] -> Squeeze [?] -> Slice [min(?, 100)] -> ...

An If whose branches make results of different sizes is both of them, and a choice between them.
Shapes that the model computes of such tensors are computed here, as far as shapes need them, and
when the model runs, as far as its results do.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from edgepack.frontend.bound import Bound
from edgepack.frontend.bounded.branches import choose
from edgepack.frontend.bounded.graph import INT64, Graph
from edgepack.frontend.bounded.rules import RULES
from edgepack.frontend.bounded.size import Size
from edgepack.frontend.bounded.sources import SOURCES
from edgepack.frontend.bounded.values import as_array, evaluate
from edgepack.frontend.errors import DataSizeError, UnsupportedFormError
from edgepack.frontend.owners import title_of
from edgepack.frontend.selection import DOMAIN
from edgepack.model.structure import subgraphs


def fix_sizes(path: Path, proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[Bound, ...]]:
    """A folded model with fixed sizes, and which axes of its outputs are not all in use.

    The same model where nothing depends on the data. Behind the model's outputs come those that
    hold counts. Raises `DataSizeError` for a node that cannot have such a tensor.
    """
    if not any(_has_count(node, proto) for node in proto.graph.node):
        return proto, ()
    graph = Graph(proto)
    for node in proto.graph.node:
        graph.node = node
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        try:
            _add(graph, copy)
        except UnsupportedFormError as error:
            raise DataSizeError(
                f"{path}: {title_of(node)} cannot be compiled: {error}",
                hint=_way_out(node),
            ) from error
    return _finished(graph, proto)


def _way_out(node: onnx.NodeProto) -> str:
    if node.op_type == "If":
        return (
            "make the condition a constant (--set INPUT=VALUE), or export the model with the "
            "branch fixed"
        )
    return (
        "end the model before it, and do its work in the application; or export the model with a "
        "fixed number of results"
    )


def _has_count(node: onnx.NodeProto, proto: onnx.ModelProto) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "If":  # those that could be a block are none any more
        return True
    if node.op_type != "TopK" or len(node.input) < 2:
        return node.op_type in SOURCES
    return all(tensor.name != node.input[1] for tensor in proto.graph.initializer)


def _add(graph: Graph, node: onnx.NodeProto, *, inlined: bool = False) -> None:
    """A node in the new model, or what stands for it there.

    Of one that was `inlined` from a branch no shape is known yet.
    """
    own = node.domain in ("", "ai.onnx")
    if own and node.op_type == "If":
        choose(graph, node, partial(_add, inlined=True))
        return
    inside = {name for body in subgraphs(node) for name in _read(body)}
    read = {*filter(None, node.input), *inside}
    open_ = [name for name in sorted(read) if name in graph.axes or graph.is_open(name)]
    sized_by_input = node.op_type == "TopK" and len(node.input) > 1
    if own and node.op_type in SOURCES:
        SOURCES[node.op_type](graph, node)
    elif own and sized_by_input and graph.value(node.input[1]) is None:
        RULES["TopK"](graph, node)
    elif not inlined and not read & graph.changed:
        graph.nodes.append(node)
    elif (value := evaluate(graph, node) if own else None) is not None:
        _add_value(graph, node, value)
    elif open_:
        if inside or not own or node.op_type not in RULES:
            raise UnsupportedFormError(_no_rule(graph, open_[0]))
        RULES[node.op_type](graph, node)
    elif own:
        graph.put(node)
    else:
        graph.nodes.append(node)


def _add_value(graph: Graph, node: onnx.NodeProto, value: np.ndarray) -> None:
    """A node whose result is known: a constant, or computed of counts when the model runs."""
    if not any(isinstance(item, Size) for item in value.flat):
        graph.constant(as_array(graph, node, value), node.output[0])
        return
    if node.op_type in ("Shape", "Size"):
        made = graph.vector(list(value)) if value.ndim else graph.scalar(value.item())
        graph.same(made, node.output[0])
    else:
        graph.put(node)
    graph.values[node.output[0]] = value


def _no_rule(graph: Graph, name: str) -> str:
    axes = ", ".join(map(str, graph.axes.get(name, {})))
    where = f"along axis {axes}" if axes else "as a value"
    return (
        f"'{name}' has a size that depends on the data ({where}), which this operator cannot have"
    )


def _read(body: onnx.GraphProto) -> Iterator[str]:
    for node in body.node:
        yield from filter(None, node.input)
        for inner in subgraphs(node):
            yield from _read(inner)
    yield from (value.name for value in body.output)


def _finished(graph: Graph, proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[Bound, ...]]:
    """The model as it was written, with the counts of its outputs."""
    bounds: list[Bound] = []
    counts: list[str] = []
    for number, value in enumerate(proto.graph.output):
        for axis, size in sorted(graph.axes.get(value.name, {}).items()):
            scalar = graph.scalar(size)
            if scalar not in counts:
                counts.append(scalar)
            bounds.append(Bound(output=number, axis=axis, count=counts.index(scalar)))
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    if all(item.domain != DOMAIN for item in made.opset_import):
        made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    for part in ("node", "initializer", "value_info", "output"):
        del getattr(made.graph, part)[:]
    for value in proto.graph.output:
        made.graph.output.append(_typed(graph, value))
    made.graph.output.extend(helper.make_tensor_value_info(name, INT64, ()) for name in counts)
    needed = {value.name for value in made.graph.output}
    nodes = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.output):
            nodes.append(node)
            needed.update(node.input)
            needed.update(name for body in subgraphs(node) for name in _read(body))
    made.graph.node.extend(reversed(nodes))
    made.graph.initializer.extend(t for name, t in graph.tensors.items() if name in needed)
    shown = {name for node in nodes for name in node.output}
    made.graph.value_info.extend(
        helper.make_tensor_value_info(name, kind.element, kind.shape)
        for name, kind in graph.kinds.items()
        if name in shown and name not in graph.tensors
    )
    return made, tuple(bounds)


def _typed(graph: Graph, value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    kind = graph.kinds.get(value.name)
    if kind is None:
        return value
    return helper.make_tensor_value_info(value.name, kind.element, kind.shape)
