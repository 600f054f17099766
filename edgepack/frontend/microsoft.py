"""Operators that onnxruntime's optimiser and quantiser write, by ONNX's own.

ONNX has no definitions of them: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.frontend import microsoft_quantized
from edgepack.frontend.forms import attribute, known_shapes
from edgepack.model import infer_shapes, operator_name, opset_of, walk_nodes
from edgepack.model.index import GraphIndex

DOMAIN = "com.microsoft"


class _Line:
    """Nodes in the place of one, and the weights that they need."""

    def __init__(
        self, proto: onnx.ModelProto, node: onnx.NodeProto, prefix: str, used: Collection[str]
    ) -> None:
        self.node, self.prefix, self.opset = node, prefix, opset_of(proto)
        self.proto, self.used = proto, used
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def input(self, position: int) -> str:
        """The name of an input, empty if it is left out."""
        return self.node.input[position] if position < len(self.node.input) else ""

    def output(self, position: int) -> str:
        """The name of an output, empty if nobody wants it."""
        name = self.node.output[position] if position < len(self.node.output) else ""
        return name if name in self.used else ""

    def constant(self, value: Any, dtype: str | None = None) -> str:
        name = f"{self.prefix}c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def like(self, value: float) -> str:
        """A number of the type of the first input."""
        return self.op("CastLike", self.constant(value, "float32"), self.input(0))

    def op(self, op_type: str, *inputs: str, to: str = "", kind: int = 0, **attributes: Any) -> str:
        """A node's result, `kind` its element type if it is a Cast."""
        name = to or f"{self.prefix}v{len(self.nodes)}"
        more = {"to": kind} if kind else {}
        self.nodes.append(
            helper.make_node(op_type, inputs, [name], name=name, **attributes, **more)
        )
        return name

    def several(
        self, op_type: str, count: int, *inputs: str, to: Sequence[str] = (), **attributes: Any
    ) -> list[str]:
        """The results of a node that has more than one."""
        names = list(to) or [f"{self.prefix}v{len(self.nodes)}/{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=names[0], **attributes))
        return names

    def shape_of(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """The shape of a tensor or a weight, () if it is not known."""
        return shapes.get(name) or _weight_shape(self.proto, name)


# Adds what a node stands for; False where its form has no definition.
_Define = Callable[[_Line, Mapping[str, tuple[int, ...]]], bool]


def define_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with these operators replaced, the same if it has none."""
    if not any(_definition(node) for node in proto.graph.node):
        return proto
    shapes = known_shapes(proto)
    used = {name for node in walk_nodes(proto.graph) for name in node.input}
    used |= {value.name for value in proto.graph.output}
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    nodes: list[onnx.NodeProto] = []
    for number, node in enumerate(proto.graph.node):
        define = _definition(node)
        line = _Line(proto, node, f"{node.name or node.output[0]}/{number}/", used)
        if define is None or not define(line, shapes):
            nodes.append(node)
            continue
        nodes.extend(line.nodes)
        made.graph.initializer.extend(line.tensors)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    if opset_of(proto) < _CASTS_LIKE:
        _cast_by_type(made)
    return made


_CASTS_LIKE = 15  # the opset of CastLike


def _cast_by_type(proto: onnx.ModelProto) -> None:
    """Make CastLike, which the model's opset does not have, a Cast to the type that is known."""
    left = [node for node in proto.graph.node if node.op_type == "CastLike"]
    while left:
        types = GraphIndex(infer_shapes(proto).graph).types
        known = [node for node in left if types.get(node.input[1])]
        for node in known or left:
            kind = types.get(node.input[1], 0) or onnx.TensorProto.FLOAT
            node.op_type = "Cast"
            del node.input[1]
            node.attribute.append(helper.make_attribute("to", kind))
        left = [node for node in left if node.op_type == "CastLike"]


def _definition(node: onnx.NodeProto) -> _Define | None:
    # onnxruntime writes this one without its domain.
    if node.domain == DOMAIN or node.op_type == "SimplifiedLayerNormalization":
        return _DEFINITIONS.get(node.op_type)
    return _group_norm if operator_name(node) == "GroupNormalization" else None


def _gelu(line: _Line, _: Mapping[str, tuple[int, ...]]) -> bool:
    x = line.input(0)
    erf = line.op("Erf", line.op("Mul", x, line.like(math.sqrt(0.5))))
    grown = line.op("Mul", x, line.op("Add", erf, line.like(1.0)))
    line.op("Mul", grown, line.like(0.5), to=line.output(0))
    return True


def _quick_gelu(line: _Line, _: Mapping[str, tuple[int, ...]]) -> bool:
    x = line.input(0)
    inner = line.op("Mul", x, line.like(attribute(line.node, "alpha", 1.702)))
    line.op("Mul", x, line.op("Sigmoid", inner), to=line.output(0))
    return True


def _fused_matmul(line: _Line, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    if attribute(line.node, "transBatchA", 0) or attribute(line.node, "transBatchB", 0):
        return False
    sides = []
    for position, name in enumerate(("transA", "transB")):
        side = line.input(position)
        if attribute(line.node, name, 0):
            rank = len(shapes.get(side) or _weight_shape(line.proto, side))
            if rank < 2:
                return False
            axes = [*range(rank - 2), rank - 1, rank - 2]
            side = line.op("Transpose", side, perm=axes)
        sides.append(side)
    product = line.op("MatMul", *sides)
    line.op("Mul", product, line.like(attribute(line.node, "alpha", 1.0)), to=line.output(0))
    return True


def _weight_shape(proto: onnx.ModelProto, name: str) -> tuple[int, ...]:
    return next((tuple(t.dims) for t in proto.graph.initializer if t.name == name), ())


def _fused_conv(line: _Line, _: Mapping[str, tuple[int, ...]]) -> bool:
    own = {"activation", "activation_params"}
    taken = {
        a.name: helper.get_attribute_value(a) for a in line.node.attribute if a.name not in own
    }
    kind = attribute(line.node, "activation", b"").decode()
    numbers = list(attribute(line.node, "activation_params", []))
    bias = line.input(2)
    made = line.op("Conv", *[line.input(0), line.input(1), *([bias] if bias else [])], **taken)
    if line.input(3):
        made = line.op("Add", made, line.input(3))
    names: dict[str, Sequence[str]] = {
        "": (),
        "Relu": (),
        "Tanh": (),
        "Sigmoid": (),
        "LeakyRelu": ("alpha",),
        "HardSigmoid": ("alpha", "beta"),
    }
    if kind == "Clip" and len(numbers) == 2:
        line.op("Clip", made, *map(line.like, numbers), to=line.output(0))
    elif kind not in names or len(names[kind]) != len(numbers):
        return False
    else:
        given = dict(zip(names[kind], numbers, strict=True))
        line.op(kind or "Identity", made, to=line.output(0), **given)
    return True


def _group_norm(line: _Line, _: Mapping[str, tuple[int, ...]]) -> bool:
    """ONNX's GroupNormalization by the norm of an instance, as PyTorch's exporter writes it.

    ONNX's own definition subtracts the mean's square from the squares' mean, in which little is
    left of a small deviation. Nor can onnx tell the shape of its result.
    """
    data, groups = line.input(0), attribute(line.node, "num_groups", 0)
    shape = line.op("Shape", data)
    rows = line.op("Reshape", data, line.constant([0, groups, -1], "int64"))
    by_group = line.opset < _SCALES_BY_CHANNEL
    scales = [line.input(1), line.input(2)]
    if not by_group:
        plain = (line.constant([value] * groups, "float32") for value in (1.0, 0.0))
        scales = [line.op("CastLike", value, data) for value in plain]
    epsilon = attribute(line.node, "epsilon", 1e-5)
    made = line.op("InstanceNormalization", rows, *scales, epsilon=epsilon)
    if not by_group:
        # By channel, however many axes there are.
        made = line.op("Reshape", line.op("Reshape", made, shape), line.constant([0, 0, -1]))
        wide = line.constant([-1, 1])
        scale, shift = (line.op("Reshape", line.input(at), wide) for at in (1, 2))
        made = line.op("Add", line.op("Mul", made, scale), shift)
    line.op("Reshape", made, shape, to=line.output(0))
    return True


_SCALES_BY_CHANNEL = 21  # the opset since which a GroupNormalization's are of channels, not groups


def _simplified_norm(line: _Line, _: Mapping[str, tuple[int, ...]]) -> bool:
    if line.output(1) or attribute(line.node, "axis", -1) != -1:
        return False
    _root_mean_square(line, line.input(0), line.input(1), 1e-5)
    return True


def _skip_simplified_norm(line: _Line, _: Mapping[str, tuple[int, ...]]) -> bool:
    if line.output(1) or line.output(2):
        return False
    _root_mean_square(line, _with_skip(line, line.input(3)), line.input(2), _SKIP_EPSILON)
    return True


def _skip_norm(line: _Line, _: Mapping[str, tuple[int, ...]]) -> bool:
    if line.output(1) or line.output(2):
        return False
    total, scale, shift = _with_skip(line, line.input(4)), line.input(2), line.input(3)
    epsilon = attribute(line.node, "epsilon", _SKIP_EPSILON)
    if line.opset >= _LAYER_NORM:
        given = [total, scale, *([shift] if shift else [])]
        line.op("LayerNormalization", *given, to=line.output(0), epsilon=epsilon)
        return True
    off = line.op("Sub", total, line.op("ReduceMean", total, axes=[-1]))
    square = line.op("ReduceMean", line.op("Mul", off, off), axes=[-1])
    deviation = line.op("Sqrt", line.op("Add", square, line.like(epsilon)))
    normal = line.op("Div", off, deviation)
    made = line.op("Mul", normal, scale, to="" if shift else line.output(0))
    if shift:
        line.op("Add", made, shift, to=line.output(0))
    return True


_LAYER_NORM = 17  # the opset of LayerNormalization
_SKIP_EPSILON = 1e-12


def _with_skip(line: _Line, bias: str) -> str:
    """The sum of the first two inputs and a bias, which is the fourth output."""
    total = line.op("Add", line.input(0), line.input(1))
    if bias:
        total = line.op("Add", total, bias)
    return line.op("Identity", total, to=line.output(3)) if line.output(3) else total


def _root_mean_square(line: _Line, data: str, scale: str, epsilon: float) -> None:
    square = line.op("Mul", data, data)
    if line.opset < _AXES_AS_INPUT:
        mean = line.op("ReduceMean", square, axes=[-1])
    else:
        mean = line.op("ReduceMean", square, line.constant([-1], "int64"))
    least = line.like(attribute(line.node, "epsilon", epsilon))
    root = line.op("Sqrt", line.op("Add", mean, least))
    line.op("Mul", line.op("Div", data, root), scale, to=line.output(0))


_AXES_AS_INPUT = 18  # the opset since which ReduceMean has them as such


def _matmul_n_bits(line: _Line, _: Mapping[str, tuple[int, ...]]) -> bool:
    """Weights of 2, 4 or 8 bits, in blocks along the depth: DequantizeLinear's, but where zero
    points are no integers of their type. Those become float32 before the model runs."""
    given = GraphIndex(line.proto.graph).constants
    columns, bits, block, depth = (
        attribute(line.node, name, default)
        for name, default in (("N", 0), ("bits", 4), ("block_size", 0), ("K", 0))
    )
    packed, scales = (given.get(line.input(position)) for position in (1, 2))
    if packed is None or scales is None or bits not in _WIDTHS or line.input(4):
        return False
    if min(columns, depth, block) < 1:
        return False
    blocks = -(-depth // block)
    sizes = [math.prod(tensor.dims) for tensor in (packed, scales)]
    if sizes != [columns * blocks * (block * bits // 8), columns * blocks]:
        return False
    whole = _unpacked(numpy_helper.to_array(packed).reshape(columns, -1), bits)[:, :depth]
    zeros = np.full((columns, blocks), 1 << (bits - 1), "uint8")
    if line.input(3):
        tensor = given.get(line.input(3))
        if tensor is None or math.prod(tensor.dims) % columns:
            return False
        zeros = numpy_helper.to_array(tensor).reshape(columns, -1)
        if zeros.dtype == np.uint8:
            zeros = _unpacked(zeros, bits)[:, :blocks]
        if zeros.shape != (columns, blocks):
            return False
    factors = numpy_helper.to_array(scales).reshape(columns, blocks)
    bias = line.input(5)
    matrix = line.op("CastLike", _weights(line, whole, factors, zeros, block), line.input(0))
    product = line.op("MatMul", line.input(0), matrix, to="" if bias else line.output(0))
    if bias:
        line.op("Add", product, bias, to=line.output(0))
    return True


def _weights(
    line: _Line, whole: np.ndarray, factors: np.ndarray, zeros: np.ndarray, block: int
) -> str:
    """The matrix [depth, columns] of rows of integers [columns, depth], factors and zero points
    [columns, blocks]."""
    if zeros.dtype == np.uint8 and line.opset >= _DEQUANTIZES:
        parts = (whole.T, factors.astype("float32").T, zeros.T)
        names = (line.constant(np.ascontiguousarray(part)) for part in parts)
        return str(line.op("DequantizeLinear", *names, axis=0, block_size=block))
    centres, steps = (
        np.repeat(item.astype("float32"), block, 1)[:, : whole.shape[1]]
        for item in (zeros, factors)
    )
    return line.constant(((whole.astype("float32") - centres) * steps).T.astype("float32"))


_DEQUANTIZES = 10  # the opset of DequantizeLinear
_WIDTHS = (2, 4, 8)


def _unpacked(rows: np.ndarray, bits: int) -> np.ndarray:
    """Rows of bytes as the numbers in them, the lowest bits first."""
    parts = [rows >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(len(rows), -1)


_DEFINITIONS: Mapping[str, _Define] = {
    "DynamicQuantizeMatMul": microsoft_quantized.dynamic_matmul,
    "FusedConv": _fused_conv,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "MatMulIntegerToFloat": microsoft_quantized.matmul_to_float,
    "MatMulNBits": _matmul_n_bits,
    "QAttention": microsoft_quantized.attention,
    "QEmbedLayerNormalization": microsoft_quantized.float_embedding,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _simplified_norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_simplified_norm,
}
