"""Depthwise convolution: each channel on its own, so vectors run along the channels.

for each block of channels, row, tile of R pixels
    R sums in registers; each input vector of a window row is loaded once and used by
    all the pixels whose window it is in

Where a load takes the place of arithmetic, small windows go down strips of pixels instead: then
each input is loaded once for all rows of the window, too (`arm.DepthwiseBand`).

Window rows above and below the image are left out, by code of their own for the rows of results
that have such: the image needs no zeros there. On 7x7 pixels a window of five rows has 4.1 of them
inside, and those zeros would be as many as the pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.rules import convolution
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule, product
from edgepack.kernels.tiles import arm, micro, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Blocked, Halo, Image, pack_channels
from edgepack.kernels.tiles.partition import even_parts, even_pieces, worth_sharing
from edgepack.kernels.value import extent

# Weights of windows up to this size stay in registers for all rows of a block.
_HELD_WEIGHTS = 9
# LLVM's code for windows up to this size is unrolled, once for each set of rows that lie inside. A
# larger one has a loop over its rows: of 9x9 points the other takes LLVM ten times as long.
_UNROLLED_POINTS = 25
# Assembly has a place for each point.
_ASSEMBLED_POINTS = 81
# Columns of a window whose code is unrolled. Of a wider one so many are, in a loop.
_UNROLLED_COLUMNS = 32
# A band of fewer rows loads much twice.
_FEWEST_ROWS = 7
# Narrower strips load more than tiles along a row.
_NARROWEST_STRIP = 4


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Convolutions with as many groups as input and output channels."""
    operator = layer.operator
    if not isinstance(operator, Convolution) or operator.groups == 1:
        return False
    outs, ins = operator.weight.shape[:2]
    return bool(ins == 1 and outs == operator.groups)


def pack_weights(weight: np.ndarray, layout: Blocked) -> np.ndarray:
    """[channels, 1, rows, columns] -> [block][row][column][channel of the block]."""
    rows, columns = weight.shape[2:]
    packed = np.zeros((layout.blocks * layout.block, rows, columns), layout.element.name)
    packed[: layout.channels] = weight[:, 0]
    blocked = packed.reshape(layout.blocks, layout.block, rows, columns)
    return np.ascontiguousarray(blocked.transpose(0, 2, 3, 1))


@dataclass(frozen=True, kw_only=True)
class _RowRange:
    """Rows of results whose windows have the rows `inside` in the image."""

    rows: range
    inside: range


def _runs(operator: Convolution, height: int, out_height: int) -> list[_RowRange]:
    """The rows of results of an image of `height` rows, by which rows of their windows count."""
    runs: list[_RowRange] = []
    for row in range(out_height):
        top = row * operator.stride[0] - operator.before[0]
        taps = [
            tap
            for tap in range(operator.kernel[0])
            if 0 <= top + tap * operator.dilation[0] < height
        ]
        inside = range(taps[0], taps[-1] + 1) if taps else range(0)
        start = runs.pop().rows.start if runs and runs[-1].inside == inside else row
        runs.append(_RowRange(rows=range(start, row + 1), inside=inside))
    return runs


def _code_for(layer: Layer) -> list[_RowRange]:
    """The rows of results by the code they need."""
    operator, height = layer.operator, extent(layer.output)[2]
    assert isinstance(operator, Convolution)
    runs = _runs(operator, extent(layer.inputs[0])[2], height)
    # Windows that lie outside as a whole read zeros.
    whole = [_RowRange(rows=range(height), inside=range(operator.kernel[0]))]
    return runs if all(run.inside for run in runs) else whole


def halo(layer: Layer) -> Halo:
    """Zeros beside the image; above and below only if the rows there are not left out."""
    operator, around = layer.operator, convolution.halo(layer)
    assert isinstance(operator, Convolution)
    left_out = any(len(run.inside) < operator.kernel[0] for run in _code_for(layer))
    return replace(around, top=0, bottom=0) if left_out else around


