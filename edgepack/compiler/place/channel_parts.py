"""Convolutions whose result, which is only there to be read once, is made in parts.

What is pooled is gone then, so some channels can be made at a time:

    result = join(pool(convolution(x)[: half]), pool(convolution(x)[half :]))

A block's first convolution makes an image that its second one reads; where the block's input is
kept for a sum, three images are in use at once. The sums of the second convolution can be begun
with some channels of the inner image and finished with the others:

    inner = first(x)[: half];  sums = second(inner)
    inner = first(x)[half :];  result = second(inner) + sums, in the place of `sums`

So only a part of the inner image is there at a time. Sums are read and written once more for that,
and are added in another order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from edgepack.compiler.place.headroom import Headroom, fastest, fewest_cycles, scratch_of
from edgepack.kernels.layer import (
    Concatenation,
    Convolution,
    GlobalPooling,
    Layer,
    Pointwise,
    Pooling,
    TransposedConvolution,
    count_uses,
)
from edgepack.kernels.limits import FREE, LimitsByValue
from edgepack.kernels.rules.rule import Rule, image_of
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.expression import Expression, Operand, Operation, Step
from edgepack.kernels.value import Value, extent

# Memory is short from so much more than the two largest neighbours on.
_SHORT = 0.1
# It has to become less by so much.
_LESS = 0.95
# The part of the network's time that may be lost.
_MOST_LOST = 0.03
_PARTS = (2, 4)

_Plain = type[Convolution | GlobalPooling | Pooling]
# So much slower is a convolution that has too little room for scratch memory.
_SLOWER = 1.03


def with_parts(
    layers: Sequence[Layer],
    outputs: Collection[Value],
    cpu: CpuModel,
    rules: Collection[Rule],
    room: Headroom,
    limits: LimitsByValue,
) -> list[Layer]:
    """The layers, pairs of which are in parts. `room` is that of the layers as they are. Parts have
    the `limits` of what they are parts of."""
    pooled = _pooled_in_parts(layers, outputs, cpu, rules, room, limits)
    return _summed_in_parts(pooled, outputs, cpu, rules, room.with_others(pooled), limits)


def _pooled_in_parts(
    layers: Sequence[Layer],
    outputs: Collection[Value],
    cpu: CpuModel,
    rules: Collection[Rule],
    room: Headroom,
    limits: LimitsByValue,
) -> list[Layer]:
    """The layers, pairs of which are in parts where there is too little room for the scratch memory
    of fast kernels, and parts leave enough for them to be faster."""
    found = list(layers)
    for first, layer in _pairs(layers, outputs, (GlobalPooling, Pooling)):
        if image_of(first, cpu).nbytes <= room.free:
            continue
        least = fastest([first], room, cpu, rules, limits)
        if least <= _SLOWER * fastest([first], None, cpu, rules, limits):
            continue
        for count in _PARTS:
            parts = _pooled(first, layer, count, cpu, limits)
            if not _can_be_made(parts, cpu, rules, limits):
                continue
            less = room.with_others(_replaced(layers, first, layer, parts))
            if fastest(parts, less, cpu, rules, limits) < least:
                found = _replaced(found, first, layer, parts)
                break
    return found


def _summed_in_parts(
    layers: Sequence[Layer],
    outputs: Collection[Value],
    cpu: CpuModel,
    rules: Collection[Rule],
    room: Headroom,
    limits: LimitsByValue,
) -> list[Layer]:
    """The layers, pairs of which are in parts where memory is short and it costs little time."""
    spare = _MOST_LOST * fewest_cycles(layers, cpu)
    found, left = list(layers), room
    done = set[Value]()
    pairs = sorted(
        _pairs(layers, outputs, (Convolution,)), key=lambda pair: room.most(*pair), reverse=True
    )
    for first, layer in pairs:
        # The first that has to stay as it is says how much memory there is.
        if done & {first.output, layer.output} or not left.is_short(first, layer, share=_SHORT):
            break
        for count in _PARTS:
            parts = _in_parts(first, layer, count, cpu, limits)
            lost = (count - 1) * _moved(first, layer) / cpu.memory_bandwidth
            if lost > spare or not _can_be_made(parts, cpu, rules, limits):
                continue
            tried = _replaced(found, first, layer, parts)
            less = room.with_others(tried)
            most = _most(left, [first, layer], cpu, rules, limits)
            if _most(less, parts, cpu, rules, limits) <= _LESS * most:
                found, left, spare = tried, less, spare - lost
                done |= {first.output, layer.output}
                break
        else:
            break
    return found if left.most(*found) < room.most(*layers) else list(layers)


def _most(
    room: Headroom,
    layers: Sequence[Layer],
    cpu: CpuModel,
    rules: Collection[Rule],
    limits: LimitsByValue,
) -> int:
    """The most bytes that are in use at one of some layers, with their scratch memory."""
    return max(room.most(layer) + scratch_of(layer, cpu, rules, limits) for layer in layers)


def _pairs(
    layers: Sequence[Layer], outputs: Collection[Value], readers: tuple[_Plain, ...]
) -> Iterator[tuple[Layer, Layer]]:
    """Plain layers of the kinds `readers`, each with the plain convolution before it that nobody
    else reads; but not convolutions that may be one kernel with the arithmetic before them."""
    uses = count_uses(layers, outputs)
    makers = {layer.output: layer for layer in layers}
    able = {
        layer.output: layer
        for layer in layers
        if _is_plain(layer, (Convolution,)) and not _is_activated(layer, makers, uses)
    }
    for layer in layers:
        first = able.get(layer.inputs[0]) if _is_plain(layer, readers) else None
        if first is not None and uses[first.output] == 1 and not first.operands:
            yield first, layer


def _is_activated(layer: Layer, makers: Mapping[Value, Layer], uses: Mapping[Value, int]) -> bool:
    """Whether `preactivated` may make a convolution, and the arithmetic before it."""
    before, operator = makers.get(layer.inputs[0]), layer.operator
    if before is None or not isinstance(operator, Convolution) or operator.kernel != (1, 1):
        return False
    return isinstance(before.operator, Pointwise) and uses[before.output] == 1


def _is_plain(layer: Layer, kinds: tuple[_Plain, ...]) -> bool:
    operator = layer.operator
    is_float = {layer.element, layer.source, layer.weights} == {FLOAT32}
    if not isinstance(operator, kinds) or not is_float or layer.mean is not None:
        return False
    if isinstance(operator, GlobalPooling | Pooling):
        return not (layer.expression or layer.operands)
    is_dense = operator.groups == 1 and not operator.gated
    is_kept = operator.quantized is None and not isinstance(operator, TransposedConvolution)
    return is_dense and is_kept


def _pooled(
    first: Layer,
    layer: Layer,
    count: int,
    cpu: CpuModel,
    limits: LimitsByValue,
) -> list[Layer]:
    """Some channels of a convolution and what is pooled of them, for each part, and a joint of all
    that; [] if parts would not have whole blocks of channels."""
    found: list[Layer] = []
    for channels in _even(extent(first.output)[1], count, cpu):
        made = _channels_of(first, channels, limits)
        shape = list(layer.output.shape)
        shape[1] = channels.stop - channels.start
        output = _part_of(layer.output, channels.start, shape, limits)
        found += [made, replace(layer, inputs=(made.output,), output=output)]
    parts = tuple(item.output for item in found[1::2])
    return [*found, replace(layer, operator=Concatenation(), inputs=parts)] if parts else []


def _even(channels: int, count: int, cpu: CpuModel) -> list[slice]:
    """Equal parts of some channels; none if they would not be whole blocks."""
    size, rest = divmod(channels, count)
    if rest or size % cpu.block(size, FLOAT32):
        return []
    return [slice(start, start + size) for start in range(0, channels, size)]


def _in_parts(
    first: Layer,
    layer: Layer,
    count: int,
    cpu: CpuModel,
    limits: LimitsByValue,
) -> list[Layer]:
    """Both layers for each part; [] if parts would not have whole blocks of channels."""
    all_channels = extent(first.output)[1]
    found: list[Layer] = []
    sums: Value | None = None
    for channels in _even(all_channels, count, cpu):
        inner, start = _channels_of(first, channels, limits), channels.start
        output = layer.output
        if channels.stop < all_channels:
            output = _part_of(output, start, output.shape, limits)
        found += [inner, _summed(layer, inner.output, sums, start, output)]
        sums = output
    return found


def _channels_of(first: Layer, channels: slice, limits: LimitsByValue) -> Layer:
    """The layer that makes only some of the channels."""
    operator, shape = first.operator, list(first.output.shape)
    assert isinstance(operator, Convolution)
    shape[1] = channels.stop - channels.start
    return replace(
        first,
        operator=replace(
            operator,
            weight=operator.weight[channels],
            bias=None if operator.bias is None else operator.bias[channels],
        ),
        output=_part_of(first.output, channels.start, shape, limits),
        constants=tuple(values.reshape(-1)[channels] for values in first.constants),
    )


def _summed(layer: Layer, inner: Value, sums: Value | None, start: int, output: Value) -> Layer:
    """The layer on channels from `start` on, its results added to `sums`; the part with the layer's
    own `output` has its bias and arithmetic."""
    operator, is_last = layer.operator, output is layer.output
    assert isinstance(operator, Convolution)
    weight = operator.weight[:, start : start + extent(inner)[1]]
    operands = layer.operands if is_last else ()
    expression = layer.expression if is_last else ()
    if sums is not None:
        operands = (*operands, sums)
        expression = _after_sum(expression, len(operands) - 1)
    return replace(
        layer,
        operator=replace(operator, weight=weight, bias=operator.bias if is_last else None),
        inputs=(inner,),
        operands=operands,
        output=output,
        expression=expression,
        constants=layer.constants if is_last else (),
    )


def _after_sum(expression: Expression, operand: int) -> Expression:
    """The arithmetic on the sum of the result and an operand."""
    total = Operation(name="add", arguments=(Step(index=0), Operand(index=operand)))

    def later(operation: Operation) -> Operation:
        moved = (
            Step(index=item.index + 1) if isinstance(item, Step) else item
            for item in operation.arguments
        )
        return replace(operation, arguments=tuple(moved))

    return (total, *map(later, expression))


def _part_of(value: Value, start: int, shape: Sequence[int], limits: LimitsByValue) -> Value:
    """A part of a value, which is made within the same limits."""
    part = Value(name=f"{value.name}_{start}", shape=tuple(shape), dtype=value.dtype)
    limits[part] = limits.get(value, FREE)
    return part


def _moved(first: Layer, layer: Layer) -> int:
    """Bytes that each further part reads and writes."""
    read, made = (math.prod(value.shape) for value in (first.inputs[0], layer.output))
    return FLOAT32.bytes * (read + 2 * made)


def _can_be_made(
    parts: Sequence[Layer], cpu: CpuModel, rules: Collection[Rule], limits: LimitsByValue
) -> bool:
    """Whether there are some, and rules for all of them: TVM knows the whole layers only."""

    def can_be_made(part: Layer) -> bool:
        own = limits.of(part)
        return any(rule.within(own).takes(part, cpu) for rule in rules)

    return bool(parts) and all(map(can_be_made, parts))


def _replaced(
    layers: Sequence[Layer], first: Layer, layer: Layer, parts: Sequence[Layer]
) -> list[Layer]:
    """The layers with `parts` in place of two of them, where the second one is."""
    found: list[Layer] = []
    for item in layers:
        if item is layer:
            found += parts
        elif item is not first:
            found.append(item)
    return found
