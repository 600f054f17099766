"""Which layers are made with the one before them, in one kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, MutableMapping, Sequence
from dataclasses import replace

from edgepack.compiler.place.headroom import Headroom
from edgepack.kernels.layer import Convolution, Layer, Pooling, Streamed
from edgepack.kernels.rules import (
    convolution,
    depthwise,
    pointwise,
    pooling,
    preactivated,
    streamed,
    winograd_plan,
)
from edgepack.kernels.rules.rule import Rule
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.value import Value


def in_rows_where_faster(
    layers: Sequence[Layer], outputs: Collection[Value], cpu: CpuModel
) -> list[Layer]:
    """The layers, of which those that had better be made some rows at a time, with the layer that
    reads them, are not to be made by Winograd's algorithm."""
    readers = _only_readers(layers, outputs)

    def is_marked(first: Layer) -> bool:
        layer = readers.get(first.output)
        if layer is None or not winograd_plan.can_take(first) or not _agree(first, layer):
            return False
        if first.operands or not _reads_rows(layer):
            return False
        pair = _together(first, layer)
        return (
            streamed.is_faster(pair, cpu)
            and streamed.can_take(pair, cpu)
            and not winograd_plan.is_worth_a_whole(first, cpu)
        )

    return [replace(layer, most_results=0) if is_marked(layer) else layer for layer in layers]


def _only_readers(layers: Sequence[Layer], outputs: Collection[Value]) -> dict[Value, Layer]:
    """The layer that reads a value, where nothing else does."""
    uses = Counter(value for layer in layers for value in (*layer.inputs, *layer.operands))
    uses.update(outputs)
    return {
        layer.inputs[0]: layer for layer in layers if layer.inputs and uses[layer.inputs[0]] == 1
    }


def _reads_rows(layer: Layer) -> bool:
    """Whether a layer can be made from some rows of another at a time, by one of the rules here."""
    operator = layer.operator
    if isinstance(operator, Convolution):
        return operator.groups > 1 and operator.kernel[0] > 1 and not operator.gated
    return isinstance(operator, Pooling)


def with_streams(
    layers: Sequence[Layer],
    taken: MutableMapping[Value, Rule],
    outputs: Collection[Value],
    *,
    rules: Sequence[Rule],
    cpu: CpuModel,
    room: Headroom | None = None,
) -> list[Layer]:
    """The layers, pairs of which are one, and their rule in `taken`. Of `outputs` each is made as a
    whole. There is `room` for scratch memory, None: as much as there may be."""
    uses = Counter(value for layer in layers for value in (*layer.inputs, *layer.operands))
    uses.update(outputs)
    makers = {layer.output: layer for layer in layers}
    pairs = dict[Value, Layer]()
    gone = set[Value]()
    for layer in layers:
        first = makers.get(layer.inputs[0]) if layer.inputs else None
        if first is None or uses[first.output] > 1:
            continue
        rule = _rule(first, layer, taken, cpu, room)
        if rule in rules and first.output not in pairs:
            assert rule is not None
            pair = _together(first, layer)
            pairs[layer.output] = pair
            taken[layer.output] = rule
            gone.add(first.output)
    for output in gone:
        del taken[output]
    made = [pairs.get(layer.output, layer) for layer in layers if layer.output not in gone]
    if room is None:
        return made
    left = room.with_others(made)

    def within(pair: Layer) -> Layer:
        if taken[pair.output] is streamed.RULE:
            return streamed.within(pair, left.of(pair), cpu)
        return preactivated.within(pair, left.of(pair), cpu)

    return [within(layer) if layer.output in pairs else layer for layer in made]


def _rule(
    first: Layer,
    layer: Layer,
    taken: MutableMapping[Value, Rule],
    cpu: CpuModel,
    room: Headroom | None,
) -> Rule | None:
    """The rule that makes both, if that is faster, or memory is short for one after the other."""
    ruled = taken.get(first.output), taken.get(layer.output)
    if first.operands or first.mean is not None or not _agree(first, layer):
        return None
    by_rows = ruled[1] in (depthwise.RULE, pooling.WINDOW) or _is_in_groups(layer, ruled[1])
    if ruled[0] is convolution.RULE and by_rows and _is_plain(first):
        pair = _together(first, layer)
        if streamed.is_faster(pair, cpu):
            return streamed.RULE if streamed.can_take(pair, cpu) else None
        if room is not None and room.is_short(first, layer):
            limited = replace(pair, room=room.of_both(first, layer))
            return streamed.RULE if streamed.can_take(limited, cpu) else None
        return None
    if ruled == (pointwise.POINTWISE, convolution.RULE):
        worth_it = _is_plain(layer) and preactivated.is_worth_it(first, layer, cpu)
        return preactivated.RULE if worth_it and layer.mean is None else None
    return None


def _is_in_groups(layer: Layer, rule: Rule | None) -> bool:
    """Whether it is a convolution of several groups, with a window."""
    operator = layer.operator
    if rule is not convolution.RULE or not isinstance(operator, Convolution):
        return False
    return operator.groups > 1 and operator.kernel[0] > 1 and not operator.gated


def _is_plain(layer: Layer) -> bool:
    """Whether a convolution is of one group, and has no gate."""
    operator = layer.operator
    assert isinstance(operator, Convolution)
    return operator.groups == 1 and not operator.gated


def _agree(first: Layer, layer: Layer) -> bool:
    """Whether both are of the same elements."""
    elements = {first.source, first.element, first.weights, layer.source, layer.element}
    return len({*elements, layer.weights}) == 1


def _together(first: Layer, layer: Layer) -> Layer:
    """One layer that does what both do."""
    assert isinstance(layer.operator, Convolution | Pooling)
    return replace(
        layer,
        operator=Streamed(first=first, reader=layer.operator),
        inputs=first.inputs,
        computes=(*first.computes, *layer.computes),
    )
