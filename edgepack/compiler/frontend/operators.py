"""Which ONNX operators compile to right results.

The list is TVM's own converter table, read at run time, less the forms that it
is known to convert to something else than ONNX defines. Operators that it lacks
but that ONNX defines by other operators are replaced by that definition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import numpy_helper
from tvm.relax.frontend.onnx import onnx_frontend

from edgepack.model import infer_shapes, operator_name, opset_of, walk_nodes

# TVM's table knows no domains. These of its operators are onnxruntime's own.
_MICROSOFT = frozenset(
    {
        "Attention",
        "BiasGelu",
        "EmbedLayerNormalization",
        "FastGelu",
        "MatMulInteger16",
        "SkipLayerNormalization",
    }
)

# In TVM's table, but a plan of kernel calls on tensors of fixed shapes cannot hold it.
_NO_PLAN = {
    "AllClassNMS": "its output's shape depends on the data",
    "Compress": "its output's shape depends on the data",
    "NonMaxSuppression": "its output's shape depends on the data",
    "NonZero": "its output's shape depends on the data",
    "TopK": "it sorts, for which the runtime has no kernel",
    "Unique": "its output's shape depends on the data",
    "Optional": "optional values have no place in a fixed plan",
    "OptionalHasElement": "optional values have no place in a fixed plan",
    "OptionalGetElement": "optional values have no place in a fixed plan",
}

_DOMAINS = {"": "", "ai.onnx": "", "com.microsoft": "com.microsoft"}


def supported_operators() -> frozenset[str]:
    """Names, as `edgepack.model.operator_name` forms them, of what TVM converts."""
    table = set(onnx_frontend._get_convert_map()) - set(_NO_PLAN) | {"Constant"}
    # ONNX's operator of opset 23 has the same name as onnxruntime's, and another meaning.
    standard = {name for name in table if name not in _MICROSOFT}
    return frozenset(standard | {f"com.microsoft::{name}" for name in table & _MICROSOFT})


def unsupported(proto: onnx.ModelProto) -> dict[str, str]:
    """Operators, and forms of operators, of an expanded model that do not compile: name -> reason.

    Nodes whose inputs are all constant do not count: they are folded away.
    """
    supported = supported_operators()
    context = _Context(proto)
    problems: dict[str, str] = {}
    for node in proto.graph.node:
        name = operator_name(node)
        if context.is_constant(node):
            continue
        if node.op_type in _NO_PLAN:
            problems[name] = _NO_PLAN[node.op_type]
        elif name not in supported:
            problems[name] = "not known to the compiler"
        elif reason := _bad_form(node, context):
            problems[name] = reason + (f" (node '{node.name}')" if node.name else "")
    return problems


def expand(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace model-local functions, and standard operators that TVM lacks, by their definitions.

    Also nodes in a form that TVM gets wrong, where the definition gets it right.
    """
    supported = supported_operators()
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    opset = opset_of(proto)
    failed: set[str] = set()
    # A definition may hold operators that have one themselves.
    for _ in range(4):
        names = {
            node.op_type
            for node in walk_nodes(proto.graph)
            if node.domain in ("", "ai.onnx")
            and (operator_name(node) not in supported or _better_expanded(node))
            and _has_definition(node.op_type, opset)
        }
        for name in sorted(names - failed):
            inlined = _inline(proto, name)
            if inlined is None:
                failed.add(name)
            else:
                proto = inlined
    return proto


def _has_definition(op_type: str, opset: int) -> bool:
    if not onnx.defs.has(op_type, max_inclusive_version=opset):
        return False
    schema = onnx.defs.get_schema(op_type, max_inclusive_version=opset)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _inline(proto: onnx.ModelProto, name: str) -> onnx.ModelProto | None:
    """The model with an operator inlined, or None where onnx cannot (some optional inputs)."""
    # A definition that depends on its inputs' types needs them written down.
    typed = onnx.ModelProto()
    typed.CopyFrom(infer_shapes(proto, with_weights=True))
    typed.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in typed.graph.initializer
    )
    try:
        inlined = onnx.inliner.inline_selected_functions(
            typed, [("", name)], inline_schema_functions=True
        )
    except RuntimeError:
        return None
    del inlined.graph.value_info[:]
    return inlined


def _better_expanded(node: onnx.NodeProto) -> bool:
    # TVM's LayerNormalization has one output only.
    return node.op_type == "LayerNormalization" and len(node.output) > 1


