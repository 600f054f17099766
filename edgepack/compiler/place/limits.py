"""How large Winograd's tiles may be: small ones where a model's own input is read as it is.

The error of a tile is a share of the largest value that it reads, and reaches all of its results: a
broken pixel of 65535, or infinity, is seen at places that it does not reach. Numbers in a network
have the size that it was trained with. What comes from outside may have any, unless something
bounds it before: preprocessing, a type of 8 bits, or a layer such as Clip or Sigmoid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from edgepack.frontend.precision import Precision
from edgepack.kernels.integer import IntegerOperator
from edgepack.kernels.layer import (
    Attention,
    Concatenation,
    Conversion,
    Convolution,
    Crop,
    DynamicIntegers,
    DynamicRange,
    DynamicSums,
    Extremum,
    Foreign,
    GlobalPooling,
    Layer,
    Norm,
    Operator,
    Pointwise,
    Pooling,
    Quantize,
    Resampling,
    RowProduct,
    Slice,
    Softmax,
    Stack,
    Streamed,
    Unstack,
    View,
)
from edgepack.kernels.limits import LayerLimits, LimitsByValue
from edgepack.kernels.rules.table import RULES
from edgepack.kernels.tiles.expression import (
    Argument,
    Operand,
    Operation,
    PerChannel,
    Scalar,
    Step,
)
from edgepack.kernels.value import Value

# Results of a tile in each direction where nothing bounds what is read.
UNBOUNDED = 2
# A larger number bounds nothing: the type's largest, for a bound that Clip is not given, or 65535,
# of a broken pixel. This is what sensors of 12 bits have at most; by the largest tiles it is 0.03
# off, about as much as 65535 by the smallest: 0.02 (docs/guides/precision.md).
LARGEST_BOUND = 4096.0

# Whether something is bounded below, and above.
_Bounds = tuple[bool, bool]
_OPEN: _Bounds = (False, False)
_CLOSED: _Bounds = (True, True)

# What is not named below has no bounds where one of what it reads has none.
#
# Operators that end what has no bounds: of bounded results, or a layer with weights of its own.
_ENDS = (
    DynamicIntegers,
    DynamicRange,
    DynamicSums,
    Extremum,
    IntegerOperator,
    Norm,
    Quantize,
    RowProduct,
)
# Operators whose results are within the bounds of what they read.
_KEEPS = (
    Concatenation,
    Conversion,
    Crop,
    GlobalPooling,
    Pointwise,
    Pooling,
    Slice,
    Stack,
    Unstack,
    View,
)
# The same of what TVM lowers, by Relax's names.
_FOREIGN_ENDS = frozenset(
    {
        *("acos", "argmax", "argmin", "argsort", "asin", "atan", "cos", "einsum", "erf", "matmul"),
        *("nn.conv1d", "nn.conv1d_transpose", "nn.conv2d", "nn.conv2d_transpose", "nn.conv3d"),
        *("nn.conv3d_transpose", "nn.group_norm", "nn.instance_norm", "nn.layer_norm"),
        *("nn.rms_norm", "nn.softmax", "one_hot", "quantize", "shape_of", "sigmoid", "sign"),
        *("sin", "size", "tanh"),
    }
)
_FOREIGN_KEEPS = frozenset(
    {
        *("astype", "broadcast_to", "concat", "expand_dims", "flip", "layout_transform", "max"),
        *("maximum", "mean", "min", "minimum", "nn.pad", "nn.relu", "permute_dims", "repeat"),
        *("reshape", "split", "squeeze", "stack", "strided_slice", "sum", "tile", "where"),
    }
)
# These read positions, too, which their results are not as large as.
_PICKS = frozenset({"gather_elements", "gather_nd", "take"})
# Functions of any number whose results are of the size of 1.
_SMALL = frozenset({"cos", "erf", "sigmoid", "sin", "tanh"})
# ONNX's operators that end it, however many of Relax's they become.
_NODES_END = frozenset(
    {
        *("Acos", "Asin", "Atan", "Cos", "DeformConv", "Erf", "GRU", "HardSigmoid", "Hardmax"),
        *("LSTM", "QuantizeLinear", "RNN", "Sigmoid", "Sign", "Sin", "Softmax", "Softsign", "Tanh"),
        *("GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization"),
        *("MeanVarianceNormalization", "RMSNormalization", "SkipLayerNormalization"),
        "SimplifiedLayerNormalization",
    }
)
# Behind them in a layer, these may have read what is without bounds once more.
_NODES_COMBINE = frozenset(
    {"Add", "Concat", "Div", "Max", "Mean", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub", "Sum"}
    | {"Where"}
)
_EIGHT_BITS = frozenset({"bool", "int8", "uint8"})


def limit_tiles(
    layers: Sequence[Layer],
    params: Sequence[Value],
    precision: Precision,
    limits: LimitsByValue,
) -> None:
    """Limit Winograd's tiles, and keep groups apart, where `precision` asks for it, and where a
    model's input is read that nothing bounds."""
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
        is_direct, source = precision.is_direct(layer.nodes), self._source(layer.inputs)
        if layer.operator.groups > 1 and (is_direct or source is not None):
            own = replace(own, apart=True)
        if is_direct:
            return replace(own, most_results=0, reason="[compile] exact")
        if source is None or _largest_tile(layer, own) <= UNBOUNDED:
            return own
        why = f"nothing bounds the input '{source}'"
        return replace(own, most_results=UNBOUNDED, reason=why)

    def _follow(self, layer: Layer) -> None:
        """Note what a layer's results are as large as."""
        source = self._source([*layer.inputs, *layer.operands])
        if source is None:
            return
        bounds = self._of_layer(layer)
        for result in layer.results:
            if bounds != _CLOSED and result.dtype not in _EIGHT_BITS:
                self._names[result], self._bounds[result] = source, bounds

    def _source(self, values: Sequence[Value]) -> str | None:
        return next((self._names[value] for value in values if value in self._names), None)

    def _of(self, value: Value) -> _Bounds:
        return self._bounds.get(value, _CLOSED)

    def _of_layer(self, layer: Layer) -> _Bounds:
        """Bounds of a layer's result."""
        if _ends_by_nodes(layer):
            return _CLOSED
        steps = [self._of_operator(layer)]

        def of(argument: Argument) -> _Bounds:
            match argument:
                case Step():
                    return steps[argument.index]
                case Operand():
                    return self._of(layer.operands[argument.index])
                case PerChannel():
                    return _of_numbers(layer.constants[argument.index])
                case Scalar():
                    return _of_numbers(np.array([argument.value]))

        for operation in layer.expression:
            steps.append(_bounds_of(operation, [of(item) for item in operation.arguments]))
        return steps[-1]

    def _of_operator(self, layer: Layer) -> _Bounds:
        """Bounds of what an operator itself computes."""
        operator, inputs = layer.operator, layer.inputs
        if isinstance(operator, Streamed):
            return _of_reader(operator.reader, self._of_layer(operator.first))
        if isinstance(operator, Attention):
            source = operator.values.source
            return self._of(inputs[source]) if isinstance(source, int) else _CLOSED
        if isinstance(operator, Foreign) and not _PICKS.isdisjoint(operator.names):
            inputs = tuple(value for value in inputs if value.dtype == layer.output.dtype)
            return _together(map(self._of, inputs))
        read = _together(map(self._of, inputs))
        if isinstance(operator, Softmax):
            return (read[0] and read[1] if operator.logarithm else True, True)
        if isinstance(operator, Convolution) and len(inputs[0].shape) == _RANK_OF_MATRICES:
            return _CLOSED
        return _of_reader(operator, read)


