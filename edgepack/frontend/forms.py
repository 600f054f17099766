"""How forms of operators are recognised: by attributes and constant inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.model import infer_shapes, opset_of
from edgepack.model.index import GraphIndex


class Context:
    """What a form is recognised by beside the node itself."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.opset = opset_of(proto)
        # What could not be inlined.
        self.functions = {(function.domain, function.name) for function in proto.functions}
        self.values = GraphIndex(proto.graph).constants
        self.constant = set(self.values)
        inferred = infer_shapes(proto).graph
        self.shapes = _known_shapes(inferred)
        self.types = {
            name: value.type.tensor_type.elem_type
            for name, value in GraphIndex(inferred).results.items()
        }
        for node in proto.graph.node:
            value = attribute(node, "value") if node.op_type == "Constant" else None
            if value is not None:
                self.values[node.output[0]] = value
            if all(name in self.constant for name in node.input if name) and not any(
                item.HasField("g") for item in node.attribute
            ):
                self.constant.update(node.output)

    def is_constant(self, node: onnx.NodeProto) -> bool:
        """Whether all that a node makes is known before the first inference."""
        return all(name in self.constant for name in node.output)

    def array(self, node: onnx.NodeProto, position: int) -> np.ndarray | None:
        """Value of a constant input, or None."""
        if len(node.input) <= position or node.input[position] not in self.values:
            return None
        return np.asarray(numpy_helper.to_array(self.values[node.input[position]]))


def known_shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors inside, where they are known and fixed."""
    return _known_shapes(infer_shapes(proto).graph)


def _known_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info)
        if value.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }


def read_inside(graph: onnx.GraphProto) -> set[str]:
    """The names that graphs inside of nodes read."""
    bodies = [
        body
        for node in graph.node
        for item in node.attribute
        for body in (*([item.g] if item.HasField("g") else []), *item.graphs)
    ]
    read = {name for body in bodies for node in body.node for name in node.input}
    return read.union(*map(read_inside, bodies)) if bodies else read


POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, bytes for a text."""
    for item in node.attribute:
        if item.name == name:
            return onnx.helper.get_attribute_value(item)
    return default


def einsum_is_none(node: onnx.NodeProto, _context: Context) -> bool:
    """Whether an equation is of another number of inputs, or its result has an axis of none."""
    equation = attribute(node, "equation", b"").decode().replace(" ", "")
    terms, _, result = equation.partition("->")
    return len(terms.split(",")) != len(node.input) or bool(set(result) - set(terms))


def window_is_larger(node: onnx.NodeProto, context: Context) -> bool:
    """Whether a window reaches over its image on both sides, so that there is no result."""
    shape = context.shapes.get(node.input[0], ())
    kernel = attribute(node, "kernel_shape")
    if not kernel and len(node.input) > 1:
        weight = context.values.get(node.input[1])
        kernel = weight.dims[2:] if weight else context.shapes.get(node.input[1], ())[2:]
    rank = len(shape) - 2
    if not kernel or rank != len(kernel) or attribute(node, "auto_pad", b"")[:4] == b"SAME":
        return False
    pads = attribute(node, "pads") or [0] * (2 * rank)
    dilations = attribute(node, "dilations") or [1] * rank
    return any(
        size + pads[i] + pads[rank + i] < (kernel[i] - 1) * dilations[i] + 1
        for i, size in enumerate(shape[2:])
    )


def has_larger_window(proto: onnx.ModelProto) -> bool:
    """Whether a pooling's window is larger than its image."""
    context = Context(proto)
    return any(
        node.op_type in POOLINGS and window_is_larger(node, context) for node in proto.graph.node
    )


def dropout_trains(node: onnx.NodeProto, context: Context) -> bool:
    """Whether it drops anything; from opset 12 on only if its third input says so."""
    if context.opset < 12 or len(node.input) < 3 or not node.input[2]:
        return False
    training, ratio = context.array(node, 2), context.array(node, 1)
    drops = ratio is None or bool(ratio.any())
    return drops and (training is None or bool(training.any()))


def roi_align_is_half_pixel(node: onnx.NodeProto, context: Context) -> bool:
    """Whether boxes are shifted by half a pixel, the default from opset 16 on.

    With a number of samples that depends on their sizes.
    """
    if attribute(node, "sampling_ratio", 0) > 0:
        return False
    default = b"half_pixel" if context.opset >= 16 else b"output_half_pixel"
    mode = attribute(node, "coordinate_transformation_mode", default)
    return bool(mode != b"output_half_pixel")
