"""The transforms of Winograd convolution, as few additions and multiplications.

F(m, r) computes m neighbouring results of a 1-D correlation with r weights by n = m + r - 1
multiplications instead of r m:

    results = A ((G weights) * (B inputs))

A, B and G evaluate and interpolate polynomials at n - 1 points and at infinity (Toom and Cook;
S. Winograd, Arithmetic Complexity of Computations, 1980; for convolutional networks A. Lavin and
S. Gray, arXiv:1509.09308). Row k of B has the coefficients of the product of (x - p) over all
points p but the k-th, column k of A the powers of the k-th point.

A tile of fewer results, at the end of a row, needs fewer products: it is evaluated at the first of
the same points, infinity before them all, and takes the same transformed weights, whose other
factors the transform of its inputs makes up for.

The rows of a pair of points a, -a differ only in the sign of their odd (or even) coefficients, so
both come from the same two sums.

Of a window that moves by two, every second weight meets the even inputs, and the others meet the
odd ones: two correlations of stride 1, whose products are added before they are transformed back.
So 7 weights are F(m, 4) twice, the second time with a weight of zero.

Of 3 weights that would be too many zeros: every second input is multiplied by the middle weight
alone, and what is left of the others is a correlation with 2 weights: F(m, 2) takes m + 1
multiplications, m more come to it, instead of 3 m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from math import prod

import numpy as np

Points = tuple[Fraction, ...]

# By the number of products n. Small integers and their inverses, as rounding errors grow with the
# powers of the points; every float32 below is exact. Largest error of one tile over the largest
# result, 64 random channels of float32, measured for r = 3: 3.4e-7 for n = 4, 2.7e-6 for n = 6
# (4.3e-6 with 1/2 in place of 2), 7.3e-6 for n = 8 (6.7e-4 with 3 in place of 1/2; the choice of
# A. Lavin in NNPACK's issue 8); for r = 4, 5 and 7 at most 1.3e-5. Of n = 7 no points pair up well:
# the transforms take more operations than those of n = 8.
POINTS: dict[int, Points] = {
    4: tuple(map(Fraction, (0, 1, -1))),
    6: tuple(map(Fraction, (0, 1, -1, 2, -2))),
    8: (*map(Fraction, (0, 1, -1, 2, -2)), Fraction(1, 2), Fraction(-1, 2)),
}
# In half precision: every coefficient is exact in 11 bits. Signal over error of a layer of
# ResNet-18 with 128, 256 or 512 input channels, random weights: 54 to 56 dB for n = 4, as without
# the transforms; 48 to 53 for n = 6, 46 to 47 with the points above; 40 to 42 for n = 8.
HALF_POINTS: dict[int, Points] = {
    4: POINTS[4],
    6: (Fraction(0), *(Fraction(sign * size, 4) for size in (6, 3) for sign in (1, -1))),
}

# Of F(m, 2), for windows of 3 weights that move by two, by m.
SPLIT_POINTS: dict[int, Points] = {
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


def _product(factors: Iterable[Fraction]) -> Fraction:
    return prod(factors, start=Fraction(1))


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
def input_transform(points: Points, inputs: int, others: Points = ()) -> Transform:
    """B; of its n inputs only the first `inputs` are given, the others are zero.

    The weights may have been transformed for `others` among the points, too.
    """
    rows = [_polynomial(q for q in points if q != point) for point in points]
    rows = [
        [c * _product(point - other for other in others) for c in row]
        for point, row in zip(points, rows, strict=True)
    ]
    builder = _TransformBuilder(inputs)

    def given(row: Iterable[Fraction]) -> int:
        return builder.sum((c, at) for at, c in enumerate(row) if at < inputs)

    outputs = [given(_polynomial(points))]
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
    return builder.done(outputs)


@cache
def output_transform(points: Points, wanted: int, taps: int = 3) -> Transform:
    """The first `wanted` rows of A, of a correlation with `taps` weights."""
    size, results = len(points) + 1, len(points) + 2 - taps
    builder = _TransformBuilder(size)
    one = Fraction(1)
    # For even and for odd powers: of a pair the sum and the difference.
    values = []
    for numbers in _in_pairs(points):
        first, last = 1 + numbers[0], 1 + numbers[-1]
        even = odd = first
        if first != last:
            even, odd = (builder.sum([(one, first), (sign, last)]) for sign in (one, -one))
        values.append((points[numbers[0]], even, odd))
    outputs = []
    for i in range(wanted):
        terms = [(point**i, odd if i % 2 else even) for point, even, odd in values]
        if i == results - 1:
            terms.append((one, 0))
        outputs.append(builder.sum(terms))
    return builder.done(outputs)


@cache
def weight_transform(points: Points, taps: int) -> Transform:
    """G of so many weights."""
    builder = _TransformBuilder(taps)
    one = Fraction(1)
    outputs = [taps - 1]

    def terms(point: Fraction, powers: range) -> list[tuple[Fraction, int]]:
        scale = _product(point - other for other in points if other != point)
        return [(point**power / scale, power) for power in powers]

    for numbers in _in_pairs(points):
        point, other = points[numbers[0]], points[numbers[-1]]
        if len(numbers) == 1 or taps == 1:
            outputs += [builder.sum(terms(points[number], range(taps))) for number in numbers]
            continue
        even = builder.sum(terms(point, range(0, taps, 2)))
        odd = builder.sum(terms(point, range(1, taps, 2)))
        # Those of the other one have the same sizes.
        ours, theirs = terms(point, range(2)), terms(other, range(2))
        signs = [theirs[at][0] / ours[at][0] for at in range(2)]
        outputs.append(builder.sum([(one, even), (one, odd)]))
        outputs.append(builder.sum(zip(signs, (even, odd), strict=True)))
    return builder.done(outputs)


def _weight_matrix(points: Points, taps: int) -> np.ndarray:
    """G, [1 + len(points), taps] float64."""
    rows = [[*[0.0] * (taps - 1), 1.0]]
    for point in points:
        scale = _product(point - other for other in points if other != point)
        rows.append([float(point**power / scale) for power in range(taps)])
    return np.array(rows)


# Products at infinity and at the first two points.
_SHORTEST = 3
# Of weights that are transformed at a time.
_WINDOWS = 256


@dataclass(frozen=True, kw_only=True)
class LineForm:
    """`results` neighbouring results of a window of `taps` weights, in one direction.

    Where the window moves by a `stride` of two, the even and the odd inputs are two `parts`, each
    with weights of its own; the inputs of a part are `step` apart.
    """

    results: int
    points: Points
    taps: int
    stride: int = 1

    @property
    def parts(self) -> int:
        return self.stride

    @property
    def step(self) -> int:
        """From one input of a part to the next."""
        return self.stride

    @property
    def size(self) -> int:
        """Products."""
        return len(self.points) + 1

    @property
    def factors(self) -> int:
        """Transformed weights of a part, each for one product or for several."""
        return self.size

    @property
    def _weights_of_part(self) -> int:
        """Those of the part with most of them; another one has zeros in their place."""
        return -(-self.taps // self.stride)

    def reach(self, results: int, part: int = 0) -> int:
        """How many inputs of a part so many results read."""
        return results - 1 + len(range(part, self.taps, self.stride))

    @property
    def shortens(self) -> bool:
        """Whether a tile of fewer results may do with the first of the products.

        A bias is the product at 1 then, which is among the first `_SHORTEST`.
        """
        return Fraction(1) in self.points[: _SHORTEST - 1]

    def products(self, results: int) -> int:
        """The fewest that make so many results, where the form `shortens`."""
        return max(results + self._weights_of_part - 1, _SHORTEST)

    def forth(self, results: int, part: int = 0, products: int | None = None) -> Transform:
        """The transform of a part's inputs, of which there are those that `results` read, for the
        first `products`, None for all."""
        used, others = self._split(products)
        return input_transform(used, self.reach(results, part), others)

    def back(self, results: int, products: int | None = None) -> Transform:
        """The transform of the first `products`, None for all, to the first `results`."""
        return output_transform(self._split(products)[0], results, self._weights_of_part)

    def _split(self, products: int | None) -> tuple[Points, Points]:
        """The points of so many products, and the others."""
        count = len(self.points) if products is None else products - 1
        return self.points[:count], self.points[count:]

    def matrix(self, part: int) -> np.ndarray:
        """G, which makes the transformed weights of a part of all, [factors, taps] float64."""
        own = len(range(part, self.taps, self.stride))
        g = np.zeros((self.factors, self.taps))
        g[:, part :: self.stride] = _weight_matrix(self.points, self._weights_of_part)[:, :own]
        return g

    def weighing(self) -> Transform:
        """G as a transform, of a window that moves by one."""
        return weight_transform(self.points, self.taps)

    def ones(self) -> list[float]:
        """What, given to the transform of results, makes a 1 of each: what a polynomial's value at
        1 takes of those at the points (Lagrange)."""
        if not self.points:
            return [1.0]
        found = []
        for point in self.points:
            others = [other for other in self.points if other != point]
            found.append(float(_product((1 - other) / (point - other) for other in others)))
        return [0.0, *found, *[0.0] * (self.size - 1 - len(found))]


@dataclass(frozen=True, kw_only=True)
class SplitForm(LineForm):
    """Of windows of 3 weights that move by two: the even inputs by F(m, 2), the odd ones by the
    middle weight. Both are one part, whose last transformed weight is that of all products behind
    it, too."""

    taps: int = 3
    stride: int = 2

    @property
    def parts(self) -> int:
        return 1

    @property
    def step(self) -> int:
        return 1

    @property
    def size(self) -> int:
        return self.reach(self.results)

    @property
    def factors(self) -> int:
        return self.results + 2

    def reach(self, results: int, part: int = 0) -> int:
        del part
        return 2 * (results - 1) + 3

    @property
    def shortens(self) -> bool:
        return False

    def forth(self, results: int, part: int = 0, products: int | None = None) -> Transform:
        del part, products
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

    def back(self, results: int, products: int | None = None) -> Transform:
        del products
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

    def weighing(self) -> Transform:
        even = weight_transform(self.points, 2)

        def number(value: int) -> int:
            return 2 * value if value < even.inputs else value - even.inputs + self.taps

        outputs = (*map(number, even.outputs), 1)
        return Transform(inputs=self.taps, steps=_renumbered(even.steps, number), outputs=outputs)

    def matrix(self, part: int) -> np.ndarray:
        del part
        g = np.zeros((self.factors, 3))
        g[:-1, ::2] = _weight_matrix(self.points, 2)
        g[-1, 1] = 1.0
        return g


# Of a direction in which a window has one weight: nothing is transformed.
ONE = LineForm(results=1, points=(), taps=1)


@dataclass(frozen=True, kw_only=True)
class TileForm:
    """Tiles of some rows and columns of results: the forms `down` the rows and `across` them."""

    down: LineForm
    across: LineForm

    @property
    def both(self) -> tuple[LineForm, LineForm]:
        return self.down, self.across

    @property
    def results(self) -> int:
        """In the direction with more of them."""
        return max(form.results for form in self.both)

    @property
    def products(self) -> int:
        """Products per tile and pair of channels, of a part."""
        return self.down.size * self.across.size

    @property
    def factors(self) -> int:
        """Transformed weights per pair of channels, of a part."""
        return self.down.factors * self.across.factors

    @property
    def parts(self) -> int:
        """Images that the windows see, each with weights of its own."""
        return self.down.parts * self.across.parts

    @property
    def stride(self) -> int:
        """In the direction with the larger one."""
        return max(form.stride for form in self.both)

    def weights(self, weight: np.ndarray) -> np.ndarray:
        """[out, in, rows, columns] -> [factors, out, in, parts] float32: for each part G weights
        G^T, computed in float64."""
        outs, ins = weight.shape[:2]
        # One product with the Kronecker product of both G transforms rows and columns at once, for
        # a few windows that stay in the cache. numpy's BLAS would share larger products between
        # threads, of which one waits for the other most of the time.
        flat = weight.reshape(outs * ins, self.down.taps * self.across.taps)
        transformed = np.empty((self.factors, outs * ins, self.parts), "float32")
        lines = [[form.matrix(part) for part in range(form.parts)] for form in self.both]
        for number, (down, across) in enumerate(product(*lines)):
            both = np.kron(down, across)
            for first in range(0, outs * ins, _WINDOWS):
                some = flat[first : first + _WINDOWS].astype("float64")
                transformed[:, first : first + _WINDOWS, number] = both @ some.T
        return transformed.reshape(self.factors, outs, ins, self.parts)

    def ones(self) -> np.ndarray:
        """What, given to both transforms of results, makes a 1 of each, [products]."""
        return np.outer(self.down.ones(), self.across.ones()).ravel()


def _renumbered(steps: Iterable[Terms], number: Callable[[int], int]) -> tuple[Terms, ...]:
    return tuple(tuple((c, number(value)) for c, value in terms) for terms in steps)


def _forms(points: Mapping[int, Points], taps: int, stride: int = 1) -> dict[int, LineForm]:
    """By their results, of which one alone would save nothing."""
    forms = (
        LineForm(results=size + 1 - -(-taps // stride), points=some, taps=taps, stride=stride)
        for size, some in points.items()
    )
    return {form.results: form for form in forms if form.results > 1}


# By the window's weights in one direction and its stride; then by the number of results m.
FORMS: dict[tuple[int, int], Mapping[int, LineForm]] = {
    (3, 1): _forms(POINTS, 3),
    (3, 2): {m: SplitForm(results=m, points=points) for m, points in SPLIT_POINTS.items()},
    # Tiles of 7 would save few multiplications more, and store 16 times the weights.
    (4, 2): _forms({size: POINTS[size] for size in (4, 6)}, 4, 2),
    (5, 1): _forms(POINTS, 5),
    (5, 2): _forms(POINTS, 5, 2),
    (6, 2): _forms(POINTS, 6, 2),
    (7, 1): _forms(POINTS, 7),
    (7, 2): _forms(POINTS, 7, 2),
}
# In half precision, of 3 weights and stride 1.
HALF_FORMS = _forms(HALF_POINTS, 3)
