"""Which kernels of a network can be made in several ways, and what the cost model says of each."""

from __future__ import annotations

from collections.abc import Sequence

from edgepack.compiler.place.placement import PlacedLayer, Placement
from edgepack.compiler.settings import CompileSettings
from edgepack.kernels.choices import UNLIMITED, Ranked, Tunable
from edgepack.kernels.rules.rule import LayerSite, Rule
from edgepack.kernels.signature import signature_of
from edgepack.kernels.tiles.element import FLOAT16


def survey(placement: Placement, settings: CompileSettings) -> tuple[Tunable, ...]:
    """Those of a placement without choices; `settings` are what it was placed by.

    Equal layers are one kernel, of which the first place in the network decides what there is.
    """
    found: dict[str, list[PlacedLayer]] = {}
    for placed in placement.layers:
        signature = signature_of(placed.layer, placement.limits)
        if placed.rule is not None and placed.alias is None and signature:
            found.setdefault(signature, []).append(placed)
    tunables = (
        _tunable(signature, layers, placement, settings) for signature, layers in found.items()
    )
    return tuple(tunable for tunable in tunables if tunable is not None)


def _tunable(
    signature: str,
    layers: Sequence[PlacedLayer],
    placement: Placement,
    settings: CompileSettings,
) -> Tunable | None:
    layer, taken = layers[0].layer, layers[0].rule
    assert taken is not None
    if taken.rows is not None:
        own, others = taken.ways(placement.rows_site(layer, taken)), []
    else:
        site = placement.site(layer, by_pixels=False)
        own, others = taken.ways(site), _by_other_rules(site, taken, placement, settings)
    if settings.growth < UNLIMITED and own:
        # The budget chose one; what stores more than that has no room.
        results = getattr(placement.choices.get(signature), "results", own[0].choice.results)
        own = sorted(
            (way for way in own if way.choice.results <= results),
            key=lambda way: way.choice.results != results,
        )
        others = [way for way in others if way.choice.results <= results]
    if not own or len(own) + len(others) == 1:
        return None
    origins = (item.layer.origin for item in layers)
    return Tunable(
        signature=signature,
        layers=tuple(origin.name if origin else "" for origin in origins),
        default=own[0],
        others=tuple(_in_turns(own[1:], others)),
    )


def _by_other_rules(
    site: LayerSite, taken: Rule, placement: Placement, settings: CompileSettings
) -> list[Ranked]:
    """What rules can make that the cost model does not take."""
    return [
        way
        for rule in settings.tried
        if rule is not taken and rule.can_take is not None
        if rule.within(site.limits).can(site.layer, placement.cpu)
        if rule.halves or site.layer.element != FLOAT16
        for way in rule.ways(site)[:_OF_ANOTHER_RULE]
    ]


# Tiles of a rule that the cost model does not take.
_OF_ANOTHER_RULE = 4


def _in_turns(own: Sequence[Ranked], others: Sequence[Ranked]) -> list[Ranked]:
    """Two of the rule's own ways, one of another rule's, and so on."""
    own, others = list(own), list(others)
    result = []
    while own or others:
        result += own[:2] + others[:1]
        del own[:2], others[:1]
    return result
