"""Operators that write some elements of a tensor anew, in place where nobody reads the old one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax, tirx

from edgepack.frontend.arithmetic import dtype_of, shape_of
from edgepack.frontend.conversions import Node, is_static
from edgepack.frontend.forms import attribute, known_shapes
from edgepack.frontend.positions import Reach
from edgepack.frontend.selection import DOMAIN
from edgepack.kernels.whole import updates
from edgepack.model.index import GraphIndex


def scatter_nd(node: Node) -> relax.Expr | None:
    """ScatterND, None where the number of its rows is open."""
    if (numbers := _of_numbers(node)) is not None:
        made = scatter_nd(numbers)
        return None if made is None else relax.op.astype(node.emit(made), "bool")
    data, positions, given = node.inputs
    reduction = _reduction(node)
    if reduction is None or not is_static(positions.ty):
        return None
    shape, *places, axes = shape_of(data), *shape_of(positions)
    count, size = math.prod(places), math.prod(shape[axes:])
    if not count or not math.prod(shape):
        return None
    flat, index = (*shape[:axes], size), (count, axes)
    positions = _positions(node, positions, shape[:axes])
    order = range(axes + 1)
    kernel = updates.rows(flat, dtype_of(data), index, dtype_of(positions), order, reduction)
    made = _call(node, kernel, [(data, flat), (positions, index), (given, (count, size))])
    return relax.op.reshape(made, shape)


def scatter_parts(node: Node) -> relax.Expr:
    """Of `with_parts`. Inputs: data, positions [.., axes], updates; their axes in the data's own
    order are those of `order`."""
    data, positions, given = node.inputs
    shape, *places, axes = shape_of(data), *shape_of(positions)
    order, index = list(node.attributes["order"]), (math.prod(places), axes)
    positions = _positions(node, positions, [shape[axis] for axis in order[:axes]])
    kernel = updates.rows(shape, dtype_of(data), index, dtype_of(positions), order)
    part = (index[0], *(shape[axis] for axis in order[axes:]))
    return _call(node, kernel, [(data, shape), (positions, index), (given, part)])


def with_parts(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in which a ScatterND between two transpositions writes where its data lie.

    PyTorch's exporters write `cache[:, :, position] = rows` so, for ScatterND takes positions along
    the first axes only. The same model if there is none.
    """
    graph = proto.graph
    index = GraphIndex(graph)
    orders = {
        node.output[0]: order
        for node in graph.node
        if index.outputs.keys().isdisjoint(node.output)
        and (order := _order_between(node, index)) is not None
    }
    if not orders:
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    del changed.graph.node[:]
    for node in graph.node:
        changed.graph.node.append(_with_parts(node, index.makers, orders))
    return _with_domain(changed)


def _order_between(scatter: onnx.NodeProto, graph: GraphIndex) -> list[int] | None:
    """How the data of a ScatterND that replaces are transposed before, if they are transposed back
    and whoever reads them transposes."""
    if scatter.op_type != "ScatterND" or attribute(scatter, "reduction", b"none") != b"none":
        return None
    before = graph.makers.get(scatter.input[0])
    order = _transposed_by(before) if before is not None else None
    after = [_transposed_by(node) for node in graph.readers[scatter.output[0]]]
    if order is None or None in after or np.argsort(order).tolist() not in after:
        return None
    return order


def _transposed_by(node: onnx.NodeProto) -> list[int] | None:
    found = attribute(node, "perm") if node.op_type == "Transpose" else None
    return list(found) if found else None


def _with_parts(
    node: onnx.NodeProto,
    makers: Mapping[str, onnx.NodeProto],
    orders: Mapping[str, Sequence[int]],
) -> onnx.NodeProto:
    """A node where some ScatterND, those of `orders`, have results in the order of their data."""
    order = orders.get(node.output[0]) if node.output else None
    if order is not None:
        inputs = [makers[node.input[0]].input[0], *node.input[1:]]
        options = {"name": node.name, "domain": DOMAIN, "order": order}
        return onnx.helper.make_node("ScatterParts", inputs, node.output, **options)
    order = orders.get(node.input[0]) if node.op_type == "Transpose" else None
    if order is None:
        return node
    together = [order[axis] for axis in attribute(node, "perm")]
    if together == sorted(together):
        return onnx.helper.make_node("Identity", node.input, node.output, name=node.name)
    return onnx.helper.make_node(
        "Transpose", node.input, node.output, name=node.name, perm=together
    )


def shifted_window(node: Node) -> relax.Expr:
    """Of `with_windows`. Inputs: a window, the steps that come in along `axis`."""
    data, given = node.inputs
    shape, axis = shape_of(data), int(node.attributes["axis"])
    steps = shape_of(given)[axis]
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    window = (outer, shape[axis], inner)
    kernel = updates.shift_window(window, dtype_of(data), steps)
    flat, part = (outer, shape[axis] * inner), (outer, steps * inner)
    return relax.op.reshape(_call(node, kernel, [(data, flat), (given, part)]), shape)


