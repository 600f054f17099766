from __future__ import annotations

import random
import time

import pytest

from edgepack.compiler.backend.arena import (
    ALIGNMENT,
    Block,
    ByteRange,
    align,
    allocate,
    lower_bound,
)


def live_bytes(block: Block) -> list[tuple[int, int, int, int]]:
    """Pieces of a block, each with the first and the last call that its bytes are in use at."""
    found = []
    for start in range(0, block.size, ALIGNMENT):
        stop = min(start + ALIGNMENT, block.size)
        parts = [p for p in block.parts if p.start < start + ALIGNMENT and start < p.stop]
        first = min((p.first for p in parts), default=block.first)
        found.append((start, stop, first, max((p.last for p in parts), default=block.last)))
    return found


def collisions(blocks: list[Block], offsets: list[int]) -> list[tuple[int, int]]:
    """Pairs of blocks of which some bytes are in use at one time and at one place."""
    found = []
    for i, (mine, here) in enumerate(zip(blocks, offsets, strict=True)):
        for j, (other, there) in enumerate(zip(blocks[:i], offsets[:i], strict=True)):
            if here >= there + other.size or there >= here + mine.size:
                continue
            taken = {there + start: (f, last) for start, _, f, last in live_bytes(other)}
            if any(
                here + start in taken
                and first <= taken[here + start][1]
                and taken[here + start][0] <= last
                for start, _, first, last in live_bytes(mine)
            ):
                found.append((j, i))
    return found


def assert_valid(blocks: list[Block], offsets: list[int], total: int) -> None:
    assert all(start % ALIGNMENT == 0 for start in offsets)
    assert all(start + b.size <= total for start, b in zip(offsets, blocks, strict=True))
    assert collisions(blocks, offsets) == []


def test_a_chain_takes_two_buffers() -> None:
    blocks = [Block(size=1000, first=i, last=i + 1) for i in range(10)]
    offsets, total = allocate(blocks)
    assert_valid(blocks, offsets, total)
    assert total == 2 * align(1000) == 2048


def test_a_residual_keeps_its_place() -> None:
    blocks = [
        Block(size=640, first=0, last=3),
        Block(size=6400, first=1, last=2),
        Block(size=6400, first=2, last=3),
        Block(size=640, first=3, last=4),
        Block(size=64, first=4, last=5),
    ]
    offsets, total = allocate(blocks)
    assert_valid(blocks, offsets, total)
    assert total == lower_bound(blocks)


def test_what_ends_highest_is_placed_first() -> None:
    # MNASNet's first tensors, of which none of the three orders makes the smallest arena.
    sizes = [602112, 1634304, 1605632, 802816, 2429952]
    blocks = [Block(size=size, first=i - 1, last=i) for i, size in enumerate(sizes)]
    offsets, total = allocate(blocks)
    assert_valid(blocks, offsets, total)
    assert total == lower_bound(blocks) == 1634304 + 1605632


def _u_net() -> list[Block]:
    """A skip that is the first half of a joint; between them the net is as wide as the joint."""
    halves = (
        ByteRange(start=0, stop=6400, first=0, last=5),
        ByteRange(start=6400, stop=12800, first=4, last=5),
    )
    return [
        Block(size=12800, first=0, last=5, parts=halves),
        Block(size=12800, first=1, last=2),
        Block(size=3200, first=2, last=3),
        Block(size=3200, first=3, last=4),
        Block(size=6400, first=5, last=6),
    ]


def test_what_is_joined_later_takes_its_bytes_later() -> None:
    blocks = _u_net()
    offsets, total = allocate(blocks)
    assert_valid(blocks, offsets, total)
    assert total == lower_bound(blocks) == 12800 + 6400 + 3200
    whole = [Block(size=b.size, first=b.first, last=b.last) for b in blocks]
    assert allocate(whole)[1] == lower_bound(whole) == 2 * 12800 + 3200


def test_bytes_of_no_part_are_in_use_all_the_time() -> None:
    parts = (
        ByteRange(start=64, stop=128, first=3, last=6),
        ByteRange(start=96, stop=192, first=5, last=7),
    )
    block = Block(size=300, first=1, last=9, parts=parts)
    assert block.spans == (
        ByteRange(start=0, stop=64, first=1, last=9),
        ByteRange(start=64, stop=128, first=3, last=7),
        ByteRange(start=128, stop=192, first=5, last=7),
        ByteRange(start=192, stop=320, first=1, last=9),
    )
    assert lower_bound([block]) == 320


