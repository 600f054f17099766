"""Chunks against the definition, computed byte by byte, and against what they are for."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from edgepack.deploy import chunks


def table() -> list[int]:
    """xorshift32 as in Marsaglia's paper, with its seed."""
    y, out = 2463534242, []
    for _ in range(256):
        y = (y ^ (y << 13)) % 2**32
        y ^= y >> 17
        y = (y ^ (y << 5)) % 2**32
        out.append(y)
    return out


def cuts_by_definition(data: bytes, average: int) -> list[int]:
    gear, hashed, start, found = table(), 0, 0, []
    zeros = 32 - (average.bit_length() - 1)
    for at, byte in enumerate(data, start=1):
        hashed = (2 * hashed + gear[byte]) % 2**32
        size = at - start
        if (size >= average // 4 and hashed >> zeros == 0) or size == 4 * average:
            found.append(at)
            start = at
    return found if start == len(data) else [*found, len(data)]


def random_bytes(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        random_bytes(4096),
        random_bytes(3_000_000),  # more than a block of the implementation
        bytes(300_000) + random_bytes(300_000) + b"\xff" * 300_000,
        np.random.default_rng(2).normal(0, 0.05, 200_000).astype(np.float32).tobytes(),
    ],
    ids=["empty", "one", "small", "random", "runs", "weights"],
)
def test_cuts_are_those_of_the_definition(data: bytes) -> None:
    assert list(chunks.cuts(memoryview(data))) == cuts_by_definition(data, 16 << 10)


def test_files_above_64_mib_have_larger_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_LARGE", 1_000_000)
    data = random_bytes(2_000_000)
    assert list(chunks.cuts(memoryview(data))) == cuts_by_definition(data, 64 << 10)


def test_chunks_are_the_whole_file() -> None:
    data = random_bytes(1_000_000)
    found = list(chunks.chunks(memoryview(data)))
    assert b"".join(data[c.offset : c.offset + c.size] for c in found) == data
    for chunk in found:
        content = data[chunk.offset : chunk.offset + chunk.size]
        assert chunk.digest == hashlib.sha256(content).digest()[:16]


def test_a_change_moves_the_cuts_near_it_only() -> None:
    data = random_bytes(2_000_000)
    before = {c.key for c in chunks.chunks(memoryview(data))}
    for changed in (
        data[:1_000_000] + b"!" + data[1_000_001:],
        data[:1_000_000] + b"put in" + data[1_000_000:],
        data[:1_000_000] + data[1_000_100:],
    ):
        new = [c for c in chunks.chunks(memoryview(changed)) if c.key not in before]
        assert sum(c.size for c in new) <= 3 * (64 << 10)
        assert new[0].offset <= 1_000_000
