"""Element-wise arithmetic that is fused into the kernel whose result it starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from edgepack.compiler.kernels import tir


@dataclass(frozen=True, kw_only=True)
class Step:
    """The result of an earlier step; step 0 is what the kernel itself computed."""

    index: int


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A number."""

    value: float


@dataclass(frozen=True, kw_only=True)
class PerChannel:
    """A constant with one value per channel: the `index`-th of the layer's."""

    index: int


@dataclass(frozen=True, kw_only=True)
class Operand:
    """Another tensor of the layer's shape, or one value per channel of it (`pixel`)."""

    index: int
    pixel: bool = False


Argument = Step | Scalar | PerChannel | Operand


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One step: a function of `FUNCTIONS` and its arguments."""

    name: str
    arguments: tuple[Argument, ...]


# Steps 1, 2, ...; the last one is the result. Empty: step 0 is.
Expression = tuple[Operation, ...]


def _exp(x: tirx.Expr, lanes: int) -> tirx.Expr:
    """e^x to 2e-7 relative: 2^n by the exponent bits, times Cephes' expf polynomial.

    Needs no libm, and no rounding instruction (ARMv7 has none): the conversion to int
    truncates, so half is added away from zero.
    """

    def c(value: float) -> tirx.Expr:
        return tir.number(value, lanes)

    # Beyond these e^x is no normal float32.
    x = tirx.max(tirx.min(x, c(88.3762626647949)), c(-87.3365478515625))
    scaled = x * c(1.44269504088896341)
    half = tirx.Select(scaled < c(0.0), c(-0.5), c(0.5))
    whole = tirx.Cast(_like("int32", lanes), scaled + half)
    n = tirx.Cast(_like("float32", lanes), whole)
    # ln 2 in two parts: the product with the first is exact.
    r = x - n * c(0.693359375) - n * c(-2.12194440e-4)
    p = c(1.9875691500e-4)
    for coefficient in (
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    ):
        p = p * r + c(coefficient)
    p = p * r * r + r + c(1.0)
    bits = (whole + tir.spread(tir.integer(127), lanes)) << tir.spread(tir.integer(23), lanes)
    return p * tirx.reinterpret(_like("float32", lanes), bits)


def _like(dtype: str, lanes: int) -> str:
    return f"{dtype}x{lanes}" if lanes > 1 else dtype


def _sigmoid(x: tirx.Expr, lanes: int) -> tirx.Expr:
    one = tir.number(1.0, lanes)
    return one / (one + _exp(tir.number(0.0, lanes) - x, lanes))


def _tanh(x: tirx.Expr, lanes: int) -> tirx.Expr:
    one, two = tir.number(1.0, lanes), tir.number(2.0, lanes)
    return one - two / (_exp(x * two, lanes) + one)


def _prelu(x: tirx.Expr, slope: tirx.Expr, lanes: int) -> tirx.Expr:
    zero = tir.number(0.0, lanes)
    return tirx.max(x, zero) + tirx.min(x, zero) * slope


# Name -> (number of arguments, the arithmetic; the last argument is the number of lanes).
FUNCTIONS: dict[str, tuple[int, Callable[..., tirx.Expr]]] = {
    "add": (2, lambda a, b, _: a + b),
    "subtract": (2, lambda a, b, _: a - b),
    "multiply": (2, lambda a, b, _: a * b),
    "divide": (2, lambda a, b, _: a / b),
    "maximum": (2, lambda a, b, _: tirx.max(a, b)),
    "minimum": (2, lambda a, b, _: tirx.min(a, b)),
    "prelu": (2, _prelu),
    "negative": (1, lambda a, n: tir.number(0.0, n) - a),
    "abs": (1, lambda a, n: tirx.max(a, tir.number(0.0, n) - a)),
    "exp": (1, _exp),
    "sigmoid": (1, _sigmoid),
    "tanh": (1, _tanh),
    "silu": (1, lambda a, n: a * _sigmoid(a, n)),
}


# Functions of dozens of instructions.
LONG = frozenset({"exp", "sigmoid", "tanh", "silu"})


def evaluate(
    expression: Expression,
    start: tirx.Expr,
    lanes: int,
    names: tir.Names,
    channel: Callable[[int], tirx.Expr],
    operand: Callable[[int, bool], tirx.Expr],
) -> tirx.Expr:
    """The expression's value for a vector of `lanes` channels of one pixel.

    `channel(i)` and `operand(i, pixel)` load what the expression refers to; every step is
    bound to a name in `names`.
    """
    values = [names.bind("v", start)]

    def argument(item: Argument) -> tirx.Expr:
        match item:
            case Step():
                return values[item.index]
            case Scalar():
                return tir.number(item.value, lanes)
            case PerChannel():
                return channel(item.index)
            case Operand():
                return operand(item.index, item.pixel)

    for operation in expression:
        _, compute = FUNCTIONS[operation.name]
        result = compute(*(argument(item) for item in operation.arguments), lanes)
        values.append(names.bind("v", result))
    return values[-1]
