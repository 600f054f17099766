"""The page of `compile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.page import Html
from edgepack.base.text import megabytes

if TYPE_CHECKING:
    from edgepack.boards import Board
    from edgepack.compiler import CompiledModel

_SHOWN_LAYERS = 40


def compile_page(compiled: CompiledModel, title: str, board: Board) -> Html:
    """What a run takes, and where its time goes by the cost model."""
    total = sum(layer.cycles for layer in compiled.layers) or 1.0
    slowest = sorted(compiled.layers, key=lambda layer: -layer.cycles)[:_SHOWN_LAYERS]
    files = (compiled.library, compiled.graph, compiled.params)
    return page.page(
        title,
        page.facts(
            {
                "board": f"{board.title}, {board.cpu}",
                "weights": megabytes(compiled.params_bytes),
                "activations": megabytes(compiled.arena_bytes),
                "model's SHA-256": compiled.model_sha256,
                "TVM": compiled.tvm_version,
            }
        ),
        page.section(
            "Layers by the cost model's cycles",
            page.shares(
                (
                    f"{layer.layer or layer.kernel} {layer.operator}",
                    layer.cycles / total,
                    f"{layer.cycles / total:.1%}",
                )
                for layer in slowest
                if layer.cycles
            ),
        ),
        page.section(
            "Kernel calls",
            page.table(
                (
                    (
                        layer.layer,
                        layer.operator,
                        layer.rule,
                        "x".join(map(str, layer.shape)),
                        layer.tile,
                        layer.macs,
                        layer.nbytes,
                        round(layer.cycles),
                    )
                    for layer in compiled.layers
                ),
                ("layer", "operator", "rule", "shape", "tile", "MACs", "bytes", "cycles"),
            ),
        ),
        page.section(
            "Files",
            page.table(((path.name, path.stat().st_size) for path in files), ("file", "bytes")),
        ),
    )
