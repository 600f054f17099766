"""ONNX -> .tflite, for the operators of the benchmark's models.

The usual converters need TensorFlow or torch, gigabytes of it. The models are float32, with a
dozen kinds of layers, so this is short: tensors that a convolution or a pooling makes have their
channels last, NCL ones as N1LC, all others keep ONNX's order, and a tensor is transposed where
somebody needs it otherwise. Activations are fused as TFLite's own converter fuses them, and padding
that TFLite's SAME cannot say becomes a PAD in front, which XNNPACK folds into the convolution.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from edgepack.base.errors import ModelError

Array = npt.NDArray[Any]

_FILE_IDENTIFIER = b"TFL3"
_BUFFER_ALIGNMENT = 16  # `force_align: 16` of Buffer.data in the schema
_RELU6_LIMITS = (0.0, 6.0)


class NotConvertibleError(ModelError):
    """The model holds an operator, or a form of one, that TFLite or this converter lacks."""


class _Builder(flatbuffers.Builder):  # type: ignore[misc]
    """Aligns weights as the schema asks; the generated Python code does not."""

    def CreateNumpyVector(self, x: Array) -> int:  # noqa: N802 - an override
        if x.dtype != np.uint8:
            return int(super().CreateNumpyVector(x))
        self.StartVector(1, x.size, _BUFFER_ALIGNMENT)
        self.head = self.Head() - x.size
        self.Bytes[self.Head() : self.Head() + x.size] = x.tobytes()
        self.vectorNumElems = x.size
        return int(self.EndVector())


def convert(model: Path, schema_file: Path) -> bytes:
    """The .tflite file of an ONNX model with fixed shapes.

    `schema_file` is `schema_py_generated.py` of the ai-edge-litert package. 4-D inputs and
    outputs are NHWC in the result. Raises NotConvertibleError.
    """
    return _Converter(_folded(model), _load(schema_file)).convert()


def _folded(path: Path) -> onnx.ModelProto:
    """The model after onnxruntime's basic optimisations: constants and batch norms folded."""
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        out = Path(folder) / "folded.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(out)
        options.log_severity_level = 3
        onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        model = onnx.load(out)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _load(schema_file: Path) -> Any:
    name = "edgepack_bench_tflite_schema"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, schema_file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Height and width of each; pads are top, left, bottom, right."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]


