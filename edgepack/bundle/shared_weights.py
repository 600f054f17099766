"""What two plans of one model have in common: tables of embeddings and the like, to the byte.

The plan for the CPU reads such parameters from the file of the plan for the GPU beside it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Protocol

# For less a plan had better stay one that can be read by itself.
_LEAST_BYTES = 1 << 20
_ALIGNMENT = 64


class PlanFiles(Protocol):
    """What a plan is made of."""

    @property
    def graph(self) -> Path: ...
    @property
    def params(self) -> Path: ...


def without_shared(plan: PlanFiles, other: PlanFiles) -> tuple[bytes, bytes] | None:
    """The graph and the parameters of a plan that shares those of another one; None if they have
    none in common that are worth it."""
    document: dict[str, Any] = json.loads(plan.graph.read_bytes())
    beside: dict[str, Any] = json.loads(other.graph.read_bytes())
    params, shared = plan.params.read_bytes(), other.params.read_bytes()
    places = {_digest(shared, *extent): extent[0] for extent in _extents(beside)}
    left, moved = bytearray(), {}
    for start, size in _extents(document):
        there = places.get(_digest(params, start, size)) if size >= _LEAST_BYTES else None
        if there is not None:
            moved[start] = ("shared", there)
            continue
        left += bytes(-len(left) % _ALIGNMENT)
        moved[start] = ("params", len(left))
        left += params[start : start + size]
    if all(storage == "params" for storage, _ in moved.values()):
        return None
    for tensor in document["tensors"]:
        if tensor["storage"] == "params":
            tensor["storage"], tensor["offset"] = moved[tensor["offset"]]
    document["params_bytes"], document["shared_bytes"] = len(left), len(shared)
    return json.dumps(document).encode() + b"\n", bytes(left)


def _extents(document: dict[str, Any]) -> list[tuple[int, int]]:
    """(offset, size) of each parameter, of several at one place the largest."""
    found: dict[int, int] = {}
    for tensor in document["tensors"]:
        if tensor["storage"] == "params":
            offset = tensor["offset"]
            found[offset] = max(found.get(offset, 0), tensor["bytes"])
    return sorted(found.items())


def _digest(params: bytes, offset: int, size: int) -> bytes:
    return hashlib.sha256(params[offset : offset + size]).digest()
