"""Networks that answer with a picture, or with boxes."""

from __future__ import annotations

import numpy as np
import onnx

from bench.network import Network, Value


def yolov8n(size: int) -> onnx.ModelProto:
    """YOLOv8n for size x size pixels, which has no paper: layers and head of ultralytics 8.

    The output is (1, 84, boxes): centre, width and height in pixels, then scores of 80 classes.
    """
    net = Network("yolov8n", size=size)

    def conv(x: Value, name: str, channels: int, kernel: int = 1, stride: int = 1) -> Value:
        return net.silu(net.conv(x, name, channels, kernel=kernel, stride=stride))

    def c2f(x: Value, name: str, channels: int, repeats: int, *, shortcut: bool) -> Value:
        y = conv(x, f"{name}.in", channels)
        half = channels // 2
        parts = [net.channels(y, 0, half), net.channels(y, half, channels)]
        for index in range(repeats):
            z = conv(parts[-1], f"{name}.{index}.a", half, 3)
            z = conv(z, f"{name}.{index}.b", half, 3)
            parts.append(net.plus(parts[-1], z) if shortcut else z)
        return conv(net.concat(*parts), f"{name}.out", channels)

    def twice(x: Value) -> Value:
        scales = net.constant("twice", np.array([1, 1, 2, 2], np.float32))
        return net.op(
            "Resize",
            x,
            "",
            scales,
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )

    x = conv(conv(net.input, "0", 16, 3, 2), "1", 32, 3, 2)
    x = c2f(x, "2", 32, 1, shortcut=True)
    p3 = c2f(conv(x, "3", 64, 3, 2), "4", 64, 2, shortcut=True)
    p4 = c2f(conv(p3, "5", 128, 3, 2), "6", 128, 2, shortcut=True)
    x = c2f(conv(p4, "7", 256, 3, 2), "8", 256, 1, shortcut=True)
    pooled = [conv(x, "9.in", 128)]
    for _ in range(3):
        pooled.append(net.max_pool(pooled[-1], kernel=5, stride=1, pad=2))
    p5 = conv(net.concat(*pooled), "9.out", 256)
    p4 = c2f(net.concat(twice(p5), p4), "12", 128, 1, shortcut=False)
    p3 = c2f(net.concat(twice(p4), p3), "15", 64, 1, shortcut=False)
    p4 = c2f(net.concat(conv(p3, "16", 64, 3, 2), p4), "18", 128, 1, shortcut=False)
    p5 = c2f(net.concat(conv(p4, "19", 128, 3, 2), p5), "21", 256, 1, shortcut=False)
    boxes, scores = [], []
    for index, x in enumerate((p3, p4, p5)):
        cells = (size // (8 << index)) ** 2
        y = conv(conv(x, f"box.{index}.0", 64, 3), f"box.{index}.1", 64, 3)
        boxes.append(net.reshape(net.conv(y, f"box.{index}.2", 64), 1, 64, cells))
        y = conv(conv(x, f"class.{index}.0", 80, 3), f"class.{index}.1", 80, 3)
        scores.append(net.reshape(net.conv(y, f"class.{index}.2", 80), 1, 80, cells))
    return net.finish(_decoded(net, size, boxes, scores))


def _decoded(net: Network, size: int, boxes: list[Value], scores: list[Value]) -> Value:
    """Distances to four sides as the mean of 16 bins, then boxes around the cells' middles."""
    grids, strides = [], []
    for stride in (8, 16, 32):
        line = np.arange(size // stride, dtype=np.float32) + 0.5
        y, x = np.meshgrid(line, line, indexing="ij")
        grids.append(np.stack([x.ravel(), y.ravel()]))
        strides.append(np.full(x.size, stride, np.float32))
    anchors = net.constant("anchors", np.concatenate(grids, axis=1)[None])
    cells = grids[0].shape[1] + grids[1].shape[1] + grids[2].shape[1]
    x = net.add("Concat", [value.name for value in boxes], 64, axis=2)
    x = net.transpose(net.reshape(x, 1, 4, 16, cells), 0, 2, 1, 3)
    x = net.op("Softmax", x, axis=1)
    bins = net.constant("bins", np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    x = net.add("Conv", [x.name, bins], 1, kernel_shape=[1, 1])
    x = Value(net.reshape(x, 1, 4, cells).name, 4)
    first = net.add("Sub", [anchors, net.channels(x, 0, 2).name], 2)
    last = net.add("Add", [anchors, net.channels(x, 2, 4).name], 2)
    middle = net.op("Div", net.plus(first, last), net.number(2.0))
    sides = net.concat(middle, net.op("Sub", last, first))
    sides = net.op("Mul", sides, net.constant("strides", np.concatenate(strides)[None]))
    found = net.add("Concat", [value.name for value in scores], 80, axis=2)
    return net.concat(sides, net.op("Sigmoid", found))


def unet() -> onnx.ModelProto:
    """U-Net (arXiv:1505.04597) with half its channels and padded, for 256x256 grey pixels."""
    net = Network("unet", shape=(1, 1, 256, 256))

    def double(x: Value, name: str, channels: int) -> Value:
        for which in ("a", "b"):
            x = net.relu(net.conv(x, f"{name}.{which}", channels, kernel=3))
        return x

    x, kept = net.input, []
    for level in range(4):
        x = double(x, f"down.{level}", 32 << level)
        kept.append(x)
        x = net.max_pool(x, kernel=2)
    x = double(x, "bottom", 512)
    for level in reversed(range(4)):
        x = net.transposed(x, f"up.{level}", 32 << level, kernel=2, stride=2)
        x = double(net.concat(kept[level], x), f"up.{level}.conv", 32 << level)
    return net.finish(net.conv(x, "out", 2))


def super_resolution() -> onnx.ModelProto:
    """ESPCN (arXiv:1609.05158): 224x224 grey pixels to 672x672, as in ONNX's model zoo."""
    net = Network("super-resolution", shape=(1, 1, 224, 224))
    x = net.relu(net.conv(net.input, "1", 64, kernel=5))
    x = net.relu(net.conv(x, "2", 64, kernel=3))
    x = net.relu(net.conv(x, "3", 32, kernel=3))
    x = net.conv(x, "4", 9, kernel=3)
    return net.finish(net.add("DepthToSpace", [x.name], 1, blocksize=3, mode="CRD"))
