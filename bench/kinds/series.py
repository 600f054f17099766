"""Sound, series and text: states that go from step to step, and one step with a cache."""

from __future__ import annotations

import numpy as np
import onnx

from bench.network import Network, Value
from bench.wide.transformers import attention


def forecaster() -> onnx.ModelProto:
    """96 steps of 7 measurements, two LSTMs of 128, and the next 24 steps of each."""
    net = Network("forecaster-lstm96", shape=(96, 1, 7))
    x = Value("input", 7)
    for index in range(2):
        x = net.recurrent(x, f"{index}", "LSTM", 128)
    last = net.op("Gather", x, net.index(-1), axis=0)
    return net.finish(net.dense(net.relu(net.dense(last, "fc1", 128)), "fc2", 24 * 7))


def suppressor() -> onnx.ModelProto:
    """Gains of 257 frequencies for 62 frames, half a second, with residual GRUs of 128."""
    net = Network("suppressor-gru", shape=(62, 1, 257))
    x = net.relu(net.linear(Value("input", 257), "in", 128))
    for index in range(2):
        x = net.plus(x, net.recurrent(x, f"{index}", "GRU", 128))
    return net.finish(net.op("Sigmoid", net.linear(x, "out", 257)))


def conformer() -> onnx.ModelProto:
    """Half a second of raw sound as wav2vec 2.0's windows (arXiv:2006.11477), then two blocks
    of Conformer (arXiv:2005.08100): attention and a gated depthwise convolution."""
    net = Network("conformer", shape=(1, 1, 8000))
    x = net.input
    for index, (kernel, stride) in enumerate(((10, 5), (8, 4), (4, 4), (2, 2))):
        x = net.conv(x, f"{index}", 96, kernel=(kernel,), stride=(stride,), pads=(0, 0))
        x = net.gelu(x)
    tokens, features = 49, 144
    x = net.linear(net.transpose(x, 0, 2, 1), "in", features)
    for index in range(2):
        name = f"block.{index}"
        y = net.silu(net.linear(net.layer_norm(x, f"{name}.norm1"), f"{name}.fc1", 576))
        x = net.plus(x, net.op("Mul", net.linear(y, f"{name}.fc2", features), net.number(0.5)))
        y = net.layer_norm(x, f"{name}.norm2")
        x = net.plus(x, attention(net, y, name, tokens=tokens, heads=4))
        y = net.transpose(net.layer_norm(x, f"{name}.norm3"), 0, 2, 1)
        y = net.conv(y, f"{name}.gate", 2 * features, kernel=(1,))
        value, gate = net.channels(y, 0, features), net.channels(y, features, 2 * features)
        y = net.op("Mul", value, net.op("Sigmoid", gate))
        y = net.silu(net.conv(y, f"{name}.dw", features, kernel=(15,), depthwise=True))
        y = net.conv(y, f"{name}.back", features, kernel=(1,), gain=0.3)
        x = net.layer_norm(net.plus(x, net.transpose(y, 0, 2, 1)), f"{name}.norm4")
    return net.finish(net.op("LogSoftmax", net.linear(x, "letters", 32), axis=-1))


def vocoder() -> onnx.ModelProto:
    """40 frames of 80 bands to 2,560 samples, as HiFi-GAN's generator (arXiv:2010.05646)."""
    net = Network("vocoder", shape=(1, 80, 40))
    x = net.conv(net.input, "in", 128, kernel=(7,))
    for stage, (stride, width) in enumerate(((8, 64), (8, 32))):
        x = net.op("LeakyRelu", x, alpha=0.1)
        x = net.transposed(
            x, f"{stage}.up", width, kernel=(2 * stride,), stride=stride, pad=stride // 2
        )
        for dilation in (1, 3, 5):
            name = f"{stage}.{dilation}"
            y = net.conv(
                net.op("LeakyRelu", x, alpha=0.1),
                f"{name}.a",
                width,
                kernel=(7,),
                dilation=(dilation,),
            )
            y = net.conv(
                net.op("LeakyRelu", y, alpha=0.1), f"{name}.b", width, kernel=(7,), gain=0.3
            )
            x = net.plus(x, y)
    x = net.conv(net.op("LeakyRelu", x, alpha=0.1), "out", 1, kernel=(7,), gain=0.1)
    return net.finish(net.op("Tanh", x))


def language_step() -> onnx.ModelProto:
    """The next token of a small language model whose cache holds 127, as Llama (arXiv:2302.13971).

    The caches are constants here, so that there is one input. Root mean squares, rotary positions,
    SwiGLU.
    """
    net = Network("language-step", shape=(1, 1, 256))
    features, heads, size, past = 256, 4, 64, 127
    angles = past / 10000 ** (np.arange(size // 2) * 2 / size)
    turns = {
        name: net.constant(name, np.tile(function(angles), 2).astype(np.float32))
        for name, function in (("cos", np.cos), ("sin", np.sin))
    }

    def norm(x: Value, name: str) -> Value:
        mean = net.op("ReduceMean", net.op("Pow", x, net.number(2.0)), axes=[-1])
        root = net.op("Sqrt", net.op("Add", mean, net.number(1e-5)))
        weight = net.constant(f"{name}.weight", np.ones(features, np.float32))
        return net.op("Mul", net.op("Div", x, root), weight)

    def split(x: Value, name: str) -> Value:
        y = net.reshape(net.linear(x, name, features), 1, 1, heads, size)
        return net.transpose(y, 0, 2, 1, 3)

    def part(x: Value, start: int, stop: int) -> Value:
        return net.op("Slice", x, *(net.integers(end) for end in (start, stop, -1)))

    def rotated(x: Value) -> Value:
        behind = net.op("Neg", part(x, size // 2, size))
        turned = net.op("Concat", behind, part(x, 0, size // 2), axis=-1)
        return net.plus(net.op("Mul", x, turns["cos"]), net.op("Mul", turned, turns["sin"]))

    def cached(x: Value, name: str) -> Value:
        drawn = np.random.RandomState(0).standard_normal((1, heads, past, size))
        return net.add(
            "Concat", [net.constant(name, drawn.astype(np.float32)), x.name], size, axis=2
        )

    x = Value("input", features)
    for index in range(4):
        name = f"{index}"
        y = norm(x, f"{name}.norm1")
        q = rotated(split(y, f"{name}.q"))
        k = cached(rotated(split(y, f"{name}.k")), f"{name}.keys")
        v = cached(split(y, f"{name}.v"), f"{name}.values")
        scores = net.op("MatMul", q, net.transpose(k, 0, 1, 3, 2))
        scores = net.op("Softmax", net.op("Div", scores, net.number(size**0.5)), axis=-1)
        y = net.transpose(net.op("MatMul", scores, v), 0, 2, 1, 3)
        y = net.linear(net.reshape(y, 1, 1, features), f"{name}.out", features, gain=0.3)
        x = net.plus(x, y)
        y = norm(x, f"{name}.norm2")
        y = net.op(
            "Mul",
            net.silu(net.linear(y, f"{name}.gate", 688)),
            net.linear(y, f"{name}.up", 688),
        )
        x = net.plus(x, net.linear(y, f"{name}.down", features, gain=0.3))
    return net.finish(net.linear(norm(x, "norm"), "words", 4096))
