"""Content-defined chunks: pieces of a file that stay the same when others change.

A cut is made where a hash of the 32 bytes before it has zeros in its top bits, so that
bytes that are changed, put in or taken out move the cuts near them only. The rolling hash
is the gear hash of FastCDC (Xia et al., USENIX ATC 2016): h = 2 h + G[byte] mod 2^32,
with a table G of pseudo-random numbers, here from xorshift32 (Marsaglia, Journal of
Statistical Software 8, 2003, with its seed). `edgepack-device chunks` makes the same.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 32
"""Bytes that a cut depends on: later ones are shifted out of the 32 bits."""

_AVERAGE = 16 << 10
_AVERAGE_OF_LARGE = 64 << 10
_LARGE = 64 << 20
_SPREAD = 4
_BLOCK = 1 << 20
_ENTRY = struct.Struct("<I16s")


@dataclass(frozen=True)
class Chunk:
    """`digest` has the first 16 bytes of the content's SHA-256."""

    offset: int
    size: int
    digest: bytes

    @property
    def key(self) -> tuple[int, bytes]:
        """Equal for equal content."""
        return self.size, self.digest


def chunks(data: memoryview) -> Iterator[Chunk]:
    """The chunks of a whole file, in order; together they are all of it."""
    start = 0
    for end in cuts(data):
        digest = hashlib.sha256(data[start:end]).digest()[:16]
        yield Chunk(start, end - start, digest)
        start = end


def cuts(data: memoryview) -> Iterator[int]:
    """Where chunks end. None is longer than 4 times the average, few are below a quarter.

    The average is 16 KiB, and 64 KiB for files above 64 MiB.
    """
    size = len(data)
    average = _AVERAGE if size <= _LARGE else _AVERAGE_OF_LARGE
    shortest, longest = average // _SPREAD, average * _SPREAD
    start = 0
    for candidate in _candidates(data, shift=32 - (average.bit_length() - 1)):
        while candidate - start > longest:
            start += longest
            yield start
        if candidate - start >= shortest:
            start = candidate
            yield start
    while size - start > longest:
        start += longest
        yield start
    if start < size:
        yield size


def parse(packed: bytes) -> list[tuple[int, bytes]]:
    """Keys of the chunks that the device has: u32le size and 16 bytes of digest for each."""
    return list(_ENTRY.iter_unpack(packed))


def _candidates(data: memoryview, *, shift: int) -> Iterator[int]:
    """Positions after the bytes whose hash, shifted right, is 0."""
    values = np.frombuffer(data, dtype=np.uint8)
    for start in range(0, len(values), _BLOCK):
        before = max(0, start - WINDOW + 1)
        hashes = _GEAR[values[before : start + _BLOCK]]
        # The sum over 2, 4 ... 32 bytes out of two sums over half as many.
        width = 1
        while width < WINDOW:
            hashes[width:] += hashes[:-width] << np.uint32(width)
            width *= 2
        found: NDArray[np.intp] = np.flatnonzero(hashes[start - before :] >> np.uint32(shift) == 0)
        yield from (found + (start + 1)).tolist()


def _gear() -> NDArray[np.uint32]:
    state, table = 2463534242, []
    for _ in range(256):
        state ^= state << 13 & 0xFFFFFFFF
        state ^= state >> 17
        state ^= state << 5 & 0xFFFFFFFF
        table.append(state)
    return np.array(table, dtype=np.uint32)


_GEAR = _gear()
