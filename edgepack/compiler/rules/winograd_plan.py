"""How Winograd's algorithm would compute a layer, and what that costs; see `winograd`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgepack.compiler.choices import Way
from edgepack.compiler.layers.layer import Convolution, Layer
from edgepack.compiler.layers.tensors import extent
from edgepack.compiler.tiles import tile, toom_cook
from edgepack.compiler.tiles.cpu import CpuModel
from edgepack.compiler.tiles.element import FLOAT16, Element
from edgepack.compiler.tiles.layout import Blocked
from edgepack.compiler.tiles.product import choose_tile, stream_cycles

# Chunks of so few tiles may be larger than the cache: smaller ones would be too few pixels for
# the products' register tiles.
_FEW_TILES = 16
# Cycles around one row or column of a transform: loop, addresses.
_PASS_START = 6


@dataclass(frozen=True, kw_only=True)
class TileGrid:
    """Tiles of an image, and how they are cut into chunks."""

    rows: int
    columns: int
    chunk_rows: int
    chunk_columns: int

    @property
    def tiles(self) -> int:
        """Tiles of a whole chunk."""
        return self.chunk_rows * self.chunk_columns

    @property
    def chunks(self) -> int:
        """Chunks of one image."""
        return -(-self.rows // self.chunk_rows) * -(-self.columns // self.chunk_columns)

    def busy(self, batch: int, cores: int) -> float:
        """The share of time that the cores are busy if they share the chunks of all images."""
        rounds = -(-batch * self.chunks // cores)
        return batch * self.rows * self.columns / (rounds * cores * self.tiles)


@dataclass(frozen=True, kw_only=True)
class WinogradPlan:
    """How a layer is computed: tiles of `results` x `results`, and the products' tile."""

    results: int
    grid: TileGrid
    product: tile.RegisterTile
    cycles: float

    @property
    def size(self) -> int:
        """Inputs of a tile in one direction."""
        return self.results + 2

    @property
    def positions(self) -> int:
        """Products per tile and pair of channels."""
        return self.size**2

    def __str__(self) -> str:
        return f"F({self.results}x{self.results}) {self.product} of {self.grid.tiles}"


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The channels of a layer in blocks: those read and those written."""

    ins: int
    in_block: int
    outs: int
    out_block: int
    element: Element

    @property
    def in_blocks(self) -> int:
        return -(-self.ins // self.in_block)

    @property
    def out_blocks(self) -> int:
        return -(-self.outs // self.out_block)


def _odd(value: int) -> int:
    """Odd strides between positions spread them over the sets of a cache."""
    return value | 1


def _scratch_bytes(channels: Channels, positions: int, tiles: int) -> int:
    """Both scratch tensors of one chunk."""
    lanes = _odd(channels.in_blocks) * channels.in_block
    lanes += _odd(channels.out_blocks) * channels.out_block
    return channels.element.bytes * positions * lanes * _odd(tiles)


def channels_of(layer: Layer, cpu: CpuModel) -> Channels:
    ins, outs = extent(layer.inputs[0])[1], extent(layer.output)[1]
    element = layer.element
    return Channels(
        ins=ins,
        in_block=cpu.block(ins, element),
        outs=outs,
        out_block=cpu.block(outs, element),
        element=element,
    )


def _grids(rows: int, columns: int) -> Iterator[TileGrid]:
    """Ways to cut tiles into chunks: some whole rows, or a part of one; all as even as can be."""
    for parts in range(1, rows + 1):
        yield TileGrid(
            rows=rows, columns=columns, chunk_rows=-(-rows // parts), chunk_columns=columns
        )
    for parts in range(2, columns // 8 + 1):
        yield TileGrid(rows=rows, columns=columns, chunk_rows=1, chunk_columns=-(-columns // parts))


def plan(
    layer: Layer,
    cpu: CpuModel,
    sizes: Collection[int] = tuple(toom_cook.POINTS),
    choice: Way | None = None,
) -> WinogradPlan:
    """The cheapest way to compute a layer by Winograd's algorithm, with tiles of one of `sizes`.

    A `choice` says which of them, and which tile the products have.
    """
    sizes = allowed(layer, sizes)
    if choice is not None and choice.results in sizes:
        sizes = [choice.results]
    batch, _, height, width = extent(layer.output)
    channels = channels_of(layer, cpu)
    found = []
    for results in sizes:
        rows, columns = -(-height // results), -(-width // results)
        for grid in set(_grids(rows, columns)):
            scratch = _scratch_bytes(channels, (results + 2) ** 2, grid.tiles)
            if scratch <= cpu.l2_bytes or grid.tiles <= _FEW_TILES:
                found.append(_cost(channels, results, grid, batch, cpu, choice))
    # Of those that cost the same, nearly, the one that leaves the cores least to wait for.
    enough = 1.01 * min(item.cycles for item in found)
    return min(
        (item for item in found if item.cycles <= enough),
        key=lambda item: (-item.grid.busy(batch, cpu.cores), item.cycles),
    )


def _cost(
    channels: Channels,
    results: int,
    grid: TileGrid,
    batch: int,
    cpu: CpuModel,
    choice: Way | None,
) -> WinogradPlan:
    positions = (results + 2) ** 2
    chunks = grid.chunks * batch
    layout = scratch_layout(channels.outs, channels.out_block, 1, 1, grid.tiles, channels.element)
    product = choose_tile(
        replace(layout, width=grid.tiles),
        blocks=channels.out_blocks,
        reduction=channels.ins,
        cpu=cpu,
        groups=positions,
        choice=choice,
    )
    weights = (
        channels.element.bytes * positions * channels.ins * channels.out_blocks * channels.out_block
    )
    cycles = batch * grid.rows * grid.columns * _transform_cycles(channels, results, cpu)
    cycles += chunks * product.cycles
    cycles += stream_cycles(weights, chunks, cpu)
    # What does not fit the cache is written to memory and read back.
    spilled = max(0, _scratch_bytes(channels, positions, grid.tiles) - cpu.l2_bytes)
    cycles += chunks * 2 * spilled / cpu.memory_bandwidth
    return WinogradPlan(results=results, grid=grid, product=product, cycles=cycles)


def _transform_cycles(channels: Channels, results: int, cpu: CpuModel) -> float:
    """Both transforms of one tile in all channels."""
    size = results + 2
    points = points_of(channels.element)[results]
    forth = toom_cook.input_transform(points, size)
    back = toom_cook.output_transform(points, results)

    def cycles(operations: int, moves: int, passes: int, lanes: int) -> float:
        arithmetic, memory = (
            operations / cpu.rate(channels.element, lanes),
            moves / cpu.loads_per_cycle,
        )
        both = arithmetic + memory if cpu.in_order else max(arithmetic, memory)
        return both + passes * _PASS_START

    return channels.in_blocks * cycles(
        2 * size * forth.operations, 4 * size * size, 2 * size, channels.in_block
    ) + channels.out_blocks * cycles(
        (size + results) * back.operations,
        size * size + 2 * size * results + results * results,
        size + results,
        channels.out_block,
    )


def points_of(element: Element) -> Mapping[int, toom_cook.Points]:
    """The points of tiles, by their size, in arithmetic on such elements."""
    return toom_cook.HALF_POINTS if element == FLOAT16 else toom_cook.POINTS


def allowed(layer: Layer, sizes: Collection[int]) -> list[int]:
    """Those of `sizes` that the layer's elements and its numbers allow."""
    points, most = points_of(layer.element), layer.most_results
    return [size for size in sizes if size in points and (most is None or size <= most)]


