"""The page of `quantize`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.page import Html
from edgepack.base.text import counted

if TYPE_CHECKING:
    from edgepack.quantization.quantize import Result


def quantize_page(found: Result, title: str) -> Html:
    """How good a quantised model is, what stays float, and each tensor's noise."""
    from edgepack.cli.quantize import agreement_text

    said = {
        "calibrated on": counted(found.calibrated, "photo"),
        "validated on": counted(found.judged, "held-out photo"),
    }
    for name, one in (("integers", found.all_int8), ("mixed", found.agreement)):
        said[name] = agreement_text(one)
    left = [(one.tensor, f"{one.noise:.1%}", f"{one.cost:.1%}") for one in found.in_float]
    layers = [(one.tensor, one.operator, f"{one.snr_db:.1f}") for one in found.layers]
    return page.page(
        title,
        page.facts(said),
        page.section("In float", page.table(left, ("tensor", "of all noise", "costs"))),
        page.section("Noise", page.table(layers, ("tensor", "operator", "SNR dB"))),
    )
