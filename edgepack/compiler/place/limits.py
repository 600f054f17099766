"""How large Winograd's tiles may be: small ones where a model's own input is read as it is.

The error of a tile is a share of the largest value that it reads, and reaches all of its results: a
broken pixel of 65535, or infinity, is seen at places that it does not reach. Numbers in a network
have the size that it was trained with. What comes from outside may have any, unless something
bounds it before: preprocessing, a type of 8 bits, or a layer such as Clip or Sigmoid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from edgepack.frontend.precision import Precision
from edgepack.kernels.layer import (
    Concatenation,
    Conversion,
    Convolution,
    Crop,
    Foreign,
    GlobalPooling,
    Layer,
    Pointwise,
    Pooling,
    Resampling,
    Slice,
    View,
)
from edgepack.kernels.limits import LayerLimits, LimitsByValue
from edgepack.kernels.rules.table import RULES
from edgepack.kernels.tiles.expression import Argument, Operand, Operation, Scalar, Step
from edgepack.kernels.value import Value

# Results of a tile in each direction where nothing bounds what is read.
UNBOUNDED = 2

# Whether something is bounded below, and above.
_Bounds = tuple[bool, bool]
_OPEN: _Bounds = (False, False)
_CLOSED: _Bounds = (True, True)

# Operators whose results are as large as what they read.
_HANDS_ON = (
    Concatenation,
    Conversion,
    Crop,
    GlobalPooling,
    Pointwise,
    Pooling,
    Resampling,
    Slice,
    View,
)
# The same of what TVM lowers, by Relax's names: what moves elements, and simple arithmetic.
_FOREIGN = frozenset(
    {
        *("abs", "add", "astype", "broadcast_to", "call_tir", "concat", "divide", "expand_dims"),
        *("flip",),
        *("gather_elements", "gather_nd", "image.resize2d", "layout_transform", "max", "maximum"),
        *("mean", "min", "minimum", "multiply", "negative", "nn.pad", "nn.leakyrelu", "nn.relu"),
        *("permute_dims", "prelu", "repeat", "reshape", "split", "squeeze", "stack"),
        *("strided_slice", "subtract", "sum", "take", "tile", "where"),
    }
)
# Functions of any number whose results are of the size of 1.
_SMALL = frozenset({"cos", "erf", "sigmoid", "sin", "tanh"})
# ONNX's operators whose results are of the size of 1, however many of Relax's they become.
_NORMALISES = frozenset(
    f"{kind}Normalization"
    for kind in ("Group", "Instance", "Layer", "Lp", "MeanVariance", "RMS", "SkipLayer")
)
_EIGHT_BITS = frozenset({"bool", "int8", "uint8"})


def limit_tiles(
    layers: Sequence[Layer],
    params: Sequence[Value],
    precision: Precision,
    limits: LimitsByValue,
) -> None:
    """Limit Winograd's tiles where `precision` asks for it, and where a model's input is read that
    nothing bounds."""
    found = _Sources({p: p.name for p in params if _is_open(p, precision)})
    for layer in layers:
        limits[layer.output] = found.limited(layer, limits.of(layer), precision)


def _is_open(param: Value, precision: Precision) -> bool:
    return param.name not in precision.bounded and param.dtype not in _EIGHT_BITS


class _Sources:
    """Which input each value has its size from, by its name, as far as nothing bounds it."""

    def __init__(self, params: Mapping[Value, str]) -> None:
        self._names: dict[Value, str] = dict(params)
        self._bounds: dict[Value, _Bounds] = dict.fromkeys(params, _OPEN)

    def limited(self, layer: Layer, own: LayerLimits, precision: Precision) -> LayerLimits:
        """What a layer's `own` limits become; layers come in the order in which they are
        computed."""
        self._follow(layer)
        if not isinstance(layer.operator, Convolution):
            return own
        if precision.is_direct(layer.nodes):
            return replace(own, most_results=0, reason="[compile] exact")
        source = self._names.get(layer.inputs[0])
        if source is None or _largest_tile(layer, own) <= UNBOUNDED:
            return own
        why = f"nothing bounds the input '{source}'"
        return replace(own, most_results=UNBOUNDED, reason=why)

    def _follow(self, layer: Layer) -> None:
        """Note what a layer's results are as large as."""
        reads = [*layer.inputs, *layer.operands]
        source = next((self._names[value] for value in reads if value in self._names), None)
        if source is None or not _hands_on(layer):
            return
        bounds = self._of_expression(layer)
        if bounds != _CLOSED:
            self._names[layer.output], self._bounds[layer.output] = source, bounds

    def _of(self, value: Value) -> _Bounds:
        return self._bounds.get(value, _CLOSED)

    def _of_expression(self, layer: Layer) -> _Bounds:
        """Bounds of the result of a layer's epilogue."""
        first = [self._of(value) for value in layer.inputs]
        steps = [(all(low for low, _ in first), all(high for _, high in first))]

        def of(argument: Argument) -> _Bounds:
            if isinstance(argument, Step):
                return steps[argument.index]
            if isinstance(argument, Operand):
                return self._of(layer.operands[argument.index])
            return _CLOSED

        for operation in layer.expression:
            steps.append(_bounds_of(operation, [of(item) for item in operation.arguments]))
        return steps[-1]


def _largest_tile(layer: Layer, limits: LayerLimits) -> int:
    able = (rule.within(limits) for rule in RULES)
    found = (rule.largest_tile(layer) for rule in able if rule.largest_tile is not None)
    return max(found, default=0)


def _hands_on(layer: Layer) -> bool:
    """Whether results may be as large as what is read."""
    origins = (value.origin for value in layer.computes)
    if any(origin is not None and origin.operator in _NORMALISES for origin in origins):
        return False
    if isinstance(layer.operator, Foreign):
        return _FOREIGN.issuperset(layer.operator.names)
    return isinstance(layer.operator, _HANDS_ON)


def _bounds_of(operation: Operation, given: Sequence[_Bounds]) -> _Bounds:
    """Bounds of a step's result, by those of its arguments."""
    rule = _RULES.get(operation.name)
    if operation.name in _SMALL or all(bounds == _CLOSED for bounds in given):
        return _CLOSED
    if rule is not None:
        return rule(*given)
    if operation.name in ("multiply", "divide"):
        return _scaled(operation, given)
    return _OPEN


def _scaled(operation: Operation, given: Sequence[_Bounds]) -> _Bounds:
    for argument, (low, high) in zip(operation.arguments, reversed(given), strict=True):
        if isinstance(argument, Scalar):
            return (low, high) if argument.value > 0 else (high, low)
    return _OPEN


# Of one or two arguments.
_RULES: Mapping[str, Callable[..., _Bounds]] = {
    "add": lambda a, b: (a[0] and b[0], a[1] and b[1]),
    "subtract": lambda a, b: (a[0] and b[1], a[1] and b[0]),
    "maximum": lambda a, b: (a[0] or b[0], a[1] and b[1]),
    "minimum": lambda a, b: (a[0] and b[0], a[1] or b[1]),
    "negative": lambda a: (a[1], a[0]),
    "abs": lambda a: (True, a[0] and a[1]),
    "sqrt": lambda a: (True, a[1]),
    "exp": lambda a: (True, a[1]),
    "gelu": lambda a: (True, a[1]),
    "gelu_tanh": lambda a: (True, a[1]),
    "silu": lambda a: (True, a[1]),
    "prelu": lambda a, _: a,
}