def can_take(layer: Layer, sizes: Collection[int] = tuple(toom_cook.POINTS)) -> bool:
    """3x3 convolutions, neither strided nor dilated nor grouped, that one of `sizes` is allowed
    for.

    Those by whole numbers only are ConvInteger's, whose sums are to be exact.
    """
    operator = layer.operator
    if not isinstance(operator, Convolution) or operator.kernel != (3, 3):
        return False
    if operator.weight.any() and np.array_equal(operator.weight, np.rint(operator.weight)):
        return False
    if (operator.stride, operator.dilation, operator.groups) != ((1, 1), (1, 1), 1):
        return False
    return bool(allowed(layer, sizes))


def plain_cycles(layer: Layer, cpu: CpuModel) -> float:
    """What the convolution rule would take."""
    batch, outs, height, width = extent(layer.output)
    channels = channels_of(layer, cpu)
    output = Blocked(
        element=channels.element,
        batch=batch,
        channels=outs,
        height=height,
        width=width,
        block=channels.out_block,
    )
    reduction = 9 * channels.ins
    chosen = choose_tile(output, blocks=channels.out_blocks, reduction=reduction, cpu=cpu)
    weights = channels.element.bytes * reduction * channels.out_blocks * channels.out_block
    return chosen.cycles + stream_cycles(weights, 1, cpu)


def scratch_layout(
    channels: int, block: int, positions: int, parts: int, tiles: int, element: Element
) -> Blocked:
    """A scratch tensor: for each part [position][block of channels][tile][channel]."""
    planes = positions * _odd(-(-channels // block))
    return Blocked(
        element=element,
        batch=parts,
        channels=planes * block,
        height=1,
        width=_odd(tiles),
        block=block,
    )
