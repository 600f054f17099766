"""Image classifiers for phones."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from bench.network import Network, Value

_GAIN = 0.3  # of the end of a residual branch


def efficientnet_b0() -> onnx.ModelProto:
    """EfficientNet-B0 (arXiv:1905.11946, table 1): gates and Swish."""
    net = Network("efficientnet-b0")
    x = net.silu(net.conv(net.input, "stem", 32, kernel=3, stride=2))
    # expansion, channels, repeats, stride, kernel
    stages = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )
    for stage, (expansion, channels, repeats, first_stride, kernel) in enumerate(stages):
        for repeat in range(repeats):
            name, stride = f"{stage}.{repeat}", first_stride if repeat == 0 else 1
            y, squeezed = x, x.channels // 4
            if expansion != 1:
                y = net.silu(net.conv(y, f"{name}.expand", x.channels * expansion))
            y = net.conv(y, f"{name}.dw", y.channels, kernel=kernel, stride=stride, depthwise=True)
            y = net.squeeze_excite(net.silu(y), f"{name}.se", squeezed, silu=True, sigmoid=True)
            y = net.conv(y, f"{name}.project", channels, gain=_GAIN)
            x = net.plus(x, y) if stride == 1 and x.channels == channels else y
    x = net.silu(net.conv(x, "head", 1280))
    return net.finish(net.dense(net.pool(x), "fc", 1000))


def mobilenet_v3_large() -> onnx.ModelProto:
    """MobileNetV3-large 1.0 (arXiv:1905.02244, table 1), with torchvision's channels."""
    blocks = (
        (3, 16, 16, 0, False, 1),
        (3, 64, 24, 0, False, 2),
        (3, 72, 24, 0, False, 1),
        (5, 72, 40, 24, False, 2),
        (5, 120, 40, 32, False, 1),
        (5, 120, 40, 32, False, 1),
        (3, 240, 80, 0, True, 2),
        (3, 200, 80, 0, True, 1),
        (3, 184, 80, 0, True, 1),
        (3, 184, 80, 0, True, 1),
        (3, 480, 112, 120, True, 1),
        (3, 672, 112, 168, True, 1),
        (5, 672, 160, 168, True, 2),
        (5, 960, 160, 240, True, 1),
        (5, 960, 160, 240, True, 1),
    )
    return mobilenet_v3("mobilenetv3-large", blocks, last=960, hidden=1280, gain=_GAIN)


def mobilenet_v3(
    name: str,
    blocks: Sequence[tuple[int, int, int, int, bool, int]],
    *,
    last: int,
    hidden: int,
    gain: float = 1.0,
) -> onnx.ModelProto:
    """MobileNetV3 of some blocks: kernel, expanded and output channels, those squeezed to in its
    gate (0: none), hard swish (else relu), stride. `last` and `hidden` are channels of its end."""
    net = Network(name)
    x = net.hardswish(net.conv(net.input, "stem", 16, kernel=3, stride=2))
    for index, (kernel, expanded, out, squeezed, swish, stride) in enumerate(blocks):
        act = net.hardswish if swish else net.relu
        y = x
        if expanded != x.channels:
            y = act(net.conv(y, f"{index}.expand", expanded))
        y = act(net.conv(y, f"{index}.dw", expanded, kernel=kernel, stride=stride, depthwise=True))
        if squeezed:
            y = net.squeeze_excite(y, f"{index}.se", squeezed)
        y = net.conv(y, f"{index}.project", out, gain=gain)
        x = net.plus(x, y) if stride == 1 and x.channels == out else y
    x = net.pool(net.hardswish(net.conv(x, "last", last)))
    x = net.hardswish(net.dense(x, "fc1", hidden))
    return net.finish(net.dense(x, "fc2", 1000))


def mobilenet_v4_small() -> onnx.ModelProto:
    """MobileNetV4-Conv-Small (arXiv:2404.10518, table 11): universal inverted bottlenecks."""
    net = Network("mobilenetv4-small")
    x = net.relu(net.conv(net.input, "stem", 32, kernel=3, stride=2))
    for index, (width, out) in enumerate(((32, 32), (96, 64))):
        x = net.relu(net.conv(x, f"fused.{index}", width, kernel=3, stride=2))
        x = net.relu(net.conv(x, f"fused.{index}.project", out))
    # window of the depthwise convolution before and after the expansion (0: none), width, out,
    # stride
    blocks = (
        (5, 5, 192, 96, 2),
        *[(0, 3, 192, 96, 1)] * 4,
        (3, 0, 384, 96, 1),
        (3, 3, 576, 128, 2),
        (5, 5, 512, 128, 1),
        (0, 5, 512, 128, 1),
        (0, 5, 384, 128, 1),
        (0, 3, 512, 128, 1),
        (0, 3, 512, 128, 1),
    )
    for index, (before, after, width, out, stride) in enumerate(blocks):
        y = x
        if before:
            step = 1 if after else stride
            y = net.conv(y, f"{index}.dw1", y.channels, kernel=before, stride=step, depthwise=True)
        y = net.relu(net.conv(y, f"{index}.expand", width))
        if after:
            y = net.conv(y, f"{index}.dw2", width, kernel=after, stride=stride, depthwise=True)
            y = net.relu(y)
        y = net.conv(y, f"{index}.project", out, gain=_GAIN)
        x = net.plus(x, y) if stride == 1 and x.channels == out else y
    x = net.relu(net.conv(x, "last", 960))
    x = net.op("GlobalAveragePool", x)
    x = net.op("Flatten", net.relu(net.conv(x, "head", 1280)))
    return net.finish(net.dense(x, "fc", 1000))


