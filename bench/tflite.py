"""ONNX -> .tflite, for the operators of the benchmark's models.

The usual converters need TensorFlow or torch, gigabytes of it. The models are convolutional
and float32, so this is short: NCHW tensors become NHWC, activations are fused as TFLite's own
converter fuses them, and padding that TFLite's SAME cannot say becomes a PAD in front, which
XNNPACK folds into the convolution.
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
    """The .tflite file of an ONNX model with fixed shapes and one 4-D input.

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
    indices: dict[str, int] = field(default_factory=dict)  # ONNX name -> tensor
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
        for value in graph.input:
            self._activation(value.name)
        nodes = list(graph.node)
        while nodes:
            nodes = nodes[self._convert_next(nodes) :]
        subgraph = tfl.SubGraphT()
        subgraph.tensors, subgraph.operators = self.tensors, self.operators
        subgraph.inputs = [self.indices[value.name] for value in graph.input]
        subgraph.outputs = [self.indices[value.name] for value in graph.output]
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
        node = nodes[0]
        handler: Callable[[onnx.NodeProto, str, int], None] | None = getattr(
            self, f"_op_{node.op_type.lower()}", None
        )
        if handler is None:
            raise NotConvertibleError(f"{node.op_type} has no TFLite form here")
        strange = [name for name in node.input if len(self.shapes.get(name, ())) in (3, 5, 6)]
        if strange or any(name in self.constants for name in node.input[:1]):
            raise NotConvertibleError(f"{node.op_type} of what is no image has no TFLite form here")
        out, activation, count = node.output[0], self.tfl.ActivationFunctionType.NONE, 1
        fuses = node.op_type in ("Conv", "Add", "Mul", "Gemm", "MaxPool")
        if fuses and len(nodes) > 1 and nodes[1].input[0] == out and self.uses[out] == 1:
            activation = self._fusible(nodes[1])
            if activation != self.tfl.ActivationFunctionType.NONE:
                out, count = nodes[1].output[0], 2
        handler(node, out, activation)
        if activation != self.tfl.ActivationFunctionType.NONE or (
            node.op_type == "MaxPool" and node.input[0] in self.non_negative
        ):
            self.non_negative.add(out)
        return count

    def _fusible(self, node: onnx.NodeProto) -> int:
        kinds = self.tfl.ActivationFunctionType
        if node.op_type == "Relu":
            return int(kinds.RELU)
        if node.op_type == "Clip" and self._limits(node) == _RELU6_LIMITS:
            return int(kinds.RELU6)
        return int(kinds.NONE)

    def _limits(self, node: onnx.NodeProto) -> tuple[float, float]:
        low, high = (float(self.constants[name]) for name in node.input[1:3])
        return low, high

    def _op_conv(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        tfl, attributes = self.tfl, _attributes(node)
        weight = self.constants[node.input[1]]
        group = attributes.get("group", 1)
        channels = self.shapes[node.input[0]][1]
        strides = attributes.get("strides", [1, 1])
        padding, x = self._padded(node, weight.shape[2:], strides, 0.0)
        bias = self.constants[node.input[2]] if len(node.input) > 2 else np.zeros(len(weight))
        options: Any
        if group == 1:
            code, options = tfl.BuiltinOperator.CONV_2D, tfl.Conv2DOptionsT()
            kind, weight = tfl.BuiltinOptions.Conv2DOptions, weight.transpose(0, 2, 3, 1)
        elif group == channels:
            code, options = tfl.BuiltinOperator.DEPTHWISE_CONV_2D, tfl.DepthwiseConv2DOptionsT()
            kind, weight = tfl.BuiltinOptions.DepthwiseConv2DOptions, weight.transpose(1, 2, 3, 0)
            options.depthMultiplier = weight.shape[3] // channels
        else:
            raise NotConvertibleError(f"{node.name}: a convolution with {group} groups")
        options.padding, options.fusedActivationFunction = padding, activation
        options.strideH, options.strideW = strides
        options.dilationHFactor, options.dilationWFactor = attributes.get("dilations", [1, 1])
        inputs = [x, self._constant(weight), self._constant(bias.astype(np.float32))]
        self._operator(code, inputs, self._activation(out), kind, options)

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
            self.indices[node.input[0]],
            self._constant(bias.astype(np.float32)),
        ]
        kind = tfl.BuiltinOptions.TransposeConvOptions
        code = tfl.BuiltinOperator.TRANSPOSE_CONV
        self._operator(code, inputs, self._activation(out), kind, options)

    def _op_batchnormalization(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        gain, shift, mean, variance = (self.constants[name] for name in node.input[1:5])
        scale = gain / np.sqrt(variance + _attributes(node).get("epsilon", 1e-5))
        scaled = self._anonymous(self.shapes[node.input[0]])
        self._arithmetic("MUL", [self.indices[node.input[0]], self._per_channel(scale)], scaled)
        offset = self._per_channel(shift - mean * scale)
        self._arithmetic("ADD", [scaled, offset], self._activation(out))

    def _op_maxpool(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        attributes = _attributes(node)
        if attributes.get("ceil_mode", 0):
            raise NotConvertibleError(f"{node.name}: pooling with ceil_mode")
        kernel, strides = attributes["kernel_shape"], attributes.get("strides", [1, 1])
        fill = 0.0 if node.input[0] in self.non_negative else float(np.finfo(np.float32).min)
        padding, x = self._padded(node, kernel, strides, fill)
        self._pool("MAX_POOL_2D", x, self._activation(out), (padding, kernel, strides, activation))

    def _op_globalaveragepool(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        tfl = self.tfl
        options = tfl.ReducerOptionsT()
        options.keepDims = True
        inputs = [self.indices[node.input[0]], self._constant(np.array([1, 2], np.int32))]
        kind = tfl.BuiltinOptions.ReducerOptions
        self._operator(tfl.BuiltinOperator.MEAN, inputs, self._activation(out), kind, options)

    def _op_flatten(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._op_reshape(node, out, activation)

    def _op_reshape(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        before, after = self.shapes[node.input[0]], self.shapes[out]
        # Only then are NCHW and NHWC the same sequence of values.
        if any(len(shape) == 4 and math.prod(shape[2:]) != 1 for shape in (before, after)):
            raise NotConvertibleError(f"{node.name}: a reshape of a tensor with height and width")
        options = self.tfl.ReshapeOptionsT()
        target = np.array(_nhwc(after), np.int32)
        options.newShape = target
        self._operator(
            self.tfl.BuiltinOperator.RESHAPE,
            [self.indices[node.input[0]], self._constant(target)],
            self._activation(out),
            self.tfl.BuiltinOptions.ReshapeOptions,
            options,
        )

    def _op_gemm(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        attributes, weight = _attributes(node), self.constants[node.input[1]]
        if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0:
            raise NotConvertibleError(f"{node.name}: Gemm with transA or alpha")
        bias = self.constants[node.input[2]]
        self._dense(node, out, activation, weight if attributes.get("transB") else weight.T, bias)

    def _op_matmul(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        weight = self.constants[node.input[1]].T
        self._dense(node, out, activation, weight, np.zeros(len(weight), np.float32))

    def _dense(
        self, node: onnx.NodeProto, out: str, activation: int, weight: Array, bias: Array
    ) -> None:
        options = self.tfl.FullyConnectedOptionsT()
        options.fusedActivationFunction = activation
        inputs = [self.indices[node.input[0]], self._constant(weight), self._constant(bias)]
        code, kind = self.tfl.BuiltinOperator, self.tfl.BuiltinOptions
        target = self._activation(out)
        self._operator(code.FULLY_CONNECTED, inputs, target, kind.FullyConnectedOptions, options)

    def _op_add(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._arithmetic("ADD", self._operands(node), self._activation(out), activation)

    def _op_mul(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._arithmetic("MUL", self._operands(node), self._activation(out), activation)

    def _op_div(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        if node.input[1] not in self.constants:
            self._arithmetic("DIV", self._operands(node), self._activation(out))
            return
        inverse = self._constant(_channels_last(1 / self.constants[node.input[1]]))
        self._arithmetic("MUL", [self.indices[node.input[0]], inverse], self._activation(out))

    def _op_concat(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        if _attributes(node)["axis"] != 1 or len(self.shapes[out]) != 4:
            raise NotConvertibleError(f"{node.name}: not a concatenation of channels")
        options = self.tfl.ConcatenationOptionsT()
        options.axis = 3
        self._operator(
            self.tfl.BuiltinOperator.CONCATENATION,
            [self.indices[name] for name in node.input],
            self._activation(out),
            self.tfl.BuiltinOptions.ConcatenationOptions,
            options,
        )

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

    def _op_hardswish(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self._unary("HARD_SWISH", node, out)

    def _op_hardsigmoid(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        """min(max(a x + b, 0), 1) as relu6(6 a x + 6 b) / 6, which is how Keras writes it."""
        attributes, shape = _attributes(node), self.shapes[node.input[0]]
        alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
        x = self.indices[node.input[0]]
        if not math.isclose(alpha * 6, 1, rel_tol=1e-6):
            scaled = self._anonymous(shape)
            self._arithmetic("MUL", [x, self._scalar(alpha * 6)], scaled)
            x = scaled
        clipped = self._anonymous(shape)
        relu6 = self.tfl.ActivationFunctionType.RELU6
        self._arithmetic("ADD", [x, self._scalar(beta * 6)], clipped, relu6)
        self._arithmetic("MUL", [clipped, self._scalar(1 / 6)], self._activation(out))

    def _op_softmax(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        options = self.tfl.SoftmaxOptionsT()
        options.beta = 1.0
        self._operator(
            self.tfl.BuiltinOperator.SOFTMAX,
            [self.indices[node.input[0]]],
            self._activation(out),
            self.tfl.BuiltinOptions.SoftmaxOptions,
            options,
        )

    def _op_identity(self, node: onnx.NodeProto, out: str, activation: int) -> None:
        self.indices[out] = self.indices[node.input[0]]

    # ------------------------------------------------------------ parts of nodes

    def _padded(
        self, node: onnx.NodeProto, kernel: Any, strides: Any, fill: float
    ) -> tuple[int, int]:
        """The padding mode, and the input: with a PAD in front where no mode fits."""
        tfl, attributes = self.tfl, _attributes(node)
        x, (n, c, h, w) = self.indices[node.input[0]], self.shapes[node.input[0]]
        top, left, bottom, right = attributes.get("pads", [0, 0, 0, 0])
        if not any((top, left, bottom, right)):
            return int(tfl.Padding.VALID), x
        dilations = attributes.get("dilations", [1, 1])
        same = [
            max((-(-size // step) - 1) * step + (extent - 1) * dilation + 1 - size, 0)
            for size, step, extent, dilation in zip((h, w), strides, kernel, dilations, strict=True)
        ]
        if [(top, bottom), (left, right)] == [(both // 2, both - both // 2) for both in same]:
            return int(tfl.Padding.SAME), x
        pads = np.array([[0, 0], [top, bottom], [left, right], [0, 0]], np.int32)
        padded = self._anonymous((n, c, h + top + bottom, w + left + right))
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

    def _pool(self, code: str, x: int, out: int, how: tuple[int, Any, Any, int]) -> None:
        options = self.tfl.Pool2DOptionsT()
        options.padding, kernel, strides, options.fusedActivationFunction = how
        options.filterHeight, options.filterWidth = kernel
        options.strideH, options.strideW = strides
        kind = self.tfl.BuiltinOptions.Pool2DOptions
        self._operator(getattr(self.tfl.BuiltinOperator, code), [x], out, kind, options)

    def _arithmetic(self, code: str, inputs: list[int], out: int, activation: int = 0) -> None:
        name = code.capitalize()
        options = getattr(self.tfl, f"{name}OptionsT")()
        options.fusedActivationFunction = activation
        kind = getattr(self.tfl.BuiltinOptions, f"{name}Options")
        self._operator(getattr(self.tfl.BuiltinOperator, code), inputs, out, kind, options)

    def _unary(self, code: str, node: onnx.NodeProto, out: str) -> None:
        inputs, target = [self.indices[node.input[0]]], self._activation(out)
        self._operator(getattr(self.tfl.BuiltinOperator, code), inputs, target, 0, None)

    def _operands(self, node: onnx.NodeProto) -> list[int]:
        return [
            self._constant(_channels_last(self.constants[name]))
            if name in self.constants
            else self.indices[name]
            for name in node.input
        ]

    def _operator(self, code: int, inputs: list[int], out: int, kind: int, options: Any) -> None:
        operator = self.tfl.OperatorT()
        operator.opcodeIndex = self.codes.setdefault(code, len(self.codes))
        operator.inputs, operator.outputs = inputs, [out]
        operator.builtinOptionsType, operator.builtinOptions = kind, options
        self.operators.append(operator)

    # ------------------------------------------------------------ tensors

    def _activation(self, name: str) -> int:
        self.indices[name] = self._tensor(name, _nhwc(self.shapes[name]), np.float32, 0)
        return self.indices[name]

    def _anonymous(self, shape: tuple[int, ...]) -> int:
        """A tensor between operators; `shape` is NCHW."""
        return self._tensor(f"inner_{len(self.tensors)}", _nhwc(shape), np.float32, 0)

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
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape


def _channels_last(value: Array) -> Array:
    """A constant operand (C, 1, 1) or (1, C, H, W), aligned to NHWC by broadcasting's rules."""
    if value.ndim < 3:
        return value
    return np.moveaxis(value, -3, -1)
