from __future__ import annotations

import random

import pytest

from edgepack.compiler.backend.arena import ALIGNMENT, Block, align, allocate, lower_bound


def assert_valid(blocks: list[Block], offsets: list[int], total: int) -> None:
    for i, (mine, start) in enumerate(zip(blocks, offsets, strict=True)):
        assert start % ALIGNMENT == 0
        assert start + mine.size <= total
        for other, begin in zip(blocks[:i], offsets[:i], strict=True):
            together = mine.first <= other.last and other.first <= mine.last
            overlap = start < begin + other.size and begin < start + mine.size
            assert not (together and overlap)


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


def test_nothing_needs_nothing() -> None:
    assert allocate([]) == ([], 0)
    assert lower_bound([]) == 0


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
