"""Where the values of a plan lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgepack.compiler.backend.arena import Block, ByteRange, align, allocate
from edgepack.compiler.backend.draft import PlanDraft, bytes_of


def place_values(draft: PlanDraft) -> tuple[dict[int, int], int, bytearray]:
    """Offsets of the root values, the arena's size, and the parameter file."""
    roots = [i for i, value in enumerate(draft.values) if value.root == i and value.data is None]
    offsets, arena_bytes = allocate(arena_blocks(draft, roots))
    places = dict(zip(roots, offsets, strict=True))
    end, stored = 0, []
    for index, value in enumerate(draft.values):
        if value.root == index and value.data is not None:
            places[index] = align(end)
            end = places[index] + value.nbytes
            stored.append((places[index], value.data))
    # Of their size at once: they may be most of this process's memory.
    params = bytearray(end)
    filled = np.frombuffer(params, "uint8")
    for start, data in stored:
        filled[start : start + data.nbytes] = bytes_of(data)
    return places, arena_bytes, params


def arena_blocks(draft: PlanDraft, roots: Sequence[int]) -> list[Block]:
    """What the arena is made of. The bytes of a joint's parts are in use from the calls on that
    write them; what lies there later (a result in place) changes nothing of that."""
    parts: dict[int, list[ByteRange]] = {root: [] for root in roots if draft.values[root].joined}
    for value in draft.values:
        if value.root in parts and value.first >= 0 and not value.joined:
            span = ByteRange(start=value.start, stop=value.start + value.nbytes, first=value.first)
            parts[value.root].append(span)
    return [
        Block(
            size=value.nbytes,
            first=value.first,
            last=value.last,
            parts=tuple(parts.get(root, ())),
        )
        for root, value in ((root, draft.values[root]) for root in roots)
    ]
