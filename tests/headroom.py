"""Networks whose fastest kernels take more scratch memory than their images leave room for."""

from __future__ import annotations

from tests.onnx_models import Builder

Shape = tuple[int, ...]
# Weights may grow as they like, scratch memory not.
LEAN = 1000.0
# What `heads` reads.
HEADS = (1, 128, 256)


def stem(net: Builder) -> str:
    """Winograd's tiles of stride 2, which read the largest image."""
    first = net.op("Relu", net.conv("x", 3, 32, strides=[2, 2]))
    value = net.op("Relu", net.conv(first, 32, 32, strides=[2, 2]))
    value = net.op("Relu", net.conv(value, 32, 64, kernel=1))
    for _ in range(8):
        value = net.op("Relu", net.conv(value, 64, 64, kernel=1))
    return net.conv(value, 64, 32, kernel=1)


def large_window(net: Builder, channels: int = 64) -> str:
    """A first layer as ResNet has it, whose result is the largest image, and the pooling of it."""
    first = net.op("Relu", net.conv("x", 3, channels, kernel=7, strides=[2, 2]))
    around = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    return net.conv(net.op("MaxPool", first, **around), channels, 16, kernel=1)


def rows(net: Builder) -> str:
    """All rows of an image, for a window nearly as tall, in several panels of channels."""
    value = net.conv("x", 64, 128, kernel=1)
    for _ in range(2):
        wide = net.op("Relu", net.conv(value, 128, 128, kernel=1))
        value = net.op("Relu", net.conv(wide, 128, 128, kernel=5, group=128))
    return net.conv(value, 128, 32, kernel=1)


def joint(net: Builder) -> str:
    """Channels side by side, of which neither part fills blocks of sixteen."""
    first = net.op("Relu", net.conv("x", 16, 24, kernel=1))
    second = net.op("Relu", net.conv(first, 24, 24, group=24))
    joined = net.op("Concat", first, second, axis=1)
    return net.conv(net.conv(joined, 48, 48, group=48, strides=[2, 2]), 48, 12, kernel=1)


def residual(net: Builder) -> str:
    """Nothing but convolutions that are twice as slow without Winograd's tiles."""
    inner = net.op("Relu", net.conv("x", 64, 64))
    return net.op("Add", net.conv(inner, 64, 64), "x")


def sums(net: Builder) -> str:
    """A sum of what is read as it is and what a window was moved over, read by such a window: the
    zeros that are wanted around the three differ."""

    def moved(value: str) -> str:
        return net.op("Conv", value, net.weight(32, 32, 1, 7), net.weight(32), pads=[0, 3, 0, 3])

    first = net.op("Sigmoid", net.conv("x", 8, 32, kernel=1))
    second = net.op("Add", moved(net.op("Tanh", first)), first)
    return moved(net.op("Add", moved(net.op("Tanh", second)), second))


def volumes(net: Builder) -> str:
    """A volume of 8 channels, kept beside what is made of every second image, row and column."""

    def conv(value: str, cin: int, cout: int, step: int = 1) -> str:
        around = {"strides": [step] * 3, "pads": [1] * 6}
        return net.op("Conv", value, net.weight(cout, cin, 3, 3, 3), net.weight(cout), **around)

    whole = net.op("Relu", conv("x", 8, 8))
    half = net.op("Relu", conv(whole, 8, 8, step=2))
    wide = net.op("ConvTranspose", half, net.weight(8, 8, 2, 2, 2), strides=[2, 2, 2])
    return conv(net.op("Relu", net.op("Add", wide, whole)), 8, 8)


def branches(net: Builder) -> str:
    """Blocks whose input is kept while an inner image and a result are there, with arithmetic of
    every kind after the convolutions, whose windows are too long for Winograd's tiles."""

    def conv(data: str, channels: int, dilation: int) -> str:
        around = {"dilations": [1, dilation], "pads": [0, 4 * dilation] * 2}
        return net.op("Conv", data, net.weight(64, channels, 1, 9), net.weight(64), **around)

    value, channels = "x", 48
    for dilation in (1, 2):
        inner = net.op("PRelu", conv(value, channels, dilation), net.weight(64, 1, 1))
        made = net.op("Relu", conv(inner, 64, dilation))
        short = net.conv(value, channels, 64, kernel=1)
        value, channels = net.op("Relu", net.op("Add", made, short)), 64
        value = net.op("MaxPool", value, kernel_shape=[2, 1], strides=[2, 1])
    return value


