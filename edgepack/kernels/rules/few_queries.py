"""Attention of a few queries, such as the one of a decoder's step, to keys and values in a cache:

    for each head and query
        scores = keys query         a dot product for each key, several side by side
        softmax, but for its division
        result = values^T scores    a row of values for each score
        divide the result by the sum

Keys and values are read once, where they lie: to pack them would take longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.rules.attention import (
    ELEMENT,
    NAME,
    PER_SCORE,
    AttentionKernel,
    Room,
    share_items,
    start_of,
)
from edgepack.kernels.rules.rule import LayerKernel, product
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.partition import worth_sharing

# Dot products side by side: enough that none waits for the addition before.
_KEYS = 8
# Sums of a query's result side by side, at least, for the same reason; more keys at a time, if the
# row of values has fewer vectors.
_SUMS = 8


class FewQueries(AttentionKernel):
    """The kernel of an attention whose keys lie row by row."""

    @cached_property
    def score_lanes(self) -> int:
        """Elements of a vector of a key, and scores of one: the most of which a key is a multiple,
        or a narrow one beside which single elements are left."""
        fitting = (lanes for lanes in self.cpu.lanes(self.element) if self.depth % lanes == 0)
        return max(fitting, default=self.cpu.narrowest(self.element))

    @property
    def together(self) -> int:
        """Keys whose scores are computed side by side."""
        chosen = self.chosen.pixels
        return chosen if chosen in self._numbers else self._numbers[0]

    @property
    def _numbers(self) -> list[int]:
        """Those that `together` may be, the usual one first."""
        usual = max(_KEYS, self.score_lanes)
        return list(dict.fromkeys((usual, self.score_lanes, 2 * usual)))

    @cached_property
    def row_size(self) -> int:
        """Elements of a row of scores, the room behind them included."""
        return -(-self.keys // self.together) * self.together

    def ways(self) -> list[Ranked]:
        """Scores of other numbers of keys side by side."""
        cycles = self._cycles
        return [Ranked(choice=Way(rule=NAME, pixels=keys), cycles=cycles) for keys in self._numbers]

    @property
    def _scores_of_all(self) -> int:
        return self.heads * self.rows * self.keys

    @cached_property
    def _cycles(self) -> float:
        scores, cpu = self._scores_of_all, self.cpu
        loads = scores * (self.depth / self.score_lanes + self.width / self.lanes)
        rate = cpu.rate(self.element, self.score_lanes)
        cycles = loads / min(rate, cpu.loads_per_cycle)
        return cycles + PER_SCORE * scores / rate / self.score_lanes

    def kernel(self) -> LayerKernel:
        """The kernel; its scratch are a row of scores and its sum for each core."""
        given, cpu = self.given(), self.cpu
        cycles = self._cycles
        parallel = self.heads > 1 and worth_sharing(cycles, cpu)
        slots = cpu.cores if parallel else 1
        room = Room(
            buffers=given.buffers,
            masks=given.masks,
            out=tir.buffer("out", (product(self.attention.result.shape),), self.element.name),
            scores=tir.buffer("scores", (slots * self.row_size,), self.element.name),
            sums=tir.buffer("sums", (slots,), ELEMENT.name),
        )

        def one_head(head: tir.Expr, slot: tir.Expr) -> tir.Stmt:
            return tir.loop_of("row", self.rows, lambda row: self._query(room, head, row, slot))

        def function() -> tirx.PrimFunc:
            body = share_items("head", self.heads, slots, one_head, parallel=parallel)
            return tir.function([*given.arguments, room.out, room.scores, room.sums], body)

        return LayerKernel(
            name=f"attention_{self.heads}_{self.rows}x{self.depth}x{self.keys}x{self.width}",
            function=function,
            constants=given.constants,
            tile=f"{self.together}x1 1x{self.width // self.lanes}",
            macs=self._scores_of_all * (self.depth + self.width),
            cycles=cycles,
        )

    def _query(self, room: Room, head: tir.Expr, row: tir.Expr, slot: tir.Expr) -> tir.Stmt:
        at = slot * self.row_size
        return tir.sequence(
            self._scores(room, head, row, at),
            self.softmax(room, head, row, at, slot),
            self._weighted(room, head, row, at, slot),
        )

    # ------------------------------------------------ scores

    def _scores(self, room: Room, head: tir.Expr, row: tir.Expr, at: tir.Expr) -> tir.Stmt:
        """A row of scores, from element `at` on; behind the last key that one is taken again."""
        full, rest = divmod(self.keys, self.together)

        def some(turn: tir.Expr, *, inside: bool) -> tir.Stmt:
            first = turn * self.together
            keys = [tir.expr(first + i) for i in range(self.together)]
            if not inside:
                keys = [tirx.min(key, tir.integer(self.keys - 1)) for key in keys]
            return self._dots(room, head, row, keys, at + first)

        last = (lambda: some(full, inside=False)) if rest else None
        return tir.split("keys", full, lambda turn: some(turn, inside=True), last)

    def _dots(
        self,
        room: Room,
        head: tir.Expr,
        row: tir.Expr,
        keys: Sequence[tirx.Expr],
        to: tir.Expr,
    ) -> tir.Stmt:
        """Products of a query with some keys, to scores from `to` on."""
        asked, given, lanes = self.attention.queries, self.attention.keys, self.score_lanes
        query, rows = room.tensor(asked), room.tensor(given)
        first = start_of(asked.places, head) + row * asked.places.strides[-2]
        starts = [start_of(given.places, head) + key * given.places.strides[-2] for key in keys]
        sums = [tir.Local(f"dot{i}", lanes, ELEMENT.name) for i in range(len(keys))]

        def step(k: tir.Expr) -> tir.Stmt:
            inside = tir.Names()
            part = inside.bind("query", _wide(query, first + k * lanes, lanes))
            for dot, start in zip(sums, starts, strict=True):
                key = _wide(rows, start + k * lanes, lanes)
                inside.add(dot.set(dot.get() + part * key))
            return inside.done()

        names = tir.Names()
        for dot in sums:
            names.add(dot.declare())
            names.add(dot.set(tir.number(0, ELEMENT.name, lanes)))
        names.add(tir.loop_of("k", self.depth // lanes, step))
        left = range(self.depth // lanes * lanes, self.depth)
        for i in range(0, len(keys), lanes):
            found = tir.sums_of_lanes(names, [dot.get() for dot in sums[i : i + lanes]])
            names.add(self.put(room, found, to + i, lanes))
        for i, start in enumerate(starts if left else ()):
            score = self.get(room, to + i)
            for k in left:
                score = score + _wide(query, first + k) * _wide(rows, start + k)
            names.add(self.put(room, score, to + i))
        return names.done()

    # ------------------------------------------------ values

    def _weighted(
        self, room: Room, head: tir.Expr, row: tir.Expr, at: tir.Expr, slot: tir.Expr
    ) -> tir.Stmt:
        """The sum of the values by the scores from element `at` on, over the scores' sum."""
        vectors, most = self.width // self.lanes, max(_SUMS, self.cpu.registers // 2)
        chunks = -(-vectors // most)
        each, rest = -(-vectors // chunks), vectors % -(-vectors // chunks)

        def some(first: tir.Expr, count: int) -> tir.Stmt:
            return self._chunk(room, head, row, at, slot, first, count)

        last = (lambda: some(vectors - rest, rest)) if rest else None
        return tir.split("chunk", vectors // each, lambda turn: some(turn * each, each), last)

    def _chunk(
        self,
        room: Room,
        head: tir.Expr,
        row: tir.Expr,
        at: tir.Expr,
        slot: tir.Expr,
        first: tir.Expr,
        count: int,
    ) -> tir.Stmt:
        """`count` vectors of a result from number `first` on."""
        part, result, lanes = self.attention.values, self.attention.result, self.lanes
        values, step = room.tensor(part), part.places.strides[-2]
        start = start_of(part.places, head) + first * lanes
        answer = start_of(result, head) + row * result.strides[-2] + first * lanes
        side_by_side = max(1, _SUMS // count)
        sums = [
            [tir.Local(f"sum{i}_{j}", lanes, ELEMENT.name) for j in range(count)]
            for i in range(side_by_side)
        ]

        def add(key: tir.Expr, kept: Sequence[tir.Local]) -> tir.Stmt:
            inside = tir.Names()
            score = inside.bind("weight", self.get(room, at + key))
            weight = inside.bind("weights", tir.spread(score, lanes)) if lanes > 1 else score
            for j, total in enumerate(kept):
                value = _wide(values, start + key * step + j * lanes, lanes)
                inside.add(total.set(total.get() + weight * value))
            return inside.done()

        full, rest = divmod(self.keys, side_by_side)
        names = tir.Names()
        for total in (total for kept in sums for total in kept):
            names.add(total.declare())
            names.add(total.set(tir.number(0, ELEMENT.name, lanes)))

        def some(turn: tir.Expr, number: int) -> tir.Stmt:
            base = turn * side_by_side
            return tir.sequence(*(add(base + i, sums[i]) for i in range(number)))

        if full:
            names.add(tir.loop_of("key", full, lambda turn: some(turn, side_by_side)))
        if rest:
            names.add(some(full, rest))
        share = names.bind("share", tir.load(room.sums, [slot]))
        for j in range(count):
            value = sums[0][j].get()
            for kept in sums[1:]:
                value = value + kept[j].get()
            scaled = tir.cast(value * tir.spread(share, lanes), self.element.name)
            names.add(tir.store(room.out, scaled, [answer + j * lanes], lanes))
        return names.done()


def _wide(buffer: tirx.Buffer, at: tir.Expr, lanes: int = 1) -> tirx.Expr:
    """Elements in float32."""
    return tir.cast(tir.load(buffer, [at], lanes), ELEMENT.name)
