"""The loops of a product of weights and an image.

    for each panel of V output blocks           one of the two orders,
        for each row, tile of R pixels          by what has to be read more often
            R x V accumulators, to which the bias is added in the end
            for each input block, window row, window column, channel of the block
                accumulators[r][v] += input[r] * weights[v]
            expression, store

Weights are packed so that the reduction reads them front to back. `Partition` says who does what,
`TileCode` writes what is inside a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx

from edgepack.kernels.choices import PANEL, WIDE, Way
from edgepack.kernels.tiles import arm, micro, tile, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import Image
from edgepack.kernels.tiles.partition import worth_sharing
from edgepack.kernels.tiles.product.by_assembly import AssemblyTiles
from edgepack.kernels.tiles.product.by_integers import DotProduct, IntegerTiles, SummedTiles
from edgepack.kernels.tiles.product.by_llvm import LlvmTiles, most_unrolled
from edgepack.kernels.tiles.product.code import ProductTensors, TileAt, TileCode
from edgepack.kernels.tiles.product.partition import Partition
from edgepack.kernels.tiles.product.shape import PanelPart, Shape, Window
from edgepack.kernels.tiles.product.stored import StoredHalves
from edgepack.kernels.tiles.requantise import Requantising
from edgepack.kernels.tiles.sums_end import SumsEnd

# Bytes of a cache's line, and how many of them a tile asks for at most: fewer tiles are over before
# so much has come.
_LINE = 64
_MOST_LINES = 128


class ProductLoops:
    """The loops of one product.

    `tensors` are described there. With `clears`, the zeros around the results are written, too.
    `prepare` is what has to be done before a panel of weights is used, given its number and its
    vectors. `halves` are the weights as they are stored, if not as `weights`. The weights start at
    `first_weight`; each panel of them has those of a `part` of a larger product, if there is one. A
    `choice` says what of the loops is not as the cost model has it. Functions that tiles call are
    kept in `functions`, if given, for several products of one kernel. Those of integers are added
    up by `dot`; for `results` see `arm.longest_chain`, for `bias_first` `ProductTensors`.
    """

    def __init__(
        self,
        *,
        cpu: CpuModel,
        window: Window,
        shape: Shape,
        tile: tile.RegisterTile,
        source: Image,
        target: Image,
        weights: tirx.Buffer,
        bias: tirx.Buffer,
        epilogue: Epilogue,
        clears: bool = False,
        functions: micro.AssemblyFunctions | None = None,
        prepare: Callable[[tir.Expr, int], tir.Stmt] | None = None,
        halves: StoredHalves | None = None,
        first_weight: tir.Expr = 0,
        part: PanelPart | None = None,
        choice: Way | None = None,
        dot: DotProduct | None = None,
        results: int = 1,
        bias_first: bool = False,
    ) -> None:
        self.cpu = cpu
        self.shape = shape
        self.tile = tile
        self.source, self.target = source, target
        self.weights, self.bias = weights, bias
        self.epilogue = epilogue
        self.clears = clears
        self.prepare = prepare or (halves.widen if halves else None)
        # Cores that have a place for one panel each; None: all panels have theirs.
        self.slots = halves.slots if halves else None
        self.halves = halves
        self.first_weight = first_weight
        self.part = part or PanelPart(of=shape, first=0)
        self.fetches = choice is not None and choice.fetch == PANEL and self.prepare is None
        self.partition = Partition(
            cpu=cpu,
            shape=shape,
            tile=tile,
            source=source.layout,
            target=target.layout,
            prepared=self.prepare is not None,
            order=choice.order if choice else "",
            share=choice.share if choice else "",
        )
        tensors = ProductTensors(
            shape=shape,
            window=window,
            source=source,
            target=target,
            weights=weights,
            bias=bias,
            epilogue=epilogue,
            bias_first=bias_first,
        )
        self.code = _code(tensors, tile, cpu, functions, choice, dot, results)

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """`body`, which has these loops, with the code that they call."""
        body = self.code.imported(body)
        return self.halves.functions.imported(body) if self.halves else body

    @property
    def in_place(self) -> list[tuple[tirx.Buffer, tirx.Buffer]]:
        """See `tir.function`."""
        return self.epilogue.in_place(self.target) if self.code.finishes else []

    def image(self, n: tir.Expr, *, parallel: bool) -> tir.Stmt:
        """One image of the batch, shared out within each group if `parallel`."""
        return tir.loop_of(
            "group", self.shape.groups, lambda group: self.group(n, group, parallel=parallel)
        )

    def group(self, n: tir.Expr, group: tir.Expr, *, parallel: bool = False) -> tir.Stmt:
        """One group of one image."""
        if self.slots is not None:
            return self._own_panels(n, group, self.slots if parallel else 1)
        if parallel and self.partition.in_one_loop:
            return self._shared_tiles(n, group)
        order = self._pixels_first if self.partition.pixels_outer else self._panels_first
        return order(n, group, parallel)

    def _shared_tiles(self, n: tir.Expr, group: tir.Expr) -> tir.Stmt:
        """Both loops as one, whose turns the cores share: panels or pixels alone are too few.

        A core has neighbouring turns, so that what the outer loop keeps stays with it.
        """
        layout, size = self.target.layout, self.tile.pixels
        rows, run = self.partition.piece()
        runs = self.partition.tiles // run
        pieces = layout.height // rows * runs
        pixels_outer = self.partition.pixels_outer or self.partition.by_pixels
        inner = self.partition.panels if pixels_outer else pieces

        def along(index: tir.Expr, vectors: int, at: tir.Expr) -> tir.Stmt:
            def one_row(row: tir.Expr) -> tir.Stmt:
                turns = _turns(
                    layout.width,
                    size,
                    size,
                    lambda column, pixels: self._tile(
                        n, group, index, vectors, row, column, pixels, fetches=not pixels_outer
                    ),
                )
                tiles = tir.loop_of("tile", run, lambda i: tir.turn(at % runs * run + i, *turns))
                clear = self.clear(n, group, index, vectors, row)
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
            prepared = self.over_panels(self.prepare, parallel=parallel)
        items = self.partition.panels * pieces
        return tir.sequence(prepared, tir.loop_of("item", items, one, parallel=True))

    def _panels_first(self, n: tir.Expr, group: tir.Expr, parallel: bool) -> tir.Stmt:
        """Each panel of weights is used for the whole image before the next one is read."""

        def panel(index: tir.Expr, vectors: int) -> tir.Stmt:
            pixels = self._rows(n, group, index, vectors)
            prepared = self.prepare(index, vectors) if self.prepare else None
            return tir.sequence(prepared, self.clear(n, group, index, vectors), pixels)

        return self.over_panels(panel, parallel=parallel)

    def _own_panels(self, n: tir.Expr, group: tir.Expr, cores: int) -> tir.Stmt:
        """Each core prepares the panels that it uses, one after the other, in the same place."""
        full, rest = divmod(self.shape.out_blocks, self.tile.vectors)
        panels = full + bool(rest)
        each = -(-panels // cores)

        def panel(core: tir.Expr, index: tir.Expr, vectors: int) -> tir.Stmt:
            prepared = self.halves.widen(index, vectors, core) if self.halves else None
            pixels = self._rows(n, group, index, vectors, slot=core)
            return tir.sequence(prepared, self.clear(n, group, index, vectors), pixels)

        def one(core: tir.Expr, turn: tir.Expr) -> tir.Stmt:
            index = core * each + turn
            last = (lambda: panel(core, full, rest)) if rest else None
            made = tir.turn(index, full, lambda at: panel(core, at, self.tile.vectors), last)
            if panels % cores == 0:
                return made
            return tir.when(tir.expr(index) < panels, made)

        return tir.loop_of(
            "core",
            cores,
            lambda core: tir.loop_of("panel", each, lambda turn: one(core, turn)),
            parallel=True,
        )

    def _rows(
        self,
        n: tir.Expr,
        group: tir.Expr,
        panel: tir.Expr,
        vectors: int,
        slot: tir.Expr | None = None,
    ) -> tir.Stmt:
        """All pixels of a panel."""

        def one_row(row: tir.Expr) -> tir.Stmt:
            return self._along_row(
                lambda column, pixels: self._tile(
                    n, group, panel, vectors, row, column, pixels, slot, fetches=slot is None
                )
            )

        return tir.loop_of("row", self.target.layout.height, one_row)

    def row(
        self, n: tir.Expr, panel: tir.Expr, vectors: int, row: tir.Expr, group: tir.Expr = 0
    ) -> tir.Stmt:
        """A row of the results of a panel of `vectors` vectors."""
        return self._along_row(
            lambda column, pixels: self._tile(n, group, panel, vectors, row, column, pixels)
        )

    def band(self, n: tir.Expr, top: tir.Expr, rows: int, group: tir.Expr = 0) -> tir.Stmt:
        """`rows` rows of the results from `top` on, in all channels of a group."""

        def panel(index: tir.Expr, vectors: int) -> tir.Stmt:
            return tir.loop_of(
                "row",
                rows,
                lambda i: tir.sequence(
                    self.clear(n, group, index, vectors, top + i),
                    self.row(n, index, vectors, top + i, group),
                ),
            )

        return self.over_panels(panel)

    def stretch(
        self, n: tir.Expr, panel: tir.Expr, vectors: int, first: int, behind: int
    ) -> tir.Stmt:
        """Columns `first` to `behind` (excluded) of a panel's only row; there is one group."""
        pixels = self.tile.pixels
        turns = _turns(
            behind - first,
            pixels,
            pixels,
            lambda column, count: self._tile(n, 0, panel, vectors, 0, first + column, count),
        )
        return tir.split("tile", *turns)

    def over_panels(
        self, body: Callable[[tir.Expr, int], tir.Stmt], *, parallel: bool = False
    ) -> tir.Stmt:
        """`body` for each panel, given its number and its vectors."""
        turns = _turns(self.shape.out_blocks, self.tile.vectors, 1, body)
        return tir.split("panel", *turns, parallel=parallel)

    def _ahead(
        self, group: tir.Expr, panel: tir.Expr, vectors: int, row: tir.Expr, column: tir.Expr
    ) -> tir.Stmt | None:
        """A tile's part of bringing the next panel near: it comes from memory where the weights of
        a network are more than its caches hold, and a panel's first tile waits for all of it."""
        shape, tiles = self.shape, self.partition.tiles * self.target.layout.height
        line = _LINE // shape.element.bytes
        each = -(-shape.panel(vectors) // (line * tiles))
        if not self.fetches or vectors < self.tile.vectors or each > _MOST_LINES:
            return None
        number = row * self.partition.tiles + tir.expr(column) // self.tile.pixels
        first = self._weights(group, panel + 1, vectors) + number * (each * line)
        return tir.loop_of("line", each, lambda i: tir.prefetch(self.weights, first + i * line))

    def _pixels_first(self, n: tir.Expr, group: tir.Expr, parallel: bool) -> tir.Stmt:
        """Each row of pixels is finished in all channels before the next one is read."""
        rows = self.target.layout.height

        def one_row(row: tir.Expr) -> tir.Stmt:
            tiles = self._along_row(
                lambda column, pixels: self.over_panels(
                    lambda index, vectors: self._tile(n, group, index, vectors, row, column, pixels)
                ),
                parallel=parallel and rows == 1,
            )
            return tir.sequence(self.clear(n, group, 0, self.shape.out_blocks, row), tiles)

        return tir.loop_of("row", rows, one_row, parallel=parallel)

    def clear(
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

    def _along_row(
        self, body: Callable[[tir.Expr, int], tir.Stmt], *, parallel: bool = False
    ) -> tir.Stmt:
        pixels = self.tile.pixels
        turns = _turns(self.target.layout.width, pixels, pixels, body)
        return tir.split("tile", *turns, parallel=parallel)

    def _weights(self, group: tir.Expr, panel: tir.Expr, vectors: int) -> tir.Expr:
        """Where a panel's weights begin, of `vectors` vectors."""
        whole = self.part.of
        before = self.first_weight + group * whole.panel(whole.out_blocks)
        skipped = self.part.first * vectors * whole.lanes
        return before + panel * whole.panel(self.tile.vectors) + skipped

    def _tile(
        self,
        n: tir.Expr,
        group: tir.Expr,
        panel: tir.Expr,
        vectors: int,
        row: tir.Expr,
        column: tir.Expr,
        pixels: int,
        slot: tir.Expr | None = None,
        *,
        fetches: bool = False,
    ) -> tir.Stmt:
        """`pixels` results from `column` on, in `vectors` blocks from panel `panel` on, whose
        weights are in a place of its own or in `slot`. `fetches`: the next panel comes after it."""
        shape = self.shape
        # `panel` counts panels of the full size; only the last one may be smaller.
        block = panel * self.tile.vectors
        weights = self._weights(group, panel if slot is None else slot, vectors)
        source, target = self.source.layout, self.target.layout
        channel_block = group * (target.blocks // shape.groups) + block
        place = TileAt(
            in_plane=n * source.step + group * (source.blocks // shape.groups),
            plane=self._plane(n, group) + block,
            channel_block=channel_block,
            weights=weights,
            row=row,
            column=column,
            pixels=pixels,
            vectors=vectors,
        )
        ahead = self._ahead(group, panel, vectors, row, column) if fetches else None
        return tir.sequence(ahead, self.code.tile(place))


def _code(
    tensors: ProductTensors,
    tile: tile.RegisterTile,
    cpu: CpuModel,
    functions: micro.AssemblyFunctions | None,
    choice: Way | None,
    dot: DotProduct | None,
    results: int,
) -> TileCode:
    """The best code for tiles no larger than one."""
    element = tensors.source.layout.element
    if dot is not None:
        if isinstance(tensors.epilogue, SumsEnd):
            return SummedTiles(tensors, tile.pixels, dot, tensors.epilogue)
        assert isinstance(tensors.epilogue, Requantising)
        return IntegerTiles(tensors, tile.pixels, dot, tensors.epilogue)
    kernel, isa = arm.micro_kernel(cpu, element), arm.isa_of(cpu, element)
    if kernel is None or isa is None:
        unroll = choice.unroll if choice else 0
        return LlvmTiles(tensors, tile.pixels, unroll or most_unrolled(cpu))
    wide = choice is not None and choice.loads == WIDE
    if wide and kernel.fits(tile.pixels, tile.vectors, isa.registers):
        isa = replace(isa, core="")
    return AssemblyTiles(tensors, kernel, isa, functions, results)


def _turns(
    total: int, size: int, step: int, body: Callable[[tir.Expr, int], tir.Stmt]
) -> tuple[int, Callable[[tir.Expr], tir.Stmt], Callable[[], tir.Stmt] | None]:
    """`total` in pieces of `size`, as `tir.split` wants it; `body` gets `step` times the number."""
    full, rest = divmod(total, size)
    last = (lambda: body(full * step, rest)) if rest else None
    return full, lambda index: body(index * step, size), last
