"""A convolution and the depthwise one, the one in groups, or the pooling, that reads it, in one
kernel.

In an inverted residual block the image between the two is the largest of all, and so is the one
before the first pooling of many networks. Made as a whole, it leaves the caches and comes back.
Here a few of its rows are made at a time, in scratch memory that stays in a core's cache:

    each core: for each band of rows of results
        for each panel of channels
            the rows that the band's windows reach, by the first convolution
            the band, by what reads it

Rows that the next band's windows reach as well are kept for it, so that none is made twice but
where another core goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.layer import Convolution, Layer, Operator, Pooling, Streamed
from edgepack.kernels.limits import LayerLimits
from edgepack.kernels.rules import convolution, depthwise, pooling, winograd_plan
from edgepack.kernels.rules.depthwise import DepthwiseKernel
from edgepack.kernels.rules.grouped import GroupedKernel, blocks_of_group
from edgepack.kernels.rules.pooling import PoolingKernel
from edgepack.kernels.rules.rule import (
    KernelSite,
    LayerKernel,
    LayerSite,
    Pair,
    Pairing,
    Rule,
    image_of,
)
from edgepack.kernels.tiles import micro, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import Blocked, Halo, Image, Planar
from edgepack.kernels.tiles.partition import busy, worth_sharing
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    pack_bias,
    pack_weights,
    rank_tiles,
    stream_cycles,
)
from edgepack.kernels.tiles.tile import RegisterTile
from edgepack.kernels.value import extent

# The part of the second-level cache that scratch memory may take: what the first convolution reads
# and what the other one writes go through it, too.
_SCRATCH_PART = 2
# The part of the second-level cache that an image has to be larger than not to be kept there: what
# is read and written beside it takes the rest.
_LARGE_PART = 2
# How much longer the first convolution may take with less scratch memory.
_MOST_SLOWER = 1.1
# The least share of the cores' time that has to be busy where they share the panels.
_BUSY_BY_PANELS = 0.75


def _parts(layer: Layer) -> tuple[Layer, Layer]:
    """The two that are one layer."""
    operator = layer.operator
    assert isinstance(operator, Streamed)
    inputs = (operator.first.output,)
    return operator.first, replace(layer, operator=operator.reader, inputs=inputs)


def can_take(pair: Layer, cpu: CpuModel, room: int | None = None) -> bool:
    """Whether there can be a kernel of both: the cores can share its making, and there is room for
    its scratch memory."""
    first, layer = _parts(pair)
    around = _between(first, layer, cpu).halo
    return not (around.top or around.bottom) and _chosen(first, layer, cpu, room) is not None


def keeps_to(pair: Layer, room: int, cpu: CpuModel) -> bool:
    """Where it would take more, and takes less without being much slower, or is possible with less
    only: then there are more tiles to choose from."""
    first, layer = _parts(pair)
    free, less = (_chosen(first, layer, cpu, most) for most in (None, room))
    if free is None or less is None:
        return free is None
    if free.scratch_bytes(_between(first, layer, cpu)) <= room:
        return False
    return less.tile.cycles <= _MOST_SLOWER * free.tile.cycles


def is_faster(pair: Layer, cpu: CpuModel) -> bool:
    """Whether such a kernel is faster than one of each: where the image between them is large."""
    between = _between(*_parts(pair), cpu)
    return between.nbytes // between.batch > cpu.l2_bytes / _LARGE_PART


def takes_pair(pair: Pair, cpu: CpuModel) -> bool:
    """A convolution and what reads it row by row: where the image between them is large, or there
    is no memory for it."""
    first, layer = pair.first, pair.reader
    by_rows = pair.rules[1] in (depthwise.RULE, pooling.WINDOW) or _has_groups(layer, pair.rules[1])
    if pair.rules[0] is not convolution.RULE or not by_rows or not convolution.is_plain(first):
        return False
    if is_faster(pair.both, cpu):
        return can_take(pair.both, cpu)
    room = pair.short()
    return room is not None and can_take(pair.both, cpu, room)


def _has_groups(layer: Layer, rule: Rule | None) -> bool:
    """Whether it is a convolution of several groups, with a window."""
    operator = layer.operator
    if rule is not convolution.RULE or not isinstance(operator, Convolution):
        return False
    return operator.groups > 1 and operator.kernel[0] > 1 and not operator.gated


def is_better_than_a_whole(both: Layer, limits: LayerLimits, cpu: CpuModel) -> bool:
    """Whether what could be made as a whole by Winograd's algorithm, within its `limits`, and is
    read row by row, had better be made in rows."""
    first, layer = _parts(both)
    if not winograd_plan.can_take(first, limits) or first.operands or not _reads_rows(layer):
        return False
    if not is_faster(both, cpu) or not can_take(both, cpu):
        return False
    return not winograd_plan.is_worth_a_whole(KernelSite(layer=first, cpu=cpu, limits=limits))


def _reads_rows(layer: Layer) -> bool:
    """Whether a layer can be made from some rows of another at a time."""
    operator = layer.operator
    if isinstance(operator, Convolution):
        return operator.groups > 1 and operator.kernel[0] > 1 and not operator.gated
    return isinstance(operator, Pooling)


def _between(first: Layer, layer: Layer, cpu: CpuModel) -> Blocked:
    """The image between the two, as if it were made as a whole. Rows of zeros that groups read are
    written where they are read."""
    operator = layer.operator
    if isinstance(operator, Pooling):
        around = pooling.WINDOW.halo(layer)
    elif _is_depthwise(operator):
        around = depthwise.RULE.halo(layer)
    else:
        around = replace(convolution.halo(layer), top=0, bottom=0)
    return image_of(first, cpu, around)


def _is_depthwise(operator: Operator) -> bool:
    assert isinstance(operator, Convolution)
    return operator.weight.shape[:2] == (operator.groups, 1)


def _in_groups(layer: Layer) -> bool:
    """Whether a group of the reader reads several channels."""
    return isinstance(layer.operator, Convolution) and not _is_depthwise(layer.operator)


@dataclass(frozen=True, kw_only=True)
class _Partition:
    """Bands of `rows` rows of results, `bands` of them, with panels as wide as `tile` says.

    The cores share the bands or, unless `by_bands`, the panels; `shares` is how many equal parts
    that makes. `held` rows of the image between are in scratch memory at a time, of which the last
    `kept` are the next band's first ones.
    """

    tile: RegisterTile
    rows: int
    bands: int
    shares: int
    by_bands: bool
    held: int
    kept: int

    @property
    def bands_of_share(self) -> int:
        return self.bands // self.shares if self.by_bands else self.bands

    @property
    def keeps(self) -> bool:
        """Whether there is a next band of the same share."""
        return self.kept > 0 and self.bands_of_share > 1

    def scratch_bytes(self, between: Blocked) -> int:
        """Of all shares, with what is kept of each panel."""
        row = between.nbytes // between.shape[0] // between.shape[1]
        owners = self.shares if self.by_bands else 1
        tails = owners * between.blocks * self.kept if self.keeps else 0
        return row * (self.shares * self.tile.vectors * self.held + tails)


def _tiles(first: Layer, layer: Layer, cpu: CpuModel) -> list[RegisterTile]:
    """Tiles for the first convolution, the cheapest first."""
    between, shape = _between(first, layer, cpu), _shape(first, cpu)
    tiles = rank_tiles(
        between,
        blocks=shape.out_blocks,
        reduction=shape.reduction,
        cpu=cpu,
        columns=shape.kernel[1],
    )
    # A panel has all that its groups read.
    each = _blocks_of_group(layer, cpu)
    return [tile for tile in tiles if tile.vectors % each == 0]


def _blocks_of_group(layer: Layer, cpu: CpuModel) -> int:
    """Blocks of the image between that are read at a time."""
    if not _in_groups(layer):
        return 1
    assert isinstance(layer.operator, Convolution)
    return blocks_of_group(layer.operator, layer.element, cpu)


def _chosen(
    first: Layer, layer: Layer, cpu: CpuModel, room: int | None, choice: Way | None = None
) -> _Partition | None:
    """The partition with the tile of `choice`, if it has one that can be held, or the cheapest;
    where there is little `room`, the cheapest one that there is room for."""
    tiles = _tiles(first, layer, cpu)
    wanted = choice.tile if choice else None
    named = (tile for tile in tiles if (tile.pixels, tile.vectors) == wanted)
    others = tiles[:1] if room is None else tiles
    found = (_partition(first, layer, cpu, tile, room) for tile in (*named, *others))
    return next((item for item in found if item is not None), None)


def _partition(
    first: Layer, layer: Layer, cpu: CpuModel, tile: RegisterTile, room: int | None
) -> _Partition | None:
    """The tallest bands that the cache and `room` allow; None if the cores would not be busy, or
    bands were too low to be worth it."""
    operator, between, shape = layer.operator, _between(first, layer, cpu), _shape(first, cpu)
    assert isinstance(operator, Convolution | Pooling)
    height, stride = extent(layer.output)[2], operator.stride[0]
    window = (operator.kernel[0] - 1) * operator.dilation[0] + 1
    cycles = tile.cycles + stream_cycles(shape.weight_bytes, 1, cpu)
    cores = cpu.cores if worth_sharing(cycles, cpu) else 1
    row_bytes = between.nbytes // between.shape[0] // between.shape[1] * tile.vectors
    panels = -(-shape.out_blocks // tile.vectors)
    for rows in range(height, 0, -1):
        held = (rows - 1) * stride + window
        bands, kept = height // rows, max(0, window - stride)
        if height % rows or held * row_bytes > cpu.l2_bytes / _SCRATCH_PART:
            continue
        if bands > 1 and kept > rows * stride:
            return None  # most of each band would be copied, not made
        by_bands = bands % cores == 0
        if by_bands or busy(panels, cores) >= _BUSY_BY_PANELS:
            found = _Partition(
                tile=tile,
                rows=rows,
                bands=bands,
                shares=cores,
                by_bands=by_bands,
                held=held,
                kept=kept,
            )
            if room is None or found.scratch_bytes(between) <= room:
                return found
    return None


def _shape(first: Layer, cpu: CpuModel) -> Shape:
    """The extents of the first convolution's product."""
    operator = first.operator
    assert isinstance(operator, Convolution)
    outs, ins = operator.weight.shape[:2]
    blocks = [cpu.block(channels, first.element) for channels in (ins, outs)]
    return Shape(
        groups=1,
        in_blocks=-(-ins // blocks[0]),
        in_block=blocks[0],
        last_lanes=(ins - 1) % blocks[0] + 1,
        out_blocks=-(-outs // blocks[1]),
        lanes=blocks[1],
        kernel=operator.kernel,
        element=first.element,
    )


def halo(layer: Layer) -> Halo:
    """What the first convolution's window reads around the image."""
    assert isinstance(layer.operator, Streamed)
    return convolution.halo(layer.operator.first)


def reads_planar(layer: Layer, cpu: CpuModel) -> bool:
    """Where nothing has to be packed; see `convolution.reads_planar`."""
    assert isinstance(layer.operator, Streamed)
    return cpu.memory_operand and convolution.reads_planar(layer.operator.first, cpu)


def make(site: LayerSite) -> LayerKernel:
    """The kernel of both."""
    return _StreamedKernel(site).kernel()


class _StreamedKernel:
    """The loops of both."""

    def __init__(self, site: LayerSite) -> None:
        operator, cpu = site.layer.operator, site.cpu
        assert isinstance(operator, Streamed)
        first, layer = _parts(site.layer)
        assert isinstance(first.operator, Convolution)
        partition = _chosen(first, layer, cpu, site.limits.room, site.chosen(RULE.name))
        assert partition is not None
        self.site, self.operator, self.partition = site, operator, partition
        self.convolution, self.between = first.operator, _between(first, layer, cpu)
        between, tile = self.between, partition.tile
        weight = convolution.dense_weight(first.operator, 1)
        self.shape = Shape.of(weight, site.inputs[0], between)
        self.packed = pack_weights(weight, self.shape, tile.vectors)
        self.packed_bias = pack_bias(first.operator.bias, between, cpu)
        self.weights = tir.buffer("weights", self.packed.shape, str(self.packed.dtype))
        self.bias = tir.buffer("bias", self.packed_bias.shape, str(self.packed_bias.dtype))
        self.epilogue = Epilogue(between, first.expression, constants=first.constants)
        image = Planar if site.inputs[0].planar else Image
        self.source = image("source", site.inputs[0])
        self.scratch = Image(
            "scratch",
            replace(
                between,
                batch=partition.shares,
                channels=tile.vectors * between.block,
                height=partition.held,
            ),
        )
        # What the next band of a share needs of each panel.
        self.keeps = partition.keeps
        owners = partition.shares if partition.by_bands else 1
        shape = (owners * between.blocks, partition.kept, between.width, between.block)
        self.tails = tir.buffer("tails", shape, between.element.name)
        self.functions = micro.AssemblyFunctions()
        reading = replace(site, layer=layer, inputs=(between,))
        self.reader: PoolingKernel | DepthwiseKernel | GroupedKernel
        if isinstance(operator.reader, Pooling):
            self.reader = PoolingKernel(reading, self.scratch, partition.bands)
        else:
            kind = DepthwiseKernel if _is_depthwise(operator.reader) else GroupedKernel
            self.reader = kind(reading, self.scratch, partition.bands)
        self.reads_zeros = _in_groups(layer)
        self.blocks_at_once = _blocks_of_group(layer, cpu)

    def kernel(self) -> LayerKernel:
        """Constants, what they cost, and how the code is made."""
        between, partition = self.between, self.partition
        reader = self.reader.kernel()
        macs = self.convolution.weight.size * between.height * between.width * between.batch
        return LayerKernel(
            name=f"conv_{reader.name}",
            function=self.function,
            constants=(self.packed, self.packed_bias, *self.epilogue.packed, *reader.constants),
            tile=f"{partition.tile} {partition.rows} rows, {reader.tile}".rstrip(", "),
            macs=macs + reader.macs,
            cycles=partition.tile.cycles + reader.cycles,
            by_pixels=partition.shares > 1 and partition.by_bands,
        )

    def function(self) -> tirx.PrimFunc:
        """The code."""
        reader, partition = self.reader, self.partition

        def one_image(n: tir.Expr) -> tir.Stmt:
            return tir.loop_of(
                "share",
                partition.shares,
                lambda share: self._share(n, share),
                parallel=partition.shares > 1,
            )

        body = tir.sequence(
            reader.clear(),
            reader.epilogue.clear_around_means(),
            tir.loop_of("n", self.site.output.batch, one_image),
            reader.epilogue.means() if reader.parts > 1 else None,
        )
        arguments = [
            self.source.buffer,
            *reader.epilogue.operand_buffers,
            self.weights,
            self.bias,
            *self.epilogue.constants,
            *reader.constant_buffers,
            reader.target.buffer,
            *reader.epilogue.average_buffers,
            self.scratch.buffer,
            *([self.tails] if self.keeps else []),
        ]
        body = reader.imported(self.functions.imported(body))
        return tir.function(arguments, body, in_place=reader.in_place)

    def _share(self, n: tir.Expr, share: tir.Expr) -> tir.Stmt:
        """What one core does of an image."""
        partition, vectors = self.partition, self.partition.tile.vectors
        full, rest = divmod(self.shape.out_blocks, vectors)
        panels = full + bool(rest)

        def some(index: tir.Expr, number: tir.Expr, band: tir.Expr) -> tir.Stmt:
            last = (lambda: self._panel(n, share, full, rest, number, band)) if rest else None
            return tir.turn(
                index,
                full,
                lambda at: self._panel(n, share, at, vectors, number, band),
                last,
            )

        if partition.by_bands:
            each = partition.bands_of_share
            work = tir.loop_of(
                "band",
                each,
                lambda number: tir.loop_of(
                    "panel", panels, lambda index: some(index, number, share * each + number)
                ),
            )
        else:
            each = -(-panels // partition.shares)

            def mine(band: tir.Expr, number: tir.Expr) -> tir.Stmt:
                index = share * each + number
                done = some(index, band, band)
                if panels % partition.shares == 0:
                    return done
                return tir.when(tir.expr(index) < panels, done)

            work = tir.loop_of(
                "band",
                partition.bands,
                lambda band: tir.loop_of("panel", each, lambda number: mine(band, number)),
            )
        if not self.between.halo:
            return work

        def clear(v: tir.Expr) -> tir.Stmt:
            return tir.sequence(self.scratch.clear_halo(share * vectors + v))

        return tir.sequence(tir.loop_of("cleared", vectors, clear), work)

    def _panel(
        self,
        n: tir.Expr,
        share: tir.Expr,
        panel: tir.Expr,
        vectors: int,
        number: tir.Expr,
        band: tir.Expr,
    ) -> tir.Stmt:
        """A band of a panel of `vectors` vectors, the `number`-th one of the share."""
        partition, operator = self.partition, self.operator.reader
        blocks, wide = self.between.blocks, partition.tile.vectors
        top = band * (partition.rows * operator.stride[0]) - operator.before[0]
        # As a part of the image that would be there as a whole.
        place = self.scratch.viewed(self.between).placed(
            plane=share * wide - n * blocks - panel * wide, row=tir.expr(0 - top)
        )
        loops = ProductLoops(
            cpu=self.site.cpu,
            window=convolution.window_of(self.convolution),
            shape=self.shape,
            tile=partition.tile,
            source=self.source,
            target=place,
            weights=self.weights,
            bias=self.bias,
            epilogue=self.epilogue,
            functions=self.functions,
        )
        begin = tirx.max(0, tir.expr(top))
        if self.keeps:
            is_first = tirx.EQ(tir.expr(number), tir.integer(0))
            begin = tirx.Select(is_first, begin, tir.expr(top + partition.kept))
        end = tirx.min(self.between.height, tir.expr(top + partition.held))
        names = tir.Names()
        if self.keeps:
            restore = self._copy_tails(share, panel, vectors, save=False)
            names.add(tir.when(tir.expr(number) > 0, restore))
        if self.reads_zeros:
            names.add(self._clear_rows(n, panel, vectors, place, tir.expr(top)))
        begin, end = names.bind("begin", begin), names.bind("end", end)
        names.add(
            tir.loop_of("made", end - begin, lambda i: loops.row(n, panel, vectors, begin + i))
        )
        reader, each = self.reader.reading(place), self.blocks_at_once
        names.add(
            tir.loop_of(
                "block",
                vectors // each,
                lambda i: reader.rows(n, panel * wide + i * each, band),
            )
        )
        if self.keeps:
            names.add(self._copy_tails(share, panel, vectors, save=True))
        return names.done()

    def _clear_rows(
        self, n: tir.Expr, panel: tir.Expr, vectors: int, place: Image, top: tirx.Expr
    ) -> tir.Stmt:
        """Write zeros above and below the image, where a band has such rows."""
        between, wide = self.between, self.partition.tile.vectors
        zero = tir.number(0.0, between.element.accumulator, between.block)
        width = between.halo.left + between.width + between.halo.right

        def rows(first: tir.Expr, count: tirx.Expr) -> tir.Stmt:
            def pixel(v: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
                plane = n * between.blocks + panel * wide + v
                return place.store(zero, plane, first + row, column - between.halo.left)

            return tir.loop_of(
                "zeros",
                count,
                lambda row: tir.loop_of(
                    "block",
                    vectors,
                    lambda v: tir.loop_of("column", width, lambda column: pixel(v, row, column)),
                ),
            )

        below = tirx.max(0, top + self.partition.held - between.height)
        return tir.sequence(rows(top, tirx.max(0, 0 - top)), rows(between.height, below))

    def _copy_tails(
        self, share: tir.Expr, panel: tir.Expr, vectors: int, *, save: bool
    ) -> tir.Stmt:
        """Keep the last rows of a panel, or put them back as the first ones."""
        partition, between = self.partition, self.between
        lanes, wide = between.block, partition.tile.vectors
        owner = share if partition.by_bands else 0
        row_of = partition.rows * self.operator.reader.stride[0] if save else 0

        def pixel(v: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
            here = self.scratch.at(share * wide + v, row + row_of, column)
            there = [owner * between.blocks + panel * wide + v, row, column, 0]
            ends: Sequence[tuple[tirx.Buffer, Sequence[tir.Expr]]]
            ends = (self.scratch.buffer, here), (self.tails, there)
            (source, at), (target, to) = ends if save else ends[::-1]
            return tir.store(target, tir.load(source, at, lanes), to, lanes)

        return tir.loop_of(
            "block",
            vectors,
            lambda v: tir.loop_of(
                "row",
                partition.kept,
                lambda row: tir.loop_of(
                    "column", between.width, lambda column: pixel(v, row, column)
                ),
            ),
        )


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Such a pair, as one layer."""
    operator = layer.operator
    return isinstance(operator, Streamed) and isinstance(operator.first.operator, Convolution)


def ways(site: LayerSite) -> list[Ranked]:
    """All tiles of the first convolution."""
    first, layer = _parts(site.layer)
    found = []
    for tile in _tiles(first, layer, site.cpu):
        if _partition(first, layer, site.cpu, tile, site.limits.room) is not None:
            choice = Way(rule=RULE.name, pixels=tile.pixels, vectors=tile.vectors)
            found.append(Ranked(choice=choice, cycles=tile.cycles))
    return found


RULE = Rule(
    name="streamed",
    takes=takes,
    make=make,
    halo=halo,
    reads_planar=reads_planar,
    kept=True,
    ways=ways,
    pairing=Pairing(takes=takes_pair, keeps_to=keeps_to, instead=is_better_than_a_whole),
)