class _Context:
    """What a check may know about a node's surroundings."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.opset = opset_of(proto)
        self.values = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.constant = set(self.values)
        self.used = {name for node in walk_nodes(proto.graph) for name in node.input}
        self.used |= {value.name for value in proto.graph.output}
        self.shapes = _shapes(proto)
        for node in proto.graph.node:
            value = _attribute(node, "value") if node.op_type == "Constant" else None
            if value is not None:
                self.values[node.output[0]] = value
            if all(name in self.constant for name in node.input if name) and not any(
                attribute.HasField("g") for attribute in node.attribute
            ):
                self.constant.update(node.output)

    def is_constant(self, node: onnx.NodeProto) -> bool:
        return all(name in self.constant for name in node.output)

    def array(self, node: onnx.NodeProto, position: int) -> np.ndarray | None:
        """Value of a constant input, or None."""
        if len(node.input) <= position or node.input[position] not in self.values:
            return None
        return np.asarray(numpy_helper.to_array(self.values[node.input[position]]))

    def output_used(self, node: onnx.NodeProto, position: int) -> bool:
        return len(node.output) > position and node.output[position] in self.used


def _shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors inside, where they are known and fixed."""
    graph = infer_shapes(proto).graph
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info)
        if all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }


def _attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def _bad_form(node: onnx.NodeProto, context: _Context) -> str | None:
    check = _CHECKS.get(node.op_type)
    return check(node, context) if check else None


def _batch_normalization(node: onnx.NodeProto, context: _Context) -> str | None:
    if _attribute(node, "training_mode", 0) or any(context.output_used(node, i) for i in (1, 2)):
        return "in its training form"
    return None


def _dropout(node: onnx.NodeProto, context: _Context) -> str | None:
    if context.output_used(node, 1):
        return "with its mask as an output"
    # From opset 12 a node trains only when its third input says so.
    if context.opset >= 12 and len(node.input) > 2 and node.input[2]:
        training = context.array(node, 2)
        if training is None or training.any():
            return "in its training form"
    return None


def _is_inf(node: onnx.NodeProto, _: _Context) -> str | None:
    both = _attribute(node, "detect_positive", 1) and _attribute(node, "detect_negative", 1)
    return None if both else "with one sign only"


def _conv_transpose(node: onnx.NodeProto, _: _Context) -> str | None:
    return "with output_shape" if _attribute(node, "output_shape") else None


def _roi_align(node: onnx.NodeProto, context: _Context) -> str | None:
    # Boxes that reach over the border are sampled elsewhere than onnxruntime samples them.
    default = b"half_pixel" if context.opset >= 16 else b"output_half_pixel"
    if _attribute(node, "coordinate_transformation_mode", default) != b"output_half_pixel":
        return "with half_pixel coordinates"
    return "with mode max" if _attribute(node, "mode", b"avg") == b"max" else None


def _space_to_depth(node: onnx.NodeProto, _: _Context) -> str | None:
    return "with a mode" if _attribute(node, "mode", b"DCR") != b"DCR" else None


def _resize(node: onnx.NodeProto, context: _Context) -> str | None:
    reasons = {
        "with antialias": _attribute(node, "antialias", 0),
        "with half_pixel_symmetric": (
            _attribute(node, "coordinate_transformation_mode") == b"half_pixel_symmetric"
        ),
        "with axes": _attribute(node, "axes"),
        "with an aspect ratio policy": (
            _attribute(node, "keep_aspect_ratio_policy", b"stretch") != b"stretch"
        ),
    }
    if refused := [reason for reason, holds in reasons.items() if holds]:
        return refused[0]
    scales, sizes = context.array(node, 2), context.array(node, 3)
    shape = context.shapes.get(node.input[0])
    if shape is None:
        return None
    if scales is not None and scales.size:
        sizes = np.floor(scales.astype("float64") * np.array(shape))
    if sizes is not None and sizes.size and sizes[:2].tolist() != list(shape[:2]):
        return "of the batch or the channels"
    return None


_CHECKS: dict[str, Callable[[onnx.NodeProto, _Context], str | None]] = {
    "BatchNormalization": _batch_normalization,
    "ConvTranspose": _conv_transpose,
    "Dropout": _dropout,
    "IsInf": _is_inf,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "SpaceToDepth": _space_to_depth,
}