def mnasnet() -> onnx.ModelProto:
    """MNASNet-B1 1.0 (arXiv:1807.11626), as torchvision has it."""
    net = Network("mnasnet1.0")
    x = net.relu(net.conv(net.input, "stem", 32, kernel=3, stride=2))
    x = net.relu(net.conv(x, "stem.dw", 32, kernel=3, depthwise=True))
    x = net.conv(x, "stem.pw", 16)
    # kernel, stride, expansion, channels, repeats
    stages = (
        (3, 2, 3, 24, 3),
        (5, 2, 3, 40, 3),
        (5, 2, 6, 80, 3),
        (3, 1, 6, 96, 2),
        (5, 2, 6, 192, 4),
        (3, 1, 6, 320, 1),
    )
    for stage, (kernel, first_stride, expansion, channels, repeats) in enumerate(stages):
        for repeat in range(repeats):
            name, stride = f"{stage}.{repeat}", first_stride if repeat == 0 else 1
            y = net.relu(net.conv(x, f"{name}.expand", x.channels * expansion))
            y = net.conv(y, f"{name}.dw", y.channels, kernel=kernel, stride=stride, depthwise=True)
            y = net.conv(net.relu(y), f"{name}.project", channels, gain=_GAIN)
            x = net.plus(x, y) if stride == 1 and x.channels == channels else y
    x = net.relu(net.conv(x, "head", 1280))
    return net.finish(net.dense(net.pool(x), "fc", 1000))


def shufflenet_v2() -> onnx.ModelProto:
    """ShuffleNetV2 1.0 (arXiv:1807.11164, table 5): halves, and shuffled channels."""
    net = Network("shufflenetv2")
    x = net.max_pool(net.relu(net.conv(net.input, "stem", 24, kernel=3, stride=2)), pad=1)
    size = 28
    for stage, (repeats, channels) in enumerate(((4, 116), (8, 232), (4, 464))):
        half = channels // 2
        for index in range(repeats):
            name, stride = f"{stage}.{index}", 2 if index == 0 else 1
            if index == 0:
                left = net.conv(
                    x, f"{name}.left.dw", x.channels, kernel=3, stride=2, depthwise=True
                )
                left = net.relu(net.conv(left, f"{name}.left.pw", half))
                right = x
            else:
                left, right = net.channels(x, 0, half), net.channels(x, half, channels)
            y = net.relu(net.conv(right, f"{name}.pw1", half))
            y = net.conv(y, f"{name}.dw", half, kernel=3, stride=stride, depthwise=True)
            y = net.relu(net.conv(y, f"{name}.pw2", half))
            x = _shuffled(net, net.concat(left, y), size)
        size //= 2
    x = net.relu(net.conv(x, "last", 1024))
    return net.finish(net.dense(net.pool(x), "fc", 1000))


def _shuffled(net: Network, x: Value, size: int) -> Value:
    """The channels of two halves by turns."""
    channels = x.channels
    y = net.reshape(x, 1, 2, channels // 2, size, size)
    y = net.reshape(net.transpose(y, 0, 2, 1, 3, 4), 1, channels, size, size)
    return Value(y.name, channels)


def ghostnet() -> onnx.ModelProto:
    """GhostNet 1.0 (arXiv:1911.11907, table 1): half of the channels made of the others."""
    net = Network("ghostnet")
    x = net.relu(net.conv(net.input, "stem", 16, kernel=3, stride=2))
    # kernel, expanded, out, squeeze and excite (a quarter of the channels), stride
    blocks = (
        (3, 16, 16, False, 1),
        (3, 48, 24, False, 2),
        (3, 72, 24, False, 1),
        (5, 72, 40, True, 2),
        (5, 120, 40, True, 1),
        (3, 240, 80, False, 2),
        (3, 200, 80, False, 1),
        (3, 184, 80, False, 1),
        (3, 184, 80, False, 1),
        (3, 480, 112, True, 1),
        (3, 672, 112, True, 1),
        (5, 672, 160, True, 2),
        (5, 960, 160, False, 1),
        (5, 960, 160, True, 1),
        (5, 960, 160, False, 1),
        (5, 960, 160, True, 1),
    )
    for index, (kernel, expanded, out, gated, stride) in enumerate(blocks):
        y = _ghost(net, x, f"{index}.expand", expanded, relu=True)
        if stride == 2:
            y = net.conv(y, f"{index}.dw", expanded, kernel=kernel, stride=2, depthwise=True)
        if gated:
            y = net.squeeze_excite(y, f"{index}.se", (expanded // 4 + 3) // 4 * 4)
        y = _ghost(net, y, f"{index}.project", out, relu=False)
        if stride == 2 or x.channels != out:
            x = net.conv(
                x, f"{index}.short.dw", x.channels, kernel=kernel, stride=stride, depthwise=True
            )
            x = net.conv(x, f"{index}.short.pw", out)
        x = net.plus(x, y)
    x = net.relu(net.conv(x, "last", 960))
    x = net.op("GlobalAveragePool", x)
    x = net.op("Flatten", net.relu(net.conv(x, "head", 1280)))
    return net.finish(net.dense(x, "fc", 1000))


def _ghost(net: Network, x: Value, name: str, channels: int, *, relu: bool) -> Value:
    """Half of the channels by a 1x1 convolution, half by a depthwise one of those."""
    gain = 1.0 if relu else _GAIN
    y = net.conv(x, f"{name}.primary", channels // 2, gain=gain)
    y = net.relu(y) if relu else y
    z = net.conv(y, f"{name}.cheap", channels // 2, kernel=3, depthwise=True)
    return net.concat(y, net.relu(z) if relu else z)
