"""Convolution of any window, stride, dilation and grouping; a matrix product is one of 1x1.

    for each panel of V output blocks           one of the two orders,
        for each row, tile of R pixels          by what has to be read more often
            R x V sums in registers, started with the bias
            for each input block, window row, window column, channel of the block
                sums[r][v] += input[r] * weights[v]
            expression, store

Weights are packed so that the reduction reads them front to back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from tvm import tirx

from edgepack.compiler.layers.layer import Convolution, Layer
from edgepack.compiler.layers.tensors import extent
from edgepack.compiler.rules.rule import Kernel, Rule, Site, element_of, product
from edgepack.compiler.tiles import arm, micro, tile, tir
from edgepack.compiler.tiles.arm import LANES
from edgepack.compiler.tiles.cpu import CpuModel
from edgepack.compiler.tiles.element import Element
from edgepack.compiler.tiles.epilogue import Epilogue
from edgepack.compiler.tiles.layout import Blocked, Halo, Image, Planar, conv_halo, pack_channels
from edgepack.compiler.tiles.partition import (
    BUSY_BY_ONE_LOOP,
    busy,
    even_pieces,
    even_run,
    worth_sharing,
)

# Multiply-adds in the unrolled body of the reduction: enough to hide its loop, small enough
# to stay in the decoded-instruction cache (about 1500 entries on Haswell, 4000 on Zen).
_UNROLLED = 128


def halo(layer: Layer) -> Halo:
    """What the window reads around the image."""
    operator = layer.operator
    assert isinstance(operator, Convolution)
    return conv_halo(
        size=extent(layer.inputs[0])[2:],
        kernel=operator.kernel,
        stride=operator.stride,
        dilation=operator.dilation,
        before=operator.before,
        out=extent(layer.output)[2:],
    )


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The reduction and the channels of one group, in blocks.

    `last_lanes` channels of the last input block hold something. A step of the reduction takes `kr`
    of a block's channels; where a block has no multiple of that, the last step has weights of zero.
    """

    groups: int
    in_blocks: int
    in_block: int
    last_lanes: int
    out_blocks: int
    lanes: int
    kernel: tuple[int, int]
    element: Element
    kr: int = 1

    @classmethod
    def of(cls, weight: np.ndarray, source: Blocked, output: Blocked, kr: int = 1) -> Shape:
        """That of weights [groups, out, in, rows, columns]."""
        in_block, lanes = source.block, output.block
        groups, outs, ins, rows, columns = weight.shape
        return cls(
            groups=groups,
            in_blocks=-(-ins // in_block),
            in_block=in_block,
            last_lanes=(ins - 1) % in_block + 1,
            out_blocks=-(-outs // lanes),
            lanes=lanes,
            kernel=(rows, columns),
            element=source.element,
            kr=kr,
        )

    @property
    def reduction(self) -> int:
        """Multiply-adds per result, those with zeros that fill a step included."""
        per_block, last = (-(-size // self.kr) for size in (self.in_block, self.last_lanes))
        return product(self.kernel) * ((self.in_blocks - 1) * per_block + last) * self.kr

    def panel(self, vectors: int) -> int:
        """Weights of `vectors` blocks of output channels."""
        return self.reduction * vectors * self.lanes

    @property
    def weight_bytes(self) -> int:
        """Bytes of a group's weights."""
        return self.element.bytes * self.panel(self.out_blocks)


def merged_groups(operator: Convolution, in_block: int, out_block: int) -> int:
    """How many neighbouring groups to treat as one, so that each has whole blocks.

    The merged group's weights are zero between channels of different groups. All of them
    merged make a plain convolution.
    """
    ins, outs = operator.weight.shape[1], operator.weight.shape[0] // operator.groups
    for merged in range(1, operator.groups):
        whole = ins * merged % in_block == 0 and outs * merged % out_block == 0
        if operator.groups % merged == 0 and whole:
            return merged
    return operator.groups


def dense_weight(operator: Convolution, merged: int) -> np.ndarray:
    """Weights [groups, out, in, rows, columns] with `merged` groups made one."""
    weight, groups = operator.weight, operator.groups
    outs, ins = weight.shape[0] // groups, weight.shape[1]
    dense = np.zeros(
        (groups // merged, outs * merged, ins * merged, *weight.shape[2:]), weight.dtype
    )
    split = weight.reshape(groups // merged, merged, outs, ins, *weight.shape[2:])
    for i in range(merged):
        dense[:, i * outs : (i + 1) * outs, i * ins : (i + 1) * ins] = split[:, i]
    return dense


def pack_weights(weight: np.ndarray, shape: Shape, vectors: int) -> np.ndarray:
    """[groups, out, in, rows, columns] -> the order in which the reduction reads them.

    Per group and panel: [in block][row][column][step][vectors * lanes][kr], where a step is `kr` of
    the block's channels.
    """
    groups, outs, ins, rows, columns = weight.shape
    padded = np.zeros((groups, shape.out_blocks * shape.lanes, ins, rows, columns), weight.dtype)
    padded[:, :outs] = weight
    pieces = []
    for group in padded:
        start = 0
        for size, count in tile.parts(shape.out_blocks, vectors):
            for _ in range(count):
                panel = group[start : start + size * shape.lanes]
                start += size * shape.lanes
                for first in range(0, ins, shape.in_block):
                    block = panel[:, first : first + shape.in_block]
                    missing = -block.shape[1] % shape.kr
                    if missing:
                        block = np.pad(block, ((0, 0), (0, missing), (0, 0), (0, 0)))
                    steps = block.reshape(len(block), -1, shape.kr, rows, columns)
                    pieces.append(steps.transpose(3, 4, 1, 0, 2).ravel())
    return np.concatenate(pieces)


def choose_tile(
    output: Blocked,
    *,
    blocks: int,
    reduction: int,
    cpu: CpuModel,
    groups: int = 1,
    most_vectors: int = 1 << 30,
) -> tile.Tile:
    """The cheapest tile for one group's `blocks` blocks of output channels.

    `reduction` is that of `Shape`.
    """
    kernel = arm.micro_kernel(cpu, output.element)
    return tile.choose(
        width=output.width,
        rows=output.height * output.batch * groups,
        blocks=blocks,
        lanes=output.block,
        reduction=reduction,
        element=output.element,
        kr=kernel.kr if kernel else 1,
        cpu=cpu,
        fits=partial(kernel.fits, registers=cpu.registers) if kernel else None,
        most_vectors=most_vectors,
    )


def stream_cycles(weights: int, times: int, cpu: CpuModel) -> float:
    """What reading `weights` bytes of weights costs beyond the arithmetic.

    They come from memory the first time, for no cache holds a whole network, and again each time
    if they do not fit the second-level cache. Cores that issue in order wait for them.
    """
    fetched = weights * (times if weights > cpu.l2_bytes / 2 else 1)
    return fetched / cpu.memory_bandwidth / (1 if cpu.in_order else 2)


def make(site: Site) -> Kernel:
    """The kernel of a convolution."""
    operator = site.layer.operator
    assert isinstance(operator, Convolution)
    source, output = site.inputs[0], site.output
    merged = merged_groups(operator, source.block, output.block)
    weight = dense_weight(operator, merged)
    shape = Shape.of(weight, source, output)
    flat = is_flat(operator, site)
    view_out = output.flat if flat else output
    chosen = choose_tile(
        view_out,
        blocks=shape.out_blocks,
        reduction=shape.reduction,
        cpu=site.cpu,
        groups=shape.groups,
    )
    packed = pack_weights(weight, shape, chosen.vectors)
    packed_bias = pack_channels(operator.bias, output)
    image = Planar if source.planar else Image
    loops = Loops(
        cpu=site.cpu,
        operator=operator,
        shape=shape,
        tile=chosen,
        source=image("source", source, source.flat if flat else source),
        target=Image("target", output, view_out),
        weights=tir.buffer("weights", packed.shape, output.element.name),
        bias=tir.buffer("bias", packed_bias.shape, output.element.accumulator),
        epilogue=site.epilogue(flat=flat, pixels=chosen.pixels),
        clears=True,
    )
    whole = tir.sequence(
        loops.epilogue.clear_around_means(),
        tir.loop_of("n", output.batch, lambda n: loops.image(n, parallel=loops.worth_sharing)),
        loops.epilogue.means(),
    )
    notes = {"flat": flat, "pixels": loops.pixels_outer, "mean": site.mean is not None}
    rows, columns = operator.kernel
    name = (
        f"conv{rows}x{columns}_{source.channels}_{output.channels}_{output.height}x{output.width}"
    )
    if operator.stride != (1, 1):
        name += f"_s{operator.stride[0]}"
    if site.mean:
        name += "_mean"
    return Kernel(
        name=name,
        function=tir.function(
            [
                loops.source.buffer,
                *loops.epilogue.operand_buffers,
                loops.weights,
                loops.bias,
                *loops.epilogue.constants,
                loops.target.buffer,
                *loops.epilogue.average_buffers,
            ],
            loops.imported(whole),
            in_place=loops.in_place,
        ),
        constants=(packed, packed_bias, *loops.epilogue.packed),
        tile=" ".join([str(chosen), *(word for word, holds in notes.items() if holds)]),
        macs=operator.weight.size * output.height * output.width * output.batch,
        cycles=chosen.cycles,
        by_pixels=loops.by_pixels,
    )


def is_flat(operator: Convolution, site: Site) -> bool:
    """Whether rows do not matter: 1x1 on tensors without halos is one long row of pixels."""
    layouts = (site.inputs[0], site.output, *site.operands)
    return (
        operator.kernel == operator.stride == (1, 1)
        and operator.before == (0, 0)
        and not any(layout.halo for layout in layouts)
    )


class Loops:
    """The loops of one convolution.

    A group's planes follow the one before's in `source` and `target`; there may be more of them
    than `shape` says. With `clears`, the zeros around the results are written, too. `prepare` is
    what has to be done before a panel of weights is used, given its number and its vectors. The
    weights start at `first_weight`.
    """

    def __init__(
        self,
        *,
        cpu: CpuModel,
        operator: Convolution,
        shape: Shape,
        tile: tile.Tile,
        source: Image,
        target: Image,
        weights: tirx.Buffer,
        bias: tirx.Buffer,
        epilogue: Epilogue,
        clears: bool = False,
        functions: micro.Functions | None = None,
        prepare: Callable[[tir.Expr, int], tir.Stmt] | None = None,
        first_weight: tir.Expr = 0,
    ) -> None:
        self.cpu = cpu
        self.operator = operator
        self.shape = shape
        self.tile = tile
        self.source, self.target = source, target
        self.weights, self.bias = weights, bias
        self.epilogue = epilogue
        self.clears = clears
        self.prepare = prepare
        self.first_weight = first_weight
        self.pixels_outer = prepare is None and _pixels_outer(
            shape, tile, source.layout, target.layout
        )
        self.by_pixels = self._shares_pixels()
        isa = arm.isa_of(cpu, source.layout.element)
        self.tiles: micro.Tiles | None = None
        if isa is not None:
            self.tiles = micro.Tiles(isa, source, target, weights, bias, epilogue, functions)

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """`body`, which has these loops, with the code that they call."""
        return self.tiles.imported(body) if self.tiles else body

    @property
    def in_place(self) -> list[tuple[tirx.Buffer, tirx.Buffer]]:
        """See `tir.function`."""
        finished = self.tiles.finishes if self.tiles else not self.epilogue.is_long
        return self.epilogue.in_place(self.target) if finished else []

    @property
    def worth_sharing(self) -> bool:
        """Whether a group is enough work for all cores."""
        weights = self.shape.weight_bytes
        cycles = self.tile.cycles / self.shape.groups + stream_cycles(weights, 1, self.cpu)
        return worth_sharing(cycles, self.cpu)

    def image(self, n: tir.Expr, *, parallel: bool) -> tir.Stmt:
        """One image of the batch, shared out within each group if `parallel`."""
        return tir.loop_of(
            "group", self.shape.groups, lambda group: self.group(n, group, parallel=parallel)
        )

    def group(self, n: tir.Expr, group: tir.Expr, *, parallel: bool = False) -> tir.Stmt:
        """One group of one image."""
        in_pieces = self.by_pixels and not self.pixels_outer
        if parallel and (in_pieces or not self._comes_out_even):
            return self._shared_tiles(n, group)
        order = self._pixels_first if self.pixels_outer else self._panels_first
        return order(n, group, parallel)

    def _shares_pixels(self) -> bool:
        """Whether the cores share the pixels rather than the channels.

        Then each core reads all weights, but only its own pixels, which are in its own cache if the
        layers before and after are shared in the same way.
        """
        weights = self.shape.weight_bytes
        images = self.source.layout.nbytes + self.target.layout.nbytes
        fits = self.pixels_outer or even_pieces(self._pixel_turns, self.cpu.cores) is not None
        return self.worth_sharing and fits and weights < images // self.source.layout.batch

    @property
    def _panels(self) -> int:
        return -(-self.shape.out_blocks // self.tile.vectors)

    @property
    def _tiles(self) -> int:
        """Tiles along a row."""
        return -(-self.target.layout.width // self.tile.pixels)

    @property
    def _pixel_turns(self) -> int:
        """Rows; tiles if there is but one."""
        rows = self.target.layout.height
        return rows if rows > 1 else self._tiles

    @property
    def _comes_out_even(self) -> bool:
        """Whether the turns of the outer loop keep all cores busy to the end."""
        layout, cores = self.target.layout, self.cpu.cores
        total, size = self.shape.out_blocks, self.tile.vectors
        if self.pixels_outer:
            rows = (layout.height, 1)
            total, size = rows if layout.height > 1 else (layout.width, self.tile.pixels)
        return busy(total, cores, size) >= BUSY_BY_ONE_LOOP

    def _shared_tiles(self, n: tir.Expr, group: tir.Expr) -> tir.Stmt:
        """Both loops as one, whose turns the cores share: panels or pixels alone are too few.

        A core has neighbouring turns, so that what the outer loop keeps stays with it.
        """
        layout, size = self.target.layout, self.tile.pixels
        rows, run = self._piece()
        runs = self._tiles // run
        pieces = layout.height // rows * runs
        pixels_outer = self.pixels_outer or self.by_pixels
        inner = self._panels if pixels_outer else pieces

        def along(index: tir.Expr, vectors: int, at: tir.Expr) -> tir.Stmt:
            def one_row(row: tir.Expr) -> tir.Stmt:
                turns = _turns(
                    layout.width,
                    size,
                    size,
                    lambda column, pixels: self._tile(
                        n, group, index, vectors, row, column, pixels
                    ),
                )
                tiles = tir.loop_of("tile", run, lambda i: tir.turn(at % runs * run + i, *turns))
                clear = self._clear(n, group, index, vectors, row)
                if clear is not None and runs > 1:
                    clear = tirx.IfThenElse(tirx.EQ(at % runs, tir.integer(0)), clear, None)
                return tir.sequence(clear, tiles)

            return tir.loop_of("row", rows, lambda row: one_row(at // runs * rows + row))

        def one(item: tir.Expr) -> tir.Stmt:
            outside, inside = item // inner, item % inner
            panel, at = (inside, outside) if pixels_outer else (outside, inside)
            panel_turns = _turns(
                self.shape.out_blocks,
                self.tile.vectors,
                1,
                lambda i, vectors: along(i, vectors, at),
            )
            return tir.turn(panel, *panel_turns)

        prepared = None
        if self.prepare is not None:
            weights = self.shape.panel(self.shape.out_blocks) / self.shape.lanes
            parallel = worth_sharing(weights / self.cpu.loads_per_cycle, self.cpu)
            prepared = self._over_panels(self.prepare, parallel=parallel)
        items = self._panels * pieces
        return tir.sequence(prepared, tir.loop_of("item", items, one, parallel=True))

    def _piece(self) -> tuple[int, int]:
        """What is done of an image at a time: so many rows, and so many tiles of each."""
        height, cores = self.target.layout.height, self.cpu.cores
        if not self.by_pixels or self.pixels_outer:
            return 1, even_run(self._panels * height, self._tiles, cores)
        pieces = even_pieces(self._pixel_turns, cores)
        assert pieces is not None
        each = self._pixel_turns // pieces
        return (each, self._tiles) if height > 1 else (1, each)

    def _panels_first(self, n: tir.Expr, group: tir.Expr, parallel: bool) -> tir.Stmt:
        """Each panel of weights is used for the whole image before the next one is read."""
        rows = self.target.layout.height

        def panel(index: tir.Expr, vectors: int) -> tir.Stmt:
            pixels = tir.loop_of(
                "row",
                rows,
                lambda row: self._along_row(
                    lambda column, pixels: self._tile(n, group, index, vectors, row, column, pixels)
                ),
            )
            prepared = self.prepare(index, vectors) if self.prepare else None
            return tir.sequence(prepared, self._clear(n, group, index, vectors), pixels)

        return self._over_panels(panel, parallel=parallel)

    def _pixels_first(self, n: tir.Expr, group: tir.Expr, parallel: bool) -> tir.Stmt:
        """Each row of pixels is finished in all channels before the next one is read."""
        rows = self.target.layout.height

        def one_row(row: tir.Expr) -> tir.Stmt:
            tiles = self._along_row(
                lambda column, pixels: self._over_panels(
                    lambda index, vectors: self._tile(n, group, index, vectors, row, column, pixels)
                ),
                parallel=parallel and rows == 1,
            )
            return tir.sequence(self._clear(n, group, 0, self.shape.out_blocks, row), tiles)

        return tir.loop_of("row", rows, one_row, parallel=parallel)

    def _clear(
        self,
        n: tir.Expr,
        group: tir.Expr,
        panel: tir.Expr,
        vectors: int,
        row: tir.Expr | None = None,
    ) -> tir.Stmt | None:
        """The zeros around some planes of the results, or around a row of them."""
        target = self.target
        if not self.clears or not target.layout.halo:
            return None
        first = self._plane(n, group) + panel * self.tile.vectors

        def clear(v: tir.Expr) -> tir.Stmt:
            plane = first + v
            zeros = target.clear_halo(plane) if row is None else target.clear_beside(plane, row)
            return tir.sequence(zeros)

        return tir.loop_of("cleared", vectors, clear)

    def _plane(self, n: tir.Expr, group: tir.Expr) -> tir.Expr:
        """The first of a group."""
        blocks = self.target.layout.blocks
        return n * blocks + group * (blocks // self.shape.groups)

    def _over_panels(
        self, body: Callable[[tir.Expr, int], tir.Stmt], *, parallel: bool = False
    ) -> tir.Stmt:
        turns = _turns(self.shape.out_blocks, self.tile.vectors, 1, body)
        return tir.split("panel", *turns, parallel=parallel)

    def _along_row(
        self, body: Callable[[tir.Expr, int], tir.Stmt], *, parallel: bool = False
    ) -> tir.Stmt:
        pixels = self.tile.pixels
        turns = _turns(self.target.layout.width, pixels, pixels, body)
        return tir.split("tile", *turns, parallel=parallel)

    # ------------------------------------------------ one tile

    def _tile(
        self,
        n: tir.Expr,
        group: tir.Expr,
        panel: tir.Expr,
        vectors: int,
        row: tir.Expr,
        column: tir.Expr,
        pixels: int,
    ) -> tir.Stmt:
        """`pixels` results from `column` on, in `vectors` blocks from panel `panel` on."""
        shape = self.shape
        # `panel` counts panels of the full size; only the last one may be smaller.
        block = panel * self.tile.vectors
        weights = self.first_weight + group * shape.panel(shape.out_blocks)
        weights += panel * shape.panel(self.tile.vectors)
        source, target = self.source.layout, self.target.layout
        channel_block = group * (target.blocks // shape.groups) + block
        place = _Place(
            in_plane=n * source.blocks + group * (source.blocks // shape.groups),
            plane=self._plane(n, group) + block,
            channel_block=channel_block,
            weights=weights,
            row=row,
            column=column,
            pixels=pixels,
            vectors=vectors,
        )
        if self.tiles is not None:
            return self._micro_tile(self.tiles, place)
        if self.source.layout.planar:
            return self._tile_without_halo(place)
        return self._llvm_tile(place)

    def _tile_without_halo(self, place: _Place) -> tir.Stmt:
        """The tile by LLVM; code of its own for each of a row whose windows stick out."""
        if isinstance(place.column, int):
            return self._llvm_tile(place)
        starts = range(0, self.target.layout.width - place.pixels + 1, self.tile.pixels)
        special = [at for at in (replace(place, column=c) for c in starts) if self._sticks_out(at)]
        made = self._llvm_tile(place if len(special) < len(starts) else special.pop())
        for at in special:
            here = tirx.EQ(place.column, tir.expr(at.column))
            made = tirx.IfThenElse(here, self._llvm_tile(at), made)
        return made

    def _sticks_out(self, place: _Place) -> bool:
        """Whether some windows reach over the left or right border of the image."""
        columns = range(self.shape.kernel[1])
        return any(len(self._pixels_inside(place, at)) < place.pixels for at in columns)

    def _pixels_inside(self, place: _Place, column: int) -> list[int]:
        """The results of a tile for which a column of the window is in the image, or its halo."""
        every = list(range(place.pixels))
        if not self.source.layout.planar or not isinstance(place.column, int):
            return every
        width = self.source.layout.width
        return [r for r in every if 0 <= self._input(place, r, 0, column)[1] < width]

    def _llvm_tile(self, place: _Place) -> tir.Stmt:
        shape, lanes = self.shape, self.shape.lanes
        sums = [
            [
                tir.Local(f"sum_{r}_{v}", lanes, shape.element.accumulator)
                for v in range(place.vectors)
            ]
            for r in range(place.pixels)
        ]
        every = [(r, v) for r in range(place.pixels) for v in range(place.vectors)]
        start = [
            sums[r][v].set(tir.load(self.bias, [(place.channel_block + v) * lanes], lanes))
            for r, v in every
        ]
        names = tir.Names()
        results: list[list[tirx.Expr]] = [[] for _ in range(place.vectors)]
        for r, v in every:
            at = (place.plane + v, place.row, place.column + r)
            result = sums[r][v].get()
            if not self.epilogue.is_long:
                block = place.channel_block + v
                result = self.epilogue.apply(names, result, *at, channel_block=block)
            names.add(self.target.store(result, *at))
            results[v].append(result)
        if self.epilogue.is_long:
            names.add(self.epilogue.pass_over(self.target, place))
        elif self.epilogue.average:
            for v, of_vector in enumerate(results):
                at = (place.plane + v, place.row, place.column)
                names.add(self.epilogue.average.leave(of_vector, *at))
        whole = shape.in_blocks - (shape.last_lanes < shape.in_block)
        reduction = []
        if whole:
            reduction.append(
                tir.loop_of(
                    "in_block",
                    whole,
                    lambda block: self._reduce(place, sums, block, shape.in_block),
                )
            )
        if whole < shape.in_blocks:
            reduction.append(self._reduce(place, sums, whole, shape.last_lanes))
        declared = [sums[r][v].declare() for r, v in every]
        return tir.sequence(*declared, *start, *reduction, names.done())

    def _reduce(
        self, place: _Place, sums: list[list[tir.Local]], block: tir.Expr, channels: int
    ) -> tir.Stmt:
        """Add what one block of input channels contributes."""
        shape = self.shape
        rows, columns = shape.kernel
        wide = place.vectors * shape.lanes
        unrolled = max(
            step
            for step in range(1, channels + 1)
            if channels % step == 0
            and (step == 1 or step * columns * place.pixels * place.vectors <= _UNROLLED)
        )
        block_weights = place.weights + block * (product(shape.kernel) * shape.in_block * wide)

        def steps(row: tir.Expr, part: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            for column in range(columns):
                for step in range(unrolled):
                    channel = part * unrolled + step
                    at = block_weights + ((row * columns + column) * channels + channel) * wide
                    weights = [
                        names.bind("w", tir.load(self.weights, [at + v * shape.lanes], shape.lanes))
                        for v in range(place.vectors)
                    ]
                    for r in self._pixels_inside(place, column):
                        value = tir.load(
                            self.source.buffer,
                            self.source.at(
                                place.in_plane + block, *self._input(place, r, row, column), channel
                            ),
                        )
                        spread = names.bind("x", tir.spread(value, shape.lanes))
                        for v in range(place.vectors):
                            total = sums[r][v]
                            names.add(total.set(total.get() + spread * weights[v]))
            return names.done()

        def one_row(row: tir.Expr) -> tir.Stmt:
            return tir.loop_of("part", channels // unrolled, lambda part: steps(row, part))

        if not self.source.layout.planar:
            return tir.loop_of("window_row", rows, one_row)
        # Only what is in the image.
        top = tir.expr(self._input(place, 0, 0, 0)[0])
        first, behind = tirx.max(0, -top), tirx.min(rows, self.source.layout.height - top)
        counter = tir.var("window_row")
        return tirx.For(counter, first, behind - first, tirx.ForKind.SERIAL, one_row(counter))

    def _input(
        self, place: _Place, pixel: int, row: tir.Expr, column: int
    ) -> tuple[tir.Expr, tir.Expr]:
        """The input pixel under a point of the window, counted from the image's corner."""
        operator = self.operator
        return (
            place.row * operator.stride[0] + row * operator.dilation[0] - operator.before[0],
            (place.column + pixel) * operator.stride[1]
            + column * operator.dilation[1]
            - operator.before[1],
        )

    def _micro_tile(self, tiles: micro.Tiles, place: _Place) -> tir.Stmt:
        """The tile in assembly."""
        shape, operator = self.shape, self.operator
        source = self.source
        # Channels of the last block: of a matrix they are the last ones of four.
        back = LANES - shape.last_lanes if source.overlaps else 0
        reduction = arm.Convolve(
            blocks=shape.in_blocks - (shape.last_lanes < LANES),
            last_lanes=shape.last_lanes % LANES,
            kernel=shape.kernel,
            pixel_step=source.pixel_bytes * operator.stride[1],
            column_step=source.pixel_bytes * operator.dilation[1],
            row_step=source.row_bytes * operator.dilation[0],
            plane_step=source.plane_bytes,
            back=back % LANES,
        )
        return tiles.call(
            reduction,
            micro.Place(
                source=self.source.at(place.in_plane, *self._input(place, 0, 0, 0)),
                weights=[place.weights],
                plane=place.plane,
                channel_block=place.channel_block,
                row=place.row,
                column=place.column,
                pixels=place.pixels,
                vectors=place.vectors,
            ),
        )


def _turns(
    total: int, size: int, step: int, body: Callable[[tir.Expr, int], tir.Stmt]
) -> tuple[int, Callable[[tir.Expr], tir.Stmt], Callable[[], tir.Stmt] | None]:
    """`total` in pieces of `size`, as `tir.split` wants it; `body` gets `step` times the number."""
    full, rest = divmod(total, size)
    last = (lambda: body(full * step, rest)) if rest else None
    return full, lambda index: body(index * step, size), last


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a tile lies in the tensors and in the packed weights."""

    in_plane: tir.Expr
    plane: tir.Expr
    channel_block: tir.Expr
    weights: tir.Expr
    row: tir.Expr
    column: tir.Expr
    pixels: int
    vectors: int


def _pixels_outer(shape: Shape, chosen: tile.Tile, view_in: Blocked, view_out: Blocked) -> bool:
    """Which of image and weights is better read again and again.

    Panels outside: the image is read once per panel. Pixels outside: all weights are read
    once per row of pixels (per tile, when the image is one flat row).
    """
    panels = -(-shape.out_blocks // chosen.vectors)
    per_row = view_out.width > 1 and view_out.height == 1
    rows = -(-view_out.width // chosen.pixels) if per_row else view_out.height
    image_bytes = view_in.nbytes // view_in.batch // shape.groups
    weight_bytes = shape.weight_bytes
    return rows * weight_bytes + image_bytes < panels * image_bytes + weight_bytes


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Every convolution of float32 images."""
    return isinstance(layer.operator, Convolution)


def reads_planar(layer: Layer, cpu: CpuModel) -> bool:
    """Images of few channels, where a multiply-add reads its value from memory itself.

    Then it does not matter where the pixel's other channels are.
    """
    operator = layer.operator
    assert isinstance(operator, Convolution)
    narrowest = cpu.narrowest(element_of(layer.inputs[0]))
    is_first = operator.groups == 1 and extent(layer.inputs[0])[1] <= narrowest
    return cpu.memory_operand and is_first and operator.dilation == (1, 1)


RULE = Rule(
    name="conv", takes=takes, make=make, halo=halo, reads_planar=reads_planar, averages=True
)
