"""A small builder of convolutional ONNX graphs, with weights from a checkpoint or a seed."""

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


@dataclass(frozen=True)
class Value:
    """A tensor in the graph: its name and its number of channels."""

    name: str
    channels: int


@dataclass
class Network:
    """ONNX nodes in the making; the input is `input`, NCHW (1, 3, size, size) float32.

    With `state`, weights and batch norms are taken from it by name. Without, weights are
    random with He's scale, which keeps activations near 1 through any number of layers,
    and there is no batch norm, as in a model exported for inference.
    """

    name: str
    size: int = 224
    state: Mapping[str, Array] | None = None
    norm_epsilon: float = 1e-5
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)

    @property
    def input(self) -> Value:
        """The model's input."""
        return Value("input", 3)

    def add(self, operator: str, inputs: list[str], channels: int, **attributes: object) -> Value:
        """A node with one output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return Value(name, channels)

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
        kernel: int = 1,
        stride: int = 1,
        pads: tuple[int, int, int, int] | None = None,
        depthwise: bool = False,
        bias: bool = True,
        gain: float = 1.0,
    ) -> Value:
        """A convolution, padded by half the kernel unless `pads` (top, left, bottom, right).

        `gain` scales random weights: less than 1 at the end of a residual branch.
        """
        shape = (channels, 1 if depthwise else x.channels, kernel, kernel)
        weight, shift = f"{name}.weight", f"{name}.bias"
        inputs = [x.name, self.constant(weight, self._weight(weight, shape, gain))]
        if bias:
            inputs.append(self.constant(shift, self._bias(shift, channels)))
        return self.add(
            "Conv",
            inputs,
            channels,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=list(pads or [kernel // 2] * 4),
            group=x.channels if depthwise else 1,
        )

    def norm(self, x: Value, name: str) -> Value:
        """The checkpoint's batch norm."""
        assert self.state is not None
        statistics = [
            self.constant(f"{name}.{which}", self.state[f"{name}.{which}"])
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

    def hardswish(self, x: Value) -> Value:
        """x * min(max(x / 6 + 0.5, 0), 1)"""
        return self.add("HardSwish", [x.name], x.channels)

    def plus(self, x: Value, y: Value) -> Value:
        """x + y"""
        return self.add("Add", [x.name, y.name], x.channels)

    def concat(self, x: Value, y: Value) -> Value:
        """The channels of x, then those of y."""
        return self.add("Concat", [x.name, y.name], x.channels + y.channels, axis=1)

    def max_pool(self, x: Value, *, pad: int = 0) -> Value:
        """3x3, stride 2."""
        return self.add(
            "MaxPool",
            [x.name],
            x.channels,
            kernel_shape=[3, 3],
            strides=[2, 2],
            pads=[pad] * 4,
        )

    def squeeze_excite(self, x: Value, name: str, squeezed: int) -> Value:
        """x times a gate per channel, as in MobileNetV3."""
        gate = self.add("GlobalAveragePool", [x.name], x.channels)
        gate = self.relu(self.conv(gate, f"{name}.fc1", squeezed))
        gate = self.conv(gate, f"{name}.fc2", x.channels)
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

    def finish(self, output: Value) -> onnx.ModelProto:
        """The checked model; its output is `logits`, (1, channels) float32."""
        last = next(node for node in self.nodes if node.output[0] == output.name)
        last.output[0] = "logits"
        shape = [1, 3, self.size, self.size]
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, output.channels])],
            list(self.initializers.values()),
        )
        model = helper.make_model(
            graph,
            producer_name="edgepack-bench",
            ir_version=8,
            opset_imports=[helper.make_opsetid("", 17)],
        )
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
