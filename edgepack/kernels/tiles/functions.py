"""Transcendental functions as plain arithmetic on float32, a scalar or a vector of any width.

LLVM turns `exp` and its like into a call of libm per element. These have no call, no branch and
no table, so they run on all lanes at once. They need no rounding instruction either (ARMv7 NEON
has none). NaN gives NaN. The error bounds are the largest found over a million arguments, against
double precision (`tests/unit/test_compiler_functions.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tvm
from tvm import tirx

from edgepack.kernels.tiles import tir


def exp(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """e^x within 2e-7 of it: 0 below -87, infinite above 88.72.

    2^(n - 1) by the exponent's bits, times 2 e^r, |r| <= ln 2 / 2, by the polynomial of Cephes'
    expf (Moshier). The factor 2 is moved so that n = 128 does not overflow before the end.
    """
    # Both are far enough outside for the result to be infinite, or its exponent's bits 0.
    clamped = scope.bind(scope.clamped(x, -87.3, 88.8))
    n, bits = scope.rounded(clamped * scope.c(1.44269504088896341), bias=126)
    # ln 2 in two parts: the product with the first is exact.
    r = scope.bind(clamped - n * scope.c(_LN2_HIGH) - n * scope.c(_LN2_LOW))
    coefficients = (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
        1.0,
        1.0,
    )
    twice = scope.polynomial(r, [2 * coefficient for coefficient in coefficients])
    return twice * scope.from_bits(bits << scope.i(23))


def power_of_two(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """2^x for x <= 0, within 2.5e-7 of it: 0 below -126.5.

    2^n by the exponent's bits, times 2^r, |r| <= 1/2, by a polynomial that Lawson's iteration
    found, for the least relative error (8e-8).
    """
    clamped = scope.bind(tirx.max(scope.c(-127.0), x))
    n, bits = scope.rounded(clamped, bias=127)
    r = scope.bind(clamped - n)
    coefficients = (
        1.3276472055e-3,
        9.6755414643e-3,
        5.5507132744e-2,
        2.4022119721e-1,
        6.9314696706e-1,
        1.0,
    )
    return scope.polynomial(r, coefficients) * scope.from_bits(bits << scope.i(23))


def log(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """ln x within 2e-7 of it (absolute 1e-7 near 1). -infinity at 0, NaN below.

    Mantissa in [sqrt(1/2), sqrt(2)) by the polynomial of Cephes' logf, exponent times ln 2.
    Arguments below the normal numbers are made ones first, by 2^24.
    """
    start = scope.bind(x)
    tiny = start < scope.c(2.0**-126)
    normal = tirx.Select(tiny, start * scope.c(2.0**24), start)
    bits = scope.bind(scope.to_bits(tirx.max(normal, scope.c(2.0**-126))))
    exponent = (bits >> scope.i(23)) - scope.i(126)
    mantissa = scope.bind(scope.from_bits((bits & scope.i(0x7FFFFF)) | scope.i(0x3F000000)))
    small = mantissa < scope.c(0.5**0.5)
    e = scope.as_float(exponent) - tirx.Select(small, scope.c(1.0), scope.c(0.0))
    e = scope.bind(e - tirx.Select(tiny, scope.c(24.0), scope.c(0.0)))
    r = scope.bind(mantissa + tirx.Select(small, mantissa, scope.c(0.0)) - scope.c(1.0))
    square = scope.bind(r * r)
    p = scope.polynomial(
        r,
        (
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        ),
    )
    tail = p * r * square + e * scope.c(_LN2_LOW) - scope.c(0.5) * square
    value = scope.bind(r + tail + e * scope.c(_LN2_HIGH))
    infinity, nan = scope.c(float("inf")), scope.c(float("nan"))
    value = scope.bind(tirx.Select(start < infinity, value, start))
    negative = tirx.Select(start < scope.c(0.0), nan, scope.c(float("-inf")))
    return tirx.Select(start <= scope.c(0.0), negative, value)


def power(base: tirx.Expr, exponent: tirx.Expr, scope: Scope) -> tirx.Expr:
    """base^exponent for a constant exponent, else libm's.

    Whole exponents by multiplication; others as e^(exponent * ln base), whose relative error
    grows with the result's logarithm, up to 1e-5.
    """
    value = float(exponent.value) if isinstance(exponent, tirx.FloatImm) else None
    if value is None or (value.is_integer() and abs(value) > _MOST_WHOLE):
        return tirx.pow(base, exponent)
    base = scope.bind(base)
    if value == 0.5:
        infinity = scope.c(float("inf"))
        return tirx.Select(tirx.EQ(base, scope.c(float("-inf"))), infinity, tirx.sqrt(base))
    if value.is_integer():
        result, square = scope.c(1.0), base
        for bit in range(abs(int(value)).bit_length()):
            if abs(int(value)) >> bit & 1:
                result = scope.bind(result * square)
            square = scope.bind(square * square)
        return result if value >= 0 else scope.c(1.0) / result
    result = exp(log(base, scope) * scope.c(value), scope)
    # As IEEE 754 has it: no number below 0 has such a power, but minus infinity has.
    far = scope.c(float("inf") if value > 0 else 0.0)
    below = tirx.Select(tirx.EQ(base, scope.c(float("-inf"))), far, scope.c(float("nan")))
    return tirx.Select(base < scope.c(0.0), below, result)


def sigmoid(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """1 / (1 + e^-x) within 3e-7 of it."""
    return scope.c(1.0) / (scope.c(1.0) + exp(scope.c(0.0) - x, scope))


def tanh(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """Tanh within 5e-7 of it: Eigen's rational function (`ptanh_float`) up to where it is 1."""
    clamped = scope.bind(scope.clamped(x, -_TANH_ENDS, _TANH_ENDS))
    square = scope.bind(clamped * clamped)
    over = scope.polynomial(
        square,
        (
            -2.76076847742355e-16,
            2.00018790482477e-13,
            -8.60467152213735e-11,
            5.12229709037114e-08,
            1.48572235717979e-05,
            6.37261928875436e-04,
            4.89352455891786e-03,
        ),
    )
    under = scope.polynomial(
        square,
        (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
    )
    return clamped * over / under


def erf(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """The error function within 4e-7 of it: Eigen's rational function up to where it is 1."""
    clamped = scope.bind(scope.clamped(x, -4.0, 4.0))
    square = scope.bind(clamped * clamped)
    over = scope.polynomial(
        square,
        (
            -2.72614225801306e-10,
            2.77068142495902e-08,
            -2.10102402082508e-06,
            -5.69250639462346e-05,
            -7.34990630326855e-04,
            -2.95459980854025e-03,
            -1.60960333262415e-02,
        ),
    )
    under = scope.polynomial(
        square,
        (
            -1.45660718464996e-05,
            -2.13374055278905e-04,
            -1.68282697438203e-03,
            -7.37332916720468e-03,
            -1.42647390514189e-02,
        ),
    )
    return clamped * over / under


def gelu(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """x times the normal distribution's share below x, within 4e-7 times x of it.

    The share less a half, up to where it is a half, is x P(x^2) / Q(x^2): coefficients by
    Lawson's iteration, for the least absolute error (9e-8) from it and 2.1e-7 (x / 5.2)^24: at the
    lower end the share is below 0, which becomes 0. So what is far below gives 0 whatever its size,
    and minus infinity NaN, as in onnxruntime.
    """
    x = scope.bind(x)
    clamped = scope.bind(scope.clamped(x, -_GELU_ENDS, _GELU_ENDS))
    square = scope.bind(clamped * clamped)
    over = scope.polynomial(
        square,
        (
            -1.6320231837606808e-08,
            5.453637810741565e-06,
            0.00041866147518935447,
            0.006125798835353606,
            0.0609320848380772,
            0.39894172630468855,
        ),
        bound=True,
    )
    under = scope.polynomial(
        square,
        (
            0.000140627835742193,
            0.003293693289797995,
            0.04360412393090925,
            0.31939160670128325,
            1.0,
        ),
        bound=True,
    )
    share = scope.c(0.5) + scope.bind(clamped * over / under)
    return x * tirx.max(scope.c(0.0), share)


def gelu_tanh(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """`gelu` by Hendrycks and Gimpel's formula with tanh (arXiv:1606.08415)."""
    x = scope.bind(x)
    cubed = scope.bind(x + scope.c(0.044715) * x * x * x)
    half = scope.bind(x * scope.c(0.5))
    return half + half * tanh(cubed * scope.c((2 / math.pi) ** 0.5), scope)


def sin(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """Sine, absolute error 1e-7 for |x| <= 12800 and 1e-6 up to 1e5; libm's beyond."""
    return _wave(x, scope, quarter=0, far="llvm.sin")


def cos(x: tirx.Expr, scope: Scope) -> tirx.Expr:
    """Cosine, as exact as `sin`."""
    return _wave(x, scope, quarter=1, far="llvm.cos")


def _wave(x: tirx.Expr, scope: Scope, quarter: int, far: str) -> tirx.Expr:
    """sin(x + quarter * pi / 2): what n quarter turns leave, by Cephes' sinf or cosf.

    Where there are too many, `far`, of which the compiler makes a branch.
    """
    start = scope.bind(x)
    n, whole = scope.rounded(start * scope.c(0.63661977236758134), bias=0)
    # pi / 2 in three parts: the products with the first two are exact.
    r = start - n * scope.c(1.5703125) - n * scope.c(4.837512969970703125e-4)
    r = scope.bind(r - n * scope.c(7.549789954891e-8))
    z = scope.bind(r * r)
    sine = scope.polynomial(z, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)) * z * r + r
    cosine = scope.polynomial(
        z, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
    )
    cosine = cosine * z * z - scope.c(0.5) * z + scope.c(1.0)
    turn = scope.bind(whole + scope.i(quarter))
    odd = (turn & scope.i(1)) > scope.i(0)
    value = scope.bind(tirx.Select(odd, cosine, sine))
    negative = (turn & scope.i(2)) > scope.i(0)
    value = scope.bind(tirx.Select(negative, scope.c(0.0) - value, value))
    libm = tirx.call_llvm_pure_intrin(str(start.ty.dtype), far, start)
    return tirx.Select(start * start <= scope.c(_MOST_WAVE**2), value, libm)


LIBM = ("llvm.sin", "llvm.cos")
"""What becomes a call of libm for each lane, if another value is not to be taken."""
# Quarter turns of this are fewer than 2^16, and the first part of pi / 2 has 8 bits.
_MOST_WAVE = 1e5
# Larger whole exponents are rare enough for libm.
_MOST_WHOLE = 64
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# Where Eigen's function is 1, whether multiply-adds are fused or not; tanh is from 7.91 on.
_TANH_ENDS = 9.0
# Where the normal distribution's share below is 1 but for what `gelu` may be wrong by.
_GELU_ENDS = 5.2


class Scope:
    """Where functions put values that they use more than once, each computed once by `bind`."""

    def __init__(self, lanes: int, bind: Callable[[tirx.Expr], tirx.Var]) -> None:
        self.lanes = lanes
        self.bind = bind

    def c(self, value: float) -> tirx.Expr:
        return tir.number(value, "float32", self.lanes)

    def i(self, value: int) -> tirx.Expr:
        return tir.spread(tir.integer(value), self.lanes)

    def _type(self, name: str) -> str:
        return f"{name}x{self.lanes}" if self.lanes > 1 else name

    def as_float(self, value: tirx.Expr) -> tirx.Expr:
        return tirx.Cast(self._type("float32"), value)

    def to_bits(self, value: tirx.Expr) -> tirx.Expr:
        return tirx.reinterpret(self._type("int32"), value)

    def from_bits(self, value: tirx.Expr) -> tirx.Expr:
        return tirx.reinterpret(self._type("float32"), value)

    def clamped(self, value: tirx.Expr, least: float, most: float) -> tirx.Expr:
        """Between `least` and `most`, and NaN for NaN.

        The order matters: `min(a, b)` is b unless a < b, `max(a, b)` is b unless a > b.
        """
        return tirx.max(self.c(least), tirx.min(self.c(most), value))

    def rounded(self, value: tirx.Expr, bias: int) -> tuple[tirx.Var, tirx.Expr]:
        """The nearest whole number n, for |n| < 2^21, and an int32 whose low 22 bits are n + bias.

        Adding 1.5 * 2^23 leaves no bits for a fraction, and n in the lowest ones. The detour of
        n keeps TVM's simplifier, to which floats are real numbers, from undoing it.
        """
        shift = self.c(1.5 * 2**23 + bias)
        bits = self.bind(self.to_bits(value + shift))
        return self.bind(self.from_bits(bits) - shift), bits

    def polynomial(
        self, x: tirx.Expr, coefficients: Sequence[float], *, bound: bool = False
    ) -> tirx.Expr:
        """Horner's rule, the highest power's coefficient first; with a name for each step if it is
        to be `bound`, which takes TVM longer."""
        result = self.c(coefficients[0])
        for coefficient in coefficients[1:]:
            result = result * x + self.c(coefficient)
            result = self.bind(result) if bound else result
        return result


def as_expression(function: Callable[..., tirx.Expr], *arguments: tirx.Expr) -> tirx.Expr:
    """A function of scalars as one expression, with its values bound inside.

    Neither another name of what has one nor a value that nothing reads is bound: where they stand
    in a condition, TVM's simplifier takes them for two values of one name.
    """
    bound: list[tuple[tirx.Var, tirx.Expr]] = []

    def bind(value: tirx.Expr) -> tirx.Expr:
        if isinstance(value, tirx.Var | tirx.IntImm | tirx.FloatImm):
            return value
        bound.append((tirx.Var("v", value.ty), value))
        return bound[-1][0]

    result = function(*arguments, Scope(1, bind))
    for name, value in reversed(bound):
        if any(free.same_as(name) for free in tirx.analysis.undefined_vars(result)):
            result = tirx.Let(name, value, result)
    return result


# By TIR's names of them.
FUNCTIONS: dict[str, Callable[..., tirx.Expr]] = {
    "exp": exp,
    "log": log,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "pow": power,
}


def is_function(call: tvm.ir.Call) -> bool:
    """Whether it calls one of `FUNCTIONS`."""
    return name_of(call) in FUNCTIONS


def name_of(call: tvm.ir.Call) -> str:
    """The name of a built-in function, without the dialect that it belongs to."""
    return call.op.name.rpartition(".")[2] if isinstance(call.op, tvm.ir.Op) else ""
