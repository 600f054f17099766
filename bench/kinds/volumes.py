"""Three axes: depths by pixels, and frames of a video."""

from __future__ import annotations

import numpy as np
import onnx

from bench.network import Network, Value


def stereo() -> onnx.ModelProto:
    """A volume of matching costs, 16 depths of 32x64 pixels, as PSMNet's (arXiv:1803.08669).

    An hourglass of three-dimensional convolutions, then the expected depth of each pixel.
    """
    net = Network("stereo-volume", shape=(1, 16, 16, 32, 64))

    def conv(x: Value, name: str, channels: int, stride: int = 1) -> Value:
        return net.relu(net.conv(x, name, channels, kernel=(3, 3, 3), stride=stride))

    x = conv(conv(net.input, "in.a", 16), "in.b", 16)
    half = conv(conv(x, "half.a", 32, 2), "half.b", 32)
    low = conv(conv(half, "low.a", 32, 2), "low.b", 32)
    up = net.transposed(low, "up.a", 32, kernel=(2, 2, 2), stride=2)
    up = net.transposed(net.relu(net.plus(up, half)), "up.b", 16, kernel=(2, 2, 2), stride=2)
    cost = net.conv(net.relu(net.plus(up, x)), "cost", 1, kernel=(3, 3, 3))
    cost = net.op("Softmax", net.op("Squeeze", cost, net.integers(1)), axis=1)
    depths = net.constant("depths", np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    return net.finish(net.op("ReduceSum", net.op("Mul", cost, depths), net.integers(1)))


def video() -> onnx.ModelProto:
    """8 frames of 112x112 as R(2+1)D (arXiv:1711.11248), a quarter as wide, then as X3D
    (arXiv:2004.04730): depthwise 3x3x3 between 1x1x1."""
    net = Network("video-r2plus1d", shape=(1, 3, 8, 112, 112))

    def apart(x: Value, name: str, channels: int, stride: int = 1, gain: float = 1.0) -> Value:
        space, time = (1, stride, stride), (stride if name != "stem" else 1, 1, 1)
        y = net.conv(x, f"{name}.space", channels, kernel=(1, 3, 3), stride=space)
        return net.conv(
            net.relu(y), f"{name}.time", channels, kernel=(3, 1, 1), stride=time, gain=gain
        )

    x = net.relu(apart(net.input, "stem", 16, 2))
    for stage, width in enumerate((16, 32)):
        stride = 2 if stage else 1
        y = net.relu(apart(x, f"{stage}.a", width, stride))
        y = apart(y, f"{stage}.b", width, gain=0.3)
        if stage:
            x = net.conv(x, f"{stage}.shortcut", width, kernel=(1, 1, 1), stride=stride)
        x = net.relu(net.plus(x, y))
    for index in range(3):
        name = f"x3d.{index}"
        y = net.relu(net.conv(x, f"{name}.expand", 72, kernel=(1, 1, 1)))
        y = net.silu(net.conv(y, f"{name}.dw", 72, kernel=(3, 3, 3), depthwise=True))
        x = net.plus(x, net.conv(y, f"{name}.project", 32, kernel=(1, 1, 1), gain=0.3))
    return net.finish(net.dense(net.pool(x), "fc", 400))
