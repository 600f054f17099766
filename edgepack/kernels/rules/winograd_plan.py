"""How Winograd's algorithm would compute a layer, and what that costs; see `winograd`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np

from edgepack.kernels.choices import FRESH, Way
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.limits import LayerLimits
from edgepack.kernels.rules.rule import KernelSite, image_of
from edgepack.kernels.tiles import tile, tir, toom_cook
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT16, FLOAT32, Element
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.tiles.partition import BUSY_BY_PIECES, LAUNCH_CYCLES, busy
from edgepack.kernels.tiles.product import choose_among, choose_tile, rank_tiles, stream_cycles
from edgepack.kernels.value import extent

# All numbers of results that a tile may have in one direction.
SIZES = tuple(sorted(set(chain.from_iterable(toom_cook.FORMS.values()))))
# Chunks of so few tiles may be larger than the cache: smaller ones would be too few pixels for
# the products' register tiles.
_FEW_TILES = 16
# Tiles of a part of a row that is worth a chunk; half of them where memory is short.
_FEWEST = 8
# Stages of a chunk, each a launch where the cores share it.
_STAGES = 3
# What is made as a whole takes the board's memory, so it has to be faster than in parts.
_FASTER = 0.9
_LINE_BYTES = 64
# Cycles around one row or column of a transform: loop, addresses.
_PASS_START = 6


@dataclass(frozen=True, kw_only=True)
class TileChunk:
    """Tiles that go through the stages together: `rows` x `columns`. The last row or column may be
    a short one, whose tiles are in not all of the products.

    So that each product has its tiles in one run, they lie in scratch memory in this order: the
    short row, but for its last tile; the others row by row; the short column.
    """

    rows: int
    columns: int
    short_row: bool = False
    short_column: bool = False

    @property
    def tiles(self) -> int:
        return self.rows * self.columns

    @property
    def _whole(self) -> tuple[int, int]:
        """Rows and columns that are not short."""
        return self.rows - self.short_row, self.columns - self.short_column

    def place(self, row: tir.Expr, column: tir.Expr, *, in_row: bool, in_column: bool) -> tir.Expr:
        """Where a tile lies, that is in the short row, or in the short column."""
        rows, columns = self._whole
        first = columns if self.short_row else 0
        if in_column:
            return first + rows * columns + (rows if in_row else row)
        return column if in_row else first + row * columns + column

    def run(self, *, in_row: bool, in_column: bool) -> tuple[int, int]:
        """The first tile of a product, and how many there are: whether tiles of the short row and
        of the short column are among them."""
        rows, columns = self._whole
        first = columns if self.short_row and not in_row else 0
        return first, (self.rows if in_row else rows) * (self.columns if in_column else columns)


@dataclass(frozen=True, kw_only=True)
class TileGrid:
    """Tiles of an image, and how they are cut into chunks.

    The last row of tiles and the last column have `last` results, and make do with fewer products
    where they are `short`.
    """

    rows: int
    columns: int
    chunk_rows: int
    chunk_columns: int
    last: tuple[int, int]
    short: tuple[bool, bool] = (False, False)

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

    @property
    def down(self) -> list[tuple[int, int, bool]]:
        """Chunks from top to bottom: how many have so many rows, and whether the last is short."""
        return _pieces(self.rows, self.chunk_rows, short=self.short[0])

    @property
    def across(self) -> list[tuple[int, int, bool]]:
        """The same from left to right."""
        return _pieces(self.columns, self.chunk_columns, short=self.short[1])

    def products(self, form: toom_cook.TileForm) -> Counter[int]:
        """How many products of an image have so many tiles."""
        found: Counter[int] = Counter()
        for (high, rows, short_row), (wide, columns, short_column) in product(
            self.down, self.across
        ):
            chunk = TileChunk(
                rows=rows, columns=columns, short_row=short_row, short_column=short_column
            )
            kinds = [
                [(True, most), (False, line.size - most)]
                for line, most in zip(form.both, self.shared(form), strict=True)
            ]
            for (in_row, lines), (in_column, items) in product(*kinds):
                _, tiles = chunk.run(in_row=in_row, in_column=in_column)
                found[tiles] += high * wide * lines * items
        return +Counter({tiles: count for tiles, count in found.items() if tiles})

    def shared(self, form: toom_cook.TileForm) -> tuple[int, int]:
        """In each direction, how many of the products short tiles are in, too."""
        down, across = (
            line.products(results) if short else line.size
            for line, results, short in zip(form.both, self.last, self.short, strict=True)
        )
        return down, across


def _pieces(total: int, size: int, *, short: bool) -> list[tuple[int, int, bool]]:
    whole, rest = divmod(total, size)
    if rest:
        return [(whole, size, False), (1, rest, short)]
    pieces = [(whole - short, size, False), (1, size, True)] if short else [(whole, size, False)]
    return [piece for piece in pieces if piece[0]]


@dataclass(frozen=True, kw_only=True)
class WinogradPlan:
    """How a layer is computed: the tiles' form, and the products' tile. On top of its `cycles` are
    those in which cores wait for each other between stages. `fresh`: weights are transformed in
    each run, into scratch memory."""

    form: toom_cook.TileForm
    grid: TileGrid
    product: tile.RegisterTile
    cycles: float
    waits: float
    fresh: bool = False

    @property
    def results(self) -> int:
        """Of a tile in the direction with more of them."""
        return self.form.results

    @property
    def positions(self) -> int:
        """Products per tile and pair of channels, of a part."""
        return self.form.products

    def __str__(self) -> str:
        strided = "" if self.form.stride == 1 else f" of stride {self.form.stride}"
        tile = "x".join(str(line.results) for line in self.form.both)
        short = ", short at the edge" if any(self.grid.short) else ""
        fresh = ", fresh weights" if self.fresh else ""
        return f"F({tile}){strided} {self.product} of {self.grid.tiles}{short}{fresh}"


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


def _scratch_bytes(channels: Channels, form: toom_cook.TileForm, tiles: int) -> int:
    """Both scratch tensors of one chunk."""
    lanes = _odd(channels.in_blocks) * channels.in_block * form.parts
    lanes += _odd(channels.out_blocks) * channels.out_block
    return channels.element.bytes * form.products * lanes * _odd(tiles)


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


def _grids(site: KernelSite, form: toom_cook.TileForm) -> Iterator[TileGrid]:
    """Ways to cut tiles into chunks: some whole rows, or a part of one, of at least `_FEWEST`
    tiles; all as even as can be."""
    _, _, height, width = extent(site.layer.output)
    fewest = _FEWEST if site.limits.room is None else _FEWEST // 2
    rows, columns = -(-height // form.down.results), -(-width // form.across.results)
    last = height - (rows - 1) * form.down.results, width - (columns - 1) * form.across.results
    for parts in range(1, rows + 1):
        yield TileGrid(
            rows=rows,
            columns=columns,
            chunk_rows=-(-rows // parts),
            chunk_columns=columns,
            last=last,
        )
    for parts in range(2, columns // fewest + 1):
        yield TileGrid(
            rows=rows, columns=columns, chunk_rows=1, chunk_columns=-(-columns // parts), last=last
        )


def _shortened(grid: TileGrid, form: toom_cook.TileForm) -> TileGrid:
    """With all tiles short that can be."""
    down, across = (
        line.shortens and line.products(last) < line.size
        for last, line in zip(grid.last, form.both, strict=True)
    )
    return replace(grid, short=(down, across))


def has_room(site: KernelSite, sizes: Collection[int] = SIZES, *, fresh: bool = False) -> bool:
    """Whether the layer may have the scratch memory that tiles of one of `sizes` need, with weights
    among it if they are `fresh`."""
    allowed = allowed_sizes(site.layer, site.limits, sizes)
    return any(any(_held(site, results, fresh=fresh)) for results in allowed)


def _held(site: KernelSite, results: int, *, fresh: bool) -> Iterator[TileGrid]:
    """Ways to cut an image whose scratch memory a core's cache holds, and the layer's room."""
    channels, form = channels_of(site.layer, site.cpu), forms_of(site.layer)[results]
    room = site.limits.room
    for grid in set(_grids(site, form)):
        in_cache = _scratch_bytes(channels, form, grid.tiles) <= site.cpu.l2_bytes
        in_room = room is None or all_bytes(site, form, grid, fresh=fresh) <= room
        if in_room and (in_cache or grid.tiles <= _FEW_TILES):
            yield grid


def all_bytes(site: KernelSite, form: toom_cook.TileForm, grid: TileGrid, *, fresh: bool) -> int:
    """The scratch memory of all cores, for one way to compute a layer."""
    cpu = site.cpu
    channels, shared = channels_of(site.layer, cpu), shares_chunks(site, form, grid)
    weights = _weight_bytes(channels, form) if fresh else 0
    if shared or cpu.cores == 1:
        return weights + cpu.cores * _bytes_of_core(channels, form, grid)
    return weights + _scratch_bytes(channels, form, grid.tiles)


def _weight_bytes(channels: Channels, form: toom_cook.TileForm) -> int:
    """Transformed weights."""
    pairs = channels.ins * channels.out_blocks * channels.out_block
    return pairs * form.parts * form.factors * channels.element.bytes


def odd_lines(items: int, element: Element) -> int:
    """No fewer items, that are an odd number of a cache's lines: as many arrays that are read or
    written together, so far apart, fall into different sets."""
    line = _LINE_BYTES // element.bytes
    return (-(-items // line) | 1) * line


def can_be_fresh(layer: Layer) -> bool:
    """Whether weights may be transformed in each run: in half precision they would lose bits, and
    of several parts each would need zeros that are not stored."""
    operator = layer.operator
    assert isinstance(operator, Convolution)
    whole = layer.element == FLOAT32 == layer.weights
    return whole and all(form.parts == 1 for form in forms_of(layer).values())


def _bytes_of_core(channels: Channels, form: toom_cook.TileForm, grid: TileGrid) -> int:
    """The scratch memory of a core that does a chunk alone."""
    both = _scratch_bytes(channels, form, grid.tiles)
    return both // 2 if can_overlay(channels, form) else both


def shares_chunks(site: KernelSite, form: toom_cook.TileForm, grid: TileGrid) -> bool:
    """Whether the cores share the chunks, each with scratch memory of its own, for which there is
    room: where they come out more even than with the work of each stage."""
    channels, workers = channels_of(site.layer, site.cpu), site.cpu.cores
    room = site.limits.room
    if room is not None and workers * _bytes_of_core(channels, form, grid) > room:
        return False
    stages = (channels.in_blocks * form.parts, form.products, channels.out_blocks)
    by_stages = min(busy(items, workers) for items in stages)
    return grid.busy(extent(site.layer.output)[0], workers) >= min(by_stages, BUSY_BY_PIECES)


def can_overlay(channels: Channels, form: toom_cook.TileForm) -> bool:
    """Whether sums can lie where the inputs of the position before were: they take as much room,
    and have the same positions."""
    alike = (channels.in_blocks, channels.in_block) == (channels.out_blocks, channels.out_block)
    return alike and form.factors == form.products and form.parts == 1


def plan(
    site: KernelSite, sizes: Collection[int] = SIZES, choice: Way | None = None
) -> WinogradPlan:
    """The cheapest way to compute a layer by Winograd's algorithm, with tiles of one of `sizes`.

    A `choice` says which of them, and which tile the products have. The layer has room for one.
    """
    sizes = allowed_sizes(site.layer, site.limits, sizes)
    fresh = choice is not None and choice.weights == FRESH and can_be_fresh(site.layer)
    if choice is not None and choice.results in sizes:
        fresh = fresh and has_room(site, [choice.results], fresh=True)
        if fresh or has_room(site, [choice.results]):
            sizes = [choice.results]
    memo = site.cpu.memo
    key = ("winograd", *_asked(site), tuple(sizes), choice, fresh)
    if key not in memo:
        memo[key] = _cheapest(site, sizes, choice, fresh=fresh)
    made: WinogradPlan = memo[key]
    return made


def _asked(site: KernelSite) -> tuple[object, ...]:
    """All that a plan depends on of a layer."""
    layer, operator = site.layer, site.layer.operator
    assert isinstance(operator, Convolution)
    extents = extent(layer.inputs[0]), extent(layer.output)
    return *extents, operator.kernel, operator.stride, layer.element, site.limits.room


def _cheapest(
    site: KernelSite, sizes: Collection[int], choice: Way | None, *, fresh: bool
) -> WinogradPlan:
    forms, batch = forms_of(site.layer), extent(site.layer.output)[0]
    found = [
        _cost(site, forms[results], grid, choice, fresh=fresh)
        for results in sizes
        for whole in _held(site, results, fresh=fresh)
        for grid in {whole, _shortened(whole, forms[results])}
    ]
    # Of those that cost the same, nearly, the one that leaves the cores least to wait for.
    enough = 1.01 * min(item.cycles + item.waits for item in found)
    return min(
        (item for item in found if item.cycles + item.waits <= enough),
        key=lambda item: (-item.grid.busy(batch, site.cpu.cores), item.cycles + item.waits),
    )


def _cost(
    site: KernelSite,
    form: toom_cook.TileForm,
    grid: TileGrid,
    choice: Way | None,
    *,
    fresh: bool,
) -> WinogradPlan:
    cpu = site.cpu
    batch, channels = extent(site.layer.output)[0], channels_of(site.layer, cpu)
    chunks = grid.chunks * batch
    product = choose_among(rank_products(channels, form, grid, cpu), choice)
    weights = _weight_bytes(channels, form)
    cycles = batch * _transform_cycles(channels, form, grid, cpu)
    cycles += chunks * product.cycles
    if 0 < weights <= cpu.l3_bytes / 2:
        # For each chunk but the first they come from there, while others are multiplied: measured
        # for 3 MB and 51 chunks, which are no slower than 17.
        cycles += weights / cpu.l3_bandwidth if fresh else stream_cycles(weights, 1, cpu)
        again = (chunks - 1) * weights if weights > cpu.l2_bytes / 2 else 0
        cycles += max(0.0, again / cpu.l3_bandwidth - chunks * product.cycles)
    elif not fresh or weights > cpu.l2_bytes / 2:
        cycles += stream_cycles(weights, chunks, cpu)
    if fresh:
        cycles += _weight_cycles(channels, form, cpu)
        plain = weights // form.factors * form.down.taps * form.across.taps
        cycles += stream_cycles(plain, 1, cpu)
        if weights > max(cpu.l2_bytes, cpu.l3_bytes) / 2:
            cycles += weights / cpu.memory_bandwidth
    # What does not fit the cache is written to memory and read back.
    spilled = max(0, _scratch_bytes(channels, form, grid.tiles) - cpu.l2_bytes)
    cycles += chunks * 2 * spilled / cpu.memory_bandwidth
    by_stages = cpu.cores > 1 and not shares_chunks(site, form, grid)
    waits = chunks * _STAGES * cpu.cores * LAUNCH_CYCLES if by_stages else 0
    return WinogradPlan(
        form=form, grid=grid, product=product, cycles=cycles, waits=waits, fresh=fresh
    )


def rank_products(
    channels: Channels, form: toom_cook.TileForm, grid: TileGrid, cpu: CpuModel
) -> list[tile.RegisterTile]:
    """Tiles for the products, the cheapest first; cycles are those of a chunk, on the average."""
    (width, rows), *others = sorted(grid.products(form).items(), reverse=True)
    layout = scratch_layout(channels.outs, channels.out_block, 1, 1, width, channels.element)
    tiles = rank_tiles(
        replace(layout, width=width),
        blocks=channels.out_blocks,
        reduction=channels.ins * form.parts,
        cpu=cpu,
        groups=rows,
        others=others,
    )
    return [replace(item, cycles=item.cycles / grid.chunks) for item in tiles]


def _transform_cycles(
    channels: Channels,
    form: toom_cook.TileForm,
    grid: TileGrid,
    cpu: CpuModel,
) -> float:
    """Both transforms of all tiles of an image in all channels."""
    key = ("transforms", channels, form, grid.rows, grid.columns, grid.last, grid.short)
    if key not in cpu.memo:
        kinds = [
            [(count - 1, line.results, line.size), (1, results, most)]
            for count, line, results, most in zip(
                (grid.rows, grid.columns), form.both, grid.last, grid.shared(form), strict=True
            )
        ]
        cpu.memo[key] = sum(
            high * wide * _tile_cycles(channels, form, (rows, columns), (lines, items), cpu)
            for (high, rows, lines), (wide, columns, items) in product(*kinds)
            if high * wide
        )
    made: float = cpu.memo[key]
    return made


def _pass_cycles(
    passes: Iterable[tuple[int, toom_cook.Transform]], lanes: int, element: Element, cpu: CpuModel
) -> float:
    """Of passes along so many lines, of one vector of so many lanes."""
    operations = moves = starts = 0
    for lines, transform in passes:
        operations += lines * transform.operations
        moves += lines * (transform.inputs + len(transform.outputs))
        starts += lines
    arithmetic, memory = operations / cpu.rate(element, lanes), moves / cpu.loads_per_cycle
    both = arithmetic + memory if cpu.in_order else max(arithmetic, memory)
    return both + starts * _PASS_START


def _weight_cycles(channels: Channels, form: toom_cook.TileForm, cpu: CpuModel) -> float:
    """The transform of all weights."""
    down, across = form.both
    passes = [(down.taps, across.weighing())] if across.size > 1 else []
    passes += [(across.factors, down.weighing())] if down.size > 1 else []
    vectors = channels.ins * channels.out_blocks
    return vectors * _pass_cycles(passes, channels.out_block, channels.element, cpu)


def _tile_cycles(
    channels: Channels,
    form: toom_cook.TileForm,
    results: tuple[int, int],
    products: tuple[int, int],
    cpu: CpuModel,
) -> float:
    """Both transforms of a tile with so many rows and columns of results, and of products."""

    def cycles(passes: Iterable[tuple[int, toom_cook.Transform]], lanes: int) -> float:
        return _pass_cycles(passes, lanes, channels.element, cpu)

    (down, across), (rows, columns), (lines, items) = form.both, results, products
    # The way there of one part, with all of its inputs.
    forth = [(down.reach(rows), across.forth(columns, 0, items))] if across.size > 1 else []
    forth += [(items, down.forth(rows, 0, lines))] if down.size > 1 else []
    back = [(lines, across.back(columns, items))] if across.size > 1 else []
    back += [(columns, down.back(rows, lines))] if down.size > 1 else []
    there = channels.in_blocks * form.parts * cycles(forth, channels.in_block)
    return there + channels.out_blocks * cycles(back, channels.out_block)


def forms_of(layer: Layer) -> dict[int, toom_cook.TileForm]:
    """The forms of a layer's tiles, by their results in one direction, or in the only one in which
    its window has several weights."""
    operator = layer.operator
    assert isinstance(operator, Convolution)
    down, across = zip(operator.kernel, operator.stride, strict=True)
    _, _, height, width = extent(layer.output)
    lines: Mapping[int, toom_cook.LineForm] = {}
    if down == across:
        half = toom_cook.HALF_FORMS if down == (3, 1) else {}
        lines = half if layer.element == FLOAT16 else toom_cook.FORMS.get(down, {})
        return {m: toom_cook.TileForm(down=line, across=line) for m, line in lines.items()}
    if layer.element == FLOAT16:
        return {}
    if down == (1, 1) or (down[0] == 1 and height == 1):
        lines = toom_cook.FORMS.get(across, {})
        return {m: toom_cook.TileForm(down=toom_cook.ONE, across=x) for m, x in lines.items()}
    if across == (1, 1) or (across[0] == 1 and width == 1):
        lines = toom_cook.FORMS.get(down, {})
        return {m: toom_cook.TileForm(down=x, across=toom_cook.ONE) for m, x in lines.items()}
    return {}


def allowed_sizes(layer: Layer, limits: LayerLimits, sizes: Collection[int]) -> list[int]:
    """Those of `sizes` that the layer's elements and its limits allow."""
    forms, most = forms_of(layer), limits.most_results
    return [size for size in sizes if size in forms and (most is None or size <= most)]