def with_windows(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in which an input without its first steps, and as many new ones behind it, are one
    operator: Slice and Concat, of a window that is a state. The same model if there is none."""
    graph = proto.graph
    makers, inputs = GraphIndex(graph).makers, GraphIndex(graph).inputs
    candidates = [
        node
        for node in graph.node
        if node.op_type == "Concat"
        and len(node.input) == 2
        and (before := makers.get(node.input[0])) is not None
        and before.op_type == "Slice"
        and len(before.input) > 3
        and before.input[0] in inputs
    ]
    if not candidates:
        return proto
    shapes = known_shapes(proto)
    numbers = {
        tensor.name: numpy_helper.to_array(tensor).ravel().tolist()
        for tensor in graph.initializer
        if math.prod(tensor.dims) == 1
    }
    found = {
        node.output[0]: axis
        for node in candidates
        if (axis := _shifted_along(node, makers[node.input[0]], shapes, numbers)) is not None
    }
    if not found:
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for node in changed.graph.node:
        if node.output and node.output[0] in found:
            window = [makers[node.input[0]].input[0], node.input[1]]
            made = onnx.helper.make_node(
                *("ShiftedWindow", window, node.output, node.name),
                domain=DOMAIN,
                axis=found[node.output[0]],
            )
            node.CopyFrom(made)
    return _with_domain(changed)


def _shifted_along(
    concat: onnx.NodeProto,
    cut: onnx.NodeProto,
    shapes: Mapping[str, tuple[int, ...]],
    numbers: Mapping[str, Sequence[float]],
) -> int | None:
    """The axis along which as many steps come in as are left out at the start, if that is so."""
    shape, new = shapes.get(cut.input[0]), shapes.get(concat.input[1])
    bounds = [numbers.get(name) for name in cut.input[1:]]
    if shape is None or new is None or not all(bounds):
        return None
    start, end, axis, step = (int(bound[0]) for bound in (*bounds, [1])[:4] if bound)
    axis %= len(shape)
    start += shape[axis] if start < 0 else 0
    together = int(attribute(concat, "axis")) % len(shape) == axis
    whole = step == 1 and end >= shape[axis] and 0 < start < shape[axis]
    return axis if together and whole and new[axis] == start else None


def _with_domain(proto: onnx.ModelProto) -> onnx.ModelProto:
    if all(item.domain != DOMAIN for item in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return proto


def scatter_elements(node: Node) -> relax.Expr | None:
    """ScatterElements (Scatter, in old models), None where the number of updates is open."""
    if (numbers := _of_numbers(node)) is not None:
        made = scatter_elements(numbers)
        return None if made is None else relax.op.astype(node.emit(made), "bool")
    data, positions, given = node.inputs
    reduction = _reduction(node)
    if reduction is None or not is_static(positions.ty):
        return None
    shape, index = shape_of(data), shape_of(positions)
    if not math.prod(index) or not shape:
        return None
    axis = node.attributes.get("axis", 0) % len(shape)
    positions = _positions(node, positions, [shape[axis]])
    kernel = updates.elements(shape, dtype_of(data), index, dtype_of(positions), axis, reduction)
    inputs = [(data, shape), (positions, index), (given, index)]
    return _call(node, kernel, inputs, "scatter_elements")


def tensor_scatter(node: Node) -> relax.Expr:
    """TensorScatter: a cache with an update from a position on, which each batch has its own of."""
    cache, update, starts = (*node.inputs, None)[:3]
    shape = shape_of(cache)
    axis = node.attributes.get("axis", -2) % len(shape)
    extent, given = shape[axis], shape_of(update)[axis]
    if starts is None:
        starts = relax.const(np.zeros(shape[0]), "int64")
    outer, inner = math.prod(shape[1:axis]), math.prod(shape[axis + 1 :])
    whole, part = ((shape[0], outer, count, inner) for count in (extent, given))
    circular = node.attributes.get("mode", b"linear") == b"circular"
    if not circular:
        starts = node.positions(starts, [Reach(0, extent - given)], "write_indices")
    kernel = updates.steps(whole, dtype_of(cache), given, dtype_of(starts), circular=circular)
    made = _call(node, kernel, [(cache, whole), (starts, (shape[0],)), (update, part)])
    return relax.op.reshape(made, shape)


def _positions(node: Node, given: relax.Expr, extents: Sequence[int]) -> relax.Expr:
    return node.positions(given, [Reach.of_axis(extent) for extent in extents], "indices")


def _reduction(node: Node) -> str | None:
    """What becomes of an update and what was there before; None if no kernel does that."""
    tensors = all(isinstance(item.ty, relax.TensorType) for item in node.inputs)
    reduction = node.attributes.get("reduction", b"none").decode()
    return reduction if tensors and reduction in updates.REDUCTIONS else None


# Of truth values a sum is true where one is, a product where all are: of 0 and 1 these.
_OF_TRUTHS = {"add": b"max", "max": b"max", "mul": b"min", "min": b"min"}


def _of_numbers(node: Node) -> Node | None:
    """The same on 0 and 1 of a node that reduces truth values; None for any other."""
    data, positions, given = node.inputs
    reduction = _OF_TRUTHS.get(node.attributes.get("reduction", b"none").decode())
    if reduction is None or dtype_of(data) != "bool":
        return None
    data, given = (node.emit(relax.op.astype(item, "uint8")) for item in (data, given))
    attributes = {**node.attributes, "reduction": reduction}
    return replace(node, inputs=[data, positions, given], attributes=attributes)


def _call(
    node: Node,
    kernel: tirx.PrimFunc,
    inputs: Sequence[tuple[relax.Expr, Sequence[int]]],
    name: str = "update",
) -> relax.Expr:
    """A call of the kernel; each input in the shape that the kernel knows it by."""
    given = [
        item if shape_of(item) == [*shape] else node.emit(relax.op.reshape(item, [*shape]))
        for item, shape in inputs
    ]
    data, shape = inputs[0]
    return node.call(name, kernel, given, [(shape, dtype_of(data))])[0]
