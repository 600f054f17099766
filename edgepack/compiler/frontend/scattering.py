"""Operators that write some elements of a tensor anew, in place where nobody reads the old one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx

from edgepack.compiler.frontend.arithmetic import dtype_of, shape_of
from edgepack.compiler.frontend.conversions import Node, is_static
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
    index, kind, dtype = (count, axes), dtype_of(positions), dtype_of(data)
    made = _call(
        node,
        updates.rows(shape, dtype, index, kind),
        [(data, (*shape[:axes], size)), (positions, index), (given, (count, size))],
    )
    return relax.op.reshape(made, shape)


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
