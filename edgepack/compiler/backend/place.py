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
    """What the arena is made of. Bytes are in use from the first call that writes them to the last
    one that reads them: parts of a joint come one after the other, and of what is read in parts
    each is free after its last reader."""
    parts: dict[int, list[ByteRange]] = {root: [] for root in roots}
    for index, value in enumerate(draft.values):
        if value.root not in parts or value.used < 0:
            continue
        root = draft.values[value.root]
        is_written = (index == value.root or value.first >= 0) and not value.joined
        # Of what is shown of a joint, its parts say from when on it is there.
        shown_first = value.used if root.joined else root.first
        part = ByteRange(
            start=value.start,
            # Where windows overlap a view may count bytes twice.
            stop=min(value.start + value.nbytes, root.nbytes),
            first=value.first if is_written else shown_first,
            last=value.used,
        )
        parts[value.root].append(part)
    return [
        Block(
            size=value.nbytes,
            first=value.first,
            last=value.last,
            parts=tuple(parts[root]),
        )
        for root, value in ((root, draft.values[root]) for root in roots)
    ]