def chain(net: Builder) -> str:
    """Three convolutions in a row beside a branch, of which two can be in parts at a time."""
    value = "x"
    for channels in (48, 64, 64):
        value = net.op("Relu", net.conv(value, channels, 64, kernel=5))
    return net.op("Add", net.conv("x", 48, 64, kernel=1), value)


def beside(net: Builder) -> str:
    """A sequence whose convolution and the depthwise one behind it are done while two others are
    kept, with fewer panels than cores unless panels are narrow."""
    kept = net.op("Relu", net.conv("x", 16, 16, kernel=1))
    value = net.op("Relu", net.conv(kept, 16, 16, kernel=1))
    around, weights = {"pads": [0, 4, 0, 4]}, (net.weight(16, 16, 1, 9), net.weight(16))
    value = net.op("Sigmoid", net.op("Conv", value, *weights, **around))
    around, weights = {"pads": [0, 1, 0, 1], "group": 16}, (net.weight(16, 1, 1, 3), net.weight(16))
    value = net.op("Conv", value, *weights, **around)
    return net.op("Add", net.op("Add", value, kept), "x")


def pooled_by_windows(net: Builder) -> str:
    """An image of which windows of 3x3 are pooled, as of Inception's stem."""
    inner = net.op("Relu", net.conv(net.conv("x", 3, 32, strides=[2, 2]), 32, 64))
    return net.op("MaxPool", inner, kernel_shape=[3, 3], strides=[2, 2])


def pooled(net: Builder) -> str:
    """A sequence, as an image of one column, whose convolution makes the largest image for nothing
    but the largest value of each channel."""
    around, weights = {"pads": [2, 0, 2, 0]}, (net.weight(256, 128, 5, 1), net.weight(256))
    value = net.op("Relu", net.op("Conv", net.op("Relu", "x"), *weights, **around))
    return net.conv(net.op("GlobalMaxPool", value), 256, 16, kernel=1)


def halves(net: Builder) -> str:
    """As YOLO has it: both halves of an image and what is made of one of them, side by side."""
    value = net.op("Relu", net.conv("x", 16, 32, kernel=1))
    net.op("Split", value, outputs=["first", "second"], axis=1)
    inner = net.op("Relu", net.conv("second", 16, 16))
    inner = net.op("Add", net.op("Relu", net.conv(inner, 16, 16)), "second")
    joined = net.op("Concat", "first", "second", inner, axis=1)
    return net.op("Relu", net.conv(joined, 48, 32, kernel=1))


def dense(net: Builder) -> str:
    """As DenseNet has it: each layer reads all that was made before, scaled and bounded."""
    parts = [net.op("Relu", net.conv("x", 16, 64, kernel=1))]
    for index in range(4):
        channels = 64 + 32 * index
        joined = net.op("Concat", *parts, axis=1) if index else parts[0]
        scale, shift = (net.weight(1, channels, 1, 1) for _ in range(2))
        value = net.op("Relu", net.op("Add", net.op("Mul", joined, scale), shift))
        value = net.op("Relu", net.conv(value, channels, 128, kernel=1))
        parts.append(net.conv(value, 128, 32, kernel=1))
    return net.conv(net.op("Concat", *parts, axis=1), 192, 64, kernel=1)


def heads(net: Builder) -> str:
    """Blocks of a transformer, whose four heads have each its keys and values packed."""
    count, width = HEADS[1:]
    shape = net.const([1, count, 4, width // 4], "int64")

    def linear(rows: str, ins: int, outs: int) -> str:
        return net.op("MatMul", rows, net.weight(ins, outs))

    value = net.op("Relu", "x")
    for _ in range(2):
        q, k, v = (net.op("Reshape", linear(value, width, width), shape) for _ in range(3))
        k = net.op("Transpose", k, perm=[0, 2, 3, 1])
        q, v = (net.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        shares = net.op("Softmax", net.op("MatMul", q, k), axis=-1)
        merged = net.op("Transpose", net.op("MatMul", shares, v), perm=[0, 2, 1, 3])
        merged = net.op("Reshape", merged, net.const([1, count, width], "int64"))
        value = net.op("Add", linear(merged, width, width), value)
        inner = net.op("Relu", linear(value, width, 4 * width))
        value = net.op("Add", linear(inner, 4 * width, width), value)
    return value
