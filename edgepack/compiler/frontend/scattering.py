"""Operators that write some elements of a tensor anew, in place where nobody reads the old one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from tvm import relax, tirx

from edgepack.compiler.frontend.arithmetic import dtype_of, shape_of
from edgepack.compiler.frontend.conversions import Node, is_static
from edgepack.compiler.frontend.forms import attribute
from edgepack.compiler.frontend.selection import DOMAIN
from edgepack.compiler.kernels import updates


def scatter_nd(node: Node) -> relax.Expr | None:
    """ScatterND that replaces rows, None for one that adds to them or the like."""
    data, positions, given = node.inputs
    if not _replaces(node) or not is_static(positions.ty):
        return None
    shape, *places, axes = shape_of(data), *shape_of(positions)
    count, size = math.prod(places), math.prod(shape[axes:])
    if not count or not math.prod(shape):
        return None
    flat, index = (*shape[:axes], size), (count, axes)
    kernel = updates.rows(flat, dtype_of(data), index, dtype_of(positions), range(axes + 1))
    made = _call(node, kernel, [(data, flat), (positions, index), (given, (count, size))])
    return relax.op.reshape(made, shape)


def scatter_parts(node: Node) -> relax.Expr:
    """Of `with_parts`. Inputs: data, positions [.., axes], updates; their axes in the data's own
    order are those of `order`."""
    data, positions, given = node.inputs
    shape, *places, axes = shape_of(data), *shape_of(positions)
    order, index = list(node.attributes["order"]), (math.prod(places), axes)
    kernel = updates.rows(shape, dtype_of(data), index, dtype_of(positions), order)
    part = (index[0], *(shape[axis] for axis in order[axes:]))
    return _call(node, kernel, [(data, shape), (positions, index), (given, part)])


def with_parts(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in which a ScatterND between two transpositions writes where its data lie.

    PyTorch's exporters write `cache[:, :, position] = rows` so, for ScatterND takes positions along
    the first axes only. The same model if there is none.
    """
    graph = proto.graph
    makers = {name: node for node in graph.node for name in node.output}
    readers = defaultdict[str, list[onnx.NodeProto]](list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {value.name for value in graph.output}
    orders = {
        node.output[0]: order
        for node in graph.node
        if not outputs.intersection(node.output)
        and (order := _order_between(node, makers, readers)) is not None
    }
    if not orders:
        return proto
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    del changed.graph.node[:]
    for node in graph.node:
        changed.graph.node.append(_with_parts(node, makers, orders))
    if all(item.domain != DOMAIN for item in changed.opset_import):
        changed.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return changed


def _order_between(
    scatter: onnx.NodeProto,
    makers: Mapping[str, onnx.NodeProto],
    readers: Mapping[str, Sequence[onnx.NodeProto]],
) -> list[int] | None:
    """How the data of a ScatterND that replaces are transposed before, if they are transposed back
    and whoever reads them transposes."""
    if scatter.op_type != "ScatterND" or attribute(scatter, "reduction", b"none") != b"none":
        return None
    before = makers.get(scatter.input[0])
    order = _transposed_by(before) if before is not None else None
    after = [_transposed_by(node) for node in readers[scatter.output[0]]]
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


def scatter_elements(node: Node) -> relax.Expr | None:
    """ScatterElements (Scatter, in old models) that replaces elements, None for any other."""
    data, positions, given = node.inputs
    if not _replaces(node) or not is_static(positions.ty):
        return None
    shape, index = shape_of(data), shape_of(positions)
    if not math.prod(index) or not shape:
        return None
    axis = node.attributes.get("axis", 0) % len(shape)
    kernel = updates.elements(shape, dtype_of(data), index, dtype_of(positions), axis)
    return _call(node, kernel, [(data, shape), (positions, index), (given, index)])


def tensor_scatter(node: Node) -> relax.Expr:
    """TensorScatter: a cache with an update from a position on, which each batch has its own of."""
    cache, update, starts = (*node.inputs, None)[:3]
    shape = shape_of(cache)
    axis = node.attributes.get("axis", -2) % len(shape)
    given = shape_of(update)[axis]
    if starts is None:
        starts = relax.const(np.zeros(shape[0]), "int64")
    outer, inner = math.prod(shape[1:axis]), math.prod(shape[axis + 1 :])
    whole, part = ((shape[0], outer, extent, inner) for extent in (shape[axis], given))
    circular = node.attributes.get("mode", b"linear") == b"circular"
    kernel = updates.steps(whole, dtype_of(cache), given, dtype_of(starts), circular=circular)
    made = _call(node, kernel, [(cache, whole), (starts, (shape[0],)), (update, part)])
    return relax.op.reshape(made, shape)


def _replaces(node: Node) -> bool:
    tensors = all(isinstance(item.ty, relax.TensorType) for item in node.inputs)
    return tensors and node.attributes.get("reduction", b"none") == b"none"


def _call(
    node: Node, kernel: tirx.PrimFunc, inputs: Sequence[tuple[relax.Expr, Sequence[int]]]
) -> relax.Expr:
    """A call of the kernel; each input in the shape that the kernel knows it by."""
    given = [
        item if shape_of(item) == [*shape] else node.emit(relax.op.reshape(item, [*shape]))
        for item, shape in inputs
    ]
    data, shape = inputs[0]
    return node.call("update", kernel, given, [(shape, dtype_of(data))])[0]
