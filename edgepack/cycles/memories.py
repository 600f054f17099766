"""Caches and memory of the boards whose cycles are estimated."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.boards import Board


@dataclass(frozen=True, kw_only=True)
class BoardMemory:
    """Caches and memory of a board's core.

    `l2_cycles`: from a first-level miss to the word; `bandwidth`: lowest and highest that one core
    reads and writes, in bytes per second.
    """

    l1_bytes: int
    l1_ways: int
    l2_bytes: int
    l2_ways: int
    l2_cycles: int
    bandwidth: tuple[float, float]
    source: str


KIB = 1024
# By board. What one core gets out of memory is a guess everywhere, as is the time to the second
# level: they make the range of milliseconds, and no ratio of cycles.
MEMORIES = {
    "rasp3b": BoardMemory(
        l1_bytes=32 * KIB,
        l1_ways=4,
        l2_bytes=512 * KIB,
        l2_ways=16,
        l2_cycles=15,
        bandwidth=(1.5e9, 3e9),
        source="BCM2837: TRM DDI 0500 (4 and 16 ways), 512 KiB; LPDDR2 at 900 MT/s, 32 bits",
    ),
    "pynq": BoardMemory(
        l1_bytes=32 * KIB,
        l1_ways=4,
        l2_bytes=512 * KIB,
        l2_ways=8,
        l2_cycles=25,
        bandwidth=(0.5e9, 1.2e9),
        source="Zynq-7000 TRM UG585, chapter 3 (32 KiB of 4 ways, 512 KiB of 8); DDR3, 16 bits",
    ),
    "imx93": BoardMemory(
        l1_bytes=32 * KIB,
        l1_ways=4,
        l2_bytes=256 * KIB,
        l2_ways=16,
        l2_cycles=15,
        bandwidth=(1.5e9, 4e9),
        source="i.MX 93: 64 KiB of its own and 256 KiB shared, played as one; LPDDR4, 16 bits",
    ),
    "stm32mp1": BoardMemory(
        l1_bytes=32 * KIB,
        l1_ways=4,
        l2_bytes=256 * KIB,
        l2_ways=8,
        l2_cycles=15,
        bandwidth=(0.7e9, 1.5e9),
        source="STM32MP157 reference manual RM0436: 32 and 256 KiB; DDR3L, 32 bits at 533 MHz",
    ),
}
MEMORIES["rasp3b-64"] = MEMORIES["rasp3b"]
MEMORIES["rasp4b-64"] = BoardMemory(
    l1_bytes=32 * KIB,
    l1_ways=2,
    l2_bytes=1024 * KIB,
    l2_ways=16,
    l2_cycles=15,
    bandwidth=(2e9, 4.5e9),
    source="BCM2711: TRM 100095 (2 and 16 ways), 1 MiB; LPDDR4 at 3200 MT/s, 32 bits",
)
# A board of each core, for those that have no row.
_BY_CPU = {
    "cortex-a53": "rasp3b",
    "cortex-a9": "pynq",
    "cortex-a55": "imx93",
    "cortex-a7": "stm32mp1",
    "cortex-a72": "rasp4b-64",
}


def memory_of(board: Board) -> BoardMemory:
    """A board's own, else that of one with the same core."""
    return MEMORIES.get(board.name) or MEMORIES[_BY_CPU[board.cpu]]
