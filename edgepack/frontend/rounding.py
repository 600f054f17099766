"""What a convolution loses by Winograd's algorithm in half precision, found on a part of it."""

from __future__ import annotations

import math

import numpy as np

from edgepack.frontend.precision import MOST
from edgepack.kernels.tiles import arm, toom_cook
from edgepack.kernels.tiles.element import FLOAT16

# Tiles and output channels that are looked at: errors are alike in all of them.
_TILES, _OUTS = 24, 32


def signal_db(image: np.ndarray, weight: np.ndarray, results: int) -> float:
    """Signal over error in dB of tiles of `results` x `results`, of `toom_cook.HALF_FORMS`.

    `image` is [channels, rows, columns], `weight` [out, in, 3, 3]. Each step is rounded as the
    kernels do. Infinite if there is no signal; -inf if a number comes near the largest half.
    """
    form = toom_cook.HALF_FORMS[results]
    tile = toom_cook.TileForm(down=form, across=form)
    size = form.size
    tiles = _tiles(image, size, results).astype("float32")
    weight = weight[:: -(-len(weight) // _OUTS)].astype("float32")
    windows = np.lib.stride_tricks.sliding_window_view(tiles, (3, 3), axis=(0, 1))
    signal = np.einsum("ijctrs,ocrs->ijot", windows, weight, dtype="float64", optimize=True)
    with np.errstate(over="ignore", invalid="ignore"):
        transformed = _both_ways(form.forth(results), _half(tiles))
        factors = _half(tile.weights(weight)[..., 0])
        sums = _sums(factors, transformed.reshape(size**2, *transformed.shape[2:]))
        got = _both_ways(form.back(results), sums.reshape(size, size, *sums.shape[1:]))
        largest = max(float(np.abs(values).max()) for values in (transformed, sums))
        if not largest <= MOST or not np.isfinite(got).all():
            return -math.inf
    power, error = (float((values**2).sum()) for values in (signal, got - signal))
    if power == 0 or error == 0:
        return math.inf
    return 10 * math.log10(power / error)


def _tiles(image: np.ndarray, size: int, step: int) -> np.ndarray:
    """Some tiles of an image, [row, column, channel, tile]: those with the largest values, and
    others from everywhere."""
    missing = [(0, max(0, size - extent)) for extent in image.shape[1:]]
    padded = np.pad(image, ((0, 0), *missing))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))
    windows = windows[:, ::step, ::step]
    largest = np.abs(windows).max(axis=(0, 3, 4)).ravel()
    order = np.argsort(-largest, kind="stable")
    first, others = order[: _TILES // 2], order[_TILES // 2 :]
    chosen = np.concatenate([first, others[:: max(1, -(-len(others) // (_TILES // 2)))]])
    rows, columns = np.unravel_index(chosen, windows.shape[1:3])
    return windows[:, rows, columns].transpose(2, 3, 0, 1)


def _half(values: np.ndarray) -> np.ndarray:
    """Rounded to halves, as float32."""
    return values.astype("float16").astype("float32")


def _both_ways(transform: toom_cook.Transform, tiles: np.ndarray) -> np.ndarray:
    """A transform of the rows of tiles, then of their columns, as one pass and the other."""
    rows = _transformed(transform, tiles.swapaxes(0, 1)).swapaxes(0, 1)
    return _transformed(transform, rows)


def _transformed(transform: toom_cook.Transform, values: np.ndarray) -> np.ndarray:
    """A transform along the first axis, each multiply-add rounded."""
    numbers = list(values)
    for terms in transform.steps:
        total = np.zeros_like(numbers[0])
        for coefficient, index in terms:
            total = _half(total + np.float32(coefficient) * numbers[index])
        numbers.append(total)
    return np.stack([numbers[index] for index in transform.outputs])


def _sums(weights: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """[position, out, in] and [position, in, tile] -> [position, out, tile], in parts as
    `arm.ConvolveInParts` adds them up."""
    ins = weights.shape[2]
    total = np.zeros((*weights.shape[:2], tiles.shape[2]), "float32")
    parts = max(1, -(-ins // arm.longest_chain(FLOAT16, ins, results=2)))
    for some in np.array_split(np.arange(ins), parts):
        part = np.zeros_like(total)
        for channel in some:
            part = _half(part + weights[:, :, channel, None] * tiles[:, None, channel])
        total = _half(total + part)
    return total
