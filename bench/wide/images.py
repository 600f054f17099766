"""Image classifiers of dense blocks and of groups."""

from __future__ import annotations

import onnx

from bench.network import Network


def densenet121() -> onnx.ModelProto:
    """DenseNet-121 (arXiv:1608.06993, table 1).

    A batch norm before a convolution has nothing to be folded into.
    """
    net = Network("densenet121")
    x = net.relu(net.conv(net.input, "stem", 64, kernel=7, stride=2))
    x = net.max_pool(x, pad=1)
    growth = 32
    for stage, count in enumerate((6, 12, 24, 16)):
        for index in range(count):
            name = f"{stage}.{index}"
            y = net.relu(net.norm(x, f"{name}.norm"))
            y = net.relu(net.conv(y, f"{name}.reduce", 4 * growth))
            y = net.conv(y, f"{name}.conv", growth, kernel=3)
            x = net.concat(x, y)
        x = net.relu(net.norm(x, f"{stage}.norm"))
        if stage < 3:
            x = net.conv(x, f"{stage}.transition", x.channels // 2)
            x = net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net.finish(net.dense(net.pool(x), "fc", 1000))


def regnety_400mf() -> onnx.ModelProto:
    """RegNetY-400MF (arXiv:2003.13678), with torchvision's sizes: groups of 8, gates."""
    net = Network("regnety-400mf")
    x = net.relu(net.conv(net.input, "stem", 32, kernel=3, stride=2))
    for stage, (count, width) in enumerate(((1, 48), (3, 104), (6, 208), (6, 440))):
        for index in range(count):
            name, stride = f"{stage}.{index}", 2 if index == 0 else 1
            squeezed = x.channels // 4
            y = net.relu(net.conv(x, f"{name}.reduce", width))
            y = net.conv(y, f"{name}.conv", width, kernel=3, stride=stride, group=width // 8)
            y = net.squeeze_excite(net.relu(y), f"{name}.se", squeezed, sigmoid=True)
            y = net.conv(y, f"{name}.expand", width, gain=0.3)
            if index == 0:
                x = net.conv(x, f"{name}.shortcut", width, stride=stride)
            x = net.relu(net.plus(x, y))
    return net.finish(net.dense(net.pool(x), "fc", 1000))
