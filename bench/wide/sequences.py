"""Sound, bytes, series and lines of text."""

from __future__ import annotations

import onnx

from bench.network import Network, Value
from bench.wide.transformers import block


def keywords() -> onnx.ModelProto:
    """A keyword net on one second of raw sound at 16 kHz: M5 (arXiv:1610.00087), half as wide."""
    net = Network("keywords-conv1d", shape=(1, 1, 16000))
    x = net.relu(net.conv(net.input, "0", 64, kernel=(80,), stride=(4,), pads=(0, 0)))
    x = net.max_pool(x, kernel=(4,), stride=(4,))
    for index, channels in enumerate((64, 128, 256), 1):
        x = net.relu(net.conv(x, f"{index}", channels, kernel=(3,)))
        x = net.max_pool(x, kernel=(4,), stride=(4,))
    return net.finish(net.dense(net.pool(x), "fc", 35))


def bytes_classifier() -> onnx.ModelProto:
    """What kind of file 2,048 bytes are from, as Magika (arXiv:2409.13768).

    Four bytes side by side are a position; windows of five positions are 5x1 on 512x1.
    """
    net = Network("bytes-conv5x1", shape=(1, 2048), tokens=257)
    x = net.reshape(net.embed(net.input, "embedding", 64), 1, 512, 256)
    x = net.transpose(net.layer_norm(x, "norm"), 0, 2, 1)
    x = Value(net.reshape(x, 1, 256, 512, 1).name, 256)
    x = net.gelu(net.conv(x, "conv", 512, kernel=(5, 1), pads=(0, 0, 0, 0)))
    x = net.op("Flatten", net.op("GlobalMaxPool", x))
    return net.finish(net.dense(net.layer_norm(x, "norm2"), "fc", 216))


def tcn() -> onnx.ModelProto:
    """A temporal convolutional network (arXiv:1803.01271): 40 features, 400 steps, 8 levels."""
    net = Network("tcn", shape=(1, 40, 400))
    x, width = net.input, 64
    for level in range(8):
        dilation = 1 << level
        y = x
        for which in ("a", "b"):
            past = 2 * dilation
            y = net.conv(
                y,
                f"{level}.{which}",
                width,
                kernel=(3,),
                dilation=(dilation,),
                pads=(past, 0),
                gain=1.0 if which == "a" else 0.3,
            )
            y = net.relu(y)
        if x.channels != width:
            x = net.conv(x, f"{level}.shortcut", width, kernel=(1,))
        x = net.relu(net.plus(x, y))
    return net.finish(net.conv(x, "head", 12, kernel=(1,)))


def text_recogniser() -> onnx.ModelProto:
    """A line of text, 48x320: PP-OCRv3's recogniser with a neck of SVTR (arXiv:2205.00159).

    MobileNetV1 at half width, whose strides keep the line's length, then a transformer, then
    6,625 characters for each of 40 positions.
    """
    net = Network("text-48x320", shape=(1, 3, 48, 320))
    x = net.hardswish(net.conv(net.input, "stem", 16, kernel=3, stride=2))
    blocks: list[tuple[int, int, tuple[int, int], bool]] = [
        (3, 32, (1, 1), False),
        (3, 64, (1, 1), False),
        (3, 64, (1, 1), False),
        (3, 128, (2, 1), False),
        (3, 128, (1, 1), False),
        (3, 256, (2, 1), False),
        *[(5, 256, (1, 1), False)] * 5,
        (5, 512, (2, 1), True),
        (5, 512, (1, 2), True),
    ]
    for index, (kernel, channels, stride, gated) in enumerate(blocks):
        x = net.conv(x, f"{index}.dw", x.channels, kernel=kernel, stride=stride, depthwise=True)
        x = net.hardswish(x)
        if gated:
            x = net.squeeze_excite(x, f"{index}.se", x.channels // 4)
        x = net.hardswish(net.conv(x, f"{index}.pw", channels))
    x = net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    (height, width), features = (1, 40), 120
    y = net.silu(net.conv(x, "neck.reduce", x.channels // 8, kernel=3))
    y = net.silu(net.conv(y, "neck.expand", features))
    y = net.transpose(net.reshape(y, 1, features, height * width), 0, 2, 1)
    y = Value(y.name, features)
    for index in range(2):
        y = block(net, y, f"neck.{index}", tokens=width, heads=8, hidden=2 * features, swish=True)
    y = net.layer_norm(y, "neck.norm")
    y = net.reshape(net.transpose(y, 0, 2, 1), 1, features, height, width)
    y = net.silu(net.conv(Value(y.name, features), "neck.back", x.channels))
    y = net.silu(net.conv(net.concat(x, y), "neck.mix", x.channels // 8, kernel=3))
    y = net.silu(net.conv(y, "neck.out", features))
    y = net.transpose(net.op("Squeeze", y, net.integers(2)), 0, 2, 1)
    return net.finish(net.op("Softmax", net.linear(y, "characters", 6625), axis=-1))


def forecaster() -> onnx.ModelProto:
    """96 hours of 7 measurements, and the next 24 of each: two LSTMs of 64."""
    net = Network("forecaster-lstm", shape=(96, 1, 7))
    x = Value("input", 7)
    for index in range(2):
        x = net.recurrent(x, f"{index}", "LSTM", 64)
    last = net.op("Gather", x, net.index(-1), axis=0)
    return net.finish(net.dense(last, "fc", 24 * 7))


def noise_suppressor() -> onnx.ModelProto:
    """Gains of 22 bands for a second of sound, 100 frames of 42 features: RNNoise
    (arXiv:1709.08243, figure 3), twice as wide, without its concatenations with the input."""
    net = Network("noise-gru", shape=(100, 1, 42))
    x = net.op("Tanh", net.linear(Value("input", 42), "in", 48))
    for index, size in enumerate((48, 96, 192)):
        x = net.recurrent(x, f"{index}", "GRU", size)
    return net.finish(net.op("Sigmoid", net.linear(x, "out", 22)))
