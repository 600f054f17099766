"""Which depthwise convolutions and poolings are made with the convolution before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, MutableMapping, Sequence

from edgepack.compiler.layers.layer import Convolution, Layer, Value
from edgepack.compiler.rules import convolution, depthwise, pooling, streamed
from edgepack.compiler.rules.rule import Rule
from edgepack.compiler.tiles.cpu import CpuModel


def with_streams(
    layers: Sequence[Layer],
    taken: MutableMapping[Value, Rule],
    outputs: Collection[Value],
    *,
    rules: Sequence[Rule],
    cpu: CpuModel,
) -> list[Layer]:
    """The layers, pairs of which are one, and their rule in `taken`. Of `outputs` each is made as a
    whole."""
    if streamed.RULE not in rules:
        return list(layers)
    uses = Counter(value for layer in layers for value in (*layer.inputs, *layer.operands))
    uses.update(outputs)
    makers = {layer.output: layer for layer in layers}
    pairs = dict[Value, Layer]()
    for layer in layers:
        if taken.get(layer.output) not in (depthwise.RULE, pooling.WINDOW):
            continue
        first = makers.get(layer.inputs[0])
        alone = first is not None and uses[first.output] == 1
        if first is None or not alone or taken.get(first.output) is not convolution.RULE:
            continue
        if _agree(first, layer) and streamed.is_worth_it(first, layer, cpu):
            pairs[layer.output] = first
    for output, first in pairs.items():
        taken[output] = streamed.RULE
        del taken[first.output]
    gone = {first.output for first in pairs.values()}
    return [
        streamed.stream(pairs[layer.output], layer) if layer.output in pairs else layer
        for layer in layers
        if layer.output not in gone
    ]


def _agree(first: Layer, layer: Layer) -> bool:
    """Whether one kernel can do what both do."""
    operator = first.operator
    assert isinstance(operator, Convolution)
    elements = {first.source, first.element, first.weights, layer.source, layer.element}
    plain = not first.operands and first.mean is None and not operator.gated
    return plain and operator.groups == 1 and len({*elements, layer.weights}) == 1
