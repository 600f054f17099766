"""What small integer tensors hold, where shapes are computed with them: numbers and counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepack.frontend.bounded.graph import Graph
from edgepack.frontend.bounded.size import Dim, Size
from edgepack.frontend.forms import attribute


def evaluate(graph: Graph, node: onnx.NodeProto) -> np.ndarray | None:
    """The elements of a node's result, None where they are not known."""
    if node.op_type in ("Shape", "Size"):
        return _shape(graph, node)
    function = _FUNCTIONS.get(node.op_type)
    inputs = [graph.value(name) if name else None for name in node.input]
    known = all(
        value is not None or not name for value, name in zip(inputs, node.input, strict=True)
    )
    if function is None or not known:
        return None
    try:
        made = function(graph, node, inputs)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):  # what has no such form
        return None
    return None if made is None else _objects(made)


def as_array(graph: Graph, node: onnx.NodeProto, value: np.ndarray) -> np.ndarray:
    """Known numbers in the type that the node's result has."""
    dtype = "int64"
    if node.op_type == "Cast":
        dtype = str(helper.tensor_dtype_to_np_dtype(attribute(node, "to")))
    elif node.op_type in ("Equal", "Not"):
        dtype = "bool"
    elif node.op_type == "Where":
        dtype = str(helper.tensor_dtype_to_np_dtype(graph.kind(node.input[1]).element))
    elif node.op_type not in ("Shape", "Size", "ConstantOfShape") and node.input:
        dtype = str(helper.tensor_dtype_to_np_dtype(graph.kind(node.input[0]).element))
    elif node.op_type == "ConstantOfShape":
        dtype = str(_filling(node).dtype)
    return np.array(value.tolist(), dtype).reshape(value.shape)


def _objects(value: object) -> np.ndarray:
    return np.asarray(value, dtype=object)


# Arrays, or None for an input that is left out.
Inputs = Sequence[Any]


def _shape(graph: Graph, node: onnx.NodeProto) -> np.ndarray | None:
    if node.input[0] not in graph.kinds:
        return None
    sizes = graph.sizes(node.input[0])
    if node.op_type == "Size":
        try:
            return _objects(product(sizes))
        except TypeError:
            return None
    start, end = attribute(node, "start", 0), attribute(node, "end")
    return _vector(sizes[start:end])


def product(sizes: Sequence[Dim]) -> Dim:
    """Raises TypeError for a product of two counts."""
    total: Dim = 1
    for size in sizes:
        total = total * size
    return total


def _vector(items: Sequence[Dim]) -> np.ndarray:
    made = np.empty(len(items), dtype=object)
    made[:] = items
    return made


def _gather(_graph: Graph, node: onnx.NodeProto, inputs: Inputs) -> np.ndarray:
    data, indices = inputs
    return _objects(np.take(data, indices.astype("int64"), axis=attribute(node, "axis", 0)))


