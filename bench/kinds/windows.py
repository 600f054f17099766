"""Attention within windows, at sampled places and to fewer keys, and mixed patches."""

from __future__ import annotations

import numpy as np
import onnx

from bench.network import Network, Value
from bench.wide.transformers import block


def swin() -> onnx.ModelProto:
    """Swin (arXiv:2103.14030), half as wide: windows of 7x7, every second block's shifted by 3."""
    net = Network("swin")
    x = net.conv(net.input, "patches", 48, kernel=4, stride=4, pads=(0, 0, 0, 0))
    x, side = net.transpose(x, 0, 2, 3, 1), 56
    for stage in range(2):
        features = x.channels
        for index in range(2):
            name, shift = f"{stage}.{index}", 3 * index
            y = _rolled(net, net.layer_norm(x, f"{name}.norm1"), shift, side)
            y = _windows(net, y, name, side, heads=features // 24)
            y = net.reshape(y, 1, side, side, features)
            x = net.plus(x, _rolled(net, y, side - shift if shift else 0, side))
            y = net.linear(net.layer_norm(x, f"{name}.norm2"), f"{name}.fc1", 4 * features)
            x = net.plus(x, net.linear(net.gelu(y), f"{name}.fc2", features, gain=0.3))
        if stage == 0:
            corners = [
                _steps(net, _steps(net, x, 1, row), 2, column)
                for column in (0, 1)
                for row in (0, 1)
            ]
            names = [corner.name for corner in corners]
            x, side = net.add("Concat", names, 4 * features, axis=3), side // 2
            x = net.linear(net.layer_norm(x, "merge.norm"), "merge", 2 * features)
    mean = net.op("ReduceMean", net.layer_norm(x, "norm"), axes=[1, 2], keepdims=0)
    return net.finish(net.dense(mean, "fc", 1000))


def _windows(net: Network, x: Value, name: str, side: int, *, heads: int) -> Value:
    """Attention within each window of 7x7, with a bias of each pair of places."""
    features, count, tokens = x.channels, side // 7, 49
    size = features // heads
    x = net.transpose(net.reshape(x, 1, count, 7, count, 7, features), 0, 1, 3, 2, 4, 5)
    x = net.reshape(x, count * count, tokens, features)
    y = net.reshape(net.linear(x, f"{name}.qkv", 3 * features), count**2, tokens, 3, heads, size)
    y = net.transpose(y, 2, 0, 3, 1, 4)
    q, k, v = (net.add("Gather", [y.name, net.index(i)], size, axis=0) for i in range(3))
    q = net.op("Mul", q, net.number(size**-0.5))
    scores = net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2))
    drawn = np.random.RandomState(0).standard_normal((1, heads, tokens, tokens))
    scores = net.op("Add", scores, net.constant(f"{name}.places", drawn.astype(np.float32)))
    y = net.transpose(net.op("MatMul", net.op("Softmax", scores, axis=-1), v), 0, 2, 1, 3)
    y = net.reshape(y, count * count, tokens, features)
    y = net.reshape(
        net.linear(y, f"{name}.out", features, gain=0.3), 1, count, count, 7, 7, features
    )
    return net.transpose(y, 0, 1, 3, 2, 4, 5)


def _rolled(net: Network, x: Value, shift: int, side: int) -> Value:
    """Rows and columns moved to the front by `shift`, round the ends, as slices and concats."""
    for axis in (1, 2) if shift else ():
        parts = [
            net.op("Slice", x, *(net.integers(n) for n in (start, stop, axis)))
            for start, stop in ((shift, side), (0, shift))
        ]
        x = net.op("Concat", *parts, axis=axis)
    return x


def _steps(net: Network, x: Value, axis: int, start: int) -> Value:
    """Every second of an axis."""
    ends = (net.integers(n) for n in (start, 2**31 - 1, axis, 2))
    return net.op("Slice", x, *ends)


def deformable_decoder() -> onnx.ModelProto:
    """Two layers of 100 queries that sample 4 places a head of a 20x20 map (arXiv:2010.04159)."""
    net = Network("deformable-decoder", shape=(1, 128, 20, 20))
    features, heads, points, queries = 128, 8, 4, 100
    size, random = features // heads, np.random.RandomState(0)
    drawn = random.standard_normal((1, queries, features)).astype(np.float32)
    places = random.uniform(-0.8, 0.8, (1, queries, 1, 1, 2)).astype(np.float32)
    x = net.op("Identity", Value(net.constant("queries", drawn), features))
    centres = net.constant("centres", places)
    for index in range(2):
        name = f"{index}"
        x = block(net, x, f"{name}.self", tokens=queries, heads=heads, hidden=2 * features)
        y = net.layer_norm(x, f"{name}.norm")
        maps = net.conv(net.input, f"{name}.values", features)
        maps = Value(net.reshape(maps, heads, size, 20, 20).name, size)
        offsets = net.linear(y, f"{name}.offsets", heads * points * 2, gain=0.1)
        offsets = net.reshape(offsets, 1, queries, heads, points, 2)
        grid = net.transpose(net.op("Add", offsets, centres), 0, 2, 1, 3, 4)
        grid = net.reshape(grid, heads, queries, points, 2)
        modes = {"mode": "bilinear", "padding_mode": "zeros", "align_corners": 0}
        sampled = net.op("GridSample", maps, grid, **modes)  # (heads, size, queries, points)
        weights = net.linear(y, f"{name}.weights", heads * points)
        weights = net.reshape(weights, 1, queries, heads, points)
        weights = net.transpose(net.op("Softmax", weights, axis=-1), 2, 0, 1, 3)
        y = net.op("ReduceSum", net.op("Mul", sampled, weights), net.integers(-1), keepdims=0)
        y = net.transpose(net.reshape(y, 1, features, queries), 0, 2, 1)
        x = net.plus(x, net.linear(Value(y.name, features), f"{name}.out", features, gain=0.3))
    x = net.relu(net.linear(net.layer_norm(x, "norm"), "fc", features))
    return net.finish(net.linear(x, "scores", 80), net.op("Sigmoid", net.linear(x, "boxes", 4)))


