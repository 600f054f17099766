"""The cost model: how many pixels and vectors of channels one register tile should hold.

A tile of R pixels x V vectors keeps its R * V sums in registers during the whole reduction.
Each step of the reduction loads V vectors of weights and R input values and does R * V
multiply-adds: a larger tile needs fewer loads per multiply-add, until registers run out. A tile
that does not divide the image's width leaves a smaller one at the end of each row, which the
model charges like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import Element

# Registers LLVM wants for itself: addresses of constants, broadcasts in flight. Measured on
# 16 and on 32 registers: with fewer kept back the hot loop starts to spill.
_KEPT_BACK = {32: 6, 16: 2}
# Of 16 that a loop over one column of windows needs less if it has several vectors: each input is
# loaded for the multiply-adds that follow. Inputs of neighbouring columns are the same ones, which
# LLVM keeps, and with one vector it moves sums between registers (6x2, 14x1 on AVX2).
_ONE_COLUMN = 1
# More pixels than this bring no fewer loads worth having, and unrolled code grows.
_MOST_PIXELS = 16
_MOST_VECTORS = 8
# Cycles to enter a tile: addresses, loop start, a mispredicted exit. A guess.
_TILE_START = 20


@dataclass(frozen=True, kw_only=True)
class RegisterTile:
    """`pixels` x `vectors` sums held in registers; `cycles` for the whole layer."""

    pixels: int
    vectors: int
    cycles: float

    def __str__(self) -> str:
        return f"{self.pixels}x{self.vectors}"


def parts(total: int, size: int) -> Iterator[tuple[int, int]]:
    """`total` cut into pieces of `size`, as (piece, how many); the rest comes last."""
    if total >= size:
        yield size, total // size
    if total % size:
        yield total % size, 1


def rank(
    *,
    width: int,
    rows: int,
    blocks: int,
    lanes: int,
    reduction: int,
    element: Element,
    cpu: CpuModel,
    kr: int = 1,
    columns: int = 1,
    fits: Callable[[int, int], bool] | None = None,
    most_vectors: int = _MOST_VECTORS,
    others: Sequence[tuple[int, int]] = (),
) -> list[RegisterTile]:
    """All tiles for `rows` rows of `width` pixels and `blocks` blocks of channels, cheapest first.

    And for so many rows of `others`, which are as wide or narrower, as (width, rows).
    Each block is `lanes` results. `reduction` is the number of multiply-adds per result, of which a
    step does `kr`, and one instruction lanes * kr on a vector of so many elements;
    `fits(pixels, vectors)` says whether a tile can be held, by default whether LLVM can, of windows
    of so many `columns`. It has up to `most_vectors`.
    """
    fits = fits or (lambda pixels, vectors: _llvm_holds(pixels, vectors, columns, cpu))
    candidates = (
        RegisterTile(
            pixels=pixels,
            vectors=vectors,
            cycles=sum(
                _cycles(wide, high, blocks, lanes, reduction, pixels, vectors, element, kr, cpu)
                for wide, high in ((width, rows), *others)
            ),
        )
        for vectors in range(1, min(_MOST_VECTORS, most_vectors, blocks) + 1)
        for pixels in range(1, min(_MOST_PIXELS, width) + 1)
        if fits(pixels, vectors)
    )
    return sorted(candidates, key=lambda tile: tile.cycles)


def _llvm_holds(pixels: int, vectors: int, columns: int, cpu: CpuModel) -> bool:
    sums = pixels * vectors
    broadcast = 0 if vectors == 1 and cpu.memory_operand else 1
    kept_back = _KEPT_BACK[cpu.registers]
    if cpu.registers == 16 and columns == 1 and vectors > 1:
        kept_back -= _ONE_COLUMN
    return sums + vectors + broadcast <= cpu.registers - kept_back


def _cycles(
    width: int,
    rows: int,
    blocks: int,
    lanes: int,
    reduction: int,
    pixels: int,
    vectors: int,
    element: Element,
    kr: int,
    cpu: CpuModel,
) -> float:
    return rows * sum(
        pixel_tiles
        * vector_tiles
        * _tile_cycles(lanes, reduction, tile_pixels, tile_vectors, element, kr, cpu)
        for tile_pixels, pixel_tiles in parts(width, pixels)
        for tile_vectors, vector_tiles in parts(blocks, vectors)
    )


def _tile_cycles(
    lanes: int,
    reduction: int,
    pixels: int,
    vectors: int,
    element: Element,
    kr: int,
    cpu: CpuModel,
) -> float:
    sums = pixels * vectors
    arithmetic = sums / cpu.rate(element, lanes * kr)
    # x86 broadcasts one input value per load; ARM loads one per lane and uses it by lane.
    inputs = pixels if cpu.memory_operand else pixels / lanes
    loads = (inputs + vectors) / cpu.loads_per_cycle
    # Where nothing but the order hides a load, some of them take the place of multiply-adds.
    arithmetic += (inputs + vectors) * cpu.load_slots
    step = max(arithmetic, float(cpu.fma_latency), loads)
    if not cpu.pipeline:
        # Loads that find no free issue slot beside the arithmetic, or miss the cache: the part
        # of them is a guess, but a tile with fewer loads should win when all else is equal.
        step += loads / (4 if cpu.in_order else 16)
    panel_bytes = element.bytes * reduction * vectors * lanes
    if panel_bytes > cpu.l1_bytes / 2:
        beyond = panel_bytes > cpu.l2_bytes / 2
        bandwidth = cpu.l3_bandwidth if beyond else cpu.l2_bandwidth
        step = max(step, element.bytes * vectors * lanes * kr / bandwidth)
    return reduction // kr * step + 2 * sums + _TILE_START
