"""Winograd convolution: windows of stride 1 or 2 with fewer multiplications.

The image is cut into tiles of m x m results, a sequence into tiles of m. Each tile's inputs are
transformed to n x n numbers (n = m + r - 1 of a window of r x r; of stride 2 in parts, or
n = 2 m + 1: see `toom_cook`), and at each of the n * n positions the channels are multiplied with
the transformed weights: n * n products of matrices instead of r * r * m * m multiplications per
tile and pair of channels. A chunk of tiles goes through all three stages before the next one
starts, so that what is between the stages stays in the cache:

    for each chunk of tiles
        scratch `inputs` [position][input block][part][tile]  <- transform of the image
        scratch `sums`   [position][output block][tile]       <- products, by `ProductLoops`
        the image of results                             <- transform of the sums, expression

Where tiles do not end with the image, the last ones are short: they do with the first of the
products, and the others have the whole tiles only (`TileChunk`).

Where one core does all positions of a chunk, and there are as many blocks of sums as of inputs, the
sums of each position lie where the inputs of the one before were.

Weights are stored transformed, or as they are and transformed in each run, all of them before the
first chunk (`fresh`): where an image has many tiles that is a small part of the work, and a model
that is n * n / (r * r) times as large is not wanted.

Arithmetic is not all: transforms take time, weights grow from r * r to n * n per pair of channels,
and ragged edges waste parts of large tiles. So each layer takes the m, or the plain convolution,
that the cost model says is cheapest. In float32 accuracy never decides: even n = 8 keeps some
1e-5 of the largest result. In half precision F(4x4) is the largest, with points of its own, and
`frontend.ranges` tells which layers it would cost too much.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
from tvm import tirx

from edgepack.kernels.choices import FRESH, Ranked, Way
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.limits import FREE, LayerLimits
from edgepack.kernels.rules import convolution
from edgepack.kernels.rules.rule import KernelSite, LayerKernel, LayerSite, Rule
from edgepack.kernels.rules.winograd_plan import (
    SIZES,
    TileChunk,
    all_bytes,
    allowed_sizes,
    can_be_fresh,
    can_overlay,
    can_take,
    channels_of,
    has_room,
    largest_tile,
    odd_lines,
    plain_cycles,
    plan,
    rank_products,
    scratch_layout,
    shares_chunks,
)
from edgepack.kernels.tiles import arm, micro, tir, toom_cook
from edgepack.kernels.tiles.arm.transform import Strides, TransformPass
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import Element
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import Image, clear_halos
from edgepack.kernels.tiles.partition import busy, worth_sharing
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    Window,
    pack_weights,
)

_NAME = "winograd"


class _WinogradKernel:
    """The loops of one layer.

    The cores share the chunks, each with a share of the scratch memory; or, if the chunks are too
    few for that, the work of each stage, in pieces of which a fast core takes more than a slow one.
    """

    def __init__(self, site: LayerSite, sizes: Collection[int]) -> None:
        operator = site.layer.operator
        assert isinstance(operator, Convolution)
        self.site, self.operator = site, operator
        self.plan = plan(site, sizes, site.chosen(_NAME))
        cpu = site.cpu
        self.channels = channels_of(site.layer, cpu)
        self.form = self.plan.form
        self.workers = cpu.cores if worth_sharing(self.plan.cycles, cpu) else 1
        self.by_chunks = self.workers == 1 or shares_chunks(site, self.form, self.plan.grid)
        self.source, self.target = Image("source", site.inputs[0]), Image("target", site.output)
        self.epilogue = site.epilogue()
        # Assembly takes coefficients from vectors: those of the way there and of the way back.
        element = self.channels.element
        self.isa = arm.isa_of(cpu, element)
        self.functions = micro.AssemblyFunctions()
        used = self._transforms() if self.isa else ()
        self.coefficients = _Coefficients(used, self.isa.lanes if self.isa else 1)
        self.coefficient_buffer = tir.buffer(
            "coefficients", (self.coefficients.size,), element.name
        )
        self.finish = micro.assembly_epilogue(self.epilogue.expression)
        # What neither assembly nor a few instructions can do is done in a pass of its own.
        self.apart = self.epilogue.is_long if self.isa is None else self.finish is None
        # A tile between the passes along its rows and along its columns, on both ways.
        channels = self.channels
        self.half_inputs, self.half_sums = (
            tir.buffer(f"half{i}", (self._halves(items), self.plan.positions, lanes), element.name)
            for i, (items, lanes) in enumerate(
                [
                    (channels.in_blocks * self.form.parts, channels.in_block),
                    (channels.out_blocks, channels.out_block),
                ]
            )
        )

    def _transforms(self) -> Iterator[toom_cook.Transform]:
        """All that are used."""
        grid = self.plan.grid
        if self.plan.fresh:
            yield from (line.weighing() for line in self.form.both)
        for line, last, most in zip(self.form.both, grid.last, grid.shared(self.form), strict=True):
            for results, products in ((line.results, line.size), (last, most)):
                yield line.back(results, products)
                for part in range(line.parts):
                    yield line.forth(results, part, products)

    def _halves(self, items: int) -> int:
        """How many tiles are between the passes at a time, of so many items that are shared."""
        return self.workers if self.by_chunks else -(-items // _run(items, self.workers))

    def _products(self) -> tuple[np.ndarray, np.ndarray]:
        """Packed weights and biases, for which scratch memory and the products' shape are set."""
        channels, plan = self.channels, self.plan
        shares = self.workers if self.by_chunks else 1
        # The parts of an image are the rows of a window, so to speak.
        weight = self._stored_weights()[..., None]
        sizes = (plan.positions, shares, plan.grid.tiles, channels.element)
        parts = self.form.parts
        inputs = scratch_layout(channels.ins, channels.in_block, *sizes, parts)
        sums = scratch_layout(channels.outs, channels.out_block, *sizes)
        self.overlaid = self._overlays()
        if self.overlaid:
            # One position more: sums lie where the inputs of the position before were.
            inputs = sums = scratch_layout(
                channels.ins, channels.in_block, plan.positions + 1, *sizes[1:]
            )
        self.inputs = Image("inputs", inputs)
        self.sums = self.inputs if self.overlaid else Image("sums", sums)
        shape = replace(Shape.of(weight, inputs, sums), groups=plan.positions)
        packed = pack_weights(weight, shape, plan.product.vectors)
        self.weights_apart = shape.panel(shape.out_blocks)
        if plan.fresh:
            self.weights_apart = odd_lines(self.weights_apart, channels.element)
            packed = packed.reshape(len(weight), -1)
            missing = self.weights_apart - packed.shape[1]
            packed = np.pad(packed, ((0, 0), (0, missing))).ravel()
        self.stored = tir.buffer("stored", packed.shape, channels.element.name)
        self.weights = self.stored
        if plan.fresh:
            size = self.form.factors * self.weights_apart
            self.weights = tir.buffer("weights", (size,), channels.element.name)
        size = self._stride(self.sums) * sums.block
        bias = np.zeros((plan.positions, size), channels.element.name)
        if self.operator.bias is not None:
            # So that it comes out of the transform in every result.
            bias[:, : channels.outs] = np.outer(self.form.ones(), self.operator.bias)
        packed_bias = bias.ravel()
        self.bias = tir.buffer("bias", packed_bias.shape, channels.element.name)
        self.shape = shape
        return packed, packed_bias

    def _stored_weights(self) -> np.ndarray:
        """[products or weights of the window, out, in, parts]."""
        weight = self.operator.weight
        if not self.plan.fresh:
            return self.form.weights(weight)
        return weight.transpose(2, 3, 0, 1).reshape(-1, *weight.shape[:2], 1)

    def _overlays(self) -> bool:
        """Whether positions are done one after the other, and their sums take as much room as their
        inputs. Where they do not, one memory for both was measured to be up to 3 % slower."""
        in_turn = self.by_chunks or self.workers == 1
        return in_turn and can_overlay(self.channels, self.form)

    def _stride(self, image: Image) -> int:
        """Planes from one position of a scratch tensor to the next."""
        return image.layout.blocks // (self.plan.positions + self.overlaid)

    def _scratch(self, share: tir.Expr, tiles: int, start: int = 0) -> tuple[Image, Image]:
        """Inputs and sums of a share, of so many tiles from one on."""
        positions = self.plan.positions
        images = []
        for image, behind in ((self.inputs, int(self.overlaid)), (self.sums, 0)):
            stride = self._stride(image)
            layout = replace(
                image.layout,
                batch=1,
                channels=positions * stride * image.layout.block,
                width=tiles,
            )
            first = share * image.layout.blocks + behind * stride
            images.append(image.viewed(layout).placed(plane=first, column=start))
        return images[0], images[1]

    def _product(self, share: tir.Expr, turn: tir.Expr, chunk: TileChunk) -> tir.Stmt:
        """One of the products of a chunk, of all of its tiles that are in it.

        Those with equal weights take turns that follow each other.
        """
        down, across = self.form.both
        row, column = turn // across.size, turn % across.size
        position, weights = turn, turn
        if self.form.factors < self.form.products:
            # In rows, and behind the rows whose weights are their own, in columns.
            rest = turn - (down.factors - 1) * across.size
            own = rest < 0
            equal = down.size - down.factors + 1
            row = tirx.Select(own, row, down.factors - 1 + rest % equal)
            column = tirx.Select(own, column, rest // equal)
            position = row * across.size + column
            weights = tirx.min(row, down.factors - 1) * across.factors
            weights += tirx.min(column, across.factors - 1)
        # From where the position's would be, one panel of all channels after the other.
        first: tir.Expr = 0
        if self.plan.fresh or weights is not position:
            panels = self.shape.panel(self.shape.out_blocks)
            first = weights * self.weights_apart - position * panels

        def of(*, in_row: bool, in_column: bool) -> tir.Stmt | None:
            start, tiles = chunk.run(in_row=in_row, in_column=in_column)
            if not tiles:
                return None
            inputs, sums = self._scratch(share, tiles, start)
            loops = ProductLoops(
                cpu=self.site.cpu,
                window=Window(),
                shape=self.shape,
                tile=self.plan.product,
                source=inputs,
                target=sums,
                weights=self.weights,
                bias=self.bias,
                bias_first=True,  # at most points there is none
                epilogue=Epilogue(self.site.output),
                functions=self.functions,
                results=self.form.results,
                first_weight=first,
            )
            return loops.group(0, position)

        high, wide = self.plan.grid.shared(self.form)

        def of_row(*, in_row: bool) -> tir.Stmt | None:
            in_all = partial(of, in_row=in_row)
            if not chunk.short_column:
                return in_all(in_column=True)
            return _if(column < wide, in_all(in_column=True), in_all(in_column=False))

        made = of_row(in_row=True)
        if chunk.short_row:
            made = _if(row < high, made, of_row(in_row=False))
        assert made is not None
        return made

    def kernel(self) -> LayerKernel:
        """Constants, what they cost, and how the code is made."""
        site, plan, output = self.site, self.plan, self.site.output
        coefficients = [self.coefficients.packed(self.channels.element)] if self.isa else []
        constants = (*self._products(), *coefficients, *self.epilogue.packed)
        name = "winograd" if plan.form.stride == 1 else "strided_winograd"
        taps = tuple(line.taps for line in plan.form.both)
        window = "" if taps == (3, 3) else f"_{taps[0]}x{taps[1]}"
        return LayerKernel(
            name=f"{name}{plan.results}{window}_{site.inputs[0].channels}_{output.channels}"
            f"_{output.height}x{output.width}",
            function=self.function,
            constants=constants,
            tile=str(plan),
            macs=self.operator.weight.size * output.height * output.width * output.batch,
            cycles=plan.cycles,
            by_pixels=self.workers > 1 and self.by_chunks,
        )

    def function(self) -> tirx.PrimFunc:
        """The code."""
        weights = self._fresh_weights() if self.plan.fresh else None
        body = tir.sequence(clear_halos(self.target), weights, self._chunks())
        arguments = [
            self.source.buffer,
            *self.epilogue.operand_buffers,
            self.stored,
            self.bias,
            *([self.coefficient_buffer] if self.isa else []),
            *self.epilogue.constants,
            self.target.buffer,
            self.inputs.buffer,
            *([] if self.overlaid else [self.sums.buffer]),
            self.half_inputs,
            self.half_sums,
            *([self.weights] if self.plan.fresh else []),
        ]
        return tir.function(
            arguments,
            self.functions.imported(body),
            in_place=[] if self.apart else self.epilogue.in_place(self.target),
        )

    # ------------------------------------------------ weights

    @property
    def _vectors(self) -> int:
        """Vectors of one weight of the window each, in the order in which products read them."""
        return self.shape.panel(self.shape.out_blocks) // self.channels.out_block

    def _fresh_weights(self) -> tir.Stmt:
        """All of them, transformed; the cores share them, a piece for each tile between passes."""
        down, across = self.form.both
        lanes, apart = self.channels.out_block, self.weights_apart
        each = -(-self._vectors // int(self.half_sums.shape[0]))

        def one(piece: tir.Expr, vector: tir.Expr) -> tir.Stmt:
            stored, made = (
                _Strided(
                    buffer, [vector * lanes], line=(count * apart,), item=(apart,), lanes=lanes
                )
                for buffer, count in ((self.stored, across.taps), (self.weights, across.factors))
            )
            half = _Strided(
                self.half_sums, [piece, 0, 0], line=(0, across.factors, 0), item=(0, 1, 0)
            )
            return self._passes(
                (across.weighing(), down.taps),
                (down.weighing(), across.factors),
                (stored, half, made),
            )

        return _shared("weight", self._vectors, each, one)

    # ------------------------------------------------ chunks

    def _chunks(self) -> tir.Stmt:
        grid, batch = self.plan.grid, self.site.output.batch
        down, across = grid.down, grid.across
        high, wide = (sum(count for count, *_ in pieces) for pieces in (down, across))

        def chunk(share: tir.Expr, at: tir.Expr) -> tir.Stmt:
            n, row, column = _digits(at, (batch, high, wide))

            def of(tall: tuple[int, int, bool], broad: tuple[int, int, bool]) -> tir.Stmt:
                (_, rows, short_row), (_, columns, short_column) = tall, broad
                chunk = TileChunk(
                    rows=rows, columns=columns, short_row=short_row, short_column=short_column
                )
                place = row * grid.chunk_rows, column * grid.chunk_columns
                return self._chunk(share, n, place, chunk)

            def of_row(tall: tuple[int, int, bool]) -> tir.Stmt:
                if len(across) == 1:
                    return of(tall, across[0])
                whole, last = (partial(of, tall, broad) for broad in across)
                return _either(column, wide - 1, whole, last)

            if len(down) == 1:
                return of_row(down[0])
            whole, last = (partial(of_row, tall) for tall in down)
            return _either(row, high - 1, whole, last)

        workers, count = self.workers if self.by_chunks else 1, grid.chunks * batch
        return _shared("chunk", count, -(-count // workers), chunk)

    def _chunk(
        self, share: tir.Expr, n: tir.Expr, place: tuple[tir.Expr, tir.Expr], chunk: TileChunk
    ) -> tir.Stmt:
        """Three stages for the tiles from a place on, counted in rows and columns of tiles."""
        workers = 1 if self.by_chunks else self.workers
        ins, outs = self.channels.in_blocks, self.channels.out_blocks

        def over_tiles(body: _OfTile) -> tir.Stmt:
            return tir.loop_of(
                "tile_row",
                chunk.rows,
                lambda r: tir.loop_of(
                    "tile_column",
                    chunk.columns,
                    lambda c: self._ragged(chunk, place, r, c, body),
                ),
            )

        def forth(worker: tir.Expr, item: tir.Expr) -> tir.Stmt:
            block, number = _digits(item, (ins, self.form.parts))

            def part(down: int, across: int) -> tir.Stmt:
                return over_tiles(
                    partial(self._forth, share, share + worker, n, block, down, across)
                )

            lines = (range(line.parts) for line in self.form.both)
            *others, made = [part(*at) for at in product(*lines)]
            for at, other in reversed(list(enumerate(others))):
                made = tirx.IfThenElse(tirx.EQ(tir.expr(number), tir.integer(at)), other, made)
            return made

        def back(worker: tir.Expr, block: tir.Expr) -> tir.Stmt:
            return over_tiles(partial(self._back, share, share + worker, n, block))

        parts = ins * self.form.parts
        return tir.sequence(
            _shared("in_part", parts, _run(parts, workers), forth),
            # These need no memory of their own.
            _shared(
                "position",
                self.plan.positions,
                1 if workers > 1 else self.plan.positions,
                lambda _, turn: self._product(share, turn, chunk),
            ),
            _shared("out_block", outs, _run(outs, workers), back),
        )

    def _ragged(
        self,
        chunk: TileChunk,
        place: tuple[tir.Expr, tir.Expr],
        r: tir.Expr,
        c: tir.Expr,
        body: _OfTile,
    ) -> tir.Stmt:
        """`body` for a tile of a chunk, by which results are wanted, and which products used."""
        grid, form = self.plan.grid, self.form
        (high, wide), (rows, columns) = grid.last, (place[0] + r, place[1] + c)

        def of(*, last_row: bool, last_column: bool) -> tir.Stmt:
            in_row, in_column = last_row and chunk.short_row, last_column and chunk.short_column
            most = grid.shared(form)
            tile = _Tile(
                row=rows,
                column=columns,
                at=chunk.place(r, c, in_row=in_row, in_column=in_column),
                results=(
                    high if last_row else form.down.results,
                    wide if last_column else form.across.results,
                ),
                products=(
                    most[0] if in_row else form.down.size,
                    most[1] if in_column else form.across.size,
                ),
            )
            return body(tile)

        def of_row(*, last_row: bool) -> tir.Stmt:
            one = partial(of, last_row=last_row)
            if wide == form.across.results or (grid.short[1] and not chunk.short_column):
                return one(last_column=False)
            return _either(
                columns,
                grid.columns - 1,
                partial(one, last_column=False),
                partial(one, last_column=True),
            )

        if high == form.down.results or (grid.short[0] and not chunk.short_row):
            return of_row(last_row=False)
        return _either(
            rows, grid.rows - 1, partial(of_row, last_row=False), partial(of_row, last_row=True)
        )

    # ------------------------------------------------ transforms of one tile

    def _forth(
        self,
        share: tir.Expr,
        worker: tir.Expr,
        n: tir.Expr,
        block: tir.Expr,
        down: int,
        across: int,
        tile: _Tile,
    ) -> tir.Stmt:
        """Inputs of one block of channels, of the part that starts `down` and `across` from the
        first; what lies behind those of the tile's results counts as zero."""
        lines, before = self.form.both, self.operator.before
        corner = self.source.at(
            n * self.source.layout.step + block,
            tile.row * lines[0].stride * lines[0].results - before[0] + down,
            tile.column * lines[1].stride * lines[1].results - before[1] + across,
        )
        (rows_apart, columns_apart), size = (line.step for line in lines), lines[1].size
        inputs, _ = self._scratch(share, self.plan.grid.tiles)
        stride = inputs.layout.blocks // self.plan.positions
        source = _Strided(
            self.source.buffer, corner, line=(0, rows_apart, 0, 0), item=(0, 0, columns_apart, 0)
        )
        half = _Strided(self.half_inputs, [worker, 0, 0], line=(0, size, 0), item=(0, 1, 0))
        target = _Strided(
            self.inputs.buffer,
            inputs.at(block, down * lines[1].parts + across, tile.at),
            line=(size * stride, 0, 0, 0),
            item=(stride, 0, 0, 0),
        )
        (rows, columns), (high, wide) = tile.results, tile.products
        return self._passes(
            (lines[1].forth(columns, across, wide), lines[0].reach(rows, down)),
            (lines[0].forth(rows, down, high), wide),
            (source, half, target),
        )

    def _back(
        self,
        share: tir.Expr,
        worker: tir.Expr,
        n: tir.Expr,
        block: tir.Expr,
        tile: _Tile,
    ) -> tir.Stmt:
        """The tile's results in one block of channels."""
        (down, across), (rows, columns), (high, wide) = self.form.both, tile.results, tile.products
        _, sums = self._scratch(share, self.plan.grid.tiles)
        stride = sums.layout.blocks // self.plan.positions
        results = _TileResults(
            plane=n * self.target.layout.blocks + block,
            channel_block=block,
            row=tile.row * down.results,
            column=tile.column * across.results,
            pixels=columns,
        )
        source = _Strided(
            self.sums.buffer,
            sums.at(block, 0, tile.at),
            line=(across.size * stride, 0, 0, 0),
            item=(stride, 0, 0, 0),
        )
        half = _Strided(self.half_sums, [worker, 0, 0], line=(0, across.results, 0), item=(0, 1, 0))
        return tir.sequence(
            self._passes(
                (across.back(columns, wide), high),
                (down.back(rows, high), columns),
                (source, half, self._pixels(self.target, results)),
                None if self.apart else results,
            ),
            tir.loop_of(
                "result_row",
                rows,
                lambda i: self.epilogue.pass_over(
                    self.target, replace(results, row=results.row + i)
                ),
            )
            if self.apart
            else None,
        )

    def _pixels(self, image: Image, results: _TileResults) -> _Strided:
        """Rows of pixels."""
        corner = image.at(results.plane, results.row, results.column)
        return _Strided(image.buffer, corner, line=(0, 1, 0, 0), item=(0, 0, 1, 0))

    def _passes(
        self,
        rows: tuple[toom_cook.Transform, int],
        columns: tuple[toom_cook.Transform, int],
        images: tuple[_Strided, _Strided, _Strided],
        results: _TileResults | None = None,
    ) -> tir.Stmt:
        """The transform along so many rows, then that along columns, of the first of the `images`,
        by way of the second, to the third, each given row by row; only one of the two where a
        window has one weight in the other direction."""
        source, half, target = images
        if self.form.down.size == 1:
            return self._pass(*rows, source, target, results)
        second = replace(results, turned=True) if results else None
        if self.form.across.size == 1:
            return self._pass(*columns, source.turned, target.turned, second)
        return tir.sequence(
            self._pass(*rows, source, half),
            self._pass(*columns, half.turned, target.turned, second),
        )

    def _pass(
        self,
        transform: toom_cook.Transform,
        lines: int,
        source: _Strided,
        target: _Strided,
        results: _TileResults | None = None,
    ) -> tir.Stmt:
        """A transform along the lines of a tile; the expression follows if it is of `results`."""
        if self.isa is not None:
            return self._assembly(self.isa, transform, lines, source, target, results)

        def one(line: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            values: list[tirx.Expr] = [
                names.bind("x", source.load(line, i)) for i in range(transform.inputs)
            ]
            for terms in transform.steps:
                values.append(names.bind("y", _sum(terms, values)))
            for i, index in enumerate(transform.outputs):
                value = values[index]
                if results is not None:
                    value = self.epilogue.apply(
                        names,
                        value,
                        results.plane,
                        *results.at(line, i),
                        channel_block=results.channel_block,
                    )
                names.add(target.store(line, i, value))
            return names.done()

        return tir.loop_of("line", lines, one)

    def _assembly(
        self,
        isa: arm.Isa,
        transform: toom_cook.Transform,
        lines: int,
        source: _Strided,
        target: _Strided,
        results: _TileResults | None,
    ) -> tir.Stmt:
        finish = (self.finish if results else None) or ()
        added = results is not None and any(item.name == "add" for item in finish)
        operand = target
        if added and results:
            operand = self._pixels(self.epilogue.operands[0], results)
            operand = operand.turned if results.turned else operand
        code = TransformPass(
            isa=isa,
            transform=transform,
            coefficients=transform.coefficients,
            lines=lines,
            source=source.steps,
            target=target.steps,
            operand=operand.steps,
            finish=finish,
        )
        pointers: list[micro.Pointer] = [
            (target.buffer, target.start),
            (source.buffer, source.start),
            (self.coefficient_buffer, [self.coefficients.first[transform.coefficients]]),
            (operand.buffer, operand.start),
        ]
        return self.functions.call(code, pointers)


@dataclass(frozen=True, kw_only=True)
class _Tile:
    """A tile by its row and column among all, `at` a place in scratch memory; its results that are
    wanted and products that it is in, down and across."""

    row: tir.Expr
    column: tir.Expr
    at: tir.Expr
    results: tuple[int, int]
    products: tuple[int, int]


_OfTile = Callable[[_Tile], tir.Stmt]


class _Coefficients:
    """Those of some transforms as one array, each transform's in whole vectors of so many lanes.

    `first` is where they begin, by the coefficients.
    """

    def __init__(self, transforms: Iterable[toom_cook.Transform], lanes: int) -> None:
        self.lanes, self.size = lanes, lanes
        self.first: dict[tuple[float, ...], int] = {(): 0}
        for transform in transforms:
            some = transform.coefficients
            if some not in self.first:
                self.first[some] = self.size
                self.size += -(-len(some) // lanes) * lanes

    def packed(self, element: Element) -> np.ndarray:
        """The array."""
        values = np.zeros(self.size, element.name)
        for some, first in self.first.items():
            values[first : first + len(some)] = some
        return values


@dataclass(frozen=True, kw_only=True)
class _TileResults:
    """Results of one tile, for the expression; `pixels` of its first row. They are made row by row,
    or `turned`: column by column."""

    plane: tir.Expr
    channel_block: tir.Expr
    row: tir.Expr
    column: tir.Expr
    pixels: int
    vectors: int = 1
    turned: bool = False

    def at(self, line: tir.Expr, item: int) -> tuple[tir.Expr, tir.Expr]:
        """Row and column of one of a line."""
        down, across = (item, line) if self.turned else (line, item)
        return self.row + down, self.column + across


@dataclass(frozen=True)
class _Strided:
    """The vectors of a pass: where the first one lies, and how far apart lines and items are, in
    each dimension of the buffer."""

    buffer: tirx.Buffer
    start: Sequence[tir.Expr]
    line: tuple[int, ...]
    item: tuple[int, ...]
    lanes: int = 0  # of a buffer that is not one of vectors

    @property
    def turned(self) -> _Strided:
        """The same vectors, columns for rows."""
        return replace(self, line=self.item, item=self.line)

    def _at(self, line: tir.Expr, item: int) -> list[tir.Expr]:
        return [
            first + line * down + item * across
            for first, down, across in zip(self.start, self.line, self.item, strict=True)
        ]

    def load(self, line: tir.Expr, item: int) -> tirx.Expr:
        """A vector of one line."""
        return tir.load(self.buffer, self._at(line, item), self._lanes)

    def store(self, line: tir.Expr, item: int, value: tirx.Expr) -> tir.Stmt:
        """Write a vector of one line."""
        return tir.store(self.buffer, value, self._at(line, item), self._lanes)

    @property
    def _lanes(self) -> int:
        return self.lanes or int(self.buffer.shape[-1])

    @property
    def steps(self) -> Strides:
        """The same in bytes."""
        sizes = [np.dtype(str(self.buffer.dtype)).itemsize]
        for extent_ in reversed([int(size) for size in self.buffer.shape][1:]):
            sizes.insert(0, sizes[0] * extent_)
        line, item = (
            sum(size * count for size, count in zip(sizes, counts, strict=True))
            for counts in (self.line, self.item)
        )
        return Strides(line=line, item=item)


def _sum(terms: toom_cook.Terms, values: list[tirx.Expr]) -> tirx.Expr:
    """Coefficients times values, such that each term but the first is one multiply-add."""
    total = None
    for coefficient, index in terms:
        value = values[index]
        size = abs(coefficient)
        if size != 1:
            value = value * tir.spread(
                tirx.FloatImm(str(value.ty.dtype.with_lanes(1)), size), _lanes(value)
            )
        if total is None:
            total = value if coefficient > 0 else -value
        else:
            total = total + value if coefficient > 0 else total - value
    assert total is not None
    return total


def _lanes(value: tirx.Expr) -> int:
    return int(value.ty.dtype.lanes)


def _digits(value: tir.Expr, sizes: tuple[int, ...]) -> list[tir.Expr]:
    """A counter as counters of nested loops of these sizes."""
    found: list[tir.Expr] = []
    for size in reversed(sizes[1:]):
        found.insert(0, value % size if size > 1 else 0)
        value = value // size if size > 1 else value
    return [value, *found]


def _if(condition: tir.Expr, then: tir.Stmt | None, other: tir.Stmt | None) -> tir.Stmt | None:
    """Either of them, of which one may be nothing."""
    if then is None:
        condition, then, other = tirx.Not(condition), other, None
    return then and tirx.IfThenElse(condition, then, other)


def _either(
    index: tir.Expr, last: int, body: Callable[[], tir.Stmt], at_last: Callable[[], tir.Stmt]
) -> tir.Stmt:
    """`at_last` where the index is `last`, else `body`."""
    if last == 0:
        return at_last()
    return tirx.IfThenElse(index < last, body(), at_last())


# Pieces of a stage for each core: a slow core of a big.LITTLE board takes fewer of them.
_PIECES = 4


def _run(count: int, workers: int) -> int:
    """How many of `count` indices are a piece: few enough that no core waits for another one."""
    if workers == 1:
        return count
    sizes = range(1, -(-count // (_PIECES * workers)) + 1)
    return max(sizes, key=lambda size: (busy(count, workers, size), size))


def _shared(
    name: str, count: int, each: int, body: Callable[[tir.Expr, tir.Expr], tir.Stmt]
) -> tir.Stmt:
    """`body(piece, index)` for `count` indices, `each` of them a piece; the cores share pieces."""
    if each >= count:
        return tir.loop_of(name, count, lambda index: body(0, index))

    def work(piece: tir.Expr) -> tir.Stmt:
        def one(turn: tir.Expr) -> tir.Stmt:
            index = piece * each + turn
            inside = body(piece, index)
            if count % each == 0:
                return inside
            return tirx.IfThenElse(index < count, inside, None)

        return tir.loop_of(name, each, one)

    return tir.loop_of("piece", -(-count // each), work, parallel=True)


def rule(
    sizes: Collection[int] = SIZES,
    *,
    always: bool = False,
    fresh: bool = False,
    limits: LayerLimits = FREE,
) -> Rule:
    """The rule, with tiles of `sizes` results in one direction to choose from.

    It takes what it makes faster; with `always`, all that it can. `fresh`: weights are transformed
    in each run, where no choice says otherwise. The layers that it is asked about have `limits`.
    """

    def asked(layer: Layer, cpu: CpuModel) -> KernelSite:
        return KernelSite(layer=layer, cpu=cpu, limits=limits)

    def can(layer: Layer, cpu: CpuModel) -> bool:
        return can_take(layer, limits, sizes) and has_room(asked(layer, cpu), sizes)

    def takes(layer: Layer, cpu: CpuModel) -> bool:
        if not can(layer, cpu):
            return False
        return always or plan(asked(layer, cpu), sizes).cycles < plain_cycles(layer, cpu)

    def make(site: LayerSite) -> LayerKernel:
        if fresh and site.chosen(_NAME) is None and can_be_fresh(site.layer):
            site = replace(site, choice=Way(rule=_NAME, weights=FRESH))
        return _WinogradKernel(site, sizes).kernel()

    return Rule(
        name=_NAME,
        takes=takes,
        make=make,
        halo=convolution.halo,
        more_weights=True,
        kept=True,
        reads_apart=True,
        forms=lambda layer, cpu: _forms(sizes, asked(layer, cpu)),
        ways=partial(_ways, sizes),
        can_take=can,
        largest_tile=partial(largest_tile, limits=limits),
        limited=lambda limits: rule(sizes, always=always, fresh=fresh, limits=limits),
    )


def _forms(sizes: Collection[int], site: KernelSite) -> list[Ranked]:
    """The plain convolution, and each size of tiles, with stored weights and fresh ones."""
    layer, cpu = site.layer, site.cpu
    operator, channels = layer.operator, channels_of(layer, cpu)
    assert isinstance(operator, Convolution)
    outs = channels.out_blocks * channels.out_block
    plain = Way(rule=convolution.RULE.name)
    found = [Ranked(choice=plain, cycles=plain_cycles(layer, cpu))]
    for results, fresh in product(allowed_sizes(layer, site.limits, sizes), (False, True)):
        if fresh and not can_be_fresh(layer):
            continue
        if not has_room(site, (results,), fresh=fresh):
            continue
        choice = Way(rule=_NAME, results=results, weights=FRESH if fresh else "")
        way = plan(site, (results,), choice if fresh else None)
        # The bias is one for each position, too.
        taps = operator.weight[0, 0].size
        own = channels.ins * (taps if fresh else way.form.parts * way.form.factors) + way.positions
        own *= outs * channels.element.bytes
        more = own - channels.ins * outs * taps * layer.weights.bytes
        scratch = all_bytes(site, way.form, way.grid, fresh=fresh)
        found.append(
            Ranked(choice=choice, cycles=way.cycles, more_bytes=more, scratch_bytes=scratch)
        )
    return found


def _ways(sizes: Collection[int], site: LayerSite) -> list[Ranked]:
    """Each size of tiles with each tile of the products."""
    found = []
    chosen = site.chosen(_NAME)
    weights = chosen.weights if chosen is not None and can_be_fresh(site.layer) else ""
    for results in allowed_sizes(site.layer, site.limits, sizes):
        if not has_room(site, (results,), fresh=bool(weights)):
            continue
        form = Way(rule=_NAME, results=results, weights=weights)
        best = plan(site, (results,), form if weights else None)
        channels, grid = channels_of(site.layer, site.cpu), best.grid
        tiles = rank_products(channels, best.form, grid, site.cpu)
        # The chunks of the best one: what another tile costs beside it.
        beside = best.cycles - grid.chunks * site.output.batch * best.product.cycles
        for item in tiles:
            cycles = beside + grid.chunks * site.output.batch * item.cycles
            choice = replace(form, pixels=item.pixels, vectors=item.vectors)
            found.append(Ranked(choice=choice, cycles=cycles))
    own = plan(site, sizes)
    tile = (own.results, own.product.pixels, own.product.vectors)
    return sorted(
        found,
        key=lambda way: ((way.choice.results, *(way.choice.tile or ())) != tile, way.cycles),
    )


RULE = rule()
