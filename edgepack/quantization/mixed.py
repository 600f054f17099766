"""Which layers go back to float: most gain for what they cost first.

A tensor of integers adds noise to the outputs, about as much as when it is the only one; noises of
several add up. A tensor that is kept as numbers takes its noise away, but what makes it and all
that read it are done in float then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from edgepack.quantization.network import Array, FloatNetwork, noise_share, outputs
from edgepack.quantization.qdq_model import whole_nodes
from edgepack.quantization.ranges import ByteSteps

# What a multiply-add in float costs beyond one on integers, in those: on CPUs with dot products,
# where half precision takes twice the instructions. A change of one element between them.
_FLOAT, _CHANGE = 1.0, 4.0


@dataclass(frozen=True, kw_only=True)
class InFloat:
    """A tensor that was left in float: the share of all tensors' noise that it made, and what the
    layers around it cost more, as a share of all."""

    tensor: str
    noise: float
    cost: float


def noise_of(
    network: FloatNetwork, steps: Mapping[str, ByteSteps], photos: Sequence[Array]
) -> dict[str, float]:
    """What each tensor adds to the outputs' share of noise, if it is the only one of integers."""
    exact = outputs(network.proto, photos)
    found = {}
    for name, one in steps.items():
        alone = round_tensors(network, {name: one})
        found[name] = noise_share(exact, outputs(alone, photos))
    return found


def round_tensors(network: FloatNetwork, steps: Mapping[str, ByteSteps]) -> onnx.ModelProto:
    """A network in float, some of whose tensors are rounded to steps."""
    made = onnx.ModelProto()
    made.CopyFrom(network.proto)
    graph = made.graph
    nodes = list(graph.node)
    del graph.node[:]

    def pair(name: str, source: str, target: str) -> None:
        one = steps[name]
        given = [f"{name}/scale", f"{name}/zero"]
        for word, value in zip(given, (np.float32(one.scale), np.uint8(one.zero)), strict=True):
            graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), word))
        whole = f"{name}/integers"
        graph.node.append(onnx.helper.make_node("QuantizeLinear", [source, *given], [whole]))
        graph.node.append(onnx.helper.make_node("DequantizeLinear", [whole, *given], [target]))

    read = {}
    if network.input in steps:
        read[network.input] = f"{network.input}/rounded"
        pair(network.input, network.input, read[network.input])
    for node in nodes:
        for index, name in enumerate(node.input):
            node.input[index] = read.get(name, name)
        graph.node.append(node)
        for index, name in enumerate(node.output):
            if name in steps and name in network.outputs:
                node.output[index] = graph.node[-1].output[index] = f"{name}/numbers"
                pair(name, f"{name}/numbers", name)
            elif name in steps:
                read[name] = f"{name}/rounded"
                pair(name, name, read[name])
    return made


def order(
    network: FloatNetwork, steps: Mapping[str, ByteSteps], noise: Mapping[str, float]
) -> list[InFloat]:
    """Tensors to keep as numbers, the one of most noise for its cost first."""
    left, total = dict(steps), sum(noise.values()) or 1.0
    whole = cost_of(network, steps)
    found = []
    now = whole
    while left:
        # One at a time: what is in float already makes its neighbours cheaper.
        priced = []
        for name in left:
            rest = {key: value for key, value in left.items() if key != name}
            more = max(cost_of(network, rest) - now, whole * 1e-6)
            priced.append((noise.get(name, 0.0) / more, name, more))
        _, name, more = max(priced)
        if noise.get(name, 0.0) <= 0:
            break
        del left[name]
        now += more
        found.append(InFloat(tensor=name, noise=noise[name] / total, cost=more / whole))
    return found


def cost_of(network: FloatNetwork, steps: Mapping[str, ByteSteps]) -> float:
    """What an inference costs, in multiply-adds on integers."""
    whole = {id(node) for node in whole_nodes(network, steps)}
    inside = {network.stored(node) for node in network.nodes if id(node) in whole}
    total = 0.0
    for node in network.nodes:
        product = network.products.get(node.output[0]) if node.output else None
        if product is not None:
            macs = product.weight[0].size * np.prod(network.shapes[product.name], dtype=float)
            total += macs * (1.0 if id(node) in whole else 1.0 + _FLOAT)
        if not network.is_whole(node):
            continue
        for name in network.read_by(node):
            if (name in inside) != (id(node) in whole):
                total += _CHANGE * np.prod(network.shapes[name], dtype=float)
    return total
