"""Encoders with attention, in the operators that PyTorch's exporter writes."""

from __future__ import annotations

import math

import numpy as np
import onnx

from bench.network import Network, Value


def vit_tiny() -> onnx.ModelProto:
    """ViT-tiny, 224 pixels in patches of 16 (arXiv:2010.11929, sizes of arXiv:2012.12877)."""
    net = Network("vit-tiny")
    features, patches = 192, 14 * 14
    x = net.conv(net.input, "patches", features, kernel=16, stride=16, pads=(0, 0, 0, 0))
    x = net.transpose(net.reshape(x, 1, features, patches), 0, 2, 1)
    first = net.constant("class", np.zeros((1, 1, features), np.float32))
    x = net.add("Concat", [first, x.name], features, axis=1)
    places = np.random.RandomState(0).standard_normal((1, patches + 1, features)) * 0.1
    x = net.op("Add", x, net.constant("places", places.astype(np.float32)))
    for index in range(12):
        x = block(net, x, f"{index}", tokens=patches + 1, heads=3, hidden=4 * features)
    x = net.add("Gather", [x.name, net.index(0)], features, axis=1)
    return net.finish(net.dense(net.layer_norm(x, "norm"), "fc", 1000))


def bert_mini(tokens: int) -> onnx.ModelProto:
    """BERT-mini (arXiv:1908.08962): 4 layers of 256 features, for so many tokens."""
    net = Network("bert-mini", shape=(1, tokens), tokens=30522)
    features = 256
    x = net.embed(net.input, "words", features)
    places = np.random.RandomState(0).standard_normal((1, tokens, features))
    x = net.op("Add", x, net.constant("places", places.astype(np.float32)))
    x = net.layer_norm(x, "norm")
    for index in range(4):
        y = attention(net, x, f"{index}", tokens=tokens, heads=4, together=False)
        x = net.layer_norm(net.plus(y, x), f"{index}.norm1")
        y = net.gelu(net.linear(x, f"{index}.fc1", 4 * features))
        y = net.linear(y, f"{index}.fc2", features)
        x = net.layer_norm(net.plus(y, x), f"{index}.norm2")
    first = net.add("Gather", [x.name, net.index(0)], features, axis=1)
    pooled = net.op("Tanh", net.dense(first, "pooler", features))
    return net.finish(x, pooled)


def block(
    net: Network,
    x: Value,
    name: str,
    *,
    tokens: int,
    heads: int,
    hidden: int,
    swish: bool = False,
) -> Value:
    """x plus attention, plus a perceptron with Gelu, or `swish`; each of x normed before."""
    y = attention(net, net.layer_norm(x, f"{name}.norm1"), name, tokens=tokens, heads=heads)
    x = net.plus(x, y)
    y = net.linear(net.layer_norm(x, f"{name}.norm2"), f"{name}.fc1", hidden)
    y = net.silu(y) if swish else net.gelu(y)
    return net.plus(x, net.linear(y, f"{name}.fc2", x.channels, gain=0.3))


def attention(
    net: Network, x: Value, name: str, *, tokens: int, heads: int, together: bool = True
) -> Value:
    """Of every head; queries, keys and values by one product `together`, or by three."""
    features = x.channels
    size = features // heads
    if together:
        y = net.linear(x, f"{name}.qkv", 3 * features)
        y = net.transpose(net.reshape(y, 1, tokens, 3, heads, size), 2, 0, 3, 1, 4)
        q, k, v = (net.add("Gather", [y.name, net.index(i)], size, axis=0) for i in range(3))
        scores = net.op(
            "MatMul", net.op("Mul", q, net.number(size**-0.5)), net.transpose(k, 0, 1, 3, 2)
        )
    else:
        q, k, v = (
            net.transpose(
                net.reshape(net.linear(x, f"{name}.{part}", features), 1, tokens, heads, size),
                *order,
            )
            for part, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3)))
        )
        scores = net.op("Div", net.op("MatMul", q, k), net.number(math.sqrt(size)))
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    y = net.reshape(net.transpose(y, 0, 2, 1, 3), 1, tokens, features)
    return net.linear(y, f"{name}.out", features, gain=0.7 if not together else 0.3)
