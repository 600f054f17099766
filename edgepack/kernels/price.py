"""What the cost model says of one layer, without a network around it."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.kernels.layer import Layer
from edgepack.kernels.rules.rule import LayerSite, Rule
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import Element
from edgepack.kernels.tiles.layout import NO_HALO, Blocked, Halo
from edgepack.kernels.value import Value, extent


def cycles_of(layer: Layer, cpu: CpuModel, rules: Sequence[Rule]) -> float | None:
    """Cycles of the kernel that the first of `rules` to take a layer makes; None if none does."""
    rule = next((rule for rule in rules if rule.rows is None and rule.takes(layer, cpu)), None)
    if rule is None:
        return None
    halo = rule.halo(layer)
    # Images of few channels are the model's own input, most often.
    planar = rule.reads_planar(layer, cpu)
    site = LayerSite(
        layer=layer,
        inputs=tuple(
            _layout(value, layer.source, cpu, NO_HALO if planar else halo, planar=planar)
            for value in layer.inputs
        ),
        operands=(),
        output=_layout(layer.output, layer.element, cpu, NO_HALO),
        cpu=cpu,
    )
    ways = rule.ways(site)
    return ways[0].cycles if ways else rule.make(site).cycles


def _layout(
    value: Value, element: Element, cpu: CpuModel, halo: Halo, *, planar: bool = False
) -> Blocked:
    batch, channels, height, width = extent(value)
    return Blocked(
        element=element,
        batch=batch,
        channels=channels,
        height=height,
        width=width,
        block=cpu.block(channels, element),
        halo=halo,
        planar=planar,
    )