@dataclass
class _Converter:
    model: onnx.ModelProto
    tfl: Any  # the schema's module
    constants: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tensors: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    codes: dict[int, int] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)  # ONNX name -> tensor in ONNX's order
    images: dict[str, int] = field(default_factory=dict)  # the same with channels last
    non_negative: set[str] = field(default_factory=set)
    uses: Counter[str] = field(default_factory=Counter)

    def convert(self) -> bytes:
        graph, tfl = self.model.graph, self.tfl
        self.constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            dims = value.type.tensor_type.shape.dim
            self.shapes[value.name] = tuple(dim.dim_value for dim in dims)
        self.uses.update(name for node in graph.node for name in node.input)
        self.uses.update(value.name for value in graph.output)
        self.buffers.append(tfl.BufferT())  # number 0 means: no data
        (source,) = (value for value in graph.input if value.name not in self.constants)
        if len(self.shapes[source.name]) == 4:
            inputs = [self._image_out(source.name)]
        else:
            tokens = source.type.tensor_type.elem_type == onnx.TensorProto.INT32
            inputs = [self._plain_out(source.name, np.int32 if tokens else np.float32)]
        nodes = list(graph.node)
        while nodes:
            nodes = nodes[self._convert_next(nodes) :]
        outputs = [
            self._image(value.name)
            if len(self.shapes[value.name]) == 4
            else self._plain(value.name)
            for value in graph.output
        ]
        subgraph = tfl.SubGraphT()
        subgraph.tensors, subgraph.operators = self.tensors, self.operators
        subgraph.inputs, subgraph.outputs = inputs, outputs
        result = tfl.ModelT()
        result.version, result.subgraphs, result.buffers = 3, [subgraph], self.buffers
        result.operatorCodes = []
        for code in self.codes:
            operator = tfl.OperatorCodeT()
            operator.builtinCode, operator.version = code, 1
            # An old field for codes that fit into a byte; readers take the larger of both.
            operator.deprecatedBuiltinCode = min(code, 127)
            result.operatorCodes.append(operator)
        builder = _Builder(1 << 20)
        builder.Finish(result.Pack(builder), _FILE_IDENTIFIER)
        return bytes(builder.Output())

    # ------------------------------------------------------------ nodes

    def _convert_next(self, nodes: list[onnx.NodeProto]) -> int:
        """Converts the first node and those that are fused into it; returns how many."""
        for several in (self._gelu, self._shuffle, self._linear):
            if count := several(nodes):
                return count
        node = nodes[0]
        handler: Callable[[onnx.NodeProto, str, int], None] | None = getattr(
            self, f"_op_{node.op_type.lower()}", None
        )
        if handler is None:
            raise NotConvertibleError(f"{node.op_type} has no TFLite form here")
        out, activation, count = node.output[0], self.tfl.ActivationFunctionType.NONE, 1
        fuses = ("Conv", "Add", "Sub", "Mul", "Gemm", "MaxPool", "BatchNormalization")
        if node.op_type in fuses:
            activation = self._fusible(nodes[1:], out)
            if activation != self.tfl.ActivationFunctionType.NONE:
                out, count = nodes[1].output[0], 2
        handler(node, out, activation)
        if activation != self.tfl.ActivationFunctionType.NONE or (
            node.op_type == "MaxPool" and node.input[0] in self.non_negative
        ):
            self.non_negative.add(out)
        return count

    def _fusible(self, nodes: list[onnx.NodeProto], out: str) -> int:
        """The activation with which the first node follows `out`, which nobody else needs."""
        kinds = self.tfl.ActivationFunctionType
        if nodes and nodes[0].input[0] == out and self.uses[out] == 1:
            if nodes[0].op_type == "Relu":
                return int(kinds.RELU)
            if nodes[0].op_type == "Clip" and self._limits(nodes[0]) == _RELU6_LIMITS:
                return int(kinds.RELU6)
        return int(kinds.NONE)

    def _limits(self, node: onnx.NodeProto) -> tuple[float, float]:
        low, high = (float(self.constants[name]) for name in node.input[1:3])
        return low, high

    # ------------------------------------------------------------ several nodes at once

    def _gelu(self, nodes: list[onnx.NodeProto]) -> int:
        """x / sqrt(2), Erf, plus 1, times x, times a half."""
        if [node.op_type for node in nodes[:5]] != ["Div", "Erf", "Add", "Mul", "Mul"]:
            return 0
        x, out = nodes[0].input[0], nodes[4].output[0]
        options = self.tfl.GeluOptionsT()
        options.approximate = False
        stored, target = self._as_is(x, out)
        kind = self.tfl.BuiltinOptions.GeluOptions
        self._operator(self.tfl.BuiltinOperator.GELU, [stored], target, kind, options)
        return 5

    def _shuffle(self, nodes: list[onnx.NodeProto]) -> int:
        """Channels in groups, the groups' order and the channels' swapped."""
        if [node.op_type for node in nodes[:3]] != ["Reshape", "Transpose", "Reshape"]:
            return 0
        x, inner, out = nodes[0].input[0], nodes[0].output[0], nodes[2].output[0]
        order = _attributes(nodes[1])["perm"]
        shape, split = self.shapes[x], self.shapes[inner]
        if order != [0, 2, 1, 3, 4] or shape != self.shapes[out] or split[3:] != shape[2:]:
            return 0
        n, groups, size, h, w = split
        parts = self._reshaped(self._image(x), (n, h, w, groups, size))
        swapped = self._transposed(parts, (n, h, w, groups, size), (0, 1, 2, 4, 3))
        self._reshaped(swapped, _nhwc(shape), self._image_out(out))
        return 3

    def _linear(self, nodes: list[onnx.NodeProto]) -> int:
        """A product with constants, the constant that is added, and an activation."""
        if nodes[0].op_type != "MatMul" or nodes[0].input[1] not in self.constants:
            return 0
        weight, out, count = self.constants[nodes[0].input[1]], nodes[0].output[0], 1
        bias = np.zeros(weight.shape[-1], np.float32)
        if len(nodes) > 1 and nodes[1].op_type == "Add" and self.uses[out] == 1:
            added = [name for name in nodes[1].input if name in self.constants]
            if out in nodes[1].input and added and self.constants[added[0]].ndim == 1:
                bias, out, count = self.constants[added[0]], nodes[1].output[0], 2
        activation = self._fusible(nodes[count:], out)
        if activation != self.tfl.ActivationFunctionType.NONE:
            out, count = nodes[count].output[0], count + 1
        self._dense(nodes[0], out, activation, np.ascontiguousarray(weight.T), bias)
        return count

    # ------------------------------------------------------------ nodes of images

    def _op_conv(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        tfl, window = self.tfl, self._window(node)
        weight = self.constants[node.input[1]]
        if weight.ndim == 3:
            weight = weight[:, :, None]
        group, channels = _attributes(node).get("group", 1), self.shapes[node.input[0]][1]
        padding, x = self._padded(node.input[0], window, 0.0)
        bias = self.constants[node.input[2]] if len(node.input) > 2 else np.zeros(len(weight))
        options: Any
        if group == channels and group > 1:
            code, options = tfl.BuiltinOperator.DEPTHWISE_CONV_2D, tfl.DepthwiseConv2DOptionsT()
            kind, weight = tfl.BuiltinOptions.DepthwiseConv2DOptions, weight.transpose(1, 2, 3, 0)
            options.depthMultiplier = weight.shape[3] // channels
        else:  # the weights' channels tell the number of groups
            code, options = tfl.BuiltinOperator.CONV_2D, tfl.Conv2DOptionsT()
            kind, weight = tfl.BuiltinOptions.Conv2DOptions, weight.transpose(0, 2, 3, 1)
        options.padding, options.fusedActivationFunction = padding, activation
        options.strideH, options.strideW = window.strides
        options.dilationHFactor, options.dilationWFactor = window.dilations
        inputs = [x, self._constant(weight), self._constant(bias.astype(np.float32))]
        self._operator(code, inputs, self._image_out(out), kind, options)

    def _op_convtranspose(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        tfl, attributes = self.tfl, _attributes(node)
        if attributes.get("group", 1) != 1:
            raise NotConvertibleError(
                f"{node.name}: TFLite has no transposed convolution with groups"
            )
        if any(attributes.get("pads", [0])) or any(attributes.get("output_padding", [0])):
            raise NotConvertibleError(f"{node.name}: a padded transposed convolution")
        n, c, h, w = self.shapes[out]
        weight = self.constants[node.input[1]].transpose(1, 2, 3, 0)
        bias = self.constants[node.input[2]] if len(node.input) > 2 else np.zeros(c)
        options = tfl.TransposeConvOptionsT()
        options.padding = tfl.Padding.VALID
        options.strideH, options.strideW = attributes.get("strides", [1, 1])
        inputs = [
            self._constant(np.array([n, h, w, c], np.int32)),
            self._constant(weight),
            self._image(node.input[0]),
            self._constant(bias.astype(np.float32)),
        ]
        kind = tfl.BuiltinOptions.TransposeConvOptions
        code = tfl.BuiltinOperator.TRANSPOSE_CONV
        self._operator(code, inputs, self._image_out(out), kind, options)

    def _op_batchnormalization(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        gain, shift, mean, variance = (self.constants[name] for name in node.input[1:5])
        scale = gain / np.sqrt(variance + _attributes(node).get("epsilon", 1e-5))
        scaled = self._anonymous(_nhwc(self.shapes[node.input[0]]))
        self._arithmetic("MUL", [self._image(node.input[0]), self._per_channel(scale)], scaled)
        offset = self._per_channel(shift - mean * scale)
        self._arithmetic("ADD", [scaled, offset], self._image_out(out), activation)

    def _op_maxpool(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        fill = 0.0 if node.input[0] in self.non_negative else float(np.finfo(np.float32).min)
        window = self._window(node)
        self._pool(
            "MAX_POOL_2D", self._padded(node.input[0], window, fill), out, window, activation
        )

    def _op_averagepool(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        window = self._window(node)
        if any(window.pads):
            raise NotConvertibleError(f"{node.name}: a padded mean")
        padded = self._padded(node.input[0], window, 0.0)
        self._pool("AVERAGE_POOL_2D", padded, out, window, activation)

    def _op_globalaveragepool(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._reduced("MEAN", self._image(node.input[0]), (1, 2), self._image_out(out))

    def _op_globalmaxpool(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._reduced("REDUCE_MAX", self._image(node.input[0]), (1, 2), self._image_out(out))

    def _op_resize(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        attributes = _attributes(node)
        how = [
            attributes.get(name)
            for name in ("mode", "nearest_mode", "coordinate_transformation_mode")
        ]
        if how != [b"nearest", b"floor", b"asymmetric"]:
            raise NotConvertibleError(f"{node.name}: not the nearest pixel, rounded down")
        options = self.tfl.ResizeNearestNeighborOptionsT()
        inputs = [
            self._image(node.input[0]),
            self._constant(np.array(self.shapes[out][2:], np.int32)),
        ]
        kind = self.tfl.BuiltinOptions.ResizeNearestNeighborOptions
        code = self.tfl.BuiltinOperator.RESIZE_NEAREST_NEIGHBOR
        self._operator(code, inputs, self._image_out(out), kind, options)

    def _op_depthtospace(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        attributes = _attributes(node)
        if attributes.get("mode", b"DCR") != b"DCR" and self.shapes[out][1] != 1:
            raise NotConvertibleError(f"{node.name}: several channels in the order CRD")
        options = self.tfl.DepthToSpaceOptionsT()
        options.blockSize = attributes["blocksize"]
        kind, code = self.tfl.BuiltinOptions.DepthToSpaceOptions, self.tfl.BuiltinOperator
        image = [self._image(node.input[0])]
        self._operator(code.DEPTH_TO_SPACE, image, self._image_out(out), kind, options)

    # ------------------------------------------------------------ nodes that move values

    def _op_flatten(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._op_reshape(node, out, activation)

    def _op_squeeze(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._op_reshape(node, out, activation)

    def _op_unsqueeze(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._op_reshape(node, out, activation)

    def _op_reshape(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        name = node.input[0]
        before, after = self.shapes[name], self.shapes[out]
        # Of an image and a line of the same channels, these can stay last.
        lines = len(before) in (3, 4) and len(after) in (3, 4) and before[:2] == after[:2]
        if name in self.images and lines:
            self._reshaped(self.images[name], _nhwc(after), self._image_out(out))
        else:
            self._reshaped(self._plain(name), after, self._plain_out(out))

    def _op_transpose(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        name, order = node.input[0], _attributes(node)["perm"]
        shape = self.shapes[name]
        if order == [0, 2, 1] and name in self.images:
            self._reshaped(self.images[name], self.shapes[out], self._plain_out(out))
        elif order == [0, 2, 1] and name in self.indices:
            # Lines with channels last are what it is, by another name.
            self._reshaped(self.indices[name], _nhwc(self.shapes[out]), self._image_out(out))
        else:
            self._transposed(self._plain(name), shape, tuple(order), self._plain_out(out))

    def _op_concat(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        tensors, target, lasts = self._alike(list(node.input), out)
        options = self.tfl.ConcatenationOptionsT()
        options.axis = self._axis(_attributes(node)["axis"], out, last=lasts)
        kind, code = self.tfl.BuiltinOptions.ConcatenationOptions, self.tfl.BuiltinOperator
        self._operator(code.CONCATENATION, tensors, target, kind, options)

    def _op_slice(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        name = node.input[0]
        starts, axes = self.constants[node.input[1]], self.constants[node.input[3]]
        if len(node.input) > 4 and (self.constants[node.input[4]] != 1).any():
            raise NotConvertibleError(f"{node.name}: a slice with steps")
        last, shape = name in self.images, self.shapes[name]
        begin = [0] * len(shape)
        for start, axis in zip(starts, axes, strict=True):
            begin[axis] = int(start) + (shape[axis] if start < 0 else 0)
        stored, target = self._as_is(name, out)
        sizes = _nhwc(self.shapes[out]) if last else self.shapes[out]
        if last:
            begin = [begin[0], *([0] * (4 - len(shape))), *begin[2:], begin[1]]
        self._sliced(stored, begin, sizes, target)

    def _op_gather(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        data, index = node.input
        axis = _attributes(node).get("axis", 0)
        if index in self.constants and self.constants[index].ndim == 0:
            shape = self.shapes[data]
            begin, sizes = [0] * len(shape), list(shape)
            begin[axis], sizes[axis] = int(self.constants[index]) % shape[axis], 1
            part = self._anonymous(tuple(sizes))
            self._sliced(self._plain(data), begin, tuple(sizes), part)
            self._reshaped(part, self.shapes[out], self._plain_out(out))
            return
        options = self.tfl.GatherOptionsT()
        options.axis = axis
        kind, code = self.tfl.BuiltinOptions.GatherOptions, self.tfl.BuiltinOperator.GATHER
        tensors = [self._plain(data), self._plain(index)]
        self._operator(code, tensors, self._plain_out(out), kind, options)

    # ------------------------------------------------------------ products

    def _op_gemm(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        attributes, weight = _attributes(node), self.constants[node.input[1]]
        if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0:
            raise NotConvertibleError(f"{node.name}: Gemm with transA or alpha")
        bias = self.constants[node.input[2]]
        self._dense(node, out, activation, weight if attributes.get("transB") else weight.T, bias)

    def _op_matmul(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        options = self.tfl.BatchMatMulOptionsT()
        options.adjX = options.adjY = False
        tensors = [self._plain(name) for name in node.input]
        kind, code = self.tfl.BuiltinOptions.BatchMatMulOptions, self.tfl.BuiltinOperator
        self._operator(code.BATCH_MATMUL, tensors, self._plain_out(out), kind, options)

    def _dense(
        self, node: onnx.NodeProto, out: str, activation: int, weight: Array, bias: Array
    ) -> None:
        options = self.tfl.FullyConnectedOptionsT()
        options.fusedActivationFunction = activation
        options.keepNumDims = len(self.shapes[out]) > 2
        inputs = [self._plain(node.input[0]), self._constant(weight), self._constant(bias)]
        code, kind = self.tfl.BuiltinOperator, self.tfl.BuiltinOptions
        target = self._plain_out(out)
        self._operator(code.FULLY_CONNECTED, inputs, target, kind.FullyConnectedOptions, options)

    def _op_layernormalization(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        """Over the last axis, in the operators that TensorFlow's converter writes."""
        attributes, shape = _attributes(node), self.shapes[node.input[0]]
        if attributes.get("axis", -1) not in (-1, len(shape) - 1):
            raise NotConvertibleError(f"{node.name}: not of the last axis")
        x, row = self._plain(node.input[0]), (*shape[:-1], 1)
        tfl = self.tfl
        mean, centred, squares = (self._anonymous(s) for s in (row, shape, shape))
        self._reduced("MEAN", x, (len(shape) - 1,), mean)
        options, kind = tfl.SquaredDifferenceOptionsT(), tfl.BuiltinOptions
        code = tfl.BuiltinOperator
        given = kind.SquaredDifferenceOptions
        self._operator(code.SQUARED_DIFFERENCE, [x, mean], squares, given, options)
        variance, raised, scale = (self._anonymous(row) for _ in range(3))
        self._reduced("MEAN", squares, (len(shape) - 1,), variance)
        epsilon = self._scalar(attributes.get("epsilon", 1e-5))
        self._arithmetic("ADD", [variance, epsilon], raised)
        self._operator(code.RSQRT, [raised], scale, 0, None)
        self._arithmetic("SUB", [x, mean], centred)
        normed, weighted = self._anonymous(shape), self._anonymous(shape)
        self._arithmetic("MUL", [centred, scale], normed)
        weight, bias = (self._constant(self.constants[name]) for name in node.input[1:3])
        self._arithmetic("MUL", [normed, weight], weighted)
        self._arithmetic("ADD", [weighted, bias], self._plain_out(out))

    # ------------------------------------------------------------ nodes by element

    def _op_add(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._binary("ADD", node, out, activation)

    def _op_sub(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._binary("SUB", node, out, activation)

    def _op_mul(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._binary("MUL", node, out, activation)

    def _op_div(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        if node.input[1] not in self.constants:
            self._binary("DIV", node, out, activation)
            return
        x, target = self._as_is(node.input[0], out)
        value = 1 / self.constants[node.input[1]]
        inverse = self._constant(self._shaped(value, out, last=out in self.images))
        self._arithmetic("MUL", [x, inverse], target, activation)

    def _binary(self, code: str, node: onnx.NodeProto, out: str, activation: int) -> None:
        tensors, target, _ = self._alike(list(node.input), out)
        self._arithmetic(code, tensors, target, activation)

    def _op_relu(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._unary("RELU", node, out)
        self.non_negative.add(out)

    def _op_clip(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        if self._limits(node) != _RELU6_LIMITS:
            raise NotConvertibleError(f"{node.name}: Clip to {self._limits(node)}")
        self._unary("RELU6", node, out)
        self.non_negative.add(out)

    def _op_sigmoid(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._unary("LOGISTIC", node, out)

    def _op_tanh(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._unary("TANH", node, out)

    def _op_hardswish(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._unary("HARD_SWISH", node, out)

    def _op_hardsigmoid(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        """min(max(a x + b, 0), 1) as relu6(6 a x + 6 b) / 6, which is how Keras writes it."""
        attributes = _attributes(node)
        alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
        x, target = self._as_is(node.input[0], out)
        shape = self.tensors[x].shape
        if not math.isclose(alpha * 6, 1, rel_tol=1e-6):
            scaled = self._anonymous(shape)
            self._arithmetic("MUL", [x, self._scalar(alpha * 6)], scaled)
            x = scaled
        clipped = self._anonymous(shape)
        relu6 = self.tfl.ActivationFunctionType.RELU6
        self._arithmetic("ADD", [x, self._scalar(beta * 6)], clipped, relu6)
        self._arithmetic("MUL", [clipped, self._scalar(1 / 6)], target)

    def _op_softmax(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        options = self.tfl.SoftmaxOptionsT()
        options.beta = 1.0
        name, axis = node.input[0], _attributes(node).get("axis", -1)
        rank = len(self.shapes[name])
        if axis % rank == rank - 1:
            x, target = self._plain(name), self._plain_out(out)
        elif axis % rank == 1 and rank in (3, 4):
            x, target = self._image(name), self._image_out(out)
        else:
            raise NotConvertibleError(f"{node.name}: neither the last axis nor the channels'")
        kind, code = self.tfl.BuiltinOptions.SoftmaxOptions, self.tfl.BuiltinOperator
        self._operator(code.SOFTMAX, [x], target, kind, options)

    def _op_identity(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        for tensors in (self.indices, self.images):
            if node.input[0] in tensors:
                tensors[out] = tensors[node.input[0]]

    # ------------------------------------------------------------ parts of nodes

    def _window(self, node: onnx.NodeProto) -> _Window:
        """Of a convolution or pooling, in two dimensions: a line is an image of one row."""
        attributes = _attributes(node)
        if attributes.get("ceil_mode", 0):
            raise NotConvertibleError(f"{node.name}: pooling with ceil_mode")
        rank = len(self.shapes[node.input[0]]) - 2
        if rank not in (1, 2):
            raise NotConvertibleError(f"{node.name}: windows of {rank} dimensions")
        before = [1] * (2 - rank)
        pads = attributes.get("pads", [0] * 2 * rank)
        return _Window(
            extents=(*before, *attributes["kernel_shape"]),
            strides=(*before, *attributes.get("strides", [1] * rank)),
            dilations=(*before, *attributes.get("dilations", [1] * rank)),
            pads=(*[0] * (2 - rank), *pads[:rank], *[0] * (2 - rank), *pads[rank:]),
        )

    def _padded(self, name: str, window: _Window, fill: float) -> tuple[int, int]:
        """The padding mode, and the image: with a PAD in front where no mode fits."""
        tfl, x = self.tfl, self._image(name)
        n, h, w, c = _nhwc(self.shapes[name])
        top, left, bottom, right = window.pads
        if not any((top, left, bottom, right)):
            return int(tfl.Padding.VALID), x
        same = [
            max((-(-size // step) - 1) * step + (extent - 1) * dilation + 1 - size, 0)
            for size, step, extent, dilation in zip(
                (h, w), window.strides, window.extents, window.dilations, strict=True
            )
        ]
        if [(top, bottom), (left, right)] == [(both // 2, both - both // 2) for both in same]:
            return int(tfl.Padding.SAME), x
        pads = np.array([[0, 0], [top, bottom], [left, right], [0, 0]], np.int32)
        padded = self._anonymous((n, h + top + bottom, w + left + right, c))
        if fill == 0.0:
            code, kind, options = "PAD", "PadOptions", tfl.PadOptionsT()
            inputs = [x, self._constant(pads)]
        else:
            code, kind, options = "PADV2", "PadV2Options", tfl.PadV2OptionsT()
            inputs = [x, self._constant(pads), self._scalar(fill)]
        self._operator(
            getattr(tfl.BuiltinOperator, code),
            inputs,
            padded,
            getattr(tfl.BuiltinOptions, kind),
            options,
        )
        return int(tfl.Padding.VALID), padded

    def _pool(
        self, code: str, padded: tuple[int, int], out: str, window: _Window, activation: int
    ) -> None:
        options = self.tfl.Pool2DOptionsT()
        options.padding, x = padded
        options.fusedActivationFunction = activation
        options.filterHeight, options.filterWidth = window.extents
        options.strideH, options.strideW = window.strides
        kind, operator = self.tfl.BuiltinOptions.Pool2DOptions, self.tfl.BuiltinOperator
        self._operator(getattr(operator, code), [x], self._image_out(out), kind, options)

    def _reduced(self, code: str, x: int, axes: tuple[int, ...], out: int) -> None:
        options = self.tfl.ReducerOptionsT()
        options.keepDims = True
        inputs = [x, self._constant(np.array(axes, np.int32))]
        kind = self.tfl.BuiltinOptions.ReducerOptions
        self._operator(getattr(self.tfl.BuiltinOperator, code), inputs, out, kind, options)

    def _reshaped(self, x: int, shape: tuple[int, ...], out: int | None = None) -> int:
        options, target = self.tfl.ReshapeOptionsT(), np.array(shape, np.int32)
        options.newShape = target
        out = self._anonymous(shape) if out is None else out
        kind, code = self.tfl.BuiltinOptions.ReshapeOptions, self.tfl.BuiltinOperator.RESHAPE
        self._operator(code, [x, self._constant(target)], out, kind, options)
        return out

    def _transposed(
        self, x: int, shape: tuple[int, ...], order: tuple[int, ...], out: int | None = None
    ) -> int:
        out = self._anonymous(tuple(shape[axis] for axis in order)) if out is None else out
        inputs = [x, self._constant(np.array(order, np.int32))]
        kind = self.tfl.BuiltinOptions.TransposeOptions
        options = self.tfl.TransposeOptionsT()
        self._operator(self.tfl.BuiltinOperator.TRANSPOSE, inputs, out, kind, options)
        return out

    def _sliced(self, x: int, begin: list[int], sizes: tuple[int, ...], out: int) -> None:
        bounds = [self._constant(np.array(values, np.int32)) for values in (begin, sizes)]
        kind = self.tfl.BuiltinOptions.SliceOptions
        options = self.tfl.SliceOptionsT()
        self._operator(self.tfl.BuiltinOperator.SLICE, [x, *bounds], out, kind, options)

    def _arithmetic(self, code: str, inputs: list[int], out: int, activation: int = 0) -> None:
        name = code.capitalize()
        options = getattr(self.tfl, f"{name}OptionsT")()
        options.fusedActivationFunction = activation
        kind = getattr(self.tfl.BuiltinOptions, f"{name}Options")
        self._operator(getattr(self.tfl.BuiltinOperator, code), inputs, out, kind, options)

    def _unary(self, code: str, node: onnx.NodeProto, out: str) -> None:
        x, target = self._as_is(node.input[0], out)
        self._operator(getattr(self.tfl.BuiltinOperator, code), [x], target, 0, None)

    def _operator(self, code: int, inputs: list[int], out: int, kind: int, options: Any) -> None:
        operator = self.tfl.OperatorT()
        operator.opcodeIndex = self.codes.setdefault(code, len(self.codes))
        operator.inputs, operator.outputs = inputs, [out]
        operator.builtinOptionsType, operator.builtinOptions = kind, options
        self.operators.append(operator)

    # ------------------------------------------------------------ tensors

    def _plain_out(self, name: str, dtype: Any = np.float32) -> int:
        """A new tensor for what a node makes, in ONNX's order."""
        self.indices[name] = self._tensor(name, self.shapes[name], dtype, 0)
        return self.indices[name]

    def _image_out(self, name: str) -> int:
        """The same with channels last."""
        self.images[name] = self._tensor(name, _nhwc(self.shapes[name]), np.float32, 0)
        return self.images[name]

    def _plain(self, name: str) -> int:
        """The tensor in ONNX's order, transposed if it has channels last."""
        if name in self.constants and name not in self.indices:
            self.indices[name] = self._constant(self.constants[name])
        if name not in self.indices:
            shape, x = self.shapes[name], self.images[name]
            n, *spatial, c = _nhwc(shape)
            if math.prod(spatial) == 1 or c == 1:
                self.indices[name] = self._reshaped(x, shape)
            elif len(shape) == 3:
                line = self._reshaped(x, (n, shape[2], c))
                self.indices[name] = self._transposed(line, (n, shape[2], c), (0, 2, 1))
            else:
                self.indices[name] = self._transposed(x, _nhwc(shape), (0, 3, 1, 2))
        return self.indices[name]

    def _image(self, name: str) -> int:
        """The tensor with channels last, transposed if it has ONNX's order."""
        if name not in self.images:
            shape, x = self.shapes[name], self.indices[name]
            if len(shape) not in (3, 4):
                raise NotConvertibleError(f"{name} has {len(shape)} dimensions")
            if math.prod(shape[2:]) == 1 or shape[1] == 1:
                self.images[name] = self._reshaped(x, _nhwc(shape))
            elif len(shape) == 3:
                line = self._transposed(x, shape, (0, 2, 1))
                self.images[name] = self._reshaped(line, _nhwc(shape))
            else:
                self.images[name] = self._transposed(x, shape, (0, 2, 3, 1))
        return self.images[name]

    def _as_is(self, name: str, out: str) -> tuple[int, int]:
        """A tensor in the order it has, and one for what is made of it, in the same."""
        if name in self.images:
            return self.images[name], self._image_out(out)
        return self._plain(name), self._plain_out(out)

    def _alike(self, names: list[str], out: str) -> tuple[list[int], int, bool]:
        """Operands in one order, the result, and whether they have channels last."""
        rank = len(self.shapes[out])
        last = any(name in self.images for name in names) and rank in (3, 4)
        tensors = []
        for name in names:
            if name in self.constants:
                tensors.append(self._constant(self._shaped(self.constants[name], out, last=last)))
            elif last and len(self.shapes[name]) != rank:
                raise NotConvertibleError(f"{out}: {name} has another number of dimensions")
            else:
                tensors.append(self._image(name) if last else self._plain(name))
        return tensors, self._image_out(out) if last else self._plain_out(out), last

    def _shaped(self, value: Array, out: str, *, last: bool) -> Array:
        """A constant operand, for its part in broadcasting to `out`."""
        rank = len(self.shapes[out])
        if not last or value.size == 1:
            return value.reshape(()) if value.size == 1 else value
        whole = value.reshape((1,) * (rank - value.ndim) + value.shape)
        moved = np.moveaxis(whole, 1, -1)
        return moved.reshape(_nhwc(whole.shape))

    def _axis(self, axis: int, name: str, *, last: bool) -> int:
        rank = len(self.shapes[name])
        axis %= rank
        if not last or axis == 0:
            return axis
        return 3 if axis == 1 else axis + 3 - rank

    def _anonymous(self, shape: tuple[int, ...]) -> int:
        """A tensor between operators."""
        return self._tensor(f"inner_{len(self.tensors)}", shape, np.float32, 0)

    def _per_channel(self, values: Array) -> int:
        return self._constant(values.astype(np.float32).reshape(1, 1, 1, -1))

    def _scalar(self, value: float) -> int:
        return self._constant(np.array(value, np.float32))

    def _constant(self, value: Array) -> int:
        value = np.ascontiguousarray(value).reshape(value.shape)
        buffer = self.tfl.BufferT()
        buffer.data = np.frombuffer(value.tobytes(), np.uint8)
        self.buffers.append(buffer)
        name = f"constant_{len(self.tensors)}"
        return self._tensor(name, value.shape, value.dtype, len(self.buffers) - 1)

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: Any, buffer: int) -> int:
        kinds = {np.dtype(np.float32): "FLOAT32", np.dtype(np.int32): "INT32"}
        tensor = self.tfl.TensorT()
        tensor.name, tensor.shape, tensor.buffer = name.encode(), list(shape), buffer
        tensor.type = getattr(self.tfl.TensorType, kinds[np.dtype(dtype)])
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _nhwc(shape: tuple[int, ...]) -> tuple[int, ...]:
    """With channels last, of four dimensions: an NCL tensor is N1LC."""
    return (shape[0], *[1] * (4 - len(shape)), *shape[2:], shape[1])
