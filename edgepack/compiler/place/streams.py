"""Which layers are made with the one before them, in one kernel."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping, Sequence
from dataclasses import replace

from edgepack.compiler.place.headroom import Headroom
from edgepack.kernels.layer import Convolution, Layer, Pooling, Streamed, count_uses
from edgepack.kernels.limits import LimitsByValue
from edgepack.kernels.rules.rule import Pair, Pairing, Rule
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.value import Value


def faster_in_rows(
    layers: Sequence[Layer],
    outputs: Collection[Value],
    rules: Sequence[Rule],
    cpu: CpuModel,
    limits: LimitsByValue,
) -> list[Layer]:
    """Those of the layers that had better be made some rows at a time, with the layer that reads
    them, than by Winograd's algorithm."""
    readers = _only_readers(layers, outputs)
    pairings = _pairings(rules)

    def is_faster(first: Layer) -> bool:
        layer = readers.get(first.output)
        if layer is None or not isinstance(layer.operator, Convolution | Pooling):
            return False
        if not isinstance(first.operator, Convolution) or not _agree(first, layer):
            return False
        both, own = _together(first, layer), limits.of(first)
        return any(pairing.instead(both, own, cpu) for pairing in pairings.values())

    return list(filter(is_faster, layers))


def _pairings(rules: Sequence[Rule]) -> dict[str, Pairing]:
    """What those of the rules say that make two layers at a time, by their names."""
    return {rule.name: rule.pairing for rule in rules if rule.pairing is not None}


def _only_readers(layers: Sequence[Layer], outputs: Collection[Value]) -> dict[Value, Layer]:
    """The layer that reads a value, where nothing else does."""
    uses = count_uses(layers, outputs)
    return {
        layer.inputs[0]: layer for layer in layers if layer.inputs and uses[layer.inputs[0]] == 1
    }


def with_streams(
    layers: Sequence[Layer],
    taken: MutableMapping[Value, Rule],
    outputs: Collection[Value],
    *,
    rules: Sequence[Rule],
    cpu: CpuModel,
    limits: LimitsByValue,
    room: Headroom | None = None,
) -> list[Layer]:
    """The layers, pairs of which are one, their rule in `taken` and the scratch memory that they
    keep to in `limits`. Of `outputs` each is made as a whole. There is `room` for scratch memory,
    None: as much as there may be."""
    uses = count_uses(layers, outputs)
    makers = {layer.output: layer for layer in layers}
    pairs = dict[Value, Layer]()
    gone = set[Value]()
    for layer in layers:
        first = makers.get(layer.inputs[0]) if layer.inputs else None
        if first is None or uses[first.output] > 1 or first.output in pairs:
            continue
        both = _pair(first, layer, taken, room)
        rule = next((rule for rule in rules if both and _makes(rule, both, cpu)), None)
        if rule is not None:
            assert both is not None
            pairs[layer.output] = both.both
            taken[layer.output] = rule
            gone.add(first.output)
    for output in gone:
        del taken[output]
    made = [pairs.get(layer.output, layer) for layer in layers if layer.output not in gone]
    if room is not None:
        left = room.with_others(made)
        for output, pair in pairs.items():
            pairing, most = taken[output].pairing, left.of(pair)
            assert pairing is not None
            if pairing.keeps_to(pair, most, cpu):
                limits[output] = replace(limits.of(pair), room=most)
    return made


def _makes(rule: Rule, pair: Pair, cpu: CpuModel) -> bool:
    return rule.pairing is not None and rule.pairing.takes(pair, cpu)


def _pair(
    first: Layer,
    layer: Layer,
    taken: MutableMapping[Value, Rule],
    room: Headroom | None,
) -> Pair | None:
    """The two, if one kernel can make both."""
    if first.operands or first.mean is not None or not _agree(first, layer):
        return None
    if not isinstance(layer.operator, Convolution | Pooling):
        return None

    def short() -> int | None:
        is_short = room is not None and room.is_short(first, layer)
        return room.of_both(first, layer) if room is not None and is_short else None

    return Pair(
        first=first,
        reader=layer,
        both=_together(first, layer),
        rules=(taken.get(first.output), taken.get(layer.output)),
        short=short,
    )


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
