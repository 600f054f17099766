"""Images: branches, plain and grouped windows, and pictures as outputs."""

from __future__ import annotations

import numpy as np
import onnx

from bench.network import Network, Value


def keypoints() -> onnx.ModelProto:
    """Heat maps of 17 joints, as HRNet (arXiv:1908.07919): two branches of 18 and 36 channels."""
    net = Network("hrnet-keypoints", shape=(1, 3, 256, 192))

    def conv(x: Value, name: str, channels: int, stride: int = 1) -> Value:
        return net.conv(x, name, channels, kernel=3, stride=stride)

    def basic(x: Value, name: str) -> Value:
        y = net.relu(conv(x, f"{name}.a", x.channels))
        y = net.conv(y, f"{name}.b", x.channels, kernel=3, gain=0.3)
        return net.relu(net.plus(x, y))

    x = net.relu(conv(net.relu(conv(net.input, "stem.a", 32, 2)), "stem.b", 32, 2))
    high, low = net.relu(conv(x, "high", 18)), net.relu(conv(x, "low", 36, 2))
    for stage in range(3):
        for index in range(2):
            high = basic(high, f"{stage}.{index}.high")
            low = basic(low, f"{stage}.{index}.low")
        up = twice(net, net.conv(low, f"{stage}.up", 18, gain=0.5))
        down = conv(high, f"{stage}.down", 36, 2)
        high, low = net.relu(net.plus(high, up)), net.relu(net.plus(low, down))
    return net.finish(net.conv(high, "joints", 17))


def repvgg() -> onnx.ModelProto:
    """RepVGG-A0 (arXiv:2101.03697), half as wide, re-parametrised: nothing but 3x3."""
    net = Network("repvgg")
    x = net.relu(net.conv(net.input, "stem", 32, kernel=3, stride=2))
    for stage, (count, width) in enumerate(((2, 32), (4, 48), (8, 96), (1, 640))):
        for index in range(count):
            stride = 2 if index == 0 else 1
            x = net.relu(net.conv(x, f"{stage}.{index}", width, kernel=3, stride=stride))
    return net.finish(net.dense(net.pool(x), "fc", 1000))


def regnetx() -> onnx.ModelProto:
    """Bottlenecks as RegNetX's and ResNeXt's: grouped 3x3 of 4, 8 and 16 channels a group."""
    net = Network("regnetx-groups")
    x = net.relu(net.conv(net.input, "stem", 32, kernel=3, stride=2))
    for stage, (count, width, each) in enumerate(((1, 32, 4), (2, 64, 8), (4, 160, 16))):
        for index in range(count):
            name, stride = f"{stage}.{index}", 2 if index == 0 else 1
            y = net.relu(net.conv(x, f"{name}.reduce", width))
            y = net.conv(y, f"{name}.conv", width, kernel=3, stride=stride, group=width // each)
            y = net.conv(net.relu(y), f"{name}.expand", width, gain=0.3)
            if index == 0:
                x = net.conv(x, f"{name}.shortcut", width, stride=stride)
            x = net.relu(net.plus(x, y))
    return net.finish(net.dense(net.pool(x), "fc", 1000))


def inception() -> onnx.ModelProto:
    """Modules with 1x7 and 7x1 windows, as Inception v3 (arXiv:1512.00567), for 149x149 pixels."""
    net = Network("inception", size=149)

    def conv(
        x: Value, name: str, channels: int, kernel: tuple[int, int] = (1, 1), stride: int = 1
    ) -> Value:
        pads = (0, 0, 0, 0) if stride == 2 else None
        return net.relu(net.conv(x, name, channels, kernel=kernel, stride=stride, pads=pads))

    x = conv(net.input, "stem.a", 32, (3, 3), 2)
    x = net.max_pool(conv(x, "stem.b", 64, (3, 3)))
    x = conv(x, "stem.c", 128, (3, 3), 2)
    for index in range(3):
        one = conv(x, f"{index}.one", 64)
        two = conv(conv(x, f"{index}.two.a", 48), f"{index}.two.b", 48, (1, 7))
        two = conv(two, f"{index}.two.c", 64, (7, 1))
        three = conv(conv(x, f"{index}.three.a", 48), f"{index}.three.b", 64, (3, 3))
        pool = net.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
        x = net.concat(one, two, three, conv(pool, f"{index}.pool", 64))
    return net.finish(net.dense(net.pool(x), "fc", 1000))


def convnext() -> onnx.ModelProto:
    """ConvNeXt (arXiv:2201.03545), half as wide: depthwise 7x7, norms of channels last, Gelu."""
    net = Network("convnext")

    def norm(x: Value, name: str) -> Value:
        y = net.layer_norm(net.transpose(x, 0, 2, 3, 1), name)
        return net.transpose(y, 0, 3, 1, 2)

    x = net.conv(net.input, "stem", 48, kernel=4, stride=4, pads=(0, 0, 0, 0))
    x = norm(x, "stem.norm")
    for stage, (count, width) in enumerate(((1, 48), (1, 96), (3, 192), (1, 384))):
        if stage:
            x = norm(x, f"{stage}.norm")
            x = net.conv(x, f"{stage}.down", width, kernel=2, stride=2, pads=(0, 0, 0, 0))
        for index in range(count):
            name = f"{stage}.{index}"
            y = net.conv(x, f"{name}.dw", width, kernel=7, depthwise=True)
            y = net.layer_norm(net.transpose(y, 0, 2, 3, 1), f"{name}.norm")
            y = net.gelu(net.linear(y, f"{name}.fc1", 4 * width))
            y = net.linear(y, f"{name}.fc2", width)
            scale = net.constant(f"{name}.scale", np.full(width, 0.3, np.float32))
            x = net.plus(x, net.transpose(net.op("Mul", y, scale), 0, 3, 1, 2))
    return net.finish(net.dense(net.layer_norm(net.pool(x), "norm"), "fc", 1000))


def autoencoder() -> onnx.ModelProto:
    """128x128 pixels to 256 numbers and back, by transposed convolutions, the last to 3."""
    net = Network("autoencoder", size=128)
    x = net.input
    for index, channels in enumerate((32, 64, 128, 256)):
        x = net.relu(net.conv(x, f"down.{index}", channels, kernel=3, stride=2))
    x = net.relu(net.dense(net.op("Flatten", Value(x.name, 256 * 64)), "code", 256))
    x = net.relu(net.dense(x, "decode", 256 * 64))
    x = Value(net.reshape(x, 1, 256, 8, 8).name, 256)
    for index, channels in enumerate((128, 64, 32, 3)):
        x = net.transposed(x, f"up.{index}", channels, kernel=4, stride=2, pad=1)
        x = net.relu(x) if channels > 3 else net.op("Sigmoid", x)
    return net.finish(x)


def twice(net: Network, x: Value) -> Value:
    """An image of twice the height and width, each pixel four times."""
    scales = net.constant("twice", np.array([1, 1, 2, 2], np.float32))
    modes = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    return net.op("Resize", x, "", scales, mode="nearest", **modes)
