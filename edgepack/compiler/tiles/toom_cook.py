"""The transforms of Winograd convolution, as few additions and multiplications.

F(m, 3) computes m neighbouring results of a 1-D correlation with 3 weights by n = m + 2
multiplications instead of 3 m:

    results = A ((G weights) * (B inputs))

A, B and G evaluate and interpolate polynomials at n - 1 points and at infinity (Toom and Cook;
S. Winograd, Arithmetic Complexity of Computations, 1980; for convolutional networks A. Lavin and
S. Gray, arXiv:1509.09308). Row k of B has the coefficients of the product of (x - p) over all
points p but the k-th, column k of A the powers of the k-th point.

Points come as 0 and pairs a, -a. The rows of a pair differ only in the sign of their odd (or
even) coefficients, so both come from the same two sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

Points = tuple[Fraction, ...]

# By the number of results m. Small integers and their inverses, as rounding errors grow with the
# powers of the points; every float32 below is exact. Largest error of one tile over the largest
# result, 64 random channels of float32, measured: 3.4e-7 for m = 2, 2.7e-6 for m = 4 (4.3e-6
# with 1/2 in place of 2), 7.3e-6 for m = 6 (6.7e-4 with 3 in place of 1/2; the choice of
# A. Lavin in NNPACK's issue 8).
POINTS: dict[int, Points] = {
    2: tuple(map(Fraction, (0, 1, -1))),
    4: tuple(map(Fraction, (0, 1, -1, 2, -2))),
    6: (*map(Fraction, (0, 1, -1, 2, -2)), Fraction(1, 2), Fraction(-1, 2)),
}
# In half precision: every coefficient is exact in 11 bits. Signal over error of a layer of
# ResNet-18 with 128, 256 or 512 input channels, random weights: 54 to 56 dB for m = 2,
# as without the transforms; 48 to 53 for m = 4, 46 to 47 with the points above; 40 to 42 for m = 6.
HALF_POINTS: dict[int, Points] = {
    2: POINTS[2],
    4: (Fraction(0), *(Fraction(sign * size, 4) for size in (6, 3) for sign in (1, -1))),
}

Terms = tuple[tuple[float, int], ...]


@dataclass(frozen=True, kw_only=True)
class Transform:
    """A product with a small constant matrix.

    Values are numbered: first the `inputs` inputs, then one per step, the sum of coefficient *
    value over its terms. `outputs` are the numbers of the results.
    """

    inputs: int
    steps: tuple[Terms, ...]
    outputs: tuple[int, ...]

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The sizes of its coefficients, but for 1."""
        return tuple(sorted({abs(c) for terms in self.steps for c, _ in terms} - {1.0}))

    @property
    def operations(self) -> int:
        """Additions, multiplications and fused multiply-adds."""
        return sum(len(terms) - (terms[0][0] == 1) for terms in self.steps)


class _TransformBuilder:
    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[Terms] = []

    def sum(self, terms: Iterable[tuple[Fraction, int]]) -> int:
        """The number of a sum; positive ones come first, so that it can start with a copy."""
        found = sorted(
            ((float(c), value) for c, value in terms if c), key=lambda term: (term[0] != 1, term[1])
        )
        if len(found) == 1 and found[0][0] == 1:
            return found[0][1]
        self.steps.append(tuple(found))
        return self.inputs + len(self.steps) - 1

    def done(self, outputs: Sequence[int]) -> Transform:
        return Transform(inputs=self.inputs, steps=tuple(self.steps), outputs=tuple(outputs))


def _polynomial(roots: Iterable[Fraction]) -> list[Fraction]:
    """Coefficients, the constant one first, of the product of (x - root)."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [s - root * c for s, c in zip(shifted, [*found, Fraction(0)], strict=True)]
    return found


@cache
def input_transform(points: Points, inputs: int) -> Transform:
    """B; of its n inputs only the first `inputs` are given, the others are zero."""
    rows = [_polynomial(q for q in points if q != point) for point in points]
    rows.append(_polynomial(points))
    builder = _TransformBuilder(inputs)

    def given(row: Iterable[Fraction]) -> int:
        return builder.sum((c, at) for at, c in enumerate(row) if at < inputs)

    outputs = [given(rows[0])]
    for k in range(1, len(points), 2):
        pair = list(zip(rows[k], rows[k + 1], strict=True))
        odd = [(a - b) / 2 for a, b in pair]
        scale = next(c for c in reversed(odd) if c)
        left = given((a + b) / 2 for a, b in pair)
        right = given(c / scale for c in odd)
        outputs.append(builder.sum([(Fraction(1), left), (scale, right)]))
        outputs.append(builder.sum([(Fraction(1), left), (-scale, right)]))
    return builder.done([*outputs, given(rows[-1])])


@cache
def output_transform(points: Points, wanted: int) -> Transform:
    """The first `wanted` rows of A."""
    size, results = len(points) + 1, len(points) - 1
    builder = _TransformBuilder(size)
    one = Fraction(1)
    pairs = [
        (points[k], builder.sum([(one, k), (one, k + 1)]), builder.sum([(one, k), (-one, k + 1)]))
        for k in range(1, len(points), 2)
    ]
    outputs = []
    for i in range(wanted):
        terms = [(point**i, odd if i % 2 else even) for point, even, odd in pairs]
        if i == 0:
            terms.append((one, 0))
        if i == results - 1:
            terms.append((one, size - 1))
        outputs.append(builder.sum(terms))
    return builder.done(outputs)


def transform_weights(weight: np.ndarray, points: Points) -> np.ndarray:
    """[out, in, 3, 3] -> [n * n, out, in] float32, G weights G^T computed in float64."""
    rows = []
    for point in points:
        scale = Fraction(1)
        for other in points:
            if other != point:
                scale *= point - other
        rows.append([float(point**power / scale) for power in range(3)])
    g = np.array([*rows, [0.0, 0.0, 1.0]])
    outs, ins = weight.shape[:2]
    # One product with the Kronecker square of G transforms rows and columns at once, for a few
    # windows that stay in the cache. numpy's BLAS would share larger products between threads, of
    # which one waits for the other most of the time.
    square, flat = np.kron(g, g), weight.reshape(outs * ins, 9)
    transformed = np.empty((len(square), outs * ins), "float32")
    for first in range(0, outs * ins, _WINDOWS):
        some = flat[first : first + _WINDOWS].astype("float64")
        transformed[:, first : first + _WINDOWS] = square @ some.T
    return transformed.reshape(len(square), outs, ins)


_WINDOWS = 256


def ones(points: Points) -> list[float]:
    """What, given to the transform of results, makes a 1 of each: what a polynomial's value at 1
    takes of those at the points (Lagrange)."""
    found = []
    for point in points:
        share = Fraction(1)
        for other in points:
            if other != point:
                share *= (1 - other) / (point - other)
        found.append(float(share))
    return [*found, 0.0]
