"""A small builder of ONNX graphs, with weights from a checkpoint or a seed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[np.float32]


# Of a window: one number for height and width, or one per axis, of which there may be any number.
Extent = int | tuple[int, ...]
_TOKENS = "tokens"  # a model's property


@dataclass(frozen=True)
class Value:
    """A tensor in the graph: its name and its number of channels (of a sequence: features)."""

    name: str
    channels: int


@dataclass
class Network:
    """ONNX nodes in the making; the input is `input`.

    It is float32 of `shape`, NCHW (1, 3, size, size) if that is not given, or with `tokens`
    int32 below that number.

    With `state`, weights and batch norms are taken from it by name. Without, weights are
    random with He's scale, which keeps activations near 1 through any number of layers,
    and there is no batch norm, as in a model exported for inference.
    """

    name: str
    size: int = 224
    shape: tuple[int, ...] = ()
    tokens: int = 0
    state: Mapping[str, Array] | None = None
    norm_epsilon: float = 1e-5
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)

    @property
    def input(self) -> Value:
        """The model's input."""
        return Value("input", self.input_shape[1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The model's input's."""
        return self.shape or (1, 3, self.size, self.size)

    def add(self, operator: str, inputs: list[str], channels: int, **attributes: object) -> Value:
        """A node with one output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return Value(name, channels)

    def op(self, operator: str, *inputs: Value | str, **attributes: object) -> Value:
        """A node with one output that has the channels of its first input."""
        names = [value.name if isinstance(value, Value) else value for value in inputs]
        first = inputs[0]
        assert isinstance(first, Value)
        return self.add(operator, names, first.channels, **attributes)

    def integers(self, *values: int) -> str:
        """A list of integers, for a shape or for axes."""
        name = "integers_" + "_".join(map(str, values))
        self.initializers[name] = numpy_helper.from_array(np.array(values, np.int64), name)
        return name

    def index(self, value: int) -> str:
        """A scalar integer, with which Gather takes one row of an axis away."""
        name = f"index_{value}"
        self.initializers[name] = numpy_helper.from_array(np.array(value, np.int64), name)
        return name

    def number(self, value: float) -> str:
        """A scalar."""
        return self.constant(f"number_{value}", np.array(value, np.float32))

    def constant(self, name: str, value: Array) -> str:
        """An initialiser."""
        self.initializers[name] = numpy_helper.from_array(value, name)
        return name

    def conv(
        self,
        x: Value,
        name: str,
        channels: int,
        *,
        kernel: Extent = 1,
        stride: Extent = 1,
        dilation: Extent = 1,
        pads: tuple[int, ...] | None = None,
        group: int = 1,
        depthwise: bool = False,
        bias: bool = True,
        gain: float = 1.0,
    ) -> Value:
        """A convolution, of as many axes as `kernel` has, or two.

        Padded by half the window unless `pads` are given (before of each axis, then after). `gain`
        scales random weights: less than 1 at the end of a residual branch.
        """
        extents = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        dilations = _each(dilation, len(extents))
        half = [(k - 1) * d // 2 for k, d in zip(extents, dilations, strict=True)]
        group = x.channels if depthwise else group
        shape = (channels, x.channels // group, *extents)
        weight, shift = f"{name}.weight", f"{name}.bias"
        inputs = [x.name, self.constant(weight, self._weight(weight, shape, gain))]
        if bias:
            inputs.append(self.constant(shift, self._bias(shift, channels)))
        return self.add(
            "Conv",
            inputs,
            channels,
            kernel_shape=list(extents),
            strides=_each(stride, len(extents)),
            dilations=dilations,
            pads=list(pads or (*half, *half)),
            group=group,
        )

    def transposed(
        self,
        x: Value,
        name: str,
        channels: int,
        *,
        kernel: Extent,
        stride: int,
        pad: int = 0,
    ) -> Value:
        """A transposed convolution, of as many axes as `kernel` has, or two."""
        extents = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        weight, shift = f"{name}.weight", f"{name}.bias"
        values = self._random(
            weight,
            (x.channels, channels, *extents),
            math.sqrt(stride ** len(extents) / (x.channels * math.prod(extents))),
        )
        inputs = [
            x.name,
            self.constant(weight, values),
            self.constant(shift, self._bias(shift, channels)),
        ]
        windows = {"kernel_shape": list(extents), "strides": [stride] * len(extents)}
        if pad:
            windows["pads"] = [pad] * (2 * len(extents))
        return self.add("ConvTranspose", inputs, channels, **windows)

    def norm(self, x: Value, name: str) -> Value:
        """The checkpoint's batch norm, or a random one."""
        statistics = [
            self.constant(f"{name}.{which}", self._statistic(f"{name}.{which}", x.channels))
            for which in ("weight", "bias", "running_mean", "running_var")
        ]
        return self.add(
            "BatchNormalization", [x.name, *statistics], x.channels, epsilon=self.norm_epsilon
        )

    def relu(self, x: Value) -> Value:
        """max(x, 0)"""
        return self.add("Relu", [x.name], x.channels)

    def relu6(self, x: Value) -> Value:
        """min(max(x, 0), 6)"""
        limits = [
            self.constant("relu6.min", np.array(0, np.float32)),
            self.constant("relu6.max", np.array(6, np.float32)),
        ]
        return self.add("Clip", [x.name, *limits], x.channels)

    def silu(self, x: Value) -> Value:
        """x * sigmoid(x), as PyTorch writes it."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def hardswish(self, x: Value) -> Value:
        """x * min(max(x / 6 + 0.5, 0), 1)"""
        return self.add("HardSwish", [x.name], x.channels)

    def plus(self, x: Value, y: Value) -> Value:
        """x + y"""
        return self.add("Add", [x.name, y.name], x.channels)

    def concat(self, *parts: Value) -> Value:
        """The channels of one after the other."""
        names = [part.name for part in parts]
        return self.add("Concat", names, sum(part.channels for part in parts), axis=1)

    def channels(self, x: Value, start: int, stop: int) -> Value:
        """Some of them."""
        ends = [self.integers(value) for value in (start, stop, 1)]
        return self.add("Slice", [x.name, *ends], stop - start)

    def reshape(self, x: Value, *shape: int) -> Value:
        """In the order of memory; channels are what the last dimension has."""
        return self.add("Reshape", [x.name, self.integers(*shape)], shape[-1])

    def transpose(self, x: Value, *order: int) -> Value:
        """Its dimensions in another order."""
        return self.op("Transpose", x, perm=list(order))

    def max_pool(
        self, x: Value, *, kernel: Extent = 3, stride: Extent = 2, pad: Extent = 0
    ) -> Value:
        """The largest of each window."""
        extents = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        return self.op(
            "MaxPool",
            x,
            kernel_shape=list(extents),
            strides=_each(stride, len(extents)),
            pads=_each(pad, len(extents)) * 2,
        )

    def squeeze_excite(
        self, x: Value, name: str, squeezed: int, *, silu: bool = False, sigmoid: bool = False
    ) -> Value:
        """x times a gate per channel, as in MobileNetV3 if neither option is given."""
        gate = self.add("GlobalAveragePool", [x.name], x.channels)
        gate = self.conv(gate, f"{name}.fc1", squeezed)
        gate = self.silu(gate) if silu else self.relu(gate)
        gate = self.conv(gate, f"{name}.fc2", x.channels)
        if sigmoid:
            gate = self.op("Sigmoid", gate)
        else:
            gate = self.add("HardSigmoid", [gate.name], x.channels, alpha=1 / 6, beta=0.5)
        return self.add("Mul", [x.name, gate.name], x.channels)

    def pool(self, x: Value) -> Value:
        """Global average, (1, channels)."""
        x = self.add("GlobalAveragePool", [x.name], x.channels)
        return self.add("Flatten", [x.name], x.channels)

    def dense(self, x: Value, name: str, channels: int) -> Value:
        """A fully connected layer with bias."""
        weight, shift = f"{name}.weight", f"{name}.bias"
        inputs = [
            x.name,
            self.constant(weight, self._weight(weight, (channels, x.channels), 1.0)),
            self.constant(shift, self._bias(shift, channels)),
        ]
        return self.add("Gemm", inputs, channels, transB=1)

    def linear(self, x: Value, name: str, features: int, *, gain: float = 0.7) -> Value:
        """A product with the last dimension, and a bias: (..., x.channels) to (..., features)."""
        weight, shift = f"{name}.weight", f"{name}.bias"
        values = self._weight(weight, (features, x.channels), gain)
        product = self.add(
            "MatMul", [x.name, self.constant(weight, np.ascontiguousarray(values.T))], features
        )
        return self.op("Add", product, self.constant(shift, self._bias(shift, features)))

    def recurrent(self, x: Value, name: str, operator: str, size: int) -> Value:
        """An LSTM, a GRU or an RNN as PyTorch exports it: (T, 1, x.channels) to (T, 1, size)."""
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator] * size
        weights = [
            self.constant(f"{name}.{which}", self._random(f"{name}.{which}", shape, size**-0.5))
            for which, shape in (
                ("inputs", (1, gates, x.channels)),
                ("states", (1, gates, size)),
                ("bias", (1, 2 * gates)),
            )
        ]
        after = {"linear_before_reset": 1} if operator == "GRU" else {}
        x = self.add(operator, [x.name, *weights], size, hidden_size=size, **after)
        return self.op("Squeeze", x, self.integers(1))

    def layer_norm(self, x: Value, name: str) -> Value:
        """Over the last dimension."""
        statistics = [
            self.constant(f"{name}.{which}", self._statistic(f"{name}.{which}", x.channels))
            for which in ("weight", "bias")
        ]
        return self.op("LayerNormalization", x, *statistics, axis=-1, epsilon=1e-5)

    def gelu(self, x: Value) -> Value:
        """x / 2 * (1 + erf(x / sqrt(2))), as PyTorch writes it before opset 20."""
        erf = self.op("Erf", self.op("Div", x, self.number(math.sqrt(2))))
        gate = self.op("Add", erf, self.number(1.0))
        return self.op("Mul", self.op("Mul", x, gate), self.number(0.5))

    def embed(self, tokens: Value, name: str, features: int) -> Value:
        """A row of a table for each token: (1, T) to (1, T, features)."""
        table = self._random(name, (self.tokens, features), 1.0)
        return self.add("Gather", [self.constant(name, table), tokens.name], features, axis=0)

    def finish(self, *outputs: Value) -> onnx.ModelProto:
        """The checked model; its output is `logits`, or those are `output_0` and so on."""
        names = ["logits"] if len(outputs) == 1 else [f"output_{i}" for i in range(len(outputs))]
        renamed = {value.name: name for value, name in zip(outputs, names, strict=True)}
        for node in self.nodes:
            for values in (node.input, node.output):
                values[:] = [renamed.get(value, value) for value in values]
        kind = TensorProto.INT32 if self.tokens else TensorProto.FLOAT
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info("input", kind, self.input_shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
            list(self.initializers.values()),
        )
        model = helper.make_model(
            graph,
            producer_name="edgepack-bench",
            ir_version=8,
            opset_imports=[helper.make_opsetid("", 17)],
        )
        if self.tokens:
            helper.set_model_props(model, {_TOKENS: str(self.tokens)})
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        del model.graph.value_info[:]
        onnx.checker.check_model(model, full_check=True)
        return model

    def _weight(self, name: str, shape: tuple[int, ...], gain: float) -> Array:
        if self.state is not None:
            return self._stored(name, shape)
        scale = gain * math.sqrt(2 / math.prod(shape[1:]))
        return self._random(name, shape, scale)

    def _bias(self, name: str, channels: int) -> Array:
        if self.state is not None:
            return self._stored(name, (channels,))
        return self._random(name, (channels,), 0.1)

    def _statistic(self, name: str, channels: int) -> Array:
        if self.state is not None:
            return self._stored(name, (channels,))
        drawn = self._random(name, (channels,), 0.1)
        return 1 + np.abs(drawn) if name.endswith(("weight", "var")) else drawn

    def _stored(self, name: str, shape: tuple[int, ...]) -> Array:
        assert self.state is not None
        value = self.state[name]
        if value.shape != shape or value.dtype != np.float32:
            raise ValueError(f"{name} should be float32 {shape}, is {value.dtype} {value.shape}")
        return value

    def _random(self, name: str, shape: tuple[int, ...], scale: float) -> Array:
        """Normal values, from a stream per parameter that is the same in every numpy."""
        seed = zlib.crc32(f"{self.name}/{name}".encode())
        values = np.random.RandomState(seed).standard_normal(shape)
        return (values * scale).astype(np.float32)


def tokens_of(model: onnx.ModelProto) -> int:
    """How many different tokens the model takes, 0 if its input is no tokens."""
    return next((int(prop.value) for prop in model.metadata_props if prop.key == _TOKENS), 0)


def _each(extent: Extent, axes: int) -> list[int]:
    return list(extent) if isinstance(extent, tuple) else [extent] * axes
