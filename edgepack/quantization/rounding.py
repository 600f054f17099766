"""Weights as int8, each channel with a scale of its own.

Weights are not rounded to the nearest one by one: what a weight is off is made up for by those of
the same sum that are not rounded yet, as far as their inputs go together (GPTQ, Frantar et al.,
2022). The inputs are those of the photos.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.quantization.network import Array, FloatNetwork, Product, attributes, values

# Positions of an image that are looked at: neighbours are alike.
_POSITIONS = 400
# Of a weight's inputs' power, added to all: keeps what no photo shows from being made up for.
_DAMPING = 0.01
MOST = 127


@dataclass(frozen=True, kw_only=True)
class Rounded:
    """int8 weights in the shape of `Product.weight`, and a scale for each output channel."""

    weight: Array
    scale: Array

    @property
    def numbers(self) -> Array:
        """What they stand for."""
        return self.weight.astype("float32") * self.scale[:, None, None]


def scales_for(weight: Array) -> Array:
    """For each channel the scale of least mean square error."""
    flat = np.abs(weight.reshape(len(weight), -1))
    largest = np.maximum(flat.max(axis=1), 1e-9) / MOST
    best, least = largest.copy(), np.full(len(flat), np.inf)
    for share in np.linspace(0.5, 1, 21):
        scale = largest * share
        whole = np.clip(np.rint(flat / scale[:, None]), 0, MOST)
        error = ((whole * scale[:, None] - flat) ** 2).sum(axis=1)
        better = error < least
        best[better], least[better] = scale[better], error[better]
    return np.asarray(np.maximum(best, 1e-12).astype("float32"))


def moments(
    network: FloatNetwork, photos: Sequence[Array], products: Mapping[str, Product]
) -> dict[str, Array]:
    """For each product the second moments of the inputs of a sum, [groups, n, n]."""
    sums: dict[str, Array] = {}
    names = [str(product.node.input[0]) for product in products.values()]
    for found in values(network.proto, photos, names):
        for name, product in products.items():
            columns = inputs_of(product, found[str(product.node.input[0])])
            sums[name] = sums.get(name, 0) + columns @ columns.transpose(0, 2, 1)
    return sums


def inputs_of(product: Product, data: Array) -> Array:
    """What the sums of a product read, [groups, inputs of a sum, positions]."""
    if product.node.op_type != "Conv":
        return np.ascontiguousarray(data.T[None])
    given = attributes(product.node)
    rank = data.ndim - 2
    kernel = product.kernel
    stride, dilation = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    pads = given.get("pads", [0] * 2 * rank)
    around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    data = np.pad(data, around)
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(data, reach, tuple(range(2, 2 + rank)))
    steps = tuple(slice(None, None, step) for step in (1, 1, *stride, *dilation))
    windows = windows[steps]
    # N, C, positions..., taps... -> groups, C / groups * taps, N * positions
    channels = windows.shape[1]
    windows = np.moveaxis(windows, 1, 0)
    count = int(np.prod(windows.shape[1 : 2 + rank]))
    flat = windows.reshape(channels, count, -1)[:, :: -(-count // _POSITIONS)]
    per = channels // product.groups
    grouped = flat.reshape(product.groups, per, flat.shape[1], -1).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(grouped.reshape(product.groups, -1, flat.shape[1]))


def round_weights(product: Product, moment: Array) -> Rounded:
    """A product's weights as integers."""
    scale = scales_for(product.weight)
    outs = len(product.weight) // product.groups
    flat = product.weight.reshape(product.groups, outs, -1).astype("float64")
    grouped = scale.astype("float64").reshape(product.groups, outs)
    parts = [
        _made_up_for(flat[group], grouped[group], moment[group].astype("float64"))
        for group in range(product.groups)
    ]
    weight = np.stack(parts).reshape(product.weight.shape).astype("int8")
    return Rounded(weight=weight, scale=scale)


def _made_up_for(weight: Array, scale: Array, moment: Array) -> Array:
    """[outs, inputs] as integers."""
    count = weight.shape[1]
    moment = moment + np.eye(count) * (_DAMPING * np.trace(moment) / count + 1e-9)
    upper = np.linalg.cholesky(np.linalg.inv(moment)).T
    left, made = weight.copy(), np.zeros_like(weight)
    for index in range(count):
        made[:, index] = np.clip(np.rint(left[:, index] / scale), -MOST, MOST)
        error = (left[:, index] - made[:, index] * scale) / upper[index, index]
        left[:, index + 1 :] -= error[:, None] * upper[index, index + 1 :][None]
    return made
