"""Where each tensor lies in the arena: two that live at the same time never overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A cache line of every CPU here, and the widest vector register (AVX-512).
ALIGNMENT = 64
# Of each order. The benchmark's networks take eight in all at most.
_TRIES = 16


@dataclass(frozen=True, kw_only=True)
class Block:
    """`size` bytes that hold a value from call `first` to call `last`, both included."""

    size: int
    first: int
    last: int


def align(size: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def allocate(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Offsets of the blocks, and the arena's size, in bytes; offsets are aligned.

    Greedy: blocks are placed one by one, each into the smallest gap that the
    blocks living with it leave. Which order is best depends on the network, so
    three are tried, and each again with what ended highest placed first; the
    smallest arena wins.
    """
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-blocks[i].size, blocks[i].first, i),
        lambda i: (-blocks[i].size * (1 + blocks[i].last - blocks[i].first), i),
        lambda i: (blocks[i].first, -blocks[i].size, i),
    )
    least = lower_bound(blocks)
    best: tuple[list[int], int] = ([], 0)
    for key in orders:
        order = sorted(range(len(blocks)), key=key)
        for _ in range(_TRIES):
            offsets, total = _place(blocks, order)
            if not best[0] or total < best[1]:
                best = offsets, total
            if best[1] == least:
                return best
            ends = [start + align(block.size) for start, block in zip(offsets, blocks, strict=True)]
            highest = ends.index(max(ends))
            if order[0] == highest:
                break
            order.remove(highest)
            order.insert(0, highest)
    return best


def lower_bound(blocks: Sequence[Block]) -> int:
    """The most bytes that live at one time: no arena can be smaller."""
    points = {block.first for block in blocks}
    return max(
        (sum(align(b.size) for b in blocks if b.first <= at <= b.last) for at in points), default=0
    )


def _place(blocks: Sequence[Block], order: Sequence[int]) -> tuple[list[int], int]:
    offsets: dict[int, int] = {}
    for index in order:
        block = blocks[index]
        size = align(block.size)
        taken = sorted(
            (offset, offset + align(blocks[other].size))
            for other, offset in offsets.items()
            if blocks[other].first <= block.last and block.first <= blocks[other].last
        )
        best: int | None = None
        best_gap = 0
        end = 0
        for start, stop in taken:
            gap = start - end
            if gap >= size and (best is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, stop)
        offsets[index] = end if best is None else best
    total = max((offsets[i] + align(blocks[i].size) for i in offsets), default=0)
    return [offsets[i] for i in range(len(blocks))], total
