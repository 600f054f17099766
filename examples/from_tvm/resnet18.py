"""Makes a ResNet-18 with random weights, as TVM's quick start took from `relay.testing.resnet`.

    python examples/from_tvm/resnet18.py OUT.onnx [--size 224]

The input is `data`, NCHW (1, 3, size, size) float32, the output `scores`, (1, 1000) float32,
after a softmax. The weights are scaled so that numbers stay near 1 through all layers.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 1000
STAGES = (64, 128, 256, 512)  # channels; two blocks each


class Graph:
    """ONNX nodes in the making."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        """A node with one output, whose name it returns."""
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int, scale: float) -> str:
        """A tensor of random numbers."""
        name = f"weight{len(self.weights)}"
        values = (self.random.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(
        self, data: str, channels: int, to: int, size: int, stride: int = 1, gain: float = 1.0
    ) -> str:
        """A convolution with a bias, padded to keep the image's size at stride 1."""
        weight = self.weight(to, channels, size, size, scale=gain * math.sqrt(2 / channels) / size)
        bias = self.weight(to, scale=0.1)
        pads = [size // 2] * 4
        return self.node(
            "Conv", data, weight, bias, kernel_shape=[size, size], strides=[stride] * 2, pads=pads
        )

    def block(self, data: str, channels: int, to: int, stride: int) -> str:
        """Two 3x3 convolutions and what goes past them."""
        past = data if channels == to else self.conv(data, channels, to, 1, stride)
        data = self.node("Relu", self.conv(data, channels, to, 3, stride))
        return self.node("Relu", self.node("Add", self.conv(data, to, to, 3, gain=0.5), past))


def resnet18(size: int = 224) -> onnx.ModelProto:
    """The model for images of `size` x `size`."""
    graph = Graph()
    data = graph.node("Relu", graph.conv("data", 3, STAGES[0], 7, 2))
    data = graph.node("MaxPool", data, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = STAGES[0]
    for stage, to in enumerate(STAGES):
        for stride in (2 if stage else 1, 1):
            data = graph.block(data, channels, to, stride)
            channels = to
    data = graph.node("Flatten", graph.node("GlobalAveragePool", data))
    weight = graph.weight(channels, CLASSES, scale=1 / math.sqrt(channels))
    scores = graph.node("Gemm", data, weight, graph.weight(CLASSES, scale=0.1))
    graph.nodes.append(helper.make_node("Softmax", [scores], ["scores"], name="scores"))
    made = helper.make_graph(
        graph.nodes,
        "resnet18",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, CLASSES])],
        graph.weights,
    )
    model = helper.make_model(made, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """See the module's description."""
    parser = argparse.ArgumentParser(description="Make a ResNet-18 with random weights.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    onnx.save(resnet18(args.size), args.out)


if __name__ == "__main__":
    main()
