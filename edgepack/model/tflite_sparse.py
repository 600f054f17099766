"""Weights of TFLite models that keep only what is not zero, as plain arrays.

schema.fbs, `SparsityParameters`: the dimensions in an order of their own, then those of blocks. Of
each, either all positions are kept, or those that `indices` name, from `segments[n]` on for the
n-th kept position of the dimensions before.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_VECTORS = (None, "Int32Vector", "Uint16Vector", "Uint8Vector")


def densify(tflite: ModuleType, sparsity: Any, values: Array, shape: tuple[int, ...]) -> Array:
    """The tensor of that shape. Raises ValueError if the file has it otherwise."""
    order = [int(one) for one in np.atleast_1d(sparsity.TraversalOrderAsNumpy())]
    blocks = [int(sparsity.BlockMap(n)) for n in range(sparsity.BlockMapLength())]
    rank, levels = len(shape), sparsity.DimMetadataLength()
    if sorted(order) != [*range(rank + len(blocks))] or levels != len(order):
        raise ValueError(f"a sparse tensor whose dimensions have the order {order[:16]}")
    if len(set(blocks)) != len(blocks) or not set(blocks) <= {*range(rank)}:
        raise ValueError(f"a sparse tensor with blocks along {blocks[:16]}")
    places = np.zeros(1, np.int64)
    positions = np.zeros((1, 0), np.int64)
    sizes = {}
    for level, axis in enumerate(order):
        about = sparsity.DimMetadata(level)
        sizes[axis] = about.DenseSize()
        if about.Format() == tflite.DimensionType.DENSE:
            if not 0 < about.DenseSize() * len(places) <= math.prod(shape):
                raise ValueError("a sparse tensor larger than its shape")
            steps = np.arange(about.DenseSize())
            owners = np.repeat(np.arange(len(places)), len(steps))
            at = np.tile(steps, len(places))
            places = places[owners] * len(steps) + at
        else:
            owners, places, at = _named(tflite, about, places, math.prod(shape))
        positions = np.concatenate([positions[owners], at[:, None]], axis=1)
    whole = np.zeros((rank, len(places)), np.int64)
    for level, axis in enumerate(order):
        if axis < rank:
            side = sizes[rank + blocks.index(axis)] if axis in blocks else 1
            whole[axis] += positions[:, level] * side
        else:
            whole[blocks[axis - rank]] += positions[:, level]
    sides = np.array(shape, np.int64)[:, None]
    if len(values) <= places.max(initial=-1) or (whole < 0).any() or (whole >= sides).any():
        raise ValueError("a sparse tensor with values outside of its shape")
    dense = np.zeros(shape, values.dtype)
    dense[tuple(whole)] = values[places]
    return dense


def _named(tflite: ModuleType, about: Any, places: Array, most: int) -> tuple[Array, Array, Array]:
    """Of the positions that `indices` name: whose they are, where they are kept, which they are."""
    segments = _vector(tflite, about.ArraySegmentsType(), about.ArraySegments())
    indices = _vector(tflite, about.ArrayIndicesType(), about.ArrayIndices())
    if places.size and places.max() + 1 >= len(segments):
        raise ValueError("a sparse tensor whose segments end too early")
    begin, counts = segments[places], segments[places + 1] - segments[places]
    if counts.min(initial=0) < 0 or counts.sum() > most:
        raise ValueError("a sparse tensor larger than its shape")
    owners = np.repeat(np.arange(len(places)), counts)
    places = np.arange(len(owners)) - np.repeat(counts.cumsum() - counts - begin, counts)
    if places.max(initial=-1) >= len(indices) or places.min(initial=0) < 0:
        raise ValueError("a sparse tensor whose indices end too early")
    return owners, places, indices[places]


def _vector(tflite: ModuleType, kind: int, table: Any) -> Array:
    if not 0 < kind < len(_VECTORS) or table is None:
        raise ValueError("a sparse tensor without positions")
    vector = getattr(tflite, str(_VECTORS[kind]))()
    vector.Init(table.Bytes, table.Pos)
    return np.array([vector.Values(n) for n in range(vector.ValuesLength())], np.int64)
