"""Attention: softmax(scale * queries keys^T + masks) values, with the scores in the cache.

    for each head
        pack the keys as columns, and the values
        for each block of queries
            scores = queries keys^T         a row per query, in a place of the core's own
            softmax, but for its division   two passes over each row
            result = scores values
            divide the result by the sums

Heads are read and written where they lie. Rows of scores have room for whole vectors, so that any
number of keys takes the widest ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.layer import Attention, TensorPart
from edgepack.kernels.places import Places
from edgepack.kernels.rules.rule import LayerKernel, Rows, RowsSite, product
from edgepack.kernels.tiles import functions, micro, rows, tile, tir
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import Blocked, Image
from edgepack.kernels.tiles.partition import BUSY_BY_PIECES, busy, worth_sharing
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    Window,
    choose_among,
    rank_tiles,
    type_of_sums,
)

# What the rule is called that makes both kernels of attention.
NAME = "attention"
# Of sums of powers, and the arithmetic on scores.
ELEMENT = FLOAT32
# Less than this is as good as minus infinity to a mask, and a half can hold it.
_LEAST = -60000.0
# Of powers, which are a dozen operations that wait for each other, as few as fit 16 registers.
_EXPONENTIALS = 2
# Instructions for a score besides the products: its power and both passes.
PER_SCORE = 20


class _Rows(Image):
    """Rows in a tensor's memory as an image of one row of pixels: blocks of channels side by side.

    The first element is `first`, and the next row `step` elements further. Where the last block is
    not full, there is `padded` room for it, or a block may start earlier.
    """

    def __init__(
        self,
        buffer: tirx.Buffer,
        layout: Blocked,
        first: tir.Expr,
        step: int,
        *,
        padded: bool,
    ) -> None:
        self.layout, self.buffer = layout, buffer
        self.step, self.first = (1, 1), (0, 0)
        self.start, self.row_step = first, step
        self.overlaps = not padded

    @property
    def pixel_bytes(self) -> int:
        return self.layout.element.bytes * self.row_step

    @property
    def row_bytes(self) -> int:
        return self.pixel_bytes * self.layout.width

    @property
    def plane_bytes(self) -> int:
        return self.layout.element.bytes * self.layout.block

    def at(
        self, plane: tir.Expr, row: tir.Expr, column: tir.Expr, lane: tir.Expr = 0
    ) -> list[tir.Expr]:
        return [self.start + column * self.row_step + plane * self.layout.block + lane]


def start_of(places: Places, head: tir.Expr) -> tir.Expr:
    """The first element of a head, by its number."""
    at: tir.Expr = places.offset
    for size, step in reversed(list(zip(places.shape[:-2], places.strides[:-2], strict=True))):
        if size > 1:
            at = at + head % size * step
            head = head // size
    return at


@dataclass(frozen=True, kw_only=True)
class _Shares:
    """`slots` cores work on `block` queries each, of heads of which so many are `packed` at a time,
    in as many `turns`; or each on a head of its own, `by_heads`."""

    slots: int
    block: int
    packed: int
    by_heads: bool
    turns: int


class AttentionKernel:
    """What kernels of attention have in common, and the one that packs keys and values."""

    def __init__(self, site: RowsSite) -> None:
        assert isinstance(site.layer.operator, Attention)
        assert isinstance(site.output, Rows)
        self.attention, self.cpu, self.room = site.layer.operator, site.cpu, site.limits.room
        self.chosen = site.chosen(NAME) or Way(rule=NAME)
        self.element = site.layer.element
        self.inputs, self.out_size = site.inputs, product(site.output.shape)

    # ------------------------------------------------ extents

    @property
    def result(self) -> Places:
        """Where results lie."""
        found = self.attention
        return found.queries.places if found.in_queries else found.result

    @property
    def heads(self) -> int:
        return product(self.attention.result.shape[:-2])

    @property
    def rows(self) -> int:
        return self.attention.result.shape[-2]

    @property
    def width(self) -> int:
        """Columns of the values."""
        return self.attention.result.shape[-1]

    @property
    def depth(self) -> int:
        return self.attention.keys.places.shape[-1]

    @property
    def keys(self) -> int:
        return self.attention.keys.places.shape[-2]

    def _layout(self, rows: int, channels: int, block: int) -> Blocked:
        return Blocked(
            element=self.element, batch=1, channels=channels, height=1, width=rows, block=block
        )

    def _ranked(self, rows: int, depth: int, columns: int, lanes: int) -> list[tile.RegisterTile]:
        target = self._layout(rows, columns, lanes)
        return rank_tiles(target, blocks=target.blocks, reduction=depth, cpu=self.cpu)

    @cached_property
    def score_lanes(self) -> int:
        """Scores of a vector: of the cheapest tiles."""
        return min(
            self.cpu.lanes(self.element),
            key=lambda lanes: self._ranked(self.rows, self.depth, self.keys, lanes)[0].cycles,
        )

    @cached_property
    def lanes(self) -> int:
        """Results of a vector: the most of which a row is a multiple."""
        return max(lanes for lanes in self.cpu.lanes(self.element) if self.width % lanes == 0)

    @cached_property
    def row_size(self) -> int:
        """Elements of a row of scores, the room behind them included."""
        return -(-self.keys // self.score_lanes) * self.score_lanes

    def _block_rows(self, share: int = 1) -> int:
        """Queries that are done at a time: as many rows of scores as half of the first-level cache
        has room for, but whole tiles; the fewest that need no more turns, which `share` cores can
        share."""
        pixels = self._ranked(self.rows, self.depth, self.keys, self.score_lanes)[0].pixels
        fitting = self.cpu.l1_bytes // 2 // (self.row_size * self.element.bytes)
        turns = -(-self.rows // max(pixels, fitting // pixels * pixels))
        each = -(-self.rows // (-(-turns // share) * share))
        return min(self.rows, -(-each // pixels) * pixels if share == 1 else each)

    @cached_property
    def _shares(self) -> _Shares:
        """How the cores share the work."""
        slots = self.cpu.cores if worth_sharing(self._cycles, self.cpu) else 1
        block = self._block_rows()
        # Cores share heads, or blocks of queries; then each packs the heads it has blocks of, or,
        # if there are more cores than heads, all of them pack first.
        by_heads = slots == 1 or busy(self.heads, slots) >= BUSY_BY_PIECES
        packed = slots if by_heads else min(slots, self.heads)
        free = _Shares(slots=slots, block=block, packed=packed, by_heads=by_heads, turns=1)
        if self.chosen.rows:
            chosen = replace(free, block=min(self.rows, self.chosen.rows))
            if self.room is None or self._scratch_bytes(chosen) <= self.room:
                return chosen
        if self.room is None or slots == 1 or self._scratch_bytes(free) <= self.room:
            return free
        # As many heads at a time as there is room for, blocks of which the cores share.
        for heads in (n for n in range(packed - 1, 0, -1) if self.heads % n == 0):
            less = _Shares(
                slots=slots,
                block=self._block_rows(slots // math.gcd(slots, heads)),
                packed=heads,
                by_heads=False,
                turns=self.heads // heads,
            )
            if self._scratch_bytes(less) <= self.room:
                return less
        return less if packed > 1 else free

    def _scratch_bytes(self, shares: _Shares) -> int:
        scores = shares.slots * shares.block * (self.row_size + 1)
        return self.element.bytes * (shares.packed * sum(self._panels_of_head) + scores)

    @property
    def block(self) -> int:
        """Queries that are done at a time."""
        return self._shares.block

    @cached_property
    def _products(self) -> tuple[Shape, Shape]:
        """Of queries and keys, and of scores and values."""
        narrow = self.cpu.narrowest(self.element)
        return (
            self._shape(self.depth, narrow, self.keys, self.score_lanes),
            self._shape(self.keys, narrow, self.width, self.lanes),
        )

    @property
    def _panels_of_head(self) -> tuple[int, int]:
        """Elements of a head's packed keys and values."""
        scoring, weighing = self._products
        return scoring.panel(scoring.out_blocks), weighing.panel(weighing.out_blocks)

    def _tiles(
        self, block: int, chosen: Way | None = None
    ) -> tuple[tile.RegisterTile, tile.RegisterTile]:
        scores = self._ranked(block, self.depth, self.keys, self.score_lanes)
        return choose_among(scores, chosen), self._ranked(block, self.keys, self.width, self.lanes)[
            0
        ]

    @cached_property
    def _cycles(self) -> float:
        block = self._block_rows()
        cycles = sum(item.cycles for item in self._tiles(block)) * self.heads
        cycles *= -(-self.rows // block)
        scores = self.heads * self.rows * self.row_size
        power = PER_SCORE * scores / self.cpu.rate(self.element, self.score_lanes)
        return cycles + power / self.score_lanes

    def _shape(self, depth: int, in_block: int, columns: int, lanes: int) -> Shape:
        return Shape(
            groups=1,
            in_blocks=-(-depth // in_block),
            in_block=in_block,
            last_lanes=(depth - 1) % in_block + 1,
            out_blocks=-(-columns // lanes),
            lanes=lanes,
            kernel=(1, 1),
            element=self.element,
        )

    # ------------------------------------------------ the kernel

    def given(self) -> Given:
        """The kernel's inputs and constants."""
        masks = self.attention.masks
        buffers = tuple(
            tir.buffer(f"input{i}", seen.shape, seen.dtype) for i, seen in enumerate(self.inputs)
        )
        known = [mask.source for mask in masks if isinstance(mask.source, np.ndarray)]
        constants = [np.ascontiguousarray(value).ravel() for value in known]
        made = [
            tir.buffer(f"mask{i}", values.shape, ELEMENT.name) for i, values in enumerate(constants)
        ]
        left = iter(made)
        return Given(
            buffers=buffers,
            constants=tuple(constants),
            masks=tuple(
                buffers[mask.source] if isinstance(mask.source, int) else next(left)
                for mask in masks
            ),
            arguments=(*buffers, *made),
        )

    def ways(self) -> list[Ranked]:
        """Tiles of the scores, and other numbers of queries at a time; between two tiles is one of
        these."""
        block = self.block
        tiles = self._ranked(block, self.depth, self.keys, self.score_lanes)
        cycles = self._cycles - tiles[0].cycles
        found = [
            Ranked(
                choice=Way(rule=NAME, pixels=item.pixels, vectors=item.vectors),
                cycles=cycles + item.cycles,
            )
            for item in tiles
        ]
        sizes = (block // 2, 2 * block, block // 4, 4 * block, self.rows)
        others = dict.fromkeys(min(self.rows, size) for size in sizes if size >= tiles[0].pixels)
        for place, rows_at_once in enumerate(size for size in others if size != block):
            way = replace(found[0].choice, rows=rows_at_once)
            found.insert(2 * place + 1, Ranked(choice=way, cycles=found[0].cycles))
        return found

    def kernel(self) -> LayerKernel:
        """The kernel; its scratch are packed keys and values, a block of scores and its sums."""
        attention, shares = self.attention, self._shares
        given = self.given()
        constants = list(given.constants)
        scoring, weighing = self._products
        tiles, sizes = self._tiles(self.block, self.chosen), self._panels_of_head
        blocks = -(-self.rows // self.block)
        slots, packed = shares.slots, shares.packed
        zeros = max(scoring.out_blocks * self.score_lanes, weighing.out_blocks * self.lanes)
        sums = type_of_sums(self.element, self.cpu)
        constants.append(np.zeros(zeros, sums))
        room = Packed(
            buffers=given.buffers,
            masks=given.masks,
            bias=tir.buffer("bias", (zeros,), sums),
            out=tir.buffer("out", (self.out_size,), self.element.name),
            keys=tir.buffer("keys", (packed * sizes[0],), self.element.name),
            values=tir.buffer("values", (packed * sizes[1],), self.element.name),
            scores=tir.buffer("scores", (slots * self.block * self.row_size,), self.element.name),
            sums=tir.buffer("sums", (slots * self.block,), ELEMENT.name),
            shapes=(scoring, weighing),
            tiles=tiles,
            functions=micro.AssemblyFunctions(),
        )

        def pack(head: tir.Expr, place: tir.Expr) -> tir.Stmt:
            return tir.sequence(
                self._pack_keys(room, head, place * sizes[0]),
                self._pack_values(room, head, place * sizes[1]),
            )

        full, rest = divmod(self.rows, self.block)

        def block(head: tir.Expr, place: tir.Expr, index: tir.Expr, slot: tir.Expr) -> tir.Stmt:
            def some(first: tir.Expr, count: int) -> tir.Stmt:
                return self._block(room, head, place, first, count, slot)

            last = (lambda: some(full * self.block, rest)) if rest else None
            return tir.turn(index, full, lambda i: some(i * self.block, self.block), last)

        def one_head(head: tir.Expr, slot: tir.Expr) -> tir.Stmt:
            turns = tir.loop_of("block", blocks, lambda i: block(head, slot, i, slot))
            return tir.sequence(pack(head, slot), turns)

        def one_item(item: tir.Expr, slot: tir.Expr) -> tir.Stmt:
            # The first of a core may be in the middle of a head, whose other blocks another has.
            begins = tirx.Or(
                tirx.EQ(tir.expr(item % blocks), tir.integer(0)),
                tirx.EQ(tir.expr(item), tir.expr(slot * -(-self.heads * blocks // slots))),
            )
            return tir.sequence(
                tir.when(begins, pack(item // blocks, slot)),
                block(item // blocks, slot, item % blocks, slot),
            )

        def some_heads(turn: tir.Expr) -> tir.Stmt:
            def item(index: tir.Expr, slot: tir.Expr) -> tir.Stmt:
                place = index // blocks
                return block(turn * packed + place, place, index % blocks, slot)

            return tir.sequence(
                tir.loop_of(
                    "packed",
                    packed,
                    lambda place: pack(turn * packed + place, place),
                    parallel=True,
                ),
                share_items("item", packed * blocks, slots, item, parallel=True),
            )

        def function() -> tirx.PrimFunc:
            if shares.by_heads:
                body = share_items("head", self.heads, slots, one_head, parallel=slots > 1)
            elif shares.turns == 1 and slots <= self.heads:
                body = share_items("item", self.heads * blocks, slots, one_item, parallel=True)
            else:
                body = tir.loop_of("turn", shares.turns, some_heads)
            arguments = [*given.arguments, room.bias, room.out]
            scratch = [room.keys, room.values, room.scores, room.sums]
            queries = room.tensor(attention.queries)
            return tir.function(
                [*arguments, *scratch],
                room.functions.imported(body),
                in_place=[(queries, room.out)] if attention.in_queries else [],
            )

        return LayerKernel(
            name=f"attention_{self.heads}_{self.rows}x{self.depth}x{self.keys}x{self.width}",
            function=function,
            constants=tuple(constants),
            tile=f"{tiles[0]} {tiles[1]}",
            macs=self.heads * self.rows * self.keys * (self.depth + self.width),
            cycles=self._cycles,
        )

    def _block(
        self,
        room: Packed,
        head: tir.Expr,
        place: tir.Expr,
        first: tir.Expr,
        count: int,
        slot: tir.Expr,
    ) -> tir.Stmt:
        """`count` queries of a head from `first` on, whose keys and values are packed at `place`;
        scores go to `slot`."""
        attention, narrow = self.attention, self.cpu.narrowest(self.element)
        queries, result = attention.queries.places, self.result
        row = slot * self.block
        scores = row * self.row_size

        def scored(block: int) -> _Rows:
            layout = self._layout(count, self.keys, block)
            return _Rows(room.scores, layout, scores, self.row_size, padded=True)

        asked = _Rows(
            room.tensor(attention.queries),
            self._layout(count, self.depth, narrow),
            start_of(queries, head) + first * queries.strides[-2],
            queries.strides[-2],
            padded=False,
        )
        answer = _Rows(
            room.out,
            self._layout(count, self.width, self.lanes),
            start_of(result, head) + first * result.strides[-2],
            result.strides[-2],
            padded=True,
        )
        products = (
            (asked, scored(self.score_lanes), room.keys),
            (scored(narrow), answer, room.values),
        )
        both = [
            ProductLoops(
                cpu=self.cpu,
                window=Window(),
                shape=shape,
                tile=chosen,
                source=source,
                target=target,
                weights=weights,
                bias=room.bias,
                bias_first=True,  # there is none
                epilogue=Epilogue(target.layout),
                functions=room.functions,
                first_weight=place * shape.panel(shape.out_blocks),
            ).group(0, 0)
            for shape, chosen, (source, target, weights) in zip(
                room.shapes, room.tiles, products, strict=True
            )
        ]

        def softmax(i: tir.Expr) -> tir.Stmt:
            return self.softmax(room, head, first + i, scores + i * self.row_size, row + i)

        def divide(i: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            share = names.bind("share", tir.load(room.sums, [row + i]))

            def vector(plane: tir.Expr) -> tir.Stmt:
                scaled = answer.load(plane, 0, i) * tir.spread(share, self.lanes)
                return answer.store(scaled, plane, 0, i)

            names.add(tir.loop_of("vector", self.width // self.lanes, vector))
            return names.done()

        return tir.sequence(
            both[0],
            tir.loop_of("row", count, softmax),
            both[1],
            tir.loop_of("divided", count, divide),
        )

    # ------------------------------------------------ softmax

    def softmax(
        self, room: Room, head: tir.Expr, query: tir.Expr, at: tir.Expr, share: tir.Expr
    ) -> tir.Stmt:
        """Make a row of scores, from element `at` on, powers of e, and put one over their sum to
        `share`. Places behind the last key have 0 then."""
        names = tir.Names()
        infinity = tir.number(float("-inf"), ELEMENT.name)
        # Powers of 2, of scores that are scaled on the way.
        factor = 1 / math.log(2) * (self.attention.scale if self._scales_last else 1)
        most: tirx.Expr = infinity
        for start, lanes, count in rows.pieces(self.keys, self.cpu.lanes(self.element)):

            def one(
                index: tir.Expr, inside: tir.Names, start: int = start, lanes: int = lanes
            ) -> tirx.Expr:
                return self._score(room, head, query, at, start + index * lanes, lanes, inside)

            found = rows.gather(names, count, lanes, float("-inf"), tirx.max, one)
            most = names.bind("most", tirx.max(most, found))
        for i in range(self.keys, self.row_size):
            names.add(self.put(room, infinity, at + i))
        lanes = self.score_lanes

        def power(index: tir.Expr, inside: tir.Names) -> tirx.Expr:
            place = at + index * lanes
            less = inside.bind("less", self.get(room, place, lanes) - tir.spread(most, lanes))
            scope = functions.Scope(lanes, lambda value: inside.bind("e", value))
            value = inside.bind("power", functions.power_of_two(less * scope.c(factor), scope))
            inside.add(self.put(room, value, place, lanes))
            return value

        count = self.row_size // lanes
        total = rows.gather(
            names, count, lanes, 0.0, lambda a, b: a + b, power, side_by_side=_EXPONENTIALS
        )
        names.add(tir.store(room.sums, tir.number(1.0, ELEMENT.name) / total, [share]))
        return names.done()

    @property
    def _scales_last(self) -> bool:
        """Whether the largest score is the largest of the scaled ones."""
        return not self.attention.masks and self.attention.scale > 0

    def _score(
        self,
        room: Room,
        head: tir.Expr,
        query: tir.Expr,
        at: tir.Expr,
        key: tir.Expr,
        lanes: int,
        names: tir.Names,
    ) -> tirx.Expr:
        """Scores from a key on, scaled and masked, which are stored if they have changed."""
        masks = self.attention.masks
        scale = 1.0 if self._scales_last else self.attention.scale
        value = names.bind("score", self.get(room, at + key, lanes))
        if scale != 1:
            value = names.bind("scaled", value * tir.number(scale, ELEMENT.name, lanes))
        for mask, buffer in zip(reversed(masks), reversed(room.masks), strict=True):
            place = start_of(mask.places, head) + query * mask.places.strides[-2]
            if mask.places.strides[-1]:
                other = tir.load(buffer, [place + key], lanes)
            else:
                other = tir.spread(tir.load(buffer, [place]), lanes)
            value = names.bind("masked", value + other)
        if masks and self.element != ELEMENT:
            # A row whose keys are all masked has equal powers, as the model would make it.
            least = tir.number(_LEAST, ELEMENT.name, lanes)
            value = names.bind("held", tirx.Select(value < least, least, value))  # NaN stays
        if scale != 1 or masks:
            names.add(self.put(room, value, at + key, lanes))
        return value

    def get(self, room: Room, at: tir.Expr, lanes: int = 1) -> tirx.Expr:
        """Scores, in float32."""
        return tir.cast(tir.load(room.scores, [at], lanes), ELEMENT.name)

    def put(self, room: Room, value: tirx.Expr, at: tir.Expr, lanes: int = 1) -> tir.Stmt:
        """Keep scores."""
        return tir.store(room.scores, tir.cast(value, self.element.name), [at], lanes)

    # ------------------------------------------------ packing

    def _pack_keys(self, room: Packed, head: tir.Expr, at: tir.Expr) -> tir.Stmt:
        """Panels of keys as columns. Behind the last key the last one is taken again."""
        part = self.attention.keys
        keys, step = part.places, part.places.strides[-2]
        source, start = room.tensor(part), start_of(keys, head)
        lanes, depth = self.score_lanes, self.depth

        def key(column: tir.Expr) -> tir.Expr:
            if self.keys % lanes == 0:
                return column
            return tirx.min(tir.expr(column), tir.integer(self.keys - 1))

        if keys.strides[-1] != 1:
            across = keys.strides[-1]

            def columns(column: tir.Expr, k: tir.Expr, to: tir.Expr) -> tir.Stmt:
                """A vector of keys that lie side by side; the last ones one by one."""

                def whole() -> tir.Stmt:
                    value = tir.load(source, [start + column + k * across], lanes)
                    return tir.store(room.keys, value, [to], lanes)

                def single() -> tir.Stmt:
                    return tir.sequence(
                        *(
                            tir.store(
                                room.keys,
                                tir.load(source, [start + key(column + i) + k * across]),
                                [to + i],
                            )
                            for i in range(lanes)
                        )
                    )

                if self.keys % lanes == 0:
                    return whole()
                if self.keys < lanes:
                    return single()
                inside = tir.expr(column) <= self.keys - lanes
                return tirx.IfThenElse(inside, whole(), single())

            def packed(first: tir.Expr, wide: int, to: tir.Expr) -> tir.Stmt:
                return tir.loop_of(
                    "k",
                    depth,
                    lambda k: tir.loop_of(
                        "vector",
                        wide // lanes,
                        lambda v: columns(first + v * lanes, k, to + k * wide + v * lanes),
                    ),
                )

            return self._panels(room, 0, at, packed)
        side = 1 << (min(lanes, depth).bit_length() - 1)

        def square(k: tir.Expr, column: tir.Expr, to: tir.Expr, wide: int) -> tir.Stmt:
            names = tir.Names()
            lines = [
                tir.load(source, [start + key(column + i) * step + k], side) for i in range(side)
            ]
            for i, line in enumerate(tir.transpose(names, lines)):
                names.add(tir.store(room.keys, line, [to + (k + i) * wide], side))
            return names.done()

        def turned(first: tir.Expr, wide: int, to: tir.Expr) -> tir.Stmt:
            def squares(k: tir.Expr) -> tir.Stmt:
                return tir.loop_of(
                    "square",
                    wide // side,
                    lambda i: square(k, first + i * side, to + i * side, wide),
                )

            return tir.sequence(
                tir.loop_of("k", depth // side, lambda k: squares(k * side)),
                squares(depth - side) if depth % side else None,
            )

        return self._panels(room, 0, at, turned)

    def _pack_values(self, room: Packed, head: tir.Expr, at: tir.Expr) -> tir.Stmt:
        """Panels of values."""
        part = self.attention.values
        source, start = room.tensor(part), start_of(part.places, head)
        step, lanes = part.places.strides[-2], self.lanes

        def packed(first: tir.Expr, wide: int, to: tir.Expr) -> tir.Stmt:
            def copy(k: tir.Expr, v: tir.Expr) -> tir.Stmt:
                value = tir.load(source, [start + k * step + first + v * lanes], lanes)
                return tir.store(room.values, value, [to + k * wide + v * lanes], lanes)

            return tir.loop_of(
                "k",
                self.keys,
                lambda k: tir.loop_of("vector", wide // lanes, lambda v: copy(k, v)),
            )

        return self._panels(room, 1, at, packed)

    def _panels(
        self,
        room: Packed,
        which: int,
        at: tir.Expr,
        pack: Callable[[tir.Expr, int, tir.Expr], tir.Stmt],
    ) -> tir.Stmt:
        """Pack all panels of a product from `at` on; `pack` gets the first column, how many there
        are, and where to."""
        shape, vectors = room.shapes[which], room.tiles[which].vectors
        full, rest = divmod(shape.out_blocks, vectors)
        wide = vectors * shape.lanes

        def panel(index: tir.Expr, count: int) -> tir.Stmt:
            return pack(index * wide, count * shape.lanes, at + index * shape.panel(vectors))

        last = panel(full, rest) if rest else None
        return tir.sequence(
            tir.loop_of("panel", full, lambda index: panel(index, vectors)) if full else None, last
        )


@dataclass(frozen=True, kw_only=True)
class Given:
    """A kernel's `arguments` before its own: the attention's inputs, then its `constants`. `masks`
    are among both."""

    buffers: tuple[tirx.Buffer, ...]
    constants: tuple[np.ndarray, ...]
    masks: tuple[tirx.Buffer, ...]
    arguments: tuple[tirx.Buffer, ...]


@dataclass(frozen=True, kw_only=True)
class Room:
    """A kernel's arguments: those of the attention, a place for scores of each core, and for one
    over the sum of each row of them."""

    buffers: tuple[tirx.Buffer, ...]
    masks: tuple[tirx.Buffer, ...]
    out: tirx.Buffer
    scores: tirx.Buffer
    sums: tirx.Buffer

    def tensor(self, part: TensorPart) -> tirx.Buffer:
        """What has a part that is no constant."""
        assert isinstance(part.source, int)
        return self.buffers[part.source]


@dataclass(frozen=True, kw_only=True)
class Packed(Room):
    """The same with packed keys and values, and what the two products are like."""

    bias: tirx.Buffer
    keys: tirx.Buffer
    values: tirx.Buffer
    shapes: tuple[Shape, Shape]
    tiles: tuple[tile.RegisterTile, tile.RegisterTile]
    functions: micro.AssemblyFunctions


def share_items(
    name: str,
    items: int,
    cores: int,
    body: Callable[[tir.Expr, tir.Expr], tir.Stmt],
    *,
    parallel: bool,
) -> tir.Stmt:
    """`body` for each item, given the number of the core that does it, too."""
    each = -(-items // cores)

    def one(core: tir.Expr, turn: tir.Expr) -> tir.Stmt:
        item = core * each + turn
        made = body(item, core)
        return made if items % cores == 0 else tir.when(tir.expr(item) < items, made)

    return tir.loop_of(
        "core",
        cores,
        lambda core: tir.loop_of(name, each, lambda turn: one(core, turn)),
        parallel=parallel,
    )
