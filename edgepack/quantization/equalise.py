"""Channels of one tensor made equally large, where the network stays the same.

All channels of a tensor share a scale, so a small one has few of the 256 steps. A channel can be
made larger by the weights that make it, if those that read it become as much smaller. Weights have
a scale for each output channel: a depthwise convolution that reads it loses nothing by that, others
do, for their weights spread. (Nagel et al., "Data-free quantization", 2019, do so by the ranges of
weights; here ranges are those that photos show.)

A Clip at 6 cuts a channel that was made larger at less than 6: never below what photos show of it.
On other photos a channel may reach further, and what is cut off there is lost: `ROOMS` are how much
more than on the photos it may be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from edgepack.quantization.network import (
    CUTTING,
    POOLS,
    RESHAPING,
    Array,
    FloatNetwork,
    attributes,
    values,
)

# A channel is made larger by this at most: one that photos hardly show is not known.
_MOST = 16.0
# Of a channel's largest value; without end: what a Clip cuts off is not made larger. Which one
# serves best is found on photos held out.
ROOMS = (1.05, 1.5, 2.0, 3.0, np.inf)
# How much of it is done where weights spread by it: 1 is all.
_SHARE = 0.5


@dataclass
class _Tensors:
    """Tensors that have one factor for each channel in common."""

    names: list[str] = field(default_factory=list)
    is_fixed: bool = False
    # Of Clips that their values go through.
    most: float = np.inf
    makers: list[str] = field(default_factory=list)
    readers: list[str] = field(default_factory=list)


def equalise_channels(
    network: FloatNetwork,
    photos: Sequence[Array],
    *,
    room: float = ROOMS[0],
    share: float = _SHARE,
) -> FloatNetwork:
    """The same network with channels of more equal size."""
    groups = [group for group in _groups(network) if not group.is_fixed and group.makers]
    for group in groups:
        # What is cut off anyway needs no steps.
        group.names = [name for name in group.names if not _is_cut(network, name)]
    names = [name for group in groups for name in group.names]
    largest = _largest(network, photos, names)
    changed: dict[str, Array] = {}
    for group in groups:
        reach = np.max([largest[name] for name in group.names], axis=0)
        if not reach.any() or (np.isinf(room) and np.isfinite(group.most)):
            continue
        if np.isfinite(group.most):
            reach = reach * room
        top = min(group.most, float(reach.max()))
        factor = np.clip(top / np.maximum(reach, 1e-12), 1.0, _MOST)
        if not all(network.products[name].is_depthwise for name in group.readers):
            factor = factor**share
        factor[reach == 0] = 1.0
        _scale(network, group, factor.astype("float64"), changed)
    return network.with_constants(changed)


def _is_cut(network: FloatNetwork, name: str) -> bool:
    return len(network.readers[name]) == 1 and network.readers[name][0].op_type in CUTTING


def _scale(
    network: FloatNetwork, group: _Tensors, factor: Array, changed: dict[str, Array]
) -> None:
    def value(name: str) -> Array:
        found: Array = changed.get(name, network.constants[name]).astype("float64")
        return found

    for name in group.makers:
        node, product = network.products[name].node, network.products[name]
        axis = product.axis
        weight = value(node.input[1])
        shape = [1] * weight.ndim
        shape[axis] = len(factor)
        changed[node.input[1]] = (weight * factor.reshape(shape)).astype("float32")
        if len(node.input) > 2 and node.input[2]:
            changed[node.input[2]] = (value(node.input[2]) * factor).astype("float32")
    for name in group.readers:
        node, product = network.products[name].node, network.products[name]
        weight = value(node.input[1])
        if product.is_depthwise:
            made = weight / factor.reshape(-1, *[1] * (weight.ndim - 1))
        else:
            axis = 1 if product.axis == 0 else 0
            shape = [1] * weight.ndim
            shape[axis] = len(factor)
            made = weight / factor.reshape(shape)
        changed[node.input[1]] = made.astype("float32")


def _groups(network: FloatNetwork) -> list[_Tensors]:
    """All tensors, by what has to have the same factors."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            name = root[name]
        return name

    fixed: set[str] = {network.input, *network.outputs}
    most: list[tuple[str, float]] = []
    for node in network.nodes:
        names = [name for name in (*node.input, *node.output) if name]
        images = [name for name in names if name not in network.constants]
        for name in images:
            find(name)
        if not _keeps_factors(network, node, images):
            fixed.update(images)
        if node.output and node.output[0] in network.products:
            continue
        if node.op_type == "Clip":
            most.append((images[0], _bounds(network, node)[1]))
        for name in images[1:]:
            root[find(name)] = find(images[0])
    groups: dict[str, _Tensors] = defaultdict(_Tensors)
    for name in list(root):
        group = groups[find(name)]
        group.names.append(name)
        group.is_fixed |= name in fixed
    for name, high in most:
        group = groups[find(name)]
        group.most = min(group.most, high)
    for name, product in network.products.items():
        groups[find(name)].makers.append(name)
        groups[find(str(product.node.input[0]))].readers.append(name)
    for group in groups.values():
        # All of a tensor is made by products, so that they can scale it.
        group.is_fixed |= any(name not in network.makers for name in group.names)
        group.is_fixed |= any(
            reader.op_type in ("Conv", "Gemm", "MatMul")
            and str(reader.output[0]) not in network.products
            for name in group.names
            for reader in network.readers[name]
        )
        shared = [network.products[name].node.input for name in group.makers]
        group.is_fixed |= any(
            len(given) > 2 and given[2] and len(network.readers[given[2]]) > 1 for given in shared
        )
    return list(groups.values())


def _keeps_factors(network: FloatNetwork, node: onnx.NodeProto, images: Sequence[str]) -> bool:
    """Whether channels that a node reads may have a factor: of a product any, else those that it
    makes have the same then."""
    product = network.products.get(node.output[0]) if node.output else None
    if product is not None:
        return bool(product.groups == 1 or product.is_depthwise)
    if node.op_type == "Clip":
        return _bounds(network, node)[0] == 0.0
    if node.op_type in RESHAPING:
        return bool(network.before_reshaping(node.output[0]) != node.output[0])
    if node.op_type in POOLS or node.op_type == "Add":
        return network.is_whole(node) and len(images) == len(node.output) + len(
            network.read_by(node)
        )
    return bool(node.op_type == "Relu")


def _bounds(network: FloatNetwork, node: onnx.NodeProto) -> tuple[float, float]:
    given = attributes(node)
    found = []
    for index, (name, default) in enumerate((("min", -np.inf), ("max", np.inf)), start=1):
        value = network.constants.get(node.input[index]) if len(node.input) > index else None
        if len(node.input) > index and node.input[index] and value is None:
            return -np.inf, np.inf
        found.append(float(value) if value is not None else float(given.get(name, default)))
    return found[0], found[1]


def _largest(
    network: FloatNetwork, photos: Sequence[Array], names: Sequence[str]
) -> Mapping[str, Array]:
    """The largest magnitude of each channel."""
    largest: dict[str, Array] = {}
    for found in values(network.proto, photos, names):
        for name in names:
            data = np.abs(found[name])
            axes = tuple(axis for axis in range(data.ndim) if axis != 1)
            largest[name] = np.maximum(largest.get(name, 0.0), data.max(axis=axes))
    return largest
