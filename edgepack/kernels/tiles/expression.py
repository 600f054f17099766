"""Element-wise arithmetic that is fused into the kernel whose result it starts from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx

from edgepack.kernels.tiles import functions, tir
from edgepack.kernels.tiles.functions import Scope


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


def _prelu(x: tirx.Expr, slope: tirx.Expr, scope: Scope) -> tirx.Expr:
    return tirx.Select(x < scope.c(0.0), x * slope, x)


# Name -> (number of arguments, the arithmetic; its last argument is where it binds values).
FUNCTIONS: dict[str, tuple[int, Callable[..., tirx.Expr]]] = {
    # Nodes, for what Python's operators return is folded as real numbers are: x * 0 is 0.
    "add": (2, lambda a, b, _: tirx.Add(a, b)),
    "subtract": (2, lambda a, b, _: tirx.Sub(a, b)),
    "multiply": (2, lambda a, b, _: tirx.Mul(a, b)),
    "divide": (2, lambda a, b, _: tirx.Div(a, b)),
    "maximum": (2, lambda a, b, _: tirx.Max(a, b)),
    "minimum": (2, lambda a, b, _: tirx.Min(a, b)),
    "prelu": (2, _prelu),
    "negative": (1, lambda a, scope: tirx.Mul(a, scope.c(-1.0))),
    "abs": (1, lambda a, _: tirx.abs(a)),
    "sqrt": (1, lambda a, _: tirx.sqrt(a)),
    "exp": (1, functions.exp),
    "log": (1, functions.log),
    "sin": (1, functions.sin),
    "cos": (1, functions.cos),
    "erf": (1, functions.erf),
    "sigmoid": (1, functions.sigmoid),
    "tanh": (1, functions.tanh),
    "gelu": (1, functions.gelu),
    "gelu_tanh": (1, functions.gelu_tanh),
    "silu": (1, lambda a, scope: a * functions.sigmoid(a, scope)),
}


# Functions of dozens of instructions.
LONG = frozenset(
    {"exp", "log", "sin", "cos", "erf", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu"}
)


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
    expression = with_gelus(expression)
    scope = Scope(lanes, partial(names.bind, "f"))
    values = [names.bind("v", start)]

    def argument(item: Argument) -> tirx.Expr:
        match item:
            case Step():
                return values[item.index]
            case Scalar():
                return tir.number(item.value, str(start.ty.dtype.with_lanes(1)), lanes)
            case PerChannel():
                return channel(item.index)
            case Operand():
                return operand(item.index, item.pixel)

    added = _added(expression)
    for index, operation in enumerate(expression, 1):
        _, compute = FUNCTIONS[operation.name]
        if operation.name == "multiply" and index in added:
            compute = _rounded_product
        result = compute(*(argument(item) for item in operation.arguments), scope)
        values.append(names.bind("v", result))
    return values[-1]


def _rounded_product(a: tirx.Expr, b: tirx.Expr, _: Scope) -> tirx.Expr:
    return tir.rounded_product(a, b)


def _added(expression: Expression) -> set[int]:
    """The steps whose products are rounded before they are added, as ONNX's operators are.

    What is scaled and shifted by channel may be rounded once: a normalisation is one operator.
    """
    found = set()
    for operation in expression:
        if operation.name in ("add", "subtract"):
            by_channel = any(isinstance(item, PerChannel) for item in operation.arguments)
            for item in operation.arguments:
                if (
                    isinstance(item, Step)
                    and item.index
                    and not (by_channel and _is_by_channel(expression[item.index - 1]))
                ):
                    found.add(item.index)
    return found


def _is_by_channel(operation: Operation) -> bool:
    return any(isinstance(item, PerChannel) for item in operation.arguments)


# Constants that exporters round are as good as the exact ones if they are so near.
_NEAR = 1e-6
# Products of more are no part of Gelu, or not worth looking for.
_MOST_FACTORS = 4


@dataclass(frozen=True, kw_only=True)
class _Factored:
    """A number times some factors: steps, or one more than erf of a product."""

    number: float = 1.0
    factors: tuple[int | _Factored, ...] = ()

    def times(self, other: _Factored) -> _Factored:
        return _Factored(number=self.number * other.number, factors=(*self.factors, *other.factors))

    def scaled(self, number: float) -> _Factored:
        return replace(self, number=self.number * number)

    def near(self, other: _Factored) -> bool:
        numbers = math.isclose(self.number, other.number, rel_tol=_NEAR)
        return numbers and Counter(self.factors) == Counter(other.factors)


def with_gelus(expression: Expression) -> Expression:
    """The expression, in which x / 2 (1 + erf(x / sqrt 2)) is one step, whatever its order."""
    products = [_Factored(factors=(0,))]
    erfs: dict[int, _Factored] = {}  # of what, by the step
    made: list[Operation] = []
    for index, operation in enumerate(expression, 1):
        product = _product_of(operation, products, erfs) or _Factored(factors=(index,))
        start = _start_of_gelu(product, products)
        if start is None:
            made.append(operation)
            products.append(product)
        else:
            made.append(Operation(name="gelu", arguments=(Step(index=start),)))
            products.append(_Factored(factors=(index,)))
        match operation:
            case Operation(name="erf", arguments=(Step(index=i),)):
                erfs[index] = products[i]
    return _needed(made)


def _product_of(
    operation: Operation, products: Sequence[_Factored], erfs: Mapping[int, _Factored]
) -> _Factored | None:
    """What a step is the product of, if it is one, or one more than erf."""
    arguments = operation.arguments
    if isinstance(arguments[0], Scalar) and operation.name in ("add", "multiply"):
        arguments = arguments[::-1]
    match operation.name, arguments:
        case "multiply", (Step(index=i), Step(index=j)):
            whole = products[i].times(products[j])
            return whole if len(whole.factors) <= _MOST_FACTORS else None
        case "multiply", (Step(index=i), Scalar(value=by)):
            return products[i].scaled(by)
        case "divide", (Step(index=i), Scalar(value=by)) if by:
            return products[i].scaled(1 / by)
        case "add", (Step(index=i), Scalar(value=1.0)) if i in erfs:
            return _Factored(factors=(erfs[i],))
    return None


def _start_of_gelu(product: _Factored, products: Sequence[_Factored]) -> int | None:
    """The step of whose value a product is Gelu."""
    for factor in product.factors:
        if isinstance(factor, _Factored):
            start = factor.scaled(2**0.5)
            whole = start.scaled(0.5).times(_Factored(factors=(factor,)))
            if product.near(whole):
                return next((i for i, other in enumerate(products) if other.near(start)), None)
    return None


def _needed(expression: Sequence[Operation]) -> Expression:
    """The steps that the last one is made of."""
    needed = {len(expression)}
    for index in range(len(expression), 0, -1):
        if index in needed:
            needed |= {
                item.index for item in expression[index - 1].arguments if isinstance(item, Step)
            }
    order = [0, *(index for index in sorted(needed) if index)]
    numbers = {old: new for new, old in enumerate(order)}
    return tuple(
        replace(
            expression[old - 1],
            arguments=tuple(
                Step(index=numbers[item.index]) if isinstance(item, Step) else item
                for item in expression[old - 1].arguments
            ),
        )
        for old in order[1:]
    )
