"""Masks of boxes: which pixels of the photo are the thing in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgepack.postprocess.box_mask import BoxMask, write_counts
from edgepack.preprocess.geometry import Geometry

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

MOST_BYTES = 16 << 20
"""Of all masks of a photo as text: the boxes after those have none."""
_FAR = 1e30
_CHUNK = 1 << 20


def encode_mask(inside: Booleans) -> BoxMask:
    """(H, W) of whether each pixel is inside."""
    height, width = inside.shape
    flat = np.concatenate([[False], inside.ravel(order="F"), [False]])
    edges = np.nonzero(np.diff(flat.astype(np.int8)))[0]
    lengths = np.diff(np.concatenate([[0], edges, [inside.size]]))
    if len(lengths) > 1 and lengths[-1] == 0:
        lengths = lengths[:-1]
    return BoxMask(size=(height, width), counts=write_counts(lengths.tolist()))


@dataclass(frozen=True, kw_only=True)
class Prototypes:
    """Maps (masks, H, W) of which a box's mask is a sum, by its coefficients, over a model's input
    of `size`, in a photo.

    A pixel of the photo whose centre lies in the box is inside if the sum is above 0 there: it is
    interpolated between the maps' nearest four cells, by columns first. What is no number is
    outside, and so is what a crop took from the photo.
    """

    maps: Floats
    size: tuple[int, int]
    geometry: Geometry

    def mask(self, coefficients: Floats, box: tuple[float, float, float, float]) -> BoxMask:
        """The mask of a box: left, top, right, bottom in pixels of the photo."""
        photo = self.geometry
        inside = np.zeros((photo.height, photo.width), np.bool_)
        columns = _pixels(box[0], box[2], photo.width)
        rows = _pixels(box[1], box[3], photo.height)
        if columns.size and rows.size:
            _, high, wide = self.maps.shape
            x = _Between.of(
                columns, photo.width, photo.scaled_width, photo.left, self.size[1], wide
            )
            y = _Between.of(rows, photo.height, photo.scaled_height, photo.top, self.size[0], high)
            maps = self.maps[:, y.first : y.end, x.first : x.end]
            # One after the other, as in C++: numpy's own sum has another order.
            total = np.zeros(maps.shape[1:])
            with np.errstate(all="ignore"):
                for number, values in zip(coefficients, maps, strict=True):
                    total = total + number * values
            total = np.where(np.isnan(total), -_FAR, np.clip(total, -_FAR, _FAR))
            step = max(1, _CHUNK // rows.size)
            for at in range(0, columns.size, step):
                part = x.blend(total.T, slice(at, at + step)).T
                seen = (y.blend(part, slice(None)) > 0) & y.there[:, np.newaxis]
                own = columns[at : at + step]
                inside[rows[0] : rows[-1] + 1, own[0] : own[-1] + 1] = (
                    seen & x.there[at : at + step]
                )
        return encode_mask(inside)


def _pixels(low: float, high: float, side: int) -> Ints:
    """Those of `side` whose centres lie between: `low` counts, `high` does not."""
    begin, end = (min(max(int(np.ceil(edge - 0.5)), 0), side) for edge in (low, high))
    return np.arange(begin, max(begin, end))


@dataclass(frozen=True, kw_only=True)
class _Between:
    """Pixels of the photo between cells `first` to `end` of a map, along one side: the cell before
    each, from `first` on, the one after it, how far it is from the one to the other, and whether
    it is in the model's input at all."""

    first: int
    end: int
    before: Ints
    after: Ints
    weights: Floats
    there: Booleans

    @classmethod
    def of(
        cls, pixels: Ints, side: int, scaled: int, start: int, size: int, cells: int
    ) -> _Between:
        places = (pixels + 0.5) * scaled / side - start
        at = np.clip(places * cells / size - 0.5, 0, cells - 1)
        before = np.floor(at).astype(np.int64)
        after = np.minimum(before + 1, cells - 1)
        first = int(before[0])
        return cls(
            first=first,
            end=int(after[-1]) + 1,
            before=before - first,
            after=after - first,
            weights=at - before,
            there=(places >= 0) & (places < size),
        )

    def blend(self, values: Floats, which: slice) -> Floats:
        """Of rows of `values` those at some of the pixels."""
        low, high = values[self.before[which]], values[self.after[which]]
        return np.asarray(low + (high - low) * self.weights[which, np.newaxis])