def _pixels(width: int, operator: Convolution, cpu: CpuModel) -> list[int]:
    """Pixels per tile, best first: as few input loads per result as registers allow.

    The smaller tile that ends a row is charged like a full one.
    """
    rows, columns = operator.kernel
    held = min(rows * columns, _HELD_WEIGHTS)
    # The sums, the held weights, an input vector and one result being finished.
    most = max(2, cpu.registers - held - 2)

    def cost(pixels: int) -> float:
        loads = rows * ((pixels - 1) * operator.stride[1] + columns)
        one = loads / cpu.loads_per_cycle + pixels * product(operator.kernel) + 4 * pixels + 10
        return -(-width // pixels) * one

    return sorted(range(1, min(width, most) + 1), key=lambda pixels: (cost(pixels), -pixels))


def _even_parts(width: int, most: int) -> int:
    """The tile of at most `most` pixels that cuts a row into the fewest, most equal parts."""
    return -(-width // -(-width // most))


def make(site: LayerSite) -> LayerKernel:
    """The kernel of a depthwise convolution."""
    return DepthwiseKernel(site).kernel()


class DepthwiseKernel:
    """The loops of one depthwise convolution.

    With `source` its image is there, a part at a time (see `reading`), and the rows are done in
    `parts` equal parts.
    """

    def __init__(self, site: LayerSite, source: Image | None = None, parts: int = 0) -> None:
        operator = site.layer.operator
        assert isinstance(operator, Convolution)
        self.site = site
        self.operator = operator
        self.output = site.output
        self.source = source or Image("source", site.inputs[0])
        self.target = Image("target", site.output)
        self.runs = _code_for(site.layer)
        element = site.output.element
        output = site.output
        self.macs = operator.weight.size * output.height * output.width * output.batch
        # As many loads and stores as arithmetic, roughly.
        self.cycles = 2 * self.macs / output.block / site.cpu.rate(element, output.block)
        self.shared = worth_sharing(self.cycles, site.cpu)
        # Each core goes on with what it made itself, if that is most of what windows reach over.
        even = even_pieces(output.height, site.cpu.cores) if site.by_pixels else None
        if even and output.height // even * operator.stride[0] < operator.kernel[0]:
            even = None
        self.by_pixels = self.shared and even is not None
        # Equal parts of the rows.
        self.parts = (even or even_parts(output, site.cpu.cores)) if self.shared else 1
        if parts:
            self.parts = parts
        self.tiles: micro.MicroKernelCalls | None = None
        self.in_bands = False
        isa = arm.isa_of(site.cpu, element)
        most = isa.most_depthwise(operator.kernel[1]) if isa else 0
        points = product(operator.kernel)
        in_assembly = most > 0 and operator.dilation[1] == 1 and points <= _ASSEMBLED_POINTS
        sums = element.name if in_assembly else element.accumulator
        self.packed_bias = pack_channels(operator.bias, site.output, sums)
        self.packed = pack_weights(operator.weight, site.output)
        self.weights = tir.buffer("weights", self.packed.shape, element.name)
        self.bias = tir.buffer("bias", self.packed_bias.shape, sums)
        choice = site.chosen(RULE.name)
        wanted = choice.pixels if choice else 0
        if isa is not None and in_assembly:
            self.pixels = wanted if 0 < wanted <= most else _even_parts(site.output.width, most)
            # A pass over the results is one over a whole row.
            finishes = micro.assembly_epilogue(site.layer.expression) is not None
            tile = self.pixels if finishes else site.output.width
            self.epilogue = site.epilogue(pixels=tile, parts=self.parts)
            self.tiles = micro.MicroKernelCalls(
                isa, self.source, self.target, self.weights, self.bias, self.epilogue
            )
            strip = 0
            square = operator.dilation[0] == 1 and operator.stride[0] == operator.stride[1]
            # Then only windows of the first part lack rows above, only those of the last one below.
            if square and output.height // self.parts >= operator.kernel[0]:
                strip = self.tiles.most_band_pixels(operator.kernel, operator.stride[0])
            if strip >= _NARROWEST_STRIP:
                self.in_bands, self.pixels = True, _even_parts(site.output.width, strip)
        else:
            tiles = _pixels(site.output.width, operator, site.cpu)
            self.pixels = wanted if wanted in tiles else tiles[0]
            self.epilogue = site.epilogue(pixels=self.pixels, parts=self.parts)

    def kernel(self) -> LayerKernel:
        """Constants, what they cost, and how the code is made."""
        output, operator = self.output, self.operator
        rows, columns = operator.kernel
        name = f"depthwise{rows}x{columns}_{output.channels}_{output.height}x{output.width}"
        if operator.stride != (1, 1):
            name += f"_s{operator.stride[0]}"
        if self.epilogue.average:
            name += "_mean"
        return LayerKernel(
            name=name,
            function=self.function,
            constants=(self.packed, self.packed_bias, *self.epilogue.packed),
            tile=f"{self.pixels}x1{' mean' if self.epilogue.average else ''}",
            macs=self.macs,
            cycles=self.cycles,
            by_pixels=self.by_pixels,
        )

    def function(self) -> tirx.PrimFunc:
        """The code."""
        output, parts = self.output, self.parts

        def one(n: tir.Expr, item: tir.Expr) -> tir.Stmt:
            if self.by_pixels:
                return self.rows(n, item % output.blocks, item // output.blocks)
            return self.rows(n, item // parts, item % parts)

        def one_image(n: tir.Expr) -> tir.Stmt:
            items = output.blocks * parts
            return tir.loop_of("item", items, lambda item: one(n, item), parallel=self.shared)

        body = tir.sequence(
            self.epilogue.clear_around_means(),
            tir.loop_of("n", output.batch, one_image),
            self.epilogue.means() if parts > 1 else None,
        )
        arguments = [
            self.source.buffer,
            *self.epilogue.operand_buffers,
            *self.constant_buffers,
            self.target.buffer,
            *self.epilogue.average_buffers,
        ]
        return tir.function(arguments, self.imported(body), in_place=self.in_place)

    def reading(self, source: Image) -> DepthwiseKernel:
        """The same on the memory of the image where it lies now."""
        kernel = copy(self)
        kernel.source = source
        return kernel

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """`body`, which has these loops, with the code that they call."""
        return self.tiles.imported(body) if self.tiles else body

    @property
    def constant_buffers(self) -> list[tirx.Buffer]:
        """Arguments for the kernel's constants."""
        return [self.weights, self.bias, *self.epilogue.constants]

    def clear(self) -> tir.Stmt | None:
        """Nothing: the zeros around the results are written with each row."""
        return None

    @property
    def in_place(self) -> list[tuple[tirx.Buffer, tirx.Buffer]]:
        """See `tir.function`."""
        stored_once = self.tiles is None or self.tiles.finishes
        return self.epilogue.in_place(self.target) if stored_once else []

    def rows(self, n: tir.Expr, block: tir.Expr, part: tir.Expr) -> tir.Stmt:
        """A part of the rows of one block of channels of one image."""
        plane, rows = n * self.output.blocks + block, self.output.height // self.parts
        first = part * rows if self.parts > 1 else 0
        if self.tiles is None:
            done = self._llvm_rows(plane, block, first, rows)
        elif self.in_bands:
            done = self._bands(self.tiles, plane, block, part)
        else:
            done = self._micro_rows(self.tiles, plane, block, first, rows)
        if self.epilogue.average is None:
            return done
        if self.parts > 1:
            return tir.sequence(done, self.epilogue.average.add_up(plane, part))
        return tir.sequence(done, self.epilogue.average.finish(plane))

    def _micro_rows(
        self,
        tiles: micro.MicroKernelCalls,
        plane: tir.Expr,
        block: tir.Expr,
        first: tir.Expr,
        rows: int,
    ) -> tir.Stmt:
        """`rows` rows from `first` on, in assembly."""
        operator, width = self.operator, self.output.width

        def call(run: _RowRange, row: tir.Expr, count: tir.Expr) -> tir.Stmt:
            reduction = arm.Depthwise(
                kernel=(len(run.inside), operator.kernel[1]),
                stride=operator.stride[1],
                row_step=self.source.row_bytes * operator.dilation[0],
            )
            place = self._place(plane, block, row, 0, self.pixels, run.inside)
            return tiles.rows(reduction, place, width=width, step=operator.stride[0], count=count)

        def some(run: _RowRange, row: tir.Expr, count: tir.Expr) -> tir.Stmt:
            """So many of a run's rows, at once where that can be."""
            if tiles.finishes:
                return call(run, row, count)
            return tir.loop_of("row", count, lambda i: call(run, row + i, 1))

        def mine(run: _RowRange) -> tir.Stmt:
            """Those rows of a run that are among the wanted ones."""
            if rows == self.output.height:
                return some(run, run.rows.start, len(run.rows))
            names = tir.Names()
            start = names.bind("start", tirx.max(first, run.rows.start))
            behind = names.bind("behind", tirx.min(first + rows, run.rows.stop))
            here = some(run, start, behind - start)
            names.add(tirx.IfThenElse(start < behind, here, None))
            return names.done()

        return tir.sequence(self._clear(plane, first, rows), *map(mine, self.runs))

    def _bands(
        self, tiles: micro.MicroKernelCalls, plane: tir.Expr, block: tir.Expr, part: tir.Expr
    ) -> tir.Stmt:
        """A part of the rows in bands, whose inputs stay in the first-level cache from one strip of
        pixels to the next. A part has at least as many rows as a window."""
        operator, output = self.operator, self.output
        stride, rows = operator.stride[0], output.height // self.parts
        first = part * rows if self.parts > 1 else 0
        around = self.runs[0].inside.start, operator.kernel[0] - self.runs[-1].inside.stop
        held = int(self.site.cpu.l1_bytes / 2 / self.source.row_bytes)
        most = max(_FEWEST_ROWS, (held - operator.kernel[0]) // stride + 1)
        size = _even_parts(rows, most)

        def band(start: int, number: int, missing: tuple[int, int], index: tir.Expr) -> tir.Stmt:
            """The `index`-th band of `number` rows behind the part's row `start`."""
            inside = range(missing[0], operator.kernel[0])
            row = first + start + index * number
            place = self._place(plane, block, row, 0, output.width, inside)
            return tiles.band(
                replace(place, weights=[block, 0, 0, 0]),
                kernel=operator.kernel,
                stride=stride,
                width=output.width,
                rows=number,
                missing=missing,
            )

        def bands(above: int, below: int) -> tir.Stmt:
            """All of a part, whose first window lacks rows above, and its last one below."""
            made = []
            for at in range(0, rows, size):
                end = min(at + size, rows)
                missing = max(0, above - at * stride), max(0, below - (rows - end) * stride)
                made.append((end - at, missing))
            loops, first_row = [], 0
            for (number, missing), alike in groupby(made):
                count = len(list(alike))
                one = partial(band, first_row, number, missing)
                loops.append(tir.loop_of("band", count, one))
                first_row += count * number
            return tir.sequence(*loops)

        # By whether a part has the image's first rows, and its last ones.
        code = bands(around[0], around[1] if self.parts == 1 else 0)
        if self.parts > 1:
            following = bands(0, around[1])
            if self.parts > 2:
                is_last = tirx.EQ(tir.expr(part), tir.integer(self.parts - 1))
                following = tirx.IfThenElse(is_last, following, bands(0, 0))
            code = tirx.IfThenElse(tirx.EQ(tir.expr(part), tir.integer(0)), code, following)
        return tir.sequence(self._clear(plane, first, rows), code)

    def _clear(self, plane: tir.Expr, first: tir.Expr, rows: int) -> tir.Stmt | None:
        """The zeros beside some rows of the results."""
        if not self.target.layout.halo:
            return None
        return tir.loop_of("row", rows, lambda i: self.target.clear_beside(plane, first + i))

    def _llvm_rows(self, plane: tir.Expr, block: tir.Expr, first: tir.Expr, rows: int) -> tir.Stmt:
        """The same by LLVM."""
        lanes = self.output.block
        height, columns = self.operator.kernel
        names = tir.Names()
        held = {}
        if height * columns <= _HELD_WEIGHTS:
            for i in range(height):
                for j in range(columns):
                    value = tir.load(self.weights, [block, i, j, 0], lanes)
                    held[i, j] = names.bind("w", tir.cast(value, self.output.element.accumulator))
        full, rest = divmod(self.output.width, self.pixels)

        looped = height * columns > _UNROLLED_POINTS

        def along(inside: range, row: tir.Expr) -> tir.Stmt:
            def tile(column: tir.Expr, pixels: int) -> tir.Stmt:
                place = self._place(plane, block, row, column, pixels, inside)
                if looped:
                    return self._looped_tile(place, *self._inside(row))
                return self._llvm_tile(place, inside, held)

            return tir.sequence(
                tir.loop_of("tile", full, lambda t: tile(t * self.pixels, self.pixels)),
                tile(full * self.pixels, rest) if rest else None,
            )

        def one_row(row: tir.Expr) -> tir.Stmt:
            *before, last = self.runs[-1:] if looped else self.runs
            tiles = along(last.inside, row)
            for run in reversed(before):
                here = tirx.LT(tir.expr(row), tir.integer(run.rows.stop))
                tiles = tirx.IfThenElse(here, along(run.inside, row), tiles)
            return tir.sequence(self.target.clear_beside(plane, row), tiles)

        names.add(tir.loop_of("row", rows, lambda i: one_row(first + i)))
        return names.done()

    def _place(
        self,
        plane: tir.Expr,
        block: tir.Expr,
        row: tir.Expr,
        column: tir.Expr,
        pixels: int,
        inside: range,
    ) -> micro.TileAddress:
        """That of a tile, given the rows of its windows that count."""
        down = inside.start
        return micro.TileAddress(
            source=self._input(plane, row, column, down * self.operator.dilation[0], 0),
            weights=[block, down, 0, 0],
            plane=plane,
            channel_block=block,
            row=row,
            column=column,
            pixels=pixels,
            vectors=1,
        )

    def _input(
        self, plane: tir.Expr, row: tir.Expr, column: tir.Expr, down: tir.Expr, across: tir.Expr
    ) -> list[tir.Expr]:
        """Indices of the input `down` and `across` from the window's corner, in pixels."""
        operator, layout = self.operator, self.source.layout
        if layout.step != layout.blocks:
            plane = plane // layout.blocks * layout.step + plane % layout.blocks
        return self.source.at(
            plane,
            row * operator.stride[0] + down - operator.before[0],
            column * operator.stride[1] + across - operator.before[1],
        )

    def _inside(self, row: tir.Expr) -> tuple[tir.Expr, tir.Expr]:
        """The first window row of a row of results that counts, and the one behind the last."""
        operator, height = self.operator, extent(self.site.layer.inputs[0])[2]
        if len(self.runs) == 1:
            return self.runs[0].inside.start, self.runs[0].inside.stop
        above = tir.expr(operator.before[0] - row * operator.stride[0])
        step = operator.dilation[0]
        start, stop = (
            tirx.floordiv(above + rows + step - 1, tir.integer(step)) for rows in (0, height)
        )
        return (
            tirx.max(start, tir.integer(0)),
            tirx.min(stop, tir.integer(operator.kernel[0])),
        )

    def _llvm_tile(
        self, place: micro.TileAddress, inside: range, held: dict[tuple[int, int], tirx.Var]
    ) -> tir.Stmt:
        """The window rows `inside`. Weights are from `held`, or loaded where they are used."""
        names = tir.Names()
        sums: Sequence[tir.Expr | None] = [None] * place.pixels
        for i in inside:
            sums = self._add_row(names, place, i, sums, held)
        return self._finish(names, place, sums)

    def _looped_tile(self, place: micro.TileAddress, start: tir.Expr, stop: tir.Expr) -> tir.Stmt:
        """The same with a loop over the window rows from `start` to before `stop`."""
        lanes, dtype = self.output.block, self.output.element.accumulator
        places = [tir.Local(f"sum{r}", lanes, dtype) for r in range(place.pixels)]

        columns = self.operator.kernel[1]
        together = columns if columns <= _UNROLLED_COLUMNS else _UNROLLED_COLUMNS // 2

        def some(i: tir.Expr, first: tir.Expr, count: int) -> tir.Stmt:
            names = tir.Names()
            sums = [one.get() for one in places]
            added = self._add_row(names, place, start + i, sums, {}, first, count)
            for one, total in zip(places, added, strict=True):
                names.add(one.set(tir.expr(total)))
            return names.done()

        def add(i: tir.Expr) -> tir.Stmt:
            full, rest = divmod(columns, together)
            return tir.sequence(
                tir.loop_of("across", full, lambda part: some(i, part * together, together)),
                some(i, full * together, rest) if rest else None,
            )

        names = tir.Names()
        for one in places:
            names.add(one.declare())
            names.add(one.set(tir.number(0, dtype, lanes)))
        names.add(tir.loop_of("down", tir.expr(stop - start), add))
        return self._finish(names, place, [one.get() for one in places])

    def _biases(self, place: micro.TileAddress) -> tir.Expr:
        lanes = self.output.block
        return tir.load(self.bias, [place.channel_block * lanes], lanes)

    def _add_row(
        self,
        names: tir.Names,
        place: micro.TileAddress,
        down: tir.Expr,
        sums: Sequence[tir.Expr | None],
        held: Mapping[tuple[int, int], tirx.Var],
        first: tir.Expr = 0,
        count: int = 0,
    ) -> list[tir.Expr]:
        """`sums` of the tile's pixels, None if there is nothing yet, with the products of the
        window row `down`: of `count` columns from `first` on, or of all."""
        operator, lanes = self.operator, self.output.block
        dtype, block = self.output.element.accumulator, place.channel_block
        totals: list[tir.Expr | None] = list(sums)
        seen: dict[int, tirx.Var] = {}
        for r in range(place.pixels):
            for j in range(count or operator.kernel[1]):
                across = r * operator.stride[1] + j * operator.dilation[1]
                if across not in seen:
                    at = self._input(
                        place.plane,
                        place.row,
                        place.column,
                        down * operator.dilation[0],
                        across + first * operator.dilation[1],
                    )
                    value = tir.load(self.source.buffer, at, lanes)
                    seen[across] = names.bind("x", tir.cast(value, dtype))
                weight = held.get((down, j)) if isinstance(down, int) else None
                if weight is None:
                    weight = tir.load(self.weights, [block, down, first + j, 0], lanes)
                    weight = tir.cast(weight, dtype)
                product, before = seen[across] * weight, totals[r]
                totals[r] = names.bind("sum", product if before is None else before + product)
        return [total for total in totals if total is not None]

    def _finish(
        self, names: tir.Names, place: micro.TileAddress, sums: Sequence[tir.Expr | None]
    ) -> tir.Stmt:
        """What follows the sums of a tile's pixels, which are then stored. The bias comes last: the
        large number that it may be would round each product away."""
        bias, results = self._biases(place), []
        for r, products in enumerate(sums):
            pixel = (place.plane, place.row, place.column + r)
            total = bias if products is None else products + bias
            results.append(
                self.epilogue.apply(names, total, *pixel, channel_block=place.channel_block)
            )
            names.add(self.target.store(results[r], *pixel))
        if self.epilogue.average:
            names.add(self.epilogue.average.leave(results, place.plane, place.row, place.column))
        return names.done()


def ways(site: LayerSite) -> list[Ranked]:
    """Tiles that cut a row into equal parts; where LLVM has the registers, all that it can hold.

    The cost model has one figure for all of them.
    """
    kernel = DepthwiseKernel(site)
    width = site.output.width
    if kernel.in_bands:
        tiles = [kernel.pixels]
    elif kernel.tiles is not None:
        most = kernel.pixels
        tiles = sorted({_even_parts(width, size) for size in range(1, most + 1)}, reverse=True)
    else:
        tiles = _pixels(width, kernel.operator, site.cpu)
    return [
        Ranked(choice=Way(rule=RULE.name, pixels=pixels, vectors=1), cycles=kernel.cycles)
        for pixels in tiles
    ]


RULE = Rule(
    name="depthwise",
    takes=takes,
    make=make,
    halo=halo,
    kept=True,
    averages=True,
    reads_apart=True,
    ways=ways,
)
