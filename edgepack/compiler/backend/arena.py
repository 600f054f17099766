"""Where each tensor lies in the arena: two that live at the same time never overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from edgepack.kernels.tiles.layout import ALIGNMENT

# Of each order. The benchmark's networks take eight in all at most.
_TRIES = 16

# Offsets that a block cannot have, as seen from another's, both ends excluded.
_Interval = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ByteRange:
    """Bytes `start` to `stop` (excluded) of a block, in use from call `first` to call `last`."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Block:
    """`size` bytes that hold a value from call `first` to call `last`, both included.

    Those of a part hold nothing before the part's own first call, or after its last one. Where
    parts overlap the earliest and the latest count.
    """

    size: int
    first: int
    last: int
    parts: tuple[ByteRange, ...] = ()

    @cached_property
    def spans(self) -> tuple[ByteRange, ...]:
        """All bytes, up to the alignment, in order."""
        if not (self.size and self.parts):
            whole = ByteRange(start=0, stop=align(self.size), first=self.first, last=self.last)
            return (whole,)
        edges = {0, align(self.size)}
        for part in self.parts:
            edges |= {part.start // ALIGNMENT * ALIGNMENT, align(part.stop)}
        made: list[ByteRange] = []
        for start, stop in pairwise(sorted(edges)):
            inside = [part for part in self.parts if part.start < stop and start < part.stop]
            first = min((part.first for part in inside), default=self.first)
            last = max((part.last for part in inside), default=self.last)
            if made and (made[-1].first, made[-1].last) == (first, last):
                start = made.pop().start  # noqa: PLW2901
            made.append(ByteRange(start=start, stop=stop, first=first, last=last))
        return tuple(made)


def align(size: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def allocate(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Offsets of the blocks, and the arena's size, in bytes; offsets are aligned.

    Greedy: blocks are placed one by one, each into the smallest gap that the
    blocks living with it leave. Which order is best depends on the network, so
    four are tried, and each again with what ended highest placed first; the
    smallest arena wins. The last one is for blocks that are free part by part:
    what goes below others has to be there before them.
    """
    work = [
        sum((span.stop - span.start) * (1 + span.last - span.first) for span in block.spans)
        for block in blocks
    ]
    least, neighbours = lower_bound(blocks), _neighbours(blocks)
    # Those whose end another one may have, as far as that is not in use.
    below = [
        sum(taken[0][0] > -align(block.size) for _, taken in others)
        for block, others in zip(blocks, neighbours, strict=True)
    ]
    orders: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda i: (-blocks[i].size, blocks[i].first, i),
        lambda i: (-work[i], i),
        lambda i: (blocks[i].first, -blocks[i].size, i),
        lambda i: (-below[i], -blocks[i].size, i),
    )
    best: tuple[list[int], int] = ([], 0)
    for key in orders:
        order = sorted(range(len(blocks)), key=key)
        for _ in range(_TRIES):
            offsets, total = _place(blocks, neighbours, order)
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
    changes: list[tuple[int, int]] = []
    for block in blocks:
        for span in block.spans:
            size = span.stop - span.start
            changes += [(span.first, size), (span.last + 1, -size)]
    most = live = 0
    for _, change in sorted(changes):  # what ends before a call goes before what it begins
        live += change
        most = max(most, live)
    return most


def _neighbours(blocks: Sequence[Block]) -> list[list[tuple[int, list[_Interval]]]]:
    """For each block those that live when it does, with the offsets that they leave it no room
    for, as seen from theirs."""
    found: list[list[tuple[int, list[_Interval]]]] = [[] for _ in blocks]
    live: list[int] = []
    for mine in sorted(range(len(blocks)), key=lambda i: min(s.first for s in blocks[i].spans)):
        block = blocks[mine]
        start = min(span.first for span in block.spans)
        live = [other for other in live if blocks[other].last >= start]
        for other in live:
            taken = _merged(
                (theirs.start - own.stop, theirs.stop - own.start)
                for own in block.spans
                for theirs in blocks[other].spans
                if theirs.first <= own.last and own.first <= theirs.last
            )
            if taken:
                found[mine].append((other, taken))
                found[other].append((mine, [(-high, -low) for low, high in taken]))
        live.append(mine)
    return found


def _merged(intervals: Iterable[_Interval]) -> list[_Interval]:
    """The same open intervals with none that overlap, in order."""
    made: list[_Interval] = []
    for low, high in sorted(intervals):
        if made and low < made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], high)
        elif low < high:
            made.append((low, high))
    return made


def _place(
    blocks: Sequence[Block],
    neighbours: Sequence[Sequence[tuple[int, Sequence[_Interval]]]],
    order: Sequence[int],
) -> tuple[list[int], int]:
    offsets: dict[int, int] = {}
    for index in order:
        taken = sorted(
            (offsets[other] + low, offsets[other] + high)
            for other, intervals in neighbours[index]
            if other in offsets
            for low, high in intervals
        )
        best: int | None = None
        best_gap = 0
        end = 0
        for start, stop in taken:
            gap = start - end
            if gap >= 0 and (best is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, stop)
        offsets[index] = end if best is None else best
    total = max((offsets[i] + align(blocks[i].size) for i in offsets), default=0)
    return [offsets[i] for i in range(len(blocks))], total
