"""Which rows (or columns) of an image make those of a resized or padded one.

An axis is a table, made once at compile time: each result is a weighted sum of a few positions of
the source. Positions follow ONNX's definition of Resize, in float32 as runtimes compute them, so
that ties are rounded the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

# Weights that differ by less are equal: about the error of a position around 100 in float32.
_EQUAL_WEIGHTS = 2e-5
# A longer period is rare: the usual scales are 2, 3, 4, 8 and 3/2.
_MOST_PERIOD = 16
# Positions this near to the middle between two are ties. A quotient of float32 seldom hits the
# middle itself; the figure is onnxruntime's (its pull request 28757).
_TIE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Run:
    """Results with periodic weights: `period` of them, `turns` times.

    Result `first + turn * period + i` has the weights of result `first + i`, and its sources plus
    `turn * step`.
    """

    first: int
    period: int
    turns: int
    step: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Axis:
    """Results of which those from `first` on are sums of `sources` (int32) times `weights`.

    Both tables are [results inside, taps]; results before and after those lie outside the source.
    """

    size: int
    first: int
    sources: np.ndarray
    weights: np.ndarray

    @property
    def count(self) -> int:
        """Results that are made of the source."""
        return len(self.sources)

    @property
    def taps(self) -> int:
        """Positions that make one result."""
        return int(self.sources.shape[1])

    @property
    def is_copy(self) -> bool:
        """Whether each result is one position as it is."""
        return self.taps == 1 and bool((self.weights == 1).all())

    def is_all_of(self, size: int) -> bool:
        """Whether the results are the positions of a source of this size as they are."""
        return self.is_copy and np.array_equal(self.sources[:, 0], np.arange(size))

    def runs(self, most_results: int) -> list[Run] | None:
        """All results inside, in order, as runs; None if their periods are too long altogether."""
        runs: list[Run] = []
        at, left = 0, most_results
        while at < self.count:
            turns = {period: self._repeats(at, period) for period in range(1, _MOST_PERIOD + 1)}
            # What comes only once is no period.
            periods = [period for period in turns if turns[period] > 1]
            period = max(periods, key=lambda period: (period * turns[period], -period), default=1)
            moved = self.sources[at : at + period + 1 : period, 0]
            step = int(moved[1] - moved[0]) if turns[period] > 1 else 0
            runs.append(Run(first=at, period=period, turns=turns[period], step=step))
            at += period * turns[period]
            left -= period
            if left < 0:
                return None
        return runs

    def _repeats(self, at: int, period: int) -> int:
        """How many times in a row the weights of the `period` results from `at` on repeat."""
        here = slice(at, at + period)
        turns = 1
        while at + period * (turns + 1) <= self.count:
            there = slice(at + period * turns, at + period * (turns + 1))
            moved = self.sources[there] - self.sources[here]
            step = (self.sources[at + period] - self.sources[at])[0] * turns
            same = np.abs(self.weights[there] - self.weights[here]).max() < _EQUAL_WEIGHTS
            if not same or (moved != step).any():
                break
            turns += 1
        return turns


def _axis(size: int, first: int, sources: np.ndarray, weights: np.ndarray) -> Axis:
    """An axis, less the taps whose weight is 0 in every result."""
    used = [tap for tap in range(weights.shape[1]) if weights[:, tap].any()] or [0]
    return Axis(
        size=size,
        first=first,
        sources=np.ascontiguousarray(sources[:, used].astype("int32")),
        weights=np.ascontiguousarray(weights[:, used].astype("float32")),
    )


# ------------------------------------------------ resizing


def positions(
    mode: str, size: int, out: int, region: tuple[float, float], given_scale: float = 0.0
) -> np.ndarray:
    """Where in `size` source positions each of `out` results lies, float32.

    `mode` is one of ONNX's coordinate_transformation_mode, `region` (start, end) is read by
    tf_crop_and_resize only. A `given_scale` is used instead of the ratio of the sizes: the two
    differ where size * scale is no whole number. With a scale of 1 results are the positions
    themselves in every mode, as in onnxruntime. Raises KeyError for another mode.
    """
    x, half = np.arange(out, dtype="float32"), np.float32(0.5)
    scale = np.float32(given_scale) if given_scale else np.float32(out) / np.float32(size)
    if scale == 1:
        return x
    last, results = np.float32(size - 1), np.float32(out - 1)
    start, end = (np.float32(bound) for bound in region)

    def crop() -> np.ndarray:
        if out == 1:
            return np.full(1, half * (start + end) * last, "float32")
        return start * last + x * (end - start) * last / results

    formulas: Mapping[str, Callable[[], np.ndarray]] = {
        "half_pixel": lambda: (x + half) / scale - half,
        "pytorch_half_pixel": lambda: (x + half) / scale - half if out > 1 else x,
        "align_corners": lambda: x * last / results if out > 1 else x,
        "asymmetric": lambda: x / scale,
        "tf_half_pixel_for_nn": lambda: (x + half) / scale,
        "tf_crop_and_resize": crop,
    }
    return formulas[mode]()


_ROUNDED: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda at: np.ceil(at - 0.5 - _TIE),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5 + _TIE),
}


@dataclass(frozen=True, kw_only=True)
class ResizeAttributes:
    """The attributes of a Resize that decide which positions make a result.

    `kind` is "nearest", "linear" or "cubic". `rounding` is for the first, `coefficient` (a of the
    cubic's polynomials) and `exclude_outside` for the last.
    """

    kind: str
    coordinates: str
    rounding: str
    coefficient: float
    exclude_outside: bool

    def axis(
        self, size: int, out: int, region: tuple[float, float], given_scale: float = 0.0
    ) -> Axis:
        """The axis from `size` positions to `out` results; see `positions`."""
        at = positions(self.coordinates, size, out, region, given_scale)
        inside = np.full(out, True)
        if self.coordinates == "tf_crop_and_resize":
            inside = (at >= 0) & (at <= size - 1)
        # Positions rise with the result, so that those inside are consecutive.
        first = int(inside.argmax())
        sources, weights = self._taps(at[inside].astype("float64"), size)
        return _axis(out, first, np.clip(sources, 0, size - 1), weights)

    def _taps(self, at: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """What each of some positions is made of; sources may lie outside of `size`."""
        if self.kind == "nearest":
            sources = _ROUNDED[self.rounding](at)[:, None]
            return sources, np.ones_like(sources)
        low = np.floor(at)
        if self.kind == "linear":
            t = at - low
            return low[:, None] + np.arange(2), np.stack([1 - t, t], axis=1)
        sources, weights = low[:, None] + np.arange(-1, 3), self._cubic(at - low)
        if self.exclude_outside:
            weights = np.where((sources >= 0) & (sources < size), weights, 0)
            weights /= weights.sum(axis=1, keepdims=True)
        return sources, weights

    def _cubic(self, t: np.ndarray) -> np.ndarray:
        """Keys' kernel ("Cubic Convolution Interpolation", 1981) at t + 1, t, t - 1 and t - 2."""
        a = self.coefficient

        near, far = [a + 2, -(a + 3), 0, 1], [a, -5 * a, 8 * a, -4 * a]
        kernel = ((far, t + 1), (near, t), (near, 1 - t), (far, 2 - t))
        return np.stack([np.polyval(*part) for part in kernel], axis=1)


# ------------------------------------------------ padding


def pad_positions(mode: str, size: int, before: int, after: int) -> Axis:
    """`size` positions with others before and after them: `mode` is one of relax.nn.pad's.

    Reflected ones are fewer than `size`. Raises KeyError for another mode.
    """
    at, last = np.arange(-before, size + after), size - 1
    sources = {
        "constant": at[before : before + size],
        "reflect": last - np.abs(last - np.abs(at)),
        "replicate": np.clip(at, 0, last),
    }[mode][:, None]
    first = before if mode == "constant" else 0
    return _axis(len(at), first, sources, np.ones_like(sources))
