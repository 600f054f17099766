"""The page of `quantize`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgepack.base import charts, page
from edgepack.base.page import Html
from edgepack.base.text import format_count

if TYPE_CHECKING:
    from edgepack.quantization.quantize import Result
    from edgepack.quantization.ranges import TensorRange

_SHOWN_RANGES = 48


def quantize_page(found: Result, title: str) -> Html:
    """How good a quantised model is, what stays float, each tensor's error and range."""
    from edgepack.cli.quantize import agreement_text

    said = {
        "calibrated on": format_count(found.calibrated, "photo"),
        "validated on": format_count(found.judged, "held-out photo"),
    }
    said["integers"] = agreement_text(found.all_int8)
    if found.in_float:
        said["mixed"] = agreement_text(found.agreement) + f", for {found.cost:.1%} more work"
    left = [(one.tensor, f"{one.noise:.1%}", f"{one.cost:.1%}") for one in found.in_float]
    header = ("tensor", "of all noise", "costs")
    return page.page(
        title,
        page.verdict(agreement_text(found.agreement)),
        page.facts(said),
        page.paragraph(found.warning) if found.warning else Html(),
        page.section("In float", page.table(left, header, (False, True, True))) if left else Html(),
        page.section("Stays float", page.table(found.untouched, ("layer", "operator")))
        if found.untouched
        else Html(),
        page.section("Error of each layer", *_errors(found)),
        page.section("Ranges", *_ranges(found)),
        kind="quantize",
    )


def _errors(found: Result) -> Iterator[Html]:
    """In the order of the network: where an error begins, the dots fall."""
    layers = found.layers
    if not layers:
        return
    yield page.paragraph(
        "How far each tensor's values are above their error, in dB, in the order of the network: "
        "the higher, the better."
    )
    yield charts.dots([one.snr_db for one in layers], unit="dB", title="SNR of each layer")
    rows = [
        (number, one.tensor, one.operator, round(one.snr_db, 1))
        for number, one in enumerate(layers, 1)
    ]
    rows.sort(key=lambda row: row[3])
    yield page.table(rows, ("layer", "tensor", "operator", "SNR dB"))


def _ranges(found: Result) -> Iterator[Html]:
    """Values on the photos of calibration, of those tensors first whose error is the largest."""
    errors = {one.tensor: one.snr_db for one in found.layers}
    ranges = sorted(found.ranges, key=lambda one: errors.get(one.tensor, float("inf")))
    yield page.paragraph(
        "Each tensor's values on the photos of calibration. The lines are the ends of what its "
        "integers stand for: what lies beyond is cut off. Those with the largest error come first."
    )
    yield page.figures((_range(one), _range_words(one)) for one in ranges[:_SHOWN_RANGES])
    more = len(ranges) - _SHOWN_RANGES
    yield page.paragraph(f"and {format_count(more, 'tensor')} more" if more > 0 else "")


def _range(one: TensorRange) -> Html:
    marks = (one.low, one.high)
    return charts.columns(
        one.counts, one.least, one.most, unit="", title=f"values of {one.tensor}", marks=marks
    )


def _range_words(one: TensorRange) -> Html:
    low, high = charts.number(one.low), charts.number(one.high)
    cut = f", {one.cut:.2%} cut off" if one.cut else ""
    return Html(f"<b>{page.text(one.tensor)}</b> {low} to {high}{cut}")
