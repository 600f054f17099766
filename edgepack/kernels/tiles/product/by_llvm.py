"""The code of a tile as plain arithmetic on vectors; LLVM gives it registers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.product.code import ProductTensors, TileAt

# Multiply-adds in the unrolled body of the reduction: enough to hide its loop, small enough
# to stay in the decoded-instruction cache (about 1500 entries on Haswell, 4000 on Zen).
# Two channels may take twice that: a loop of one, 66 multiply-adds of a window of three columns,
# takes 1.4 to 1.7 times as long on a Zen 5.
_UNROLLED = 128
# LLVM moves loads up in a body, and with few registers has to spill some of them: 163 times for a
# window of 80 columns if it has 128, 32 times with 64, and a keyword net takes 0.96 of the time.
_FEW_REGISTERS, _UNROLLED_OF_FEW = 16, 64
# Beyond, code would not fit any first-level cache.
MOST_UNROLLED = 1024
# Columns of windows that are unrolled. Longer ones are loops, or code would grow with them.
MOST_COLUMNS = 16
# Products that one accumulator adds up; a longer sum is made of parts, whose rounding errors do not
# grow with the sum. onnxruntime's products take 128, too, and one addition for so many is nothing.
CHAIN = 128
# The part of a row's multiply-adds that has to lie in the halo, where they add nothing, for columns
# to be a loop that leaves them out (a guess).
WORTH_LEAVING_OUT = 0.02


def most_unrolled(cpu: CpuModel) -> int:
    """How many multiply-adds the body of a reduction has at most, as a rule."""
    return _UNROLLED_OF_FEW if cpu.registers <= _FEW_REGISTERS else _UNROLLED


class LlvmTiles:
    """Tiles of at most `pixels` pixels; see `TileCode`.

    The body of the reduction has at most `unroll` multiply-adds.
    """

    def __init__(self, tensors: ProductTensors, pixels: int, unroll: int = _UNROLLED) -> None:
        self.tensors, self.pixels = tensors, pixels
        self.unroll = min(unroll, MOST_UNROLLED)
        self.shape, self.epilogue = tensors.shape, tensors.epilogue
        self.source, self.target = tensors.source, tensors.target
        self.weights, self.bias = tensors.weights, tensors.bias

    @property
    def finishes(self) -> bool:
        """Whether results are stored finished, without a pass over them."""
        return not self.epilogue.is_long

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """`body`: nothing is called."""
        return body

    def tile(self, place: TileAt) -> tir.Stmt:
        """One tile; without a halo, code of its own for each of a row whose windows stick out."""
        if not self.source.layout.planar or isinstance(place.column, int):
            return self._tile(place)
        starts = range(0, self.target.layout.width - place.pixels + 1, self.pixels)
        special = [at for at in (replace(place, column=c) for c in starts) if self._sticks_out(at)]
        made = self._tile(place if len(special) < len(starts) else special.pop())
        for at in special:
            here = tirx.EQ(place.column, tir.expr(at.column))
            made = tirx.IfThenElse(here, self._tile(at), made)
        return made

    def _sticks_out(self, place: TileAt) -> bool:
        """Whether some windows reach over the left or right border of the image."""
        assert isinstance(place.column, int)
        first = self._under(place.column, 0)
        last = self._under(place.column + place.pixels - 1, self.shape.kernel[1] - 1)
        return first < 0 or last >= self.source.layout.width

    def _under(self, pixel: int, column: int) -> int:
        """The column of the image under one of a result's window."""
        window = self.tensors.window
        return pixel * window.stride[1] + column * window.dilation[1] - window.before[1]

    def _pixels_inside(self, place: TileAt, column: tir.Expr) -> list[int]:
        """The results of a tile for which a column of the window is in the image, or its halo."""
        every = list(range(place.pixels))
        if not self.source.layout.planar or not isinstance(place.column, int):
            return every
        if not self._sticks_out(place):
            return every
        assert isinstance(column, int), "long windows do not stick out of planar images"
        width = self.source.layout.width
        return [r for r in every if 0 <= self._under(place.column + r, column) < width]

    def _reaches_far(self, place: TileAt) -> bool:
        """Whether columns of the windows lie in the halo for all pixels of many tiles."""
        columns = self.shape.kernel[1]
        if self.source.layout.planar or not 1 < columns <= MOST_COLUMNS:
            return False
        width, outside = self.source.layout.width, 0
        starts = range(0, self.target.layout.width, self.pixels)
        for start in starts:
            for column in range(columns):
                last = self._under(start + place.pixels - 1, column)
                outside += last < 0 or self._under(start, column) >= width
        return outside > WORTH_LEAVING_OUT * columns * len(starts)

    def _rows_reach_out(self) -> bool:
        """Whether rows of the windows lie in the halo, often enough."""
        window, rows = self.tensors.window, self.shape.kernel[0]
        count, height = self.target.layout.height, self.source.layout.height
        under = [
            start * window.stride[0] + row * window.dilation[0] - window.before[0]
            for start, row in itertools.product(range(count), range(rows))
        ]
        outside = sum(not 0 <= at < height for at in under)
        return rows > 1 and outside > WORTH_LEAVING_OUT * len(under)

    def _inside(self, axis: int, first: tir.Expr, count: int) -> tuple[tirx.Expr, tirx.Expr]:
        """The first line of the window along an axis that is in the image for some of `count`
        results from `first` on, and the one after the last."""
        window, layout = self.tensors.window, self.source.layout
        stride, dilation, before = (
            each[axis] for each in (window.stride, window.dilation, window.before)
        )
        size, start = (layout.height, layout.width)[axis], tir.expr(first)
        out = tirx.max(0, before - (start + (count - 1)) * stride)
        begin = tirx.floordiv(out + (dilation - 1), dilation)
        left = tirx.max(0, size + before - start * stride)
        end = tirx.min(self.shape.kernel[axis], tirx.floordiv(left + (dilation - 1), dilation))
        return tirx.min(begin, end), end

    def _tile(self, place: TileAt) -> tir.Stmt:
        shape, lanes = self.shape, self.shape.lanes
        accumulators = [
            [
                tir.Local(f"sum_{r}_{v}", lanes, shape.element.accumulator)
                for v in range(place.vectors)
            ]
            for r in range(place.pixels)
        ]
        every = [(r, v) for r in range(place.pixels) for v in range(place.vectors)]
        bias = [
            tir.load(self.bias, [(place.channel_block + v) * lanes], lanes)
            for v in range(place.vectors)
        ]
        whole = shape.in_blocks - (shape.last_lanes < shape.in_block)
        # Integers are exact in any order.
        is_exact = shape.element.accumulator.startswith("int")
        parts = 1 if is_exact else -(-whole * prod(shape.kernel) * shape.in_block // CHAIN)
        totals = tir.Local("total", lanes, shape.element.accumulator, count=len(every))
        first = parts <= 1 and (is_exact or self.tensors.bias_first)
        begin = bias
        if not first:
            begin = [tir.number(0, shape.element.accumulator, lanes)] * place.vectors
        start = [accumulators[r][v].set(begin[v]) for r, v in every]

        def whole_sum(r: int, v: int) -> tirx.Expr:
            rest = bias[v] if parts <= 1 else totals.get(r * place.vectors + v)
            return accumulators[r][v].get() if first else accumulators[r][v].get() + rest

        names = tir.Names()
        sums = [[whole_sum(r, v) for v in range(place.vectors)] for r in range(place.pixels)]
        self._finish(names, place, sums)
        reduction: list[tir.Stmt | None] = []
        if parts > 1:
            start = [totals.declare(), *start]
            start += [totals.set(bias[v], index) for index, (_, v) in enumerate(every)]
            reduction.append(self._in_parts(place, accumulators, totals, whole, parts))
        elif whole:
            reduction.append(
                tir.loop_of(
                    "in_block",
                    whole,
                    lambda block: self._reduce(place, accumulators, block, shape.in_block),
                )
            )
        if whole < shape.in_blocks:
            reduction.append(self._reduce(place, accumulators, whole, shape.last_lanes))
        declared = [accumulators[r][v].declare() for r, v in every]
        return tir.sequence(*declared, *start, *reduction, names.done())

    def _in_parts(
        self,
        place: TileAt,
        accumulators: list[list[tir.Local]],
        totals: tir.Local,
        whole: int,
        parts: int,
    ) -> tir.Stmt:
        """Reduce over `whole` blocks in `parts`, the sums of all but the last added to `totals`."""
        blocks = -(-whole // parts)
        sums = [accumulators[r][v] for r in range(place.pixels) for v in range(place.vectors)]
        zero = tir.number(0, self.shape.element.accumulator, self.shape.lanes)

        def part(number: tir.Expr) -> tir.Stmt:
            keep = [totals.set(totals.get(i) + one.get(), i) for i, one in enumerate(sums)]
            keep += [one.set(zero) for one in sums]
            first, counter = number * blocks, tir.var("in_block")
            turns = tirx.min(tir.integer(blocks), tir.expr(whole - first))
            body = self._reduce(place, accumulators, first + counter, self.shape.in_block)
            is_last = tirx.GE(tir.expr(first + blocks), tir.integer(whole))
            return tir.sequence(
                tirx.For(counter, tir.integer(0), turns, tirx.ForKind.SERIAL, body),
                tirx.IfThenElse(tirx.Not(is_last), tir.sequence(*keep), None),
            )

        return tir.loop_of("part", -(-whole // blocks), part)

    def _finish(self, names: tir.Names, place: TileAt, sums: list[list[tirx.Expr]]) -> None:
        """Results of sums, one for each pixel and vector, stored."""
        results: list[list[tirx.Expr]] = [[] for _ in range(place.vectors)]
        for r, v in ((r, v) for r in range(place.pixels) for v in range(place.vectors)):
            at, result = (place.plane + v, place.row, place.column + r), sums[r][v]
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

    def _wide(self, buffer: tirx.Buffer, items: Sequence[tir.Expr], lanes: int = 1) -> tirx.Expr:
        """Elements of a buffer in the type that they are added up in."""
        return tir.cast(tir.load(buffer, items, lanes), self.shape.element.accumulator)

    def _reduce(
        self, place: TileAt, accumulators: list[list[tir.Local]], block: tir.Expr, channels: int
    ) -> tir.Stmt:
        """Add what one block of input channels contributes."""
        shape = self.shape
        rows, columns = shape.kernel
        wide = place.vectors * shape.lanes
        # Columns of the window in one turn of a loop.
        together = columns
        bounded = self._reaches_far(place)
        if bounded:
            together = 1
        elif columns > MOST_COLUMNS:
            most = self.unroll // (channels * place.pixels * place.vectors)
            together = min(max(1, most), MOST_COLUMNS)
        one = together * place.pixels * place.vectors
        unrolled = max(
            step
            for step in range(1, channels + 1)
            if channels % step == 0
            and (step == 1 or step * one <= (2 if step == 2 else 1) * self.unroll)
        )
        if shape.side_by_side > 1:
            unrolled = channels
        block_weights = place.weights + block * (prod(shape.kernel) * shape.in_block * wide)

        def steps(row: tir.Expr, first: tir.Expr, count: int, part: tir.Expr) -> tir.Stmt:
            if shape.side_by_side > 1:
                here = block_weights + (row * columns + first) * (channels * wide)
                return self._groups(place, accumulators, block, here, row, first, count)
            names = tir.Names()
            for column in (first + i for i in range(count)):
                for step in range(unrolled):
                    channel = part * unrolled + step
                    at = block_weights + ((row * columns + column) * channels + channel) * wide
                    weights = [
                        names.bind(
                            "w", self._wide(self.weights, [at + v * shape.lanes], shape.lanes)
                        )
                        for v in range(place.vectors)
                    ]
                    for r in self._pixels_inside(place, column):
                        value = self._wide(
                            self.source.buffer,
                            self.source.at(
                                place.in_plane + block,
                                *self.tensors.input(place, r, row, column),
                                channel,
                            ),
                        )
                        spread = names.bind("x", tir.spread(value, shape.lanes))
                        for v in range(place.vectors):
                            total = accumulators[r][v]
                            names.add(total.set(total.get() + spread * weights[v]))
            return names.done()

        def some(row: tir.Expr, first: tir.Expr, count: int) -> tir.Stmt:
            return tir.loop_of(
                "part", channels // unrolled, lambda part: steps(row, first, count, part)
            )

        def one_row(row: tir.Expr) -> tir.Stmt:
            if bounded:
                begin, end = self._inside(1, place.column, place.pixels)
                column = tir.var("column")
                body = some(row, column, 1)
                return tirx.For(column, begin, end - begin, tirx.ForKind.SERIAL, body)
            full, rest = divmod(columns, together)
            return tir.sequence(
                tir.loop_of("column", full, lambda i: some(row, i * together, together)),
                some(row, full * together, rest) if rest else None,
            )

        if not self.source.layout.planar:
            if not self._rows_reach_out():
                return tir.loop_of("window_row", rows, one_row)
            counter = tir.var("window_row")
            begin, end = self._inside(0, place.row, 1)
            return tirx.For(counter, begin, end - begin, tirx.ForKind.SERIAL, one_row(counter))
        # Only what is in the image.
        top = tir.expr(self.tensors.input(place, 0, 0, 0)[0])
        first, behind = tirx.max(0, -top), tirx.min(rows, self.source.layout.height - top)
        counter = tir.var("window_row")
        return tirx.For(counter, first, behind - first, tirx.ForKind.SERIAL, one_row(counter))

    def _groups(
        self,
        place: TileAt,
        accumulators: list[list[tir.Local]],
        block: tir.Expr,
        weights: tir.Expr,
        row: tir.Expr,
        first: tir.Expr,
        count: int,
    ) -> tir.Stmt:
        """Add what `count` columns of the window contribute, from `first` on, of groups side by
        side. The i-th channel of each is spread over the lanes of its results, once for all results
        whose windows it is in."""
        shape, window = self.shape, self.tensors.window
        lanes, channels = shape.lanes, shape.in_block
        uses: dict[int, list[tuple[int, int]]] = {}
        for i in range(count):
            for r in self._pixels_inside(place, first + i):
                at = r * window.stride[1] + i * window.dilation[1]
                uses.setdefault(at, []).append((r, i))
        names = tir.Names()
        for channel in range(channels):
            those = [
                names.bind(
                    "w",
                    self._wide(self.weights, [weights + (i * channels + channel) * lanes], lanes),
                )
                for i in range(count)
            ]
            own = [tir.integer(lane // channels * channels + channel) for lane in range(lanes)]
            for _at, results in sorted(uses.items()):
                r, i = results[0]
                pixel = self.tensors.input(place, r, row, first + i)
                value = self._wide(
                    self.source.buffer, self.source.at(place.in_plane + block, *pixel), lanes
                )
                spread = names.bind("x", tirx.Shuffle([value], own))
                for r, i in results:
                    total = accumulators[r][0]
                    names.add(total.set(total.get() + spread * those[i]))
        return names.done()