def segformer() -> onnx.ModelProto:
    """SegFormer-B0 (arXiv:2105.15203), its first two stages for 128x128 pixels: keys and values
    of fewer places, a depthwise window in the perceptron, and both maps joined by a Resize."""
    net = Network("segformer", size=128)
    x, maps, side = net.input, [], 128
    stages = ((32, 7, 4, 1, 8), (64, 3, 2, 2, 4))
    for stage, (features, kernel, stride, heads, fewer) in enumerate(stages):
        x, side = (
            net.conv(x, f"{stage}.patches", features, kernel=kernel, stride=stride),
            side // stride,
        )
        x = net.layer_norm(_tokens(net, x, side), f"{stage}.norm")
        for index in range(2):
            name = f"{stage}.{index}"
            y = net.layer_norm(x, f"{name}.norm1")
            x = net.plus(x, _fewer_keys(net, y, name, side, heads=heads, fewer=fewer))
            y = net.linear(net.layer_norm(x, f"{name}.norm2"), f"{name}.fc1", 4 * features)
            y = net.conv(_image(net, y, side), f"{name}.dw", y.channels, kernel=3, depthwise=True)
            y = net.gelu(_tokens(net, y, side))
            x = net.plus(x, net.linear(y, f"{name}.fc2", features, gain=0.3))
        x = _image(net, x, side)
        maps.append(net.conv(x, f"{stage}.head", 128))
    sizes = net.integers(1, 128, 32, 32)
    modes = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    maps[1] = net.op("Resize", maps[1], "", "", sizes, **modes)
    return net.finish(net.conv(net.relu(net.conv(net.concat(*maps), "join", 128)), "classes", 19))


def _fewer_keys(net: Network, x: Value, name: str, side: int, *, heads: int, fewer: int) -> Value:
    """Attention of every place to those of a map `fewer` times smaller on each side."""
    features, size, keys = x.channels, x.channels // heads, (side // fewer) ** 2
    z = _image(net, x, side)
    z = net.conv(z, f"{name}.sr", features, kernel=fewer, stride=fewer, pads=(0, 0, 0, 0))
    z = net.layer_norm(_tokens(net, z, side // fewer), f"{name}.norm_sr")
    q, k, v = (
        net.transpose(
            net.reshape(net.linear(y, f"{name}.{part}", features), 1, tokens, heads, size),
            *order,
        )
        for y, part, tokens, order in (
            (x, "q", side**2, (0, 2, 1, 3)),
            (z, "k", keys, (0, 2, 3, 1)),
            (z, "v", keys, (0, 2, 1, 3)),
        )
    )
    scores = net.op("Mul", net.op("MatMul", q, k), net.number(size**-0.5))
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    y = net.reshape(net.transpose(y, 0, 2, 1, 3), 1, side**2, features)
    return net.linear(y, f"{name}.out", features, gain=0.3)


def _tokens(net: Network, x: Value, side: int) -> Value:
    """An image (1, C, side, side) as (1, side * side, C)."""
    return Value(net.transpose(net.reshape(x, 1, x.channels, side**2), 0, 2, 1).name, x.channels)


def _image(net: Network, x: Value, side: int) -> Value:
    """(1, side * side, C) as an image (1, C, side, side)."""
    y = net.reshape(net.transpose(x, 0, 2, 1), 1, x.channels, side, side)
    return Value(y.name, x.channels)


def mixer(side: int) -> onnx.ModelProto:
    """MLP-Mixer (arXiv:2105.01601) of 256 features and side x side patches of 16x16 pixels."""
    net = Network(f"mixer-{side**2}", size=16 * side)
    features = 256
    x = net.conv(net.input, "patches", features, kernel=16, stride=16, pads=(0, 0, 0, 0))
    x = _tokens(net, x, side)
    for index in range(4):
        name = f"{index}"
        y = net.transpose(net.layer_norm(x, f"{name}.norm1"), 0, 2, 1)
        y = net.linear(Value(y.name, side**2), f"{name}.tokens1", 128)
        y = net.linear(net.gelu(y), f"{name}.tokens2", side**2, gain=0.3)
        x = net.plus(x, Value(net.transpose(y, 0, 2, 1).name, features))
        y = net.linear(net.layer_norm(x, f"{name}.norm2"), f"{name}.fc1", 4 * features)
        x = net.plus(x, net.linear(net.gelu(y), f"{name}.fc2", features, gain=0.3))
    mean = net.op("ReduceMean", net.layer_norm(x, "norm"), axes=[1], keepdims=0)
    return net.finish(net.dense(mean, "fc", 1000))