def can_take(layer: Layer, limits: LayerLimits, sizes: Collection[int] = SIZES) -> bool:
    """Convolutions with a window of `toom_cook.FORMS`, square or in one direction, neither dilated
    nor grouped, that one of `sizes` is allowed for.

    Those by whole numbers only are ConvInteger's, whose sums are to be exact.
    """
    operator = layer.operator
    if not isinstance(operator, Convolution) or not forms_of(layer):
        return False
    if operator.weight.any() and np.array_equal(operator.weight, np.rint(operator.weight)):
        return False
    if (operator.dilation, operator.groups) != ((1, 1), 1):
        return False
    return bool(allowed_sizes(layer, limits, sizes))


def largest_tile(layer: Layer, limits: LayerLimits) -> int:
    """The most results of a tile in one direction; 0 if there are no tiles for the layer."""
    return max(allowed_sizes(layer, limits, SIZES)) if can_take(layer, limits) else 0


def is_worth_a_whole(site: KernelSite) -> bool:
    """Whether it is faster to make a result as a whole by Winograd's algorithm, to write it to
    memory and to read it back, than to make a part at a time by the convolution rule."""
    layer, cpu = site.layer, site.cpu
    written = image_of(layer, cpu).nbytes
    moved = 0.0 if written < cpu.l2_bytes / 2 else 2 * written / cpu.memory_bandwidth
    return plan(site).cycles + moved < _FASTER * plain_cycles(layer, cpu)


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
    operator = layer.operator
    assert isinstance(operator, Convolution)
    rows, columns = operator.kernel
    reduction = rows * columns * channels.ins
    chosen = choose_tile(
        output, blocks=channels.out_blocks, reduction=reduction, cpu=cpu, columns=columns
    )
    weights = channels.element.bytes * reduction * channels.out_blocks * channels.out_block
    return chosen.cycles + stream_cycles(weights, 1, cpu)


def scratch_layout(
    channels: int,
    block: int,
    positions: int,
    shares: int,
    tiles: int,
    element: Element,
    parts: int = 1,
) -> Blocked:
    """A scratch tensor: for each share [position][block of channels][part][tile][channel]."""
    planes = positions * _odd(-(-channels // block))
    return Blocked(
        element=element,
        batch=shares,
        channels=planes * block,
        height=parts,
        width=_odd(tiles),
        block=block,
    )
