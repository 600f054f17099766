"""An If whose branches make results of different sizes: both are computed, and one is chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.frontend.bounded.graph import INT64, Graph, Kind
from edgepack.frontend.bounded.size import Dim
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.forms import attribute
from edgepack.frontend.inlining import copy_nodes

# Puts a node of a branch into the graph.
Add = Callable[[Graph, onnx.NodeProto], None]


def choose(graph: Graph, node: onnx.NodeProto, add: Add) -> None:
    """The branch that is known to be taken; or both, with room for the larger result.

    Nothing inside can fail, not even a division by a count of 0 (`arithmetic.divide`), so the
    branch that is not taken does no harm: torchvision's detectors ask in this way whether there is
    any box at all.
    """
    known = graph.value(node.input[0])
    ways = [("then_branch", True), ("else_branch", False)]
    taken = [
        _inlined(graph, node, name, add)
        for name, way in ways
        if known is None or bool(known.reshape(-1)[0]) == way
    ]
    if len(taken) == 1:
        for name, result in zip(node.output, taken[0], strict=True):
            graph.same(result, name)
        return
    condition = node.input[0]
    if graph.shape(condition) != ():
        condition = graph.reshape(condition, [])
    for name, one, other in zip(node.output, *taken, strict=True):
        if name:
            _merged(graph, condition, (one, other), name)


def _inlined(graph: Graph, node: onnx.NodeProto, branch: str, add: Add) -> list[str]:
    """The names that the results of a branch have in the graph around it."""
    body: onnx.GraphProto = attribute(node, branch)
    prefix = graph.name(branch) + "/"
    names = {}
    for tensor in body.initializer:
        names[tensor.name] = graph.constant(numpy_helper.to_array(tensor), prefix + tensor.name)
    made = {name for item in body.node for name in item.output}
    for item in copy_nodes(body.node, names, prefix):
        value = attribute(item, "value") if item.op_type == "Constant" else None
        if value is not None:
            graph.constant(numpy_helper.to_array(value), item.output[0])
        else:
            add(graph, item)
    return [
        names.get(value.name, prefix + value.name if value.name in made else value.name)
        for value in body.output
    ]


def _merged(graph: Graph, condition: str, pair: tuple[str, str], out: str) -> None:
    """The first of two tensors where the condition holds, else the second."""
    kinds = [graph.kind(name) for name in pair]
    if kinds[0].element != kinds[1].element or len(kinds[0].shape) != len(kinds[1].shape):
        raise UnsupportedFormError(
            "its condition depends on the data, and its branches give results of different types "
            "or numbers of axes"
        )
    sizes: dict[int, Dim] = {}
    rooms = []
    for axis, extents in enumerate(zip(kinds[0].shape, kinds[1].shape, strict=True)):
        rooms.append(max(*extents, 1))
        one, other = (graph.sizes(name)[axis] for name in pair)
        sizes[axis] = one
        if one != other:
            scalars = [condition, graph.scalar(one), graph.scalar(other)]
            chosen = graph.emit_once("Where", scalars, Kind(INT64, ()))
            sizes[axis] = graph.count(chosen, max(graph.most(one), graph.most(other)))
    kind = Kind(kinds[0].element, tuple(rooms))
    wide = [_widened(graph, name, kind) for name in pair]
    graph.emit("Where", [condition, *wide], kind, out=out)
    graph.set_axes(out, sizes)
    if graph.clean.issuperset(wide):
        graph.clean.add(out)


def _widened(graph: Graph, name: str, to: Kind) -> str:
    """A tensor with zeros behind what it has."""
    dtype = helper.tensor_dtype_to_np_dtype(to.element)
    if 0 in graph.shape(name):
        made = graph.constant(np.zeros(to.shape, dtype))
        graph.clean.add(made)
        return made
    made = name
    for axis, room in enumerate(to.shape):
        shape = list(graph.shape(made))
        if shape[axis] == room:
            continue
        rest = list(shape)
        rest[axis], shape[axis] = room - shape[axis], room
        zeros = graph.constant(np.zeros(rest, dtype))
        kind = Kind(to.element, tuple(shape))
        made = graph.emit("Concat", [made, zeros], kind, axis=axis)
    if made != name and (name in graph.clean or name not in graph.axes):
        graph.clean.add(made)
    return made