def _slice(graph: Graph, node: onnx.NodeProto, _inputs: Inputs) -> np.ndarray | None:
    data = graph.value(node.input[0])
    assert data is not None
    starts, ends, axes, steps = (
        graph.fixed(node, position, name)
        for position, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    if starts is None or ends is None:
        return None
    taken = [slice(None)] * data.ndim
    axes = axes or list(range(len(starts)))
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        taken[axis] = part_of(data.shape[axis], start, end, step)
    return _objects(data[tuple(taken)])


def part_of(size: int, start: int, end: int, step: int) -> slice:
    """A part of an axis as ONNX numbers it: to reach the first element backwards, `end` lies more
    than `size` before 0, which for Python is -1 and means the last one."""
    if step > 0:
        return slice(start, end, step)
    start = max(start + size, 0) if start < 0 else start
    end = max(end + size if end < 0 else end, -1)
    return slice(start, None if end < 0 else end, step)


def _transposed(_graph: Graph, node: onnx.NodeProto, inputs: Inputs) -> np.ndarray:
    return _objects(np.transpose(inputs[0], attribute(node, "perm")))


def _concat(_graph: Graph, node: onnx.NodeProto, inputs: Inputs) -> np.ndarray:
    return np.concatenate([item for item in inputs if item is not None], attribute(node, "axis"))


def _reshaped(graph: Graph, node: onnx.NodeProto, inputs: Inputs) -> np.ndarray | None:
    """Squeeze, Unsqueeze and Reshape."""
    data = inputs[0]
    assert data is not None
    if node.op_type == "Reshape":
        shape = inputs[1]
        return _objects(data.reshape([int(size) for size in shape])) if shape is not None else None
    axes = graph.fixed(node, 1, "axes")
    if node.op_type == "Unsqueeze":
        return np.expand_dims(data, tuple(axes or ()))
    return _objects(np.squeeze(data, None if axes is None else tuple(axes)))


def _cast(_graph: Graph, node: onnx.NodeProto, inputs: Inputs) -> np.ndarray | None:
    integers = (TensorProto.INT64, TensorProto.INT32)
    return inputs[0] if attribute(node, "to") in integers else None


def _of_two(function: Callable[[Dim, Dim], object]) -> Callable[..., np.ndarray]:
    def apply(_graph: Graph, _node: onnx.NodeProto, inputs: Inputs) -> np.ndarray:
        return np.asarray(np.frompyfunc(function, 2, 1)(*inputs), dtype=object)

    return apply


def _divided(one: Dim, by: Dim) -> Dim:
    if isinstance(by, Size):
        raise TypeError("a division by a count")
    if not isinstance(one, Size):
        # ONNX's integers are cut off, not rounded down.
        return math.trunc(one / by)
    made = one.divided(by)
    if made is None:
        raise TypeError("a division with a rest")
    return made


def _smaller(*, larger: bool) -> Callable[..., np.ndarray | None]:
    def apply(graph: Graph, node: onnx.NodeProto, inputs: Inputs) -> np.ndarray | None:
        items: list[np.ndarray] = [item for item in inputs if item is not None]
        pick = np.frompyfunc(lambda a, b: graph.smaller(a, b, larger=larger), 2, 1)
        if not node.op_type.startswith("Reduce"):
            made = items[0]
            for item in items[1:]:
                made = np.asarray(pick(made, item), dtype=object)
            return made
        data = items[0]
        axes = graph.fixed(node, 1, "axes")
        if data.ndim > 1 or (axes is not None and len(axes) != data.ndim):
            return None
        total = data.reshape(-1)[0]
        for item in data.reshape(-1)[1:]:
            total = graph.smaller(total, item, larger=larger)
        keep = attribute(node, "keepdims", 1)
        return _vector([total]) if keep and data.ndim else _objects(total)

    return apply


def _all_together(graph: Graph, node: onnx.NodeProto, inputs: Inputs) -> np.ndarray | None:
    """ReduceProd of a shape, which is how torch.jit asks for a number of elements."""
    data, axes = inputs[0], graph.fixed(node, 1, "axes")
    if data.ndim != 1 or (axes is not None and list(axes) not in ([0], [-1], [])):
        return None
    total = product(list(data))
    return _vector([total]) if attribute(node, "keepdims", 1) else _objects(total)


def _equal(graph: Graph, _node: onnx.NodeProto, inputs: Inputs) -> np.ndarray | None:
    def same(one: Dim, other: Dim) -> bool:
        if one == other:
            return True
        if graph.least(one - other) <= 0 <= graph.most(one - other):
            raise TypeError("it depends on the data")
        return False

    return np.asarray(np.frompyfunc(same, 2, 1)(*inputs), dtype=object)


def _where(_graph: Graph, _node: onnx.NodeProto, inputs: Inputs) -> np.ndarray:
    condition, one, other = inputs
    return np.asarray(np.where(condition.astype(bool), one, other), dtype=object)


def _filling(node: onnx.NodeProto) -> np.ndarray:
    value = attribute(node, "value")
    return np.zeros(1, "float32") if value is None else onnx.numpy_helper.to_array(value)


def _constant_of_shape(_graph: Graph, node: onnx.NodeProto, inputs: Inputs) -> np.ndarray | None:
    value, shape = _filling(node), inputs[0]
    if value.dtype.kind not in "iub" or shape is None or np.prod(shape.astype("int64")) > 1024:
        return None
    return np.full([int(n) for n in shape], value.reshape(-1)[0].item(), dtype=object)


_FUNCTIONS: dict[str, Callable[[Graph, onnx.NodeProto, Inputs], np.ndarray | None]] = {
    "Add": _of_two(lambda a, b: a + b),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _of_two(_divided),
    "Equal": _equal,
    "Gather": _gather,
    "Identity": lambda _graph, _node, inputs: inputs[0],
    "Max": _smaller(larger=True),
    "Min": _smaller(larger=False),
    "Mul": _of_two(lambda a, b: a * b),
    "ReduceMax": _smaller(larger=True),
    "ReduceMin": _smaller(larger=False),
    "ReduceProd": _all_together,
    "Reshape": _reshaped,
    "Slice": _slice,
    "Squeeze": _reshaped,
    "Sub": _of_two(lambda a, b: a - b),
    "Transpose": _transposed,
    "Unsqueeze": _reshaped,
    "Where": _where,
}