# Their convolution is a product of all that they are, which ends it as one of a larger window does.
_RANK_OF_MATRICES = 2


def _together(several: Iterable[_Bounds]) -> _Bounds:
    """Bounds of what is one of several things."""
    bounds = list(several)
    return all(low for low, _ in bounds), all(high for _, high in bounds)


def _of_numbers(values: np.ndarray) -> _Bounds:
    return bool((values >= -LARGEST_BOUND).all()), bool((values <= LARGEST_BOUND).all())


def _of_reader(operator: Operator, read: _Bounds) -> _Bounds:
    """Bounds of the results of an operator that reads what has the bounds `read`."""
    if read == _CLOSED or _ends(operator):
        return _CLOSED
    return read if _keeps(operator) else _OPEN


def _ends(operator: Operator) -> bool:
    if isinstance(operator, Convolution):
        # What changes colours, or filters each channel, is no layer of a network's own size yet.
        return operator.kernel != (1, 1) and not _is_depthwise(operator)
    if isinstance(operator, Foreign) and not _FOREIGN_ENDS.isdisjoint(operator.names):
        return True
    return isinstance(operator, _ENDS)


def _is_depthwise(operator: Convolution) -> bool:
    return operator.groups > 1 and operator.weight.shape[1] == 1


def _keeps(operator: Operator) -> bool:
    if isinstance(operator, Resampling):
        return operator.kind != "cubic"  # which goes beyond
    if isinstance(operator, Foreign):
        return bool(operator.names) and _FOREIGN_KEEPS.issuperset(operator.names)
    return isinstance(operator, _KEEPS)


def _ends_by_nodes(layer: Layer) -> bool:
    """Whether one of the nodes that a layer computes ends what has no bounds, and none after it
    reads it again."""
    operators = [value.origin.operator for value in layer.computes if value.origin is not None]
    last = max((i for i, name in enumerate(operators) if name in _NODES_END), default=None)
    return last is not None and _NODES_COMBINE.isdisjoint(operators[last:])


def _largest_tile(layer: Layer, limits: LayerLimits) -> int:
    able = (rule.within(limits) for rule in RULES)
    found = (rule.largest_tile(layer) for rule in able if rule.largest_tile is not None)
    return max(found, default=0)


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
    """Bounds of a product with a number, or of what is divided by one."""
    for argument, (low, high) in zip(operation.arguments, reversed(given), strict=True):
        is_divided = operation.name == "divide" and argument is operation.arguments[0]
        if isinstance(argument, Scalar) and not is_divided:
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
    "prelu": lambda a, _: (a[0], a[0] and a[1]),
}
