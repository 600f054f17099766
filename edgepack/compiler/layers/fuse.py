"""Passes over the list of layers: padding and cropping become parts of the convolution next to
them, element-wise layers are fused, weights folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgepack.kernels.axis import Axis
from edgepack.kernels.layer import (
    Concatenation,
    Convolution,
    Crop,
    GlobalPooling,
    Layer,
    Pointwise,
    Pooling,
    Resampling,
    TransposedConvolution,
    count_uses,
)
from edgepack.kernels.tiles.expression import (
    Argument,
    Expression,
    Operand,
    Operation,
    PerChannel,
    Scalar,
    Step,
)
from edgepack.kernels.value import Value, extent, is_image

# A gate is multiplied into the weights of the 1x1 convolution behind it if there are at most so
# many output channels per pixel. To multiply the image instead is to write it and read it once
# more, while the weights stay in the first-level cache.
_GATED_WEIGHTS = 4
# Longer chains would run out of registers for the values they keep.
MAX_STEPS = 16


def fuse(layers: Sequence[Layer], outputs: Sequence[Value]) -> list[Layer]:
    """Merge element-wise layers and crops into their producers, zeros around an image into the
    convolutions that read it, and constants into the weights.

    `outputs` are the function's results. The layers stay in an order in which each value is made
    before it is read.
    """
    fused = _followed(_nested(_without_zeros(layers, outputs)), outputs)
    # From the last layer to the first: of the two producers of a sum the later one takes it as its
    # epilogue. The other one's result is there by then, and no tensor has to be kept for longer.
    uses = count_uses(fused, outputs)
    for index in reversed(range(len(fused))):
        _fuse_followers(fused, index, uses)
    return [_fold(layer) for layer in _gated(fused, outputs)]


def _without_zeros(layers: Sequence[Layer], outputs: Sequence[Value]) -> list[Layer]:
    """Convolutions of the images inside of zeros, with padding of their own."""
    padded = {layer.output: layer for layer in layers if _adds_zeros(layer)}
    left = []
    for layer in layers:
        pad = padded.get(layer.inputs[0]) if layer.inputs else None
        if pad is not None and type(layer.operator) is Convolution:
            assert isinstance(pad.operator, Resampling)
            top, beside = layer.operator.before
            before = (top + pad.operator.rows.first, beside + pad.operator.columns.first)
            left.append(
                replace(
                    layer,
                    operator=replace(layer.operator, before=before),
                    inputs=pad.inputs,
                    computes=(*pad.computes, *layer.computes),
                )
            )
        else:
            left.append(layer)
    used = {value for layer in left for value in (*layer.inputs, *layer.operands)} | set(outputs)
    return [layer for layer in left if layer.output not in padded or layer.output in used]


def _adds_zeros(layer: Layer) -> bool:
    """Whether a layer is its input with zeros around it."""
    operator = layer.operator
    if not isinstance(operator, Resampling) or operator.kind != "constant" or operator.outside:
        return False

    def inside(axis: Axis, size: int) -> bool:
        return axis.first >= 0 and axis.is_all_of(size)

    height, width = extent(layer.inputs[0])[2:]
    return inside(operator.rows, height) and inside(operator.columns, width)


def _nested(layers: Sequence[Layer]) -> list[Layer]:
    """Concatenations that begin with another one: of that one and the rest.

    So the growing ones of a dense block are all the beginning of the last one's bytes.
    """
    known: dict[tuple[Value, ...], Value] = {}
    left = []
    for layer in layers:
        inputs = made = layer.inputs
        if isinstance(layer.operator, Concatenation):
            starts = (count for count in range(len(inputs) - 1, 1, -1) if inputs[:count] in known)
            count = next(starts, 0)
            if count:
                made = (known[inputs[:count]], *inputs[count:])
            known.setdefault(inputs, layer.output)
        left.append(replace(layer, inputs=made))
    return left


def _followed(layers: Sequence[Layer], outputs: Sequence[Value]) -> list[Layer]:
    """Each convolution with the element-wise layers that alone read it, and nothing else, right
    behind it.

    So a bias is the convolution's own, though the model adds it after another branch's.
    """
    uses = count_uses(layers, outputs)
    followers: dict[Value, Layer] = {}
    heads = set()
    for layer in layers:
        follows = isinstance(layer.operator, Pointwise) and layer.inputs[0] in heads
        if follows and not layer.operands:
            followers[layer.inputs[0]] = layer
        elif not isinstance(layer.operator, Convolution):
            continue
        if uses[layer.output] == 1:
            heads.add(layer.output)
    moved = {layer.output for layer in followers.values()}
    left: list[Layer] = []
    for layer in layers:
        if layer.output in moved:
            continue
        left.append(layer)
        while (follower := followers.get(left[-1].output)) is not None:
            left.append(follower)
    return left


def _gated(layers: Sequence[Layer], outputs: Sequence[Value]) -> list[Layer]:
    """Fuse the multiplication of an image by a gate into the 1x1 convolution that reads it."""
    uses = count_uses(layers, outputs)
    gates = {layer.output: layer for layer in layers if _is_gate(layer) and uses[layer.output] == 1}
    taken, left = set(), []
    for layer in layers:
        gate = gates.get(layer.inputs[0]) if layer.inputs else None
        if gate is not None and _can_be_gated(layer):
            left.append(_with_gate(layer, gate))
            taken.add(gate.output)
        else:
            left.append(layer)
    return [layer for layer in left if layer.output not in taken]


def _with_gate(layer: Layer, gate: Layer) -> Layer:
    assert isinstance(layer.operator, Convolution)
    return replace(
        layer,
        operator=replace(layer.operator, gated=True),
        inputs=(gate.inputs[0], gate.operands[0]),
        computes=(*layer.computes, *gate.computes),
    )


def _is_gate(layer: Layer) -> bool:
    """Whether a layer is nothing but an image times one value per channel."""
    if not isinstance(layer.operator, Pointwise) or len(layer.expression) != 1:
        return False
    (operation,) = layer.expression
    image, gate = Step(index=0), Operand(index=0, pixel=True)
    return operation.name == "multiply" and operation.arguments in ((image, gate), (gate, image))


def _can_be_gated(layer: Layer) -> bool:
    """Whether it is a 1x1 convolution whose weights are not much more work to scale than its
    image."""
    operator = layer.operator
    if not isinstance(operator, Convolution):
        return False
    batch, outs, height, width = extent(layer.output)
    plain = (operator.kernel, operator.stride, operator.before, operator.groups, batch)
    return plain == ((1, 1), (1, 1), (0, 0), 1, 1) and outs <= _GATED_WEIGHTS * height * width


def _read_by(layer: Layer) -> tuple[Value, ...]:
    return (*layer.inputs, *layer.operands)


def _fuse_followers(layers: list[Layer], index: int, uses: Counter[Value]) -> None:
    """Replace a layer and the element-wise layers that can be fused into it by one layer.

    It takes the place of the last of them. `uses` says how often each value is read.
    """
    head = layers[index]
    if not isinstance(
        head.operator, Convolution | Pooling | GlobalPooling | Resampling | Pointwise
    ):
        return
    group = _Group(head)
    best, taken = None, [index]
    for position in range(index + 1, len(layers)):
        layer = layers[position]
        if not group.touches(layer):
            continue
        if not group.absorb(layer):
            break
        taken.append(position)
        if group.is_closed(uses):
            best = group.layer(), tuple(taken)
    if best is None:
        return
    merged, positions = best
    for position in positions:
        uses.subtract(_read_by(layers[position]))
    uses.update(_read_by(merged))
    layers[positions[-1]] = merged
    for position in reversed(positions[:-1]):
        del layers[position]


class _Group:
    """A layer and what was fused into it so far; `last` is the result.

    `steps` has, for each value that is computed inside, the number of the step of `expression` that
    computes it; `inside` counts how often the fused layers read each value.
    """

    def __init__(self, head: Layer) -> None:
        self.head = head
        self.steps: dict[Value, int] = {head.output: len(head.expression)}
        self.last = head.output
        self.expression = list(head.expression)
        self.operands = list(head.operands)
        self.constants = list(head.constants)
        self.computes = list(head.computes)
        self.inside: Counter[Value] = Counter()

    def touches(self, layer: Layer) -> bool:
        return any(value in self.steps for value in _read_by(layer))

    def absorb(self, layer: Layer) -> bool:
        if isinstance(layer.operator, Crop):
            return self._crop(layer, layer.operator)
        if not isinstance(layer.operator, Pointwise) or not is_image(layer.output):
            return False
        if extent(layer.output) != extent(self.last):
            return False
        if len(self.expression) + len(layer.expression) > MAX_STEPS:
            return False
        pixels = [a for op in layer.expression for a in op.arguments if isinstance(a, Operand)]
        if any(a.pixel and layer.operands[a.index] in self.steps for a in pixels):
            return False
        base = len(self.expression)

        def translate(argument: Argument) -> Argument:
            match argument:
                case Step(index=0):
                    return self._refer(layer.inputs[0], pixel=False)
                case Step():
                    return Step(index=base + argument.index)
                case Operand():
                    return self._refer(layer.operands[argument.index], pixel=argument.pixel)
                case PerChannel():
                    self.constants.append(layer.constants[argument.index])
                    return PerChannel(index=len(self.constants) - 1)
            return argument

        for operation in layer.expression:
            arguments = tuple(translate(argument) for argument in operation.arguments)
            self.expression.append(Operation(name=operation.name, arguments=arguments))
        self.steps[layer.output] = len(self.expression)
        self.last = layer.output
        self.computes += layer.computes
        self.inside.update((*layer.inputs, *layer.operands))
        return True

    def _crop(self, layer: Layer, crop: Crop) -> bool:
        """Leave out results at the borders of a convolution, which is less padding."""
        operator = self.head.operator
        if not isinstance(operator, Convolution) or layer.inputs[0] != self.last:
            return False
        arguments = [a for operation in self.expression for a in operation.arguments]
        if any(isinstance(argument, Operand) and not argument.pixel for argument in arguments):
            return False
        if isinstance(operator, TransposedConvolution):
            moved = crop.first
        else:
            moved = (-crop.first[0] * operator.stride[0], -crop.first[1] * operator.stride[1])
        before = (operator.before[0] + moved[0], operator.before[1] + moved[1])
        if min(before) < 0:
            return False
        self.head = replace(self.head, operator=replace(operator, before=before))
        self.steps[layer.output] = len(self.expression)
        self.last = layer.output
        self.computes += layer.computes
        self.inside.update(layer.inputs)
        return True

    def _refer(self, value: Value, *, pixel: bool) -> Argument:
        if value in self.steps:
            return Step(index=self.steps[value])
        if value not in self.operands:
            self.operands.append(value)
        return Operand(index=self.operands.index(value), pixel=pixel)

    def is_closed(self, uses: Counter[Value]) -> bool:
        """Whether nobody outside reads any value but the last."""
        return all(
            self.inside[value] == uses[value] for value in self.steps if value is not self.last
        )

    def layer(self) -> Layer:
        return replace(
            self.head,
            output=self.last,
            expression=tuple(self.expression),
            operands=tuple(self.operands),
            constants=tuple(self.constants),
            computes=tuple(self.computes),
        )


# A shift that is larger, in units of the largest sum of a channel's weights, may be meant to round
# what was computed (`x + 1e8 - 1e8`); those of trained networks are smaller by far.
_MOST_SHIFT = 4096


def _fold(layer: Layer) -> Layer:
    """Fold scales and shifts right after a convolution into its weights and bias, where what comes
    of it are numbers."""
    while isinstance(layer.operator, Convolution) and layer.expression:
        first = layer.expression[0]
        if first.name not in _AFFINE or reads_start(layer.expression[1:]):
            break
        value = _factor(first, layer, 0)
        folded = None if value is None else _AFFINE[first.name](layer.operator, value)
        if folded is None:
            break
        layer = replace(layer, operator=folded, expression=without_first(layer.expression))
    return layer


def reads_start(expression: Expression) -> bool:
    """Whether what the kernel computed is referred to."""
    return any(Step(index=0) in operation.arguments for operation in expression)


def _factor(operation: Operation, layer: Layer, step: int) -> np.ndarray | None:
    """The constant that a step's result is combined with, one value per channel."""
    channels = extent(layer.output)[1]
    left, right = operation.arguments
    if operation.name in ("add", "multiply") and right == Step(index=step):
        left, right = right, left
    if left != Step(index=step):
        return None
    if isinstance(right, Scalar):
        return np.full(channels, right.value, "float32")
    return layer.constants[right.index] if isinstance(right, PerChannel) else None


