"""The page of `compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.page import Html

if TYPE_CHECKING:
    from edgepack.flow.compare import Compared


def compare_page(found: Compared, title: str) -> Html:
    """Each layer's error, in the order of the plan; what diverges stands out."""
    first = found.first
    verdict = "no layer diverges" if first is None else f"call {first.call} is the first to diverge"
    header = ("call", "node", "operator", "rule", "tensor", "shape", "error", "of max", "")
    numbers = (True, False, False, False, False, True, True, True, False)
    rows = (
        page.table_row(
            (
                layer.call,
                layer.layer,
                layer.operator,
                layer.rule,
                layer.value,
                "x".join(map(str, layer.shape)),
                f"{layer.max_abs_error:.2g}",
                f"{layer.relative:.1e}",
                "" if layer.ok else "diverges",
            ),
            kind="" if layer.ok else "bad",
            names=("", "", "", "", "", "number", "number", "number", "outcome short"),
        )
        for layer in found.layers
    )
    return page.page(
        title,
        page.verdict(verdict, ok=first is None),
        page.facts(
            {
                "board": f"{found.board}, {found.cpu}",
                "compared": f"{len(found.layers)} of {found.calls} calls, with the reference",
                "limit": f"{found.tolerance:.0e} of a layer's largest value",
                "plan": "" if found.same_plan else "not what this project compiles to",
            }
        ),
        page.section("Layers", page.table_head(header, numbers), *rows, page.TABLE_END),
        kind="compare",
    )
