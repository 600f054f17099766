"""What lies in a plan's arena during which calls, and which call reads what which one wrote, by
graph.json: for the page of `compile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgepack.compiler.backend.report import LayerReport

TENSOR, SCRATCH, OUTSIDE, STATE = "tensor", "scratch", "input or output", "state"
KINDS = (TENSOR, SCRATCH, OUTSIDE, STATE)


@dataclass(frozen=True, kw_only=True)
class Held:
    """A tensor of the arena: bytes `offset` to `end` during calls `first` to `last`, both included.

    `maker` is the number of the call that writes it first, None for an input.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    end: int
    first: int
    last: int
    maker: int | None


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The call during which most bytes are in use, and what holds them, largest first."""

    call: int
    nbytes: int
    held: tuple[Held, ...]


def held_tensors(graph: Mapping[str, Any], layers: Sequence[LayerReport]) -> list[Held]:
    """All tensors of the arena, with the calls from the first to the last that needs them.

    An input is there from the start, an output up to the end, a state always, and what a loop needs
    that was made before it up to the loop's end.
    """
    calls: list[dict[str, Any]] = graph["calls"]
    tensors: list[dict[str, Any]] = graph["tensors"]
    uses: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        for arg in call["args"]:
            uses.setdefault(arg, []).append(number)
    inputs, outputs = set(graph["inputs"]), set(graph["outputs"])
    states: set[int] = set()
    for state in graph.get("states", ()):
        states |= {graph["inputs"][state["input"]], graph["outputs"][state["output"]]}
    scratch = _scratch(calls, layers, uses)
    end = max(len(calls) - 1, 0)
    found = []
    for index, tensor in enumerate(tensors):
        if tensor["storage"] != "arena" or not tensor["bytes"]:
            continue
        if index not in uses and index not in inputs | outputs:
            continue
        own = uses.get(index) or _uses_of_same_bytes(tensor, tensors, uses)
        first, last = own[0], own[-1]
        for block in graph.get("blocks", ()):
            if first < block["first"] <= last:
                last = max(last, block["end"] - 1)
        kind = TENSOR
        if index in scratch:
            kind = SCRATCH
        if index in inputs | outputs:
            kind = OUTSIDE
            first = 0 if index in inputs else first
            last = end if index in outputs else last
        if index in states:
            kind, first, last = STATE, 0, end
        found.append(
            Held(
                name=tensor["name"],
                dtype=tensor["dtype"],
                shape=tuple(tensor["shape"]),
                kind=kind,
                offset=tensor["offset"],
                end=tensor["offset"] + tensor["bytes"],
                first=first,
                last=last,
                maker=None if index in inputs else own[0],
            )
        )
    return found


def _uses_of_same_bytes(
    tensor: Mapping[str, Any],
    tensors: Sequence[Mapping[str, Any]],
    uses: Mapping[int, Sequence[int]],
) -> Sequence[int]:
    """Those of the tensor that a call writes under another name: of several the last one."""
    same = [
        own
        for index, own in uses.items()
        if tensors[index]["storage"] == "arena" and tensors[index]["offset"] == tensor["offset"]
    ]
    return max(same, key=lambda own: own[-1], default=[0])


def _scratch(
    calls: Sequence[Mapping[str, Any]],
    layers: Sequence[LayerReport],
    uses: Mapping[int, Sequence[int]],
) -> set[int]:
    """Tensors that stand behind a call's result among its arguments, and in no other call's."""
    found: set[int] = set()
    if len(layers) != len(calls):
        return found
    for call, layer in zip(calls, layers, strict=True):
        if layer.result >= 0:
            behind = call["args"][layer.result + 1 :]
            found |= {arg for arg in behind if len(set(uses[arg])) == 1}
    return found


def find_peak(held: Sequence[Held], calls: int) -> Peak:
    """Of all calls the first with most bytes; what lies over each other counts once."""
    best = Peak(call=0, nbytes=0, held=())
    begins: dict[int, list[Held]] = {}
    for one in held:
        begins.setdefault(one.first, []).append(one)
    alive: list[Held] = []
    for call in range(calls):
        alive = [one for one in alive if one.last >= call] + begins.get(call, [])
        nbytes, end = 0, 0
        for one in sorted(alive, key=lambda one: one.offset):
            nbytes += max(one.end - max(one.offset, end), 0)
            end = max(end, one.end)
        if nbytes > best.nbytes:
            largest = sorted(alive, key=lambda one: one.offset - one.end)
            best = Peak(call=call, nbytes=nbytes, held=tuple(largest))
    return best


def data_flow(graph: Mapping[str, Any], layers: Sequence[LayerReport]) -> list[tuple[int, int]]:
    """(call that writes, call that reads it), in the order of the plan, each pair once.

    Told by places: a call reads what was written there last, under whatever name, maybe in parts.
    Without a loop, that is: what a turn leaves for the next one is not followed.
    """
    tensors = graph["tensors"]
    written: list[tuple[int, int, int]] = []  # from byte, to byte, call
    links: dict[tuple[int, int], None] = {}
    for number, (call, layer) in enumerate(zip(graph["calls"], layers, strict=True)):
        args = call["args"]
        result = layer.result if 0 <= layer.result < len(args) else len(args) - 1
        for tensor in (tensors[arg] for arg in args[:result]):
            if tensor["storage"] != "arena":
                continue
            begin, end = tensor["offset"], tensor["offset"] + tensor["bytes"]
            for low, high, source in written:
                if low < end and begin < high:
                    links[source, number] = None
        for tensor in (tensors[arg] for arg in args[result:]):
            if tensor["storage"] == "arena":
                begin, end = tensor["offset"], tensor["offset"] + tensor["bytes"]
                written = [*_without(written, begin, end), (begin, end, number)]
    return list(links)


def _without(
    written: Sequence[tuple[int, int, int]], begin: int, end: int
) -> list[tuple[int, int, int]]:
    """What is left of it once other bytes are written there."""
    return [
        (low, high, call)
        for start, stop, call in written
        for low, high in ((start, min(stop, begin)), (max(start, end), stop))
        if low < high
    ]