def without_first(expression: Expression) -> Expression:
    """All but the first step, whose result takes the place of what the kernel computed."""

    def shift(argument: Argument) -> Argument:
        return Step(index=argument.index - 1) if isinstance(argument, Step) else argument

    return tuple(
        Operation(name=operation.name, arguments=tuple(map(shift, operation.arguments)))
        for operation in expression[1:]
    )


def _shifted(operator: Convolution, value: np.ndarray) -> Convolution | None:
    largest = np.abs(operator.weight).sum(axis=(1, 2, 3)).max(initial=0)
    if operator.bias is not None:
        largest = max(largest, np.abs(operator.bias).max())
    if not np.abs(value).max() <= _MOST_SHIFT * largest:
        return None
    return replace(operator, bias=value if operator.bias is None else operator.bias + value)


def _scaled(operator: Convolution, value: np.ndarray) -> Convolution | None:
    with np.errstate(over="ignore", invalid="ignore"):
        bias = None if operator.bias is None else operator.bias * value
        weight = operator.weight * value[:, None, None, None]
    if not (np.isfinite(weight).all() and (bias is None or np.isfinite(bias).all())):
        return None
    return replace(operator, weight=weight, bias=bias, quantized=None)


def _divided(operator: Convolution, value: np.ndarray) -> Convolution | None:
    with np.errstate(divide="ignore"):
        return _scaled(operator, 1 / value)


_AFFINE: dict[str, Callable[[Convolution, np.ndarray], Convolution | None]] = {
    "add": _shifted,
    "subtract": lambda operator, value: _shifted(operator, -value),
    "multiply": _scaled,
    "divide": _divided,
}
