"""The page of `compile`: where its memory and its time go, and in which types it computes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgepack.base import charts, page
from edgepack.base.page import Html
from edgepack.base.text import format_count, megabytes
from edgepack.cli.pages.memory_map import KINDS, Held, data_flow, find_peak, held_tensors

if TYPE_CHECKING:
    from edgepack.boards import Board
    from edgepack.compiler import CompiledModel
    from edgepack.compiler.backend.report import LayerReport

_SHOWN_LAYERS = 40
_SHOWN_STEPS = 400
# Characters of a name in the graph: the ends of exporters' names tell layers apart.
_NAME = 32
# Rectangles of the map: of more tensors the largest.
_SHOWN_TENSORS = 5000
_INTEGERS, _HALF, _FLOAT, _OTHER = "integers", "half precision", "float", "other types"
_TYPES = (_INTEGERS, _HALF, _FLOAT, _OTHER)


def compile_page(compiled: CompiledModel, title: str, board: Board) -> Html:
    """What a run takes, and where its time goes by the cost model."""
    graph = json.loads(compiled.graph.read_bytes())
    types = [_type_of(graph, call, layer) for call, layer in _calls(graph, compiled)]
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
        page.section("Integers, half precision or float", *_types(compiled, types)),
        page.section("Memory of activations", *_arena(compiled, graph)),
        page.section("Layers by the cost model's cycles", _slowest(compiled)),
        page.section("The plan", *_flow(compiled, graph, types), _plan(compiled, types)),
        page.section(
            "Files",
            page.table(((path.name, path.stat().st_size) for path in files), ("file", "bytes")),
        ),
        kind="compile",
    )


def _calls(
    graph: Mapping[str, Any], compiled: CompiledModel
) -> Iterator[tuple[Mapping[str, Any], LayerReport]]:
    return zip(graph["calls"], compiled.layers, strict=True)


def _type_of(graph: Mapping[str, Any], call: Mapping[str, Any], layer: LayerReport) -> str:
    """What a call multiplies, by its largest parameter; without one, what its result is."""
    tensors = [graph["tensors"][arg] for arg in call["args"]]
    params = [one for one in tensors if one["storage"] == "params"]
    largest = max(params, key=lambda one: one["bytes"], default=None)
    dtype = largest["dtype"] if largest is not None and layer.macs else layer.dtype
    if dtype == "float16":
        return _HALF
    if dtype in ("float32", "float64"):
        return _FLOAT
    return _INTEGERS if dtype in ("int8", "uint8") else _OTHER


def _types(compiled: CompiledModel, types: Sequence[str]) -> Iterator[Html]:
    """Each type's share of the work, the plan as a band of them, and why some are not integers."""
    macs = dict.fromkeys(_TYPES, 0)
    for kind, layer in zip(types, compiled.layers, strict=True):
        macs[kind] += layer.macs
    total = sum(macs.values())
    yield page.facts(
        {
            kind: f"{format_count(types.count(kind), 'call')}"
            + (f", {macs[kind] / total:.1%} of the multiply-adds" if total else "")
            for kind in _TYPES
            if kind in types
        }
    )
    at = 0.0
    placed = []
    for kind, layer in zip(types, compiled.layers, strict=True):
        width = max(layer.cycles, 1.0)
        words = f"{layer.layer or layer.kernel} {layer.operator}: {kind}"
        placed.append((at, 0.0, width, 1.0, _TYPES.index(kind), words))
        at += width
    yield charts.rectangles(placed, x=at, y=1.0, title="types of the calls in order", height=40)
    yield charts.legend((kind, "") for kind in _TYPES)
    yield page.paragraph(
        "Each call, in order, as wide as its estimated cycles; by the type of the weights, or of "
        "the result of a call without weights."
    )
    if compiled.floats:
        left = [(name, why) for name, why in compiled.floats.items()]
        yield page.fold_parts(
            f"{format_count(len(left), 'quantised layer')} in float",
            page.table(left, ("layer", "why")),
        )
    exact = {one.layer: one.exact for one in compiled.layers if one.exact}
    if exact:
        yield page.fold_parts(
            f"{format_count(len(exact), 'layer')} in float32, though half precision was wanted",
            page.table(list(exact.items()), ("layer", "why")),
        )