def test_what_is_read_in_parts_is_free_part_by_part() -> None:
    """A sequence that is read step by step while another one is written."""
    steps = range(4)
    read = [ByteRange(start=640 * i, stop=640 * (i + 1), first=0, last=1 + i) for i in steps]
    written = [ByteRange(start=640 * i, stop=640 * (i + 1), first=1 + i, last=5) for i in steps]
    blocks = [
        Block(size=2560, first=0, last=4, parts=tuple(read)),
        Block(size=2560, first=1, last=5, parts=tuple(written)),
    ]
    offsets, total = allocate(blocks)
    assert_valid(blocks, offsets, total)
    # A step is written before the one that it is made of is free.
    assert total == lower_bound(blocks) == 2560 + 640
    # The same place for both would be one step too few.
    assert collisions(blocks, [0, 0]) == [(0, 1)]


def test_collisions_are_seen() -> None:
    """That the check of this file is able to fail."""
    blocks = _u_net()
    assert collisions(blocks, [0, 6400, 19200, 12800, 12800]) == []
    # The wide one over the skip; what the second half is made of where that is.
    assert collisions(blocks, [0, 6336, 19200, 12800, 12800]) == [(0, 1)]
    assert collisions(blocks, [0, 6400, 19200, 6400, 12800]) == [(0, 3)]


def test_nothing_needs_nothing() -> None:
    assert allocate([]) == ([], 0)
    assert lower_bound([]) == 0


def _parts(rng: random.Random, size: int, first: int, last: int) -> tuple[ByteRange, ...]:
    """Some bytes at multiples of the alignment, which may overlap and leave others out."""
    made = []
    for _ in range(rng.randrange(6)):
        start = rng.randrange(0, size, ALIGNMENT)
        stop = min(size, start + ALIGNMENT * rng.randrange(1, 2 + size // ALIGNMENT))
        begin = rng.randrange(first, last + 1)
        end = rng.randrange(begin, last + 1)
        made.append(ByteRange(start=start, stop=stop, first=begin, last=end))
    return tuple(made)


@pytest.mark.parametrize("seed", range(30))
def test_random_parts_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    blocks = []
    for _ in range(50):
        first, size = rng.randrange(40), rng.choice([0, 1, 64, 65, rng.randrange(1, 40_000)])
        last = first + rng.randrange(12)
        parts = _parts(rng, size, first, last) if size and rng.random() < 0.6 else ()
        blocks.append(Block(size=size, first=first, last=last, parts=parts))
    offsets, total = allocate(blocks)
    assert_valid(blocks, offsets, total)
    at = {
        call: sum(
            min(align(b.size), start + ALIGNMENT) - start
            for b in blocks
            for start, _, first, last in live_bytes(b)
            if first <= call <= last
        )
        for call in range(60)
    }
    assert lower_bound(blocks) == max(at.values())
    assert lower_bound(blocks) <= total <= 1.6 * lower_bound(blocks)


def test_a_thousand_calls_are_no_work() -> None:
    """What the allocator does grows with what lives at a time, not with the square of the calls."""
    rng = random.Random(1)
    blocks = []
    for call in range(1000):
        parts = [
            ByteRange(start=6400 * i, stop=6400 * (i + 1), first=call + i, last=call + 6)
            for i in range(6)
        ]
        blocks.append(Block(size=38400, first=call, last=call + 6, parts=tuple(parts)))
        blocks.append(Block(size=rng.randrange(100_000), first=call, last=call + 1))
    begin = time.process_time()
    offsets, total = allocate(blocks)
    assert time.process_time() - begin < 5
    assert len(offsets) == len(blocks)
    assert total < 2 * lower_bound(blocks)


@pytest.mark.parametrize("seed", range(30))
def test_random_lifetimes_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    blocks = []
    for _ in range(60):
        first = rng.randrange(40)
        size = rng.choice([1, 63, 64, 65, 1000, rng.randrange(1, 100_000)])
        blocks.append(Block(size=size, first=first, last=first + rng.randrange(1, 8)))
    offsets, total = allocate(blocks)
    assert_valid(blocks, offsets, total)
    assert lower_bound(blocks) <= total <= 1.3 * lower_bound(blocks)
    assert allocate(blocks) == (offsets, total)
