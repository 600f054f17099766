"""What a layer's results are off on average is taken out of its bias, as far as that is known.

The mean error of a channel over a few photos is itself off: where errors differ more from photo to
photo than they are alike, correcting them adds noise instead of taking it away. So each correction
is made smaller by how sure it is: to nothing where the error's mean is not larger than its own
standard error (the positive part of James and Stein's estimator).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgepack.quantization.network import Array, FloatNetwork, values
from edgepack.quantization.qdq_model import make_qdq_model
from edgepack.quantization.ranges import ByteSteps
from edgepack.quantization.rounding import Rounded


def correct_biases(
    network: FloatNetwork,
    steps: Mapping[str, ByteSteps],
    weights: Mapping[str, Rounded],
    photos: Sequence[Array],
    *,
    shrink: bool = True,
) -> dict[str, Array]:
    """The biases of products, in the order of the network.

    One after the other: of several at once the later ones would make up for what is corrected in
    the earlier ones, too, which makes deep networks worse with each layer.
    """
    biases = {name: product.bias for name, product in network.products.items()}
    names = list(network.products)
    exact = _means(values(network.proto, photos, names), names)
    for name in names:
        proto = make_qdq_model(network, steps, weights, biases)
        real = f"{name}/numbers" if _is_renamed(proto, name) else name
        got = _means(values(proto, photos, [real]), [real])
        biases[name] = biases[name] - _sure(got[real] - exact[name], shrink=shrink)
    return biases


def _is_renamed(proto: object, name: str) -> bool:
    return any(f"{name}/numbers" in node.output for node in proto.graph.node)  # type: ignore[attr-defined]


def _means(found: object, names: Sequence[str]) -> dict[str, Array]:
    """Each channel's mean on each photo, [photos, channels]."""
    rows: dict[str, list[Array]] = {name: [] for name in names}
    for one in found:  # type: ignore[attr-defined]
        for name in names:
            data = one[name].astype("float64")
            rows[name].append(data.mean(axis=tuple(a for a in range(data.ndim) if a != 1)))
    return {name: np.stack(parts) for name, parts in rows.items()}


def _sure(error: Array, *, shrink: bool) -> Array:
    """The mean of errors [photos, channels], as far as it is known."""
    mean = error.mean(axis=0)
    if not shrink or len(error) < 2:
        return np.asarray(mean)
    doubt = error.var(axis=0, ddof=1) / len(error)
    return np.asarray(mean * np.clip(1 - doubt / np.maximum(mean**2, 1e-300), 0, 1))
