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
from edgepack.compiler.tiles.partition import BUSY_BY_PIECES, busy
from edgepack.compiler.tiles.product import choose_tile, stream_cycles

# All numbers of results that a tile may have in one direction.
SIZES = tuple(sorted({size for forms in toom_cook.FORMS.values() for size in forms}))
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
    """How a layer is computed: the tiles' form, and the products' tile."""

    form: toom_cook.TileForm
    grid: TileGrid
    product: tile.RegisterTile
    cycles: float

    @property
    def results(self) -> int:
        """Of a tile in one direction."""
        return self.form.results

    @property
    def size(self) -> int:
        """Inputs of a tile in one direction."""
        return self.form.size

    @property
    def positions(self) -> int:
        """Products per tile and pair of channels."""
        return self.size**2

    @property
    def factors(self) -> int:
        """Transformed weights per pair of channels."""
        return self.form.factors**2

    def __str__(self) -> str:
        strided = "" if self.form.stride == 1 else f" of stride {self.form.stride}"
        return f"F({self.results}x{self.results}){strided} {self.product} of {self.grid.tiles}"


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


def has_room(layer: Layer, cpu: CpuModel, sizes: Collection[int] = SIZES) -> bool:
    """Whether the layer may have the scratch memory that tiles of one of `sizes` need."""
    return any(any(_held(layer, cpu, results)) for results in allowed(layer, sizes))


def _held(layer: Layer, cpu: CpuModel, results: int) -> Iterator[TileGrid]:
    """Ways to cut an image whose scratch memory a core's cache holds, and the layer's room."""
    _, _, height, width = extent(layer.output)
    channels, form = channels_of(layer, cpu), forms_of(layer)[results]
    for grid in set(_grids(-(-height // results), -(-width // results))):
        in_cache = _scratch_bytes(channels, form.size**2, grid.tiles) <= cpu.l2_bytes
        in_room = layer.room is None or all_bytes(layer, form, grid, cpu) <= layer.room
        if in_room and (in_cache or grid.tiles <= _FEW_TILES):
            yield grid


def all_bytes(layer: Layer, form: toom_cook.TileForm, grid: TileGrid, cpu: CpuModel) -> int:
    """The scratch memory of all cores, for one way to compute a layer."""
    channels, workers = channels_of(layer, cpu), cpu.cores
    one = _scratch_bytes(channels, form.size**2, grid.tiles)
    by_chunks = shares_chunks(channels, form, grid, extent(layer.output)[0], workers)
    if by_chunks or workers == 1:
        return workers * (one // 2 if can_overlay(channels, form) else one)
    return one


def shares_chunks(
    channels: Channels, form: toom_cook.TileForm, grid: TileGrid, batch: int, workers: int
) -> bool:
    """Whether the cores come out more even with the chunks than with the work of each stage."""
    stages = (channels.in_blocks, form.size**2, channels.out_blocks)
    by_stages = min(busy(items, workers) for items in stages)
    return grid.busy(batch, workers) >= min(by_stages, BUSY_BY_PIECES)


def can_overlay(channels: Channels, form: toom_cook.TileForm) -> bool:
    """Whether sums can lie where the inputs of the position before were: they take as much room,
    and have the same positions."""
    alike = (channels.in_blocks, channels.in_block) == (channels.out_blocks, channels.out_block)
    return alike and form.factors == form.size


def plan(
    layer: Layer,
    cpu: CpuModel,
    sizes: Collection[int] = SIZES,
    choice: Way | None = None,
) -> WinogradPlan:
    """The cheapest way to compute a layer by Winograd's algorithm, with tiles of one of `sizes`.

    A `choice` says which of them, and which tile the products have. The layer has room for one.
    """
    sizes = allowed(layer, sizes)
    if choice is not None and choice.results in sizes and has_room(layer, cpu, [choice.results]):
        sizes = [choice.results]
    batch = extent(layer.output)[0]
    channels = channels_of(layer, cpu)
    found = [
        _cost(channels, forms_of(layer)[results], grid, batch, cpu, choice)
        for results in sizes
        for grid in _held(layer, cpu, results)
    ]
    # Of those that cost the same, nearly, the one that leaves the cores least to wait for.
    enough = 1.01 * min(item.cycles for item in found)
    return min(
        (item for item in found if item.cycles <= enough),
        key=lambda item: (-item.grid.busy(batch, cpu.cores), item.cycles),
    )


def _cost(
    channels: Channels,
    form: toom_cook.TileForm,
    grid: TileGrid,
    batch: int,
    cpu: CpuModel,
    choice: Way | None,
) -> WinogradPlan:
    positions = form.size**2
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
    weights = channels.ins * channels.out_blocks * channels.out_block * form.factors**2
    weights *= channels.element.bytes
    cycles = batch * grid.rows * grid.columns * _transform_cycles(channels, form, cpu)
    cycles += chunks * product.cycles
    cycles += stream_cycles(weights, chunks, cpu)
    # What does not fit the cache is written to memory and read back.
    spilled = max(0, _scratch_bytes(channels, positions, grid.tiles) - cpu.l2_bytes)
    cycles += chunks * 2 * spilled / cpu.memory_bandwidth
    return WinogradPlan(form=form, grid=grid, product=product, cycles=cycles)


def _transform_cycles(channels: Channels, form: toom_cook.TileForm, cpu: CpuModel) -> float:
    """Both transforms of one tile in all channels."""
    size, results = form.size, form.results
    forth, back = form.forth(results), form.back(results)

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


def forms_of(layer: Layer) -> Mapping[int, toom_cook.TileForm]:
    """The forms of a layer's tiles, by their results in one direction."""
    operator = layer.operator
    assert isinstance(operator, Convolution)
    forms = toom_cook.HALF_FORMS if layer.element == FLOAT16 else toom_cook.FORMS
    down, across = operator.stride
    return forms.get(down, {}) if down == across else {}


def allowed(layer: Layer, sizes: Collection[int]) -> list[int]:
    """Those of `sizes` that the layer's elements and its numbers allow."""
    forms, most = forms_of(layer), layer.most_results
    return [size for size in sizes if size in forms and (most is None or size <= most)]


def can_take(layer: Layer, sizes: Collection[int] = SIZES) -> bool:
    """3x3 convolutions of stride 1 or 2, neither dilated nor grouped, that one of `sizes` is
    allowed for.

    Those by whole numbers only are ConvInteger's, whose sums are to be exact.
    """
    operator = layer.operator
    if not isinstance(operator, Convolution) or operator.kernel != (3, 3):
        return False
    if operator.weight.any() and np.array_equal(operator.weight, np.rint(operator.weight)):
        return False
    if (operator.dilation, operator.groups) != ((1, 1), 1):
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
    chosen = choose_tile(
        output, blocks=channels.out_blocks, reduction=reduction, cpu=cpu, columns=3
    )
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