def _arena(compiled: CompiledModel, graph: Mapping[str, Any]) -> Iterator[Html]:
    """Which bytes are in use during which calls."""
    calls = len(graph["calls"])
    held = held_tensors(graph, compiled.layers)
    peak = find_peak(held, calls)
    if not held or not calls:
        yield page.paragraph("It is empty.")
        return
    arena = compiled.arena_bytes
    layer = compiled.layers[peak.call]
    yield page.verdict(
        f"Peak: call {peak.call + 1}, {layer.layer or layer.kernel} {layer.operator}, "
        f"{megabytes(peak.nbytes)} in use of {megabytes(arena)}"
    )
    shown = sorted(held, key=lambda one: (one.end - one.offset) * (one.last + 1 - one.first))
    shown = shown[-_SHOWN_TENSORS:]
    yield charts.rectangles(
        (
            (
                one.first,
                one.offset,
                one.last + 1 - one.first,
                one.end - one.offset,
                KINDS.index(one.kind),
                _words(one, compiled),
            )
            for one in reversed(shown)
        ),
        x=calls,
        y=arena,
        title="memory of activations: calls across, bytes up",
        guide=peak.call + 0.5,
    )
    yield charts.legend((kind, "") for kind in KINDS)
    left = len(held) - len(shown)
    yield page.paragraph(
        f"From left to right calls 1 to {calls}, from the bottom up bytes 0 to {arena}; the line "
        "is the peak." + (f" The {left} smallest tensors are left out." if left else "")
    )
    yield page.fold_parts(
        "In use at the peak",
        page.table(
            [
                (
                    one.name,
                    one.kind,
                    one.dtype,
                    "x".join(map(str, one.shape)),
                    one.end - one.offset,
                    one.offset,
                    f"{one.first + 1} to {one.last + 1}",
                    _maker(one, compiled),
                )
                for one in peak.held
            ],
            ("tensor", "kind", "type", "shape", "bytes", "from byte", "calls", "made by"),
        ),
    )


def _words(one: Held, compiled: CompiledModel) -> str:
    shape = "x".join(map(str, one.shape))
    maker = _maker(one, compiled)
    return (
        f"{one.name} ({one.kind}), {one.dtype} {shape}, {megabytes(one.end - one.offset)}, calls "
        f"{one.first + 1} to {one.last + 1}" + (f", made by {maker}" if maker else "")
    )


def _maker(one: Held, compiled: CompiledModel) -> str:
    if one.maker is None or one.maker >= len(compiled.layers):
        return ""
    layer = compiled.layers[one.maker]
    return f"{layer.layer or layer.kernel} {layer.operator}"


def _slowest(compiled: CompiledModel) -> Html:
    total = sum(layer.cycles for layer in compiled.layers) or 1.0
    slowest = sorted(compiled.layers, key=lambda layer: -layer.cycles)[:_SHOWN_LAYERS]
    return page.shares(
        (
            f"{layer.layer or layer.kernel} {layer.operator}",
            layer.cycles / total,
            f"{layer.cycles / total:.1%}",
        )
        for layer in slowest
        if layer.cycles
    )


def _flow(
    compiled: CompiledModel, graph: Mapping[str, Any], types: Sequence[str]
) -> Iterator[Html]:
    """The calls as a graph, each as long as it takes, in the colour of its type."""
    steps = []
    for number, (layer, kind) in enumerate(zip(compiled.layers, types, strict=True), 1):
        name = layer.layer or layer.kernel
        short = name if len(name) <= _NAME else f"...{name[3 - _NAME :]}"
        words = (
            f"{number}: {name} {layer.operator}, {layer.rule}, {kind}, {layer.cycles:.0f} cycles"
        )
        color = _TYPES.index(kind)
        steps.append((f"{number}  {layer.operator[:_NAME]}  {short}", layer.cycles, color, words))
    shown = steps[:_SHOWN_STEPS]
    links = [link for link in data_flow(graph, compiled.layers) if link[1] < len(shown)]
    yield page.paragraph(
        "From top to bottom: what was fused into one call, as long as its estimated cycles, in the "
        "colour of its type; lines lead to the calls that read its result."
    )
    yield charts.flow(shown, links, title="the plan")
    left = len(steps) - len(shown)
    yield page.paragraph(f"The last {left} calls are only in the table." if left else "")


def _plan(compiled: CompiledModel, types: Sequence[str]) -> Html:
    """Each call in order: what was fused into it, by which rule, and what it costs."""
    total = sum(layer.cycles for layer in compiled.layers) or 1.0
    rows = (
        (
            number,
            layer.layer,
            layer.operator,
            layer.rule,
            "x".join(map(str, layer.shape)),
            kind,
            layer.dtype,
            layer.tile,
            layer.macs,
            layer.nbytes,
            round(layer.cycles),
            f"{layer.cycles / total:.1%}" if layer.cycles else "",
        )
        for number, (layer, kind) in enumerate(zip(compiled.layers, types, strict=True), 1)
    )
    header = (
        "call", "layer", "fused", "rule", "shape", "computed on", "result", "tile", "MACs",
        "bytes", "cycles", "of all",
    )  # fmt: skip
    return page.table(rows, header)
