"""The operators whose result has a size of its own."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper

from edgepack.frontend.bounded.graph import INT64, Graph, Kind
from edgepack.frontend.bounded.size import Dim, Size
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.forms import attribute
from edgepack.frontend.selection import DOMAIN


def nonzero(graph: Graph, node: onnx.NodeProto) -> None:
    """As many positions as the tensor has elements."""
    made, size = _nonzero(graph, node.input[0], out=node.output[0])
    graph.set_axes(made, {1: size})


def _nonzero(graph: Graph, name: str, *, out: str = "") -> tuple[str, Size]:
    data = graph.filled(name, 0)
    shape = graph.shape(data)
    if not shape:
        raise UnsupportedFormError("a scalar has no positions")
    total = math.prod(shape)
    made, number = out or graph.name("positions"), graph.name("count")
    graph.nodes.append(
        helper.make_node(
            "BoundedNonZero", [data], [made, number], name=graph.name("NonZero"), domain=DOMAIN
        )
    )
    graph.set_kind(made, Kind(INT64, (len(shape), total)))
    graph.clean.add(made)
    return made, graph.count(number, total)


def compress(graph: Graph, node: onnx.NodeProto) -> None:
    """The elements where the condition holds, or slices along an axis."""
    data, condition = node.input[:2]
    axis = attribute(node, "axis")
    if axis is None:
        data = _flat(graph, data)
    axis = (axis or 0) % graph.rank(data)
    wanted = graph.value(condition)
    known = wanted is not None and not any(isinstance(item, Size) for item in wanted)
    if wanted is not None and known and axis not in graph.axes.get(data, {}):
        _take(graph, node, data, axis, wanted)
        return
    length = graph.shape(condition)[0]
    # A condition may be shorter than the axis, and not longer.
    if length > graph.shape(data)[axis]:
        condition = graph.cut(condition, 0, graph.shape(data)[axis])
    places, size = _nonzero(graph, condition)
    places = graph.reshape(places, [graph.shape(places)[1]])
    kind = graph.kind(data)
    shape = [graph.shape(places)[0] if at == axis else n for at, n in enumerate(kind.shape)]
    made = graph.emit(
        "Gather", [data, places], Kind(kind.element, tuple(shape)), out=node.output[0], axis=axis
    )
    graph.set_axes(made, {**graph.axes.get(data, {}), axis: size})


def _take(graph: Graph, node: onnx.NodeProto, data: str, axis: int, wanted: np.ndarray) -> None:
    """The slices that a constant condition asks for."""
    places = np.flatnonzero(wanted[: graph.shape(data)[axis]].astype("bool"))
    if not places.size:
        raise UnsupportedFormError("its condition is true nowhere, and its result is empty")
    kind = graph.kind(data)
    shape = tuple(len(places) if at == axis else n for at, n in enumerate(kind.shape))
    made = graph.emit(
        "Gather",
        [data, graph.integers(places.tolist())],
        Kind(kind.element, shape),
        out=node.output[0],
        axis=axis,
    )
    graph.set_axes(made, graph.axes.get(data, {}))


def _flat(graph: Graph, name: str) -> str:
    """A tensor in one axis."""
    axes, shape = graph.axes.get(name, {}), graph.shape(name)
    if len(shape) == 1:
        return name
    made = graph.reshape(name, [math.prod(shape)])
    for axis, size in axes.items():
        if math.prod(shape[:axis]) != 1 or len(axes) > 1:
            raise UnsupportedFormError(f"the number of rows in the middle of '{name}' is not known")
        graph.set_axes(made, {0: size * math.prod(shape[axis + 1 :])})
    return made


def unique(graph: Graph, node: onnx.NodeProto) -> None:
    """Elements, or slices along an axis, that differ."""
    data = node.input[0]
    axis = attribute(node, "axis")
    if axis is None:
        data = _flat(graph, data)
    element = graph.kind(data).element
    shape = list(graph.shape(data))
    axis = (axis or 0) % len(shape)
    axes = graph.axes.get(data, {})
    if set(axes) - {axis}:
        raise UnsupportedFormError(f"the size of the elements compared in '{data}' is not known")
    perm = [axis, *(at for at in range(len(shape)) if at != axis)]
    turned = [shape[at] for at in perm]
    if axis:
        data = graph.emit("Transpose", [data], Kind(element, tuple(turned)), perm=perm)
    rows, width = turned[0], math.prod(turned[1:])
    data = graph.reshape(data, [rows, width])
    valid: Dim = axes.get(axis, rows)
    outputs = [*node.output, "", "", ""][:4]
    values, first, inverse, times, number = (
        graph.name("values"),
        *(output or graph.name("unused") for output in outputs[1:]),
        graph.name("count"),
    )
    graph.nodes.append(
        helper.make_node(
            "BoundedUnique",
            [data, graph.scalar(valid)],
            [values, first, inverse, times, number],
            name=graph.name("Unique"),
            domain=DOMAIN,
            sorted=attribute(node, "sorted", 1),
        )
    )
    graph.set_kind(values, Kind(element, (rows, width)))
    size = graph.count(number, rows)
    for name, own in ((first, size), (inverse, valid), (times, size)):
        graph.set_kind(name, Kind(INT64, (rows,)))
        graph.set_axes(name, {0: own})
        graph.clean.add(name)
    if not outputs[0]:
        return
    made = graph.reshape(values, turned, out="" if axis else outputs[0])
    if axis:
        back = list(np.argsort(perm))
        made = graph.emit(
            "Transpose", [made], Kind(element, tuple(shape)), out=outputs[0], perm=back
        )
    graph.set_axes(made, {axis: size})


def non_max_suppression(graph: Graph, node: onnx.NodeProto) -> None:
    """Rows of batch, class and box: of each class as many as are asked for, or as there are."""
    boxes, scores, most, overlap, least = [*node.input, "", "", ""][:5]
    batches, classes, count = graph.shape(scores)
    open_ = {**graph.axes.get(scores, {})}
    valid: Dim = open_.pop(2, count)
    others = dict(graph.axes.get(boxes, {}))
    if open_ or others.pop(1, valid) != valid or others:
        raise UnsupportedFormError("the numbers of its batches, classes or boxes are not known")
    zero = np.zeros((), "float32")
    most = most or graph.constant(np.zeros((), "int64"))
    known = graph.value(most)
    limit = count if known is None else int(graph.most(known.reshape(-1)[0]))
    bound = batches * classes * max(min(limit, count), 0)
    inputs = [boxes, scores, graph.scalar(valid), most, overlap or graph.constant(zero)]
    made, number = node.output[0], graph.name("count")
    graph.nodes.append(
        helper.make_node(
            "BoundedNonMaxSuppression",
            [*inputs, *([least] if least else [])],
            [made, number],
            name=graph.name("NonMaxSuppression"),
            domain=DOMAIN,
            center_point_box=attribute(node, "center_point_box", 0),
            # A tensor has at least one row.
            bound=max(bound, 1),
        )
    )
    graph.set_kind(made, Kind(INT64, (max(bound, 1), 3)))
    graph.set_axes(made, {0: graph.count(number, bound)})
    graph.clean.add(made)


def top_k(graph: Graph, node: onnx.NodeProto) -> None:
    """As many as an input says, of as many as there are."""
    data = node.input[0]
    axis = attribute(node, "axis", -1) % graph.rank(data)
    axes = graph.axes.get(data, {})
    largest = bool(attribute(node, "largest", 1))
    extent, there = graph.shape(data)[axis], axes.get(axis, graph.shape(data)[axis])
    if axis in axes:
        # Behind all others of their value, for the first of equals comes first.
        data = graph.filled(data, graph.lowest(data, largest=not largest), [axis])
    wanted: Dim
    if len(node.input) < 2:
        wanted = attribute(node, "k")
    else:
        known = graph.value(node.input[1])
        wanted = _given(graph, node, extent) if known is None else known.reshape(-1)[0]
    if isinstance(wanted, Size):
        wanted = graph.smaller(wanted, there)
    bound = min(graph.most(wanted), extent)
    if not isinstance(wanted, Size) and bound < wanted:
        raise UnsupportedFormError(f"it takes {wanted} of at most {extent} elements")
    inputs = [data] if len(node.input) < 2 else [data, graph.integers([max(bound, 1)])]
    copy = helper.make_node("TopK", inputs, node.output, name=node.name)
    copy.attribute.extend(node.attribute)
    own = {**axes, axis: wanted}
    graph.put(copy, own, own)


def _given(graph: Graph, node: onnx.NodeProto, most: int) -> Size:
    """A TopK's number of elements that is known at run time only: at another one than 0 to `most`
    the model ends with an error that names it."""
    name, kind = node.input[1], Kind(INT64, (1,))
    if graph.kind(name).element != INT64:
        name = graph.emit("Cast", [name], Kind(INT64, graph.kind(name).shape), to=INT64)
    checked = graph.emit(
        "BoundedSize",
        [graph.reshape(name, [1])],
        kind,
        domain=DOMAIN,
        most=most,
        title=f"TopK '{node.name or node.output[0]}'",
        known="K",
    )
    return graph.count(graph.reshape(checked, []), np.iinfo("int32").max)


SOURCES = {
    "Compress": compress,
    "NonMaxSuppression": non_max_suppression,
    "NonZero": nonzero,
    "Unique": unique,
}
