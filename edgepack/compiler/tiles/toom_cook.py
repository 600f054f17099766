"""The transforms of Winograd convolution, as few additions and multiplications.

F(m, 3) computes m neighbouring results of a 1-D correlation with 3 weights by n = m + 2
multiplications instead of 3 m:

    results = A ((G weights) * (B inputs))

A, B and G evaluate and interpolate polynomials at n - 1 points and at infinity (Toom and Cook;
S. Winograd, Arithmetic Complexity of Computations, 1980; for convolutional networks A. Lavin and
S. Gray, arXiv:1509.09308). Row k of B has the coefficients of the product of (x - p) over all
points p but the k-th, column k of A the powers of the k-th point.

The rows of a pair of points a, -a differ only in the sign of their odd (or even) coefficients, so
both come from the same two sums.

Where the window moves by two, every second input is multiplied by the middle weight alone, and what
is left of the others is a correlation with 2 weights, of stride 1: F(m, 2) takes m + 1
multiplications, m more come to it, instead of 3 m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

# Of F(m, 2), for windows that move by two, by m: the number of points.
STRIDED_POINTS: dict[int, Points] = {
    2: tuple(map(Fraction, (0, 1))),
    3: tuple(map(Fraction, (0, 1, -1))),
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


def _in_pairs(points: Points) -> Iterator[tuple[int, ...]]:
    """The numbers of neighbours a, -a, and of all other points."""
    at = 0
    while at < len(points):
        is_pair = at + 1 < len(points) and points[at] == -points[at + 1]
        yield (at, at + 1) if is_pair else (at,)
        at += 1 + is_pair


@cache
def input_transform(points: Points, inputs: int) -> Transform:
    """B; of its n inputs only the first `inputs` are given, the others are zero."""
    rows = [_polynomial(q for q in points if q != point) for point in points]
    rows.append(_polynomial(points))
    builder = _TransformBuilder(inputs)

    def given(row: Iterable[Fraction]) -> int:
        return builder.sum((c, at) for at, c in enumerate(row) if at < inputs)

    outputs = []
    for numbers in _in_pairs(points):
        if len(numbers) == 1:
            outputs.append(given(rows[numbers[0]]))
            continue
        pair = list(zip(*(rows[number] for number in numbers), strict=True))
        odd = [(a - b) / 2 for a, b in pair]
        scale = next(c for c in reversed(odd) if c)
        right = given(c / scale for c in odd)
        even = [(a + b) / 2 for a, b in pair]
        # Of two inputs only the odd sum is left.
        left = [(Fraction(1), given(even))] if any(even[:inputs]) else []
        outputs.append(builder.sum([*left, (scale, right)]))
        outputs.append(builder.sum([*left, (-scale, right)]))
    return builder.done([*outputs, given(rows[-1])])


@cache
def output_transform(points: Points, wanted: int, taps: int = 3) -> Transform:
    """The first `wanted` rows of A, of a correlation with `taps` weights."""
    size, results = len(points) + 1, len(points) + 2 - taps
    builder = _TransformBuilder(size)
    one = Fraction(1)
    # For even and for odd powers: of a pair the sum and the difference.
    values = []
    for numbers in _in_pairs(points):
        first, last = numbers[0], numbers[-1]
        even = odd = first
        if first != last:
            even, odd = (builder.sum([(one, first), (sign, last)]) for sign in (one, -one))
        values.append((points[first], even, odd))
    outputs = []
    for i in range(wanted):
        terms = [(point**i, odd if i % 2 else even) for point, even, odd in values]
        if i == results - 1:
            terms.append((one, size - 1))
        outputs.append(builder.sum(terms))
    return builder.done(outputs)


def _weight_matrix(points: Points, taps: int) -> np.ndarray:
    """G, [len(points) + 1, taps] float64."""
    rows = []
    for point in points:
        scale = Fraction(1)
        for other in points:
            if other != point:
                scale *= point - other
        rows.append([float(point**power / scale) for power in range(taps)])
    return np.array([*rows, [*[0.0] * (taps - 1), 1.0]])


# Of weights that are transformed at a time.
_WINDOWS = 256


@dataclass(frozen=True, kw_only=True)
class TileForm:
    """F(m, 3) with `results` m in one direction, of windows that move by `stride`, 1 or 2."""

    results: int
    points: Points
    stride: int = 1

    @property
    def size(self) -> int:
        """A tile's inputs in one direction, and its products."""
        return self.reach(self.results)

    @property
    def factors(self) -> int:
        """Transformed weights in one direction: one for each product, but where the window moves by
        two the last is that of all products behind it, too."""
        return self.results + 2

    def reach(self, results: int) -> int:
        """How many inputs so many results read."""
        return self.stride * (results - 1) + 3

    def forth(self, results: int) -> Transform:
        """The transform of inputs, of which there are those that `results` read."""
        if self.stride == 1:
            return input_transform(self.points, self.reach(results))
        even, inputs = input_transform(self.points, results + 1), self.reach(results)

        def number(value: int) -> int:
            return 2 * value if value < even.inputs else value - even.inputs + inputs

        # No wanted result reads the products of others: they may be any.
        middle = (2 * i + 1 if i < results else 1 for i in range(self.results))
        return Transform(
            inputs=inputs,
            steps=_renumbered(even.steps, number),
            outputs=(*map(number, even.outputs), *middle),
        )

    def back(self, results: int) -> Transform:
        """The transform of products to the first `results`."""
        if self.stride == 1:
            return output_transform(self.points, results)
        even = output_transform(self.points, results, taps=2)

        def number(value: int) -> int:
            return value if value < even.inputs else value - even.inputs + self.size

        steps = _renumbered(even.steps, number)
        whole = tuple(
            ((1.0, number(value)), (1.0, even.inputs + i)) for i, value in enumerate(even.outputs)
        )
        first = self.size + len(steps)
        return Transform(
            inputs=self.size,
            steps=(*steps, *whole),
            outputs=tuple(range(first, first + results)),
        )

    def weights(self, weight: np.ndarray) -> np.ndarray:
        """[out, in, 3, 3] -> [factors * factors, out, in] float32, G weights G^T computed in
        float64."""
        if self.stride == 1:
            g = _weight_matrix(self.points, 3)
        else:
            g = np.zeros((self.factors, 3))
            g[:-1, ::2] = _weight_matrix(self.points, 2)
            g[-1, 1] = 1.0
        outs, ins = weight.shape[:2]
        # One product with the Kronecker square of G transforms rows and columns at once, for a few
        # windows that stay in the cache. numpy's BLAS would share larger products between threads,
        # of which one waits for the other most of the time.
        square, flat = np.kron(g, g), weight.reshape(outs * ins, 9)
        transformed = np.empty((len(square), outs * ins), "float32")
        for first in range(0, outs * ins, _WINDOWS):
            some = flat[first : first + _WINDOWS].astype("float64")
            transformed[:, first : first + _WINDOWS] = square @ some.T
        return transformed.reshape(len(square), outs, ins)

    def ones(self) -> list[float]:
        """What, given to the transform of results, makes a 1 of each: what a polynomial's value at
        1 takes of those at the points (Lagrange)."""
        found = []
        for point in self.points:
            share = Fraction(1)
            for other in self.points:
                if other != point:
                    share *= (1 - other) / (point - other)
            found.append(float(share))
        return found + [0.0] * (self.size - len(found))


def _renumbered(steps: Iterable[Terms], number: Callable[[int], int]) -> tuple[Terms, ...]:
    return tuple(tuple((c, number(value)) for c, value in terms) for terms in steps)


def _forms(points: Mapping[int, Points], stride: int) -> dict[int, TileForm]:
    return {
        results: TileForm(results=results, points=some, stride=stride)
        for results, some in points.items()
    }


# By the number of results m, and by the stride.
FORMS = {1: _forms(POINTS, 1), 2: _forms(STRIDED_POINTS, 2)}
HALF_FORMS = {1: _forms(HALF_POINTS, 1)}
