"""Products of a few rows and a constant, such as those of a decoder's step: each weight is read
once from memory, and that is what they take.

    for each panel of columns
        sums of all rows and columns in registers
        for each element of a row
            add it times the panel's weights for it

Weights may be integers that stand for numbers in blocks (`BlockQuantized`): they are in memory as
such, of 8 bits or of 4, and become numbers in registers. Each block has sums of its own, which its
scales multiply. With more rows a block is turned into numbers once, in memory next to the core, for
some rows at a time.

Nothing is padded: the last panel starts earlier, and computes some columns again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tvm import tirx

from edgepack.kernels.layer import BlockQuantized, Layer, RowProduct
from edgepack.kernels.rules import matrices
from edgepack.kernels.rules.rule import LayerKernel, Rows, RowsSite, Rule
from edgepack.kernels.tiles import tile, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.tiles.matrix import Matrix, RowEpilogue
from edgepack.kernels.tiles.partition import worth_sharing

# Rows whose sums are in registers at once; more are the engine's of all products, if the weights
# are numbers.
_MOST_ROWS = 3
# Sums side by side, so that none waits for the multiplication before, with as many registers.
_SUMS = {32: 8, 16: 4}
# Elements of a row that are loaded as one vector.
_TOGETHER = 4
# Rows for which a block is turned into numbers at once, of which so many elements in a turn.
_ROWS_OF_NUMBERS, _TURN = 8, 32
# Instructions that make numbers of a vector's integers, beside their load (a guess, from code for a
# Cortex-A72).
_TO_NUMBERS = {8: 3, 4: 3.5}


def takes(layer: Layer, cpu: CpuModel) -> bool:
    """A constant of integers, or few rows, in float32."""
    operator = layer.operator
    if not isinstance(operator, RowProduct) or operator.weight is None or operator.batch > 1:
        return False
    if layer.element != FLOAT32 or layer.weights != FLOAT32:
        return False
    kernel = _FewRows(operator, cpu)
    return kernel.fits and (kernel.integers is not None or operator.rows <= _MOST_ROWS)


def make(site: RowsSite) -> LayerKernel:
    """The kernel."""
    assert isinstance(site.layer.operator, RowProduct)
    return _FewRows(site.layer.operator, site.cpu).kernel(site)


RULE = Rule(name="few rows", takes=takes, rows=matrices.rows_of, make=make, kept=True, halves=False)


@dataclass(frozen=True)
class _FewRows:
    operator: RowProduct
    cpu: CpuModel

    @cached_property
    def lanes(self) -> int:
        """Columns of a vector."""
        return self.cpu.widest(FLOAT32)

    @property
    def integers(self) -> BlockQuantized | None:
        """What the weights are made of, in blocks along the depth; None: numbers."""
        given = self.operator.integers
        return given if given is not None and given.axis == 0 else None

    @cached_property
    def vectors(self) -> int:
        """Vectors of a panel: an even number, of integers of 4 bits, which lie in pairs."""
        if self.integers is None:
            most = max(_SUMS[32] // self.operator.rows, 1)
        else:  # what becomes numbers needs registers, too
            most = _SUMS[32 if self.cpu.registers >= 32 else 16]
        while most > 1 and most * self.lanes > self.operator.columns:
            most //= 2
        return most

    @property
    def fits(self) -> bool:
        """Whether there are as many columns as a panel has at least."""
        fewest = 2 if self.integers is not None else 1
        return self.vectors >= fewest and self.vectors * self.lanes <= self.operator.columns

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        return -(-self.operator.columns // self.width)

    @property
    def shift(self) -> int:
        """Columns by which the last panel starts earlier."""
        return self.panels * self.width - self.operator.columns

    @cached_property
    def blocks(self) -> list[tuple[int, int]]:
        """Blocks of integers as (first element, elements)."""
        depth = self.operator.depth
        block = self.integers.block if self.integers is not None else depth
        return [(first, min(block, depth - first)) for first in range(0, depth, block)]

    @property
    def cycles(self) -> float:
        """Of all rows: instructions, or the bytes of weights."""
        operator, cpu = self.operator, self.cpu
        weights = operator.depth * operator.columns
        rate = cpu.rate(FLOAT32, self.lanes)
        work, size = operator.rows / rate, 4.0
        if self.integers is not None:
            turns = -(-operator.rows // _ROWS_OF_NUMBERS)
            work += turns * _TO_NUMBERS[self.integers.bits] / rate
            size = self.integers.bits / 8
        return weights * max(work / self.lanes, size / cpu.memory_bandwidth)

    # ------------------------------------------------ what is packed

    def by_panel(self, values: np.ndarray) -> np.ndarray:
        """Columns [.., columns] in the order of panels [panels, .., width]."""
        starts = [
            min(i * self.width, self.operator.columns - self.width) for i in range(self.panels)
        ]
        return np.stack([values[..., start : start + self.width] for start in starts])

    def by_column(self, values: np.ndarray | None) -> np.ndarray:
        """One value per column, 0 if there is none."""
        if values is None:
            values = np.zeros(self.operator.columns, FLOAT32.name)
        return self.by_panel(values).ravel().astype(FLOAT32.name)

    def packed(self) -> list[np.ndarray]:
        """Weights; of integers their scales and their zero points, if there are any, too."""
        operator, given = self.operator, self.integers
        assert operator.weight is not None
        if given is None:
            return [self.by_panel(operator.weight).astype(FLOAT32.name).ravel()]
        values = self.by_panel(given.values.astype("int16") - self._centre).astype("int8")
        if given.bits == 4:
            low, high = values[..., : self.width // 2], values[..., self.width // 2 :]
            values = (low & 15 | high << 4).astype("int8")
        made = [values.ravel(), self.by_panel(given.scale).astype(FLOAT32.name).ravel()]
        if self.zeros is not None:
            zeros = np.zeros(given.scale.shape, "int16")
            if given.zero_point is not None:
                zeros = given.zero_point.astype("int16")
            made.append(self.by_panel(zeros - self._centre).astype(self.zeros).ravel())
        return made

    @property
    def _centre(self) -> int:
        """What is taken from unsigned integers, so that they are signed."""
        assert self.integers is not None
        return 0 if self.integers.values.dtype == np.int8 else 1 << (self.integers.bits - 1)

    @property
    def zeros(self) -> str | None:
        """The type of zero points, which integers less them fit as well; None if all are 0."""
        if self.integers is None or (self.integers.zero_point is None and not self._centre):
            return None
        return "int8" if self.integers.bits == 4 else "int16"

    # ------------------------------------------------ the kernel

    def kernel(self, site: RowsSite) -> LayerKernel:
        """The kernel of a site."""
        operator, layer = self.operator, site.layer
        assert isinstance(site.output, Rows)
        left = tir.buffer("left", site.inputs[0].shape, FLOAT32.name)
        out = tir.buffer("out", site.output.shape, FLOAT32.name)
        others = [
            tir.buffer(f"operand{i}", seen.shape, FLOAT32.name)
            for i, seen in enumerate(site.operands)
        ]
        packed = [*self.packed(), self.by_column(operator.bias)]
        names = ["weights", *["scales", "zeros"][: len(packed) - 2], "bias"]
        constants = [*packed, *map(self.by_column, layer.constants)]
        names += [f"constant{i}" for i in range(len(layer.constants))]
        given = [
            tir.buffer(name, value.shape, str(value.dtype))
            for name, value in zip(names, constants, strict=True)
        ]
        layout = Blocked(
            element=FLOAT32,
            batch=1,
            channels=operator.columns,
            height=1,
            width=operator.rows,
            block=self.lanes,
        )

        def matrix(buffer: tirx.Buffer) -> Matrix:
            last = (self.panels - 1) * self.vectors
            return Matrix(buffer, 0, layout, last=last, shift=self.shift)

        per_column = given[len(packed) :]
        body = _FewRowsLoops(
            plan=self,
            given=dict(zip(names, given, strict=True)),
            left=left,
            first=operator.left_at.first if operator.left_at else 0,
            target=matrix(out),
            epilogue=RowEpilogue(
                layout, layer.expression, per_column, [matrix(item) for item in others]
            ),
        )
        cycles = self.cycles

        def function() -> tirx.PrimFunc:
            parallel = worth_sharing(cycles, self.cpu)
            made = tir.loop_of("panel", self.panels, body.panel, parallel=parallel)
            # Two panels that overlap store results that the other one would find.
            in_place = [] if self.shift else [(item, out) for item in others]
            return tir.function([left, *others, *given, out], made, in_place=in_place)

        bits = f"_{self.integers.bits}bits" if self.integers is not None else ""
        return LayerKernel(
            name=f"rows_{operator.rows}x{operator.depth}x{operator.columns}{bits}",
            function=function,
            constants=tuple(constants),
            tile=f"{min(operator.rows, _ROWS_OF_NUMBERS)}x{self.vectors}",
            macs=operator.rows * operator.depth * operator.columns,
            cycles=cycles,
        )


@dataclass(frozen=True, kw_only=True)
class _FewRowsLoops:
    """The loops of a kernel."""

    plan: _FewRows
    given: dict[str, tirx.Buffer]
    left: tirx.Buffer
    first: int
    target: Matrix
    epilogue: RowEpilogue

    def panel(self, panel: tir.Expr) -> tir.Stmt:
        """All rows of a panel's columns."""
        rows = self.plan.operator.rows
        if self.plan.integers is None:
            return self._at_once(panel, rows)
        if rows == 1:
            return self._by_blocks(panel)

        def some(first: tir.Expr, count: int) -> tir.Stmt:
            return self._by_numbers(panel, first, count)

        done, parts = 0, []
        for count, times in tile.parts(rows, _ROWS_OF_NUMBERS):

            def turn(index: tir.Expr, count: int = count, done: int = done) -> tir.Stmt:
                return some(done + index * count, count)

            parts.append(tir.loop_of("rows", times, turn))
            done += count * times
        return tir.sequence(*parts)

    def _at_once(self, panel: tir.Expr, rows: int) -> tir.Stmt:
        """A product of a few rows and numbers."""
        plan = self.plan
        sums = self._sums(rows)
        start = panel * plan.operator.depth * plan.width

        def add(k: tir.Expr, elements: Sequence[tirx.Expr]) -> tir.Stmt:
            at = start + k * plan.width
            weights = [
                tir.load(self.given["weights"], [at + v * plan.lanes], plan.lanes)
                for v in range(plan.vectors)
            ]
            return self._add(sums, elements, weights)

        return tir.sequence(
            *self._start(panel, sums),
            self._along(0, plan.operator.depth, range(rows), add),
            self._finish(panel, 0, [[item.get() for item in row] for row in sums]),
        )

    def _by_blocks(self, panel: tir.Expr) -> tir.Stmt:
        """A product of one row and integers: sums of a block, which its scales multiply then."""
        plan = self.plan
        (totals,) = all_totals = self._sums(1, "total")
        sums = self._sums(1)

        def block(number: tir.Expr, first: tir.Expr, count: int) -> tir.Stmt:
            names = tir.Names()
            zeros = self._zeros(names, panel, number)

            def add(k: tir.Expr, elements: Sequence[tirx.Expr]) -> tir.Stmt:
                return self._add(sums, elements, self._integers(panel, k, zeros))

            for item in sums[0]:
                names.add(item.set(tir.number(0.0, FLOAT32.name, plan.lanes)))
            names.add(self._along(first, count, range(1), add))
            for v, (total, item) in enumerate(zip(totals, sums[0], strict=True)):
                scaled = item.get() * self._scale(panel, number, v)
                names.add(total.set(total.get() + scaled))
            return names.done()

        return tir.sequence(
            *(item.declare() for item in sums[0]),
            *self._start(panel, all_totals),
            self._each_block(block),
            self._finish(panel, 0, [[item.get() for item in totals]]),
        )

    def _by_numbers(self, panel: tir.Expr, first_row: tir.Expr, rows: int) -> tir.Stmt:
        """A product of some rows and integers, which become numbers a turn at a time."""
        plan = self.plan
        numbers = tir.Local("number", plan.lanes, FLOAT32.name, count=_TURN * plan.vectors)
        totals = tir.Local("total", plan.lanes, FLOAT32.name, count=rows * plan.vectors)
        together = max(_SUMS[32 if plan.cpu.registers >= 32 else 16] // plan.vectors, 1)

        def block(number: tir.Expr, first: tir.Expr, count: int) -> tir.Stmt:
            turns, rest = divmod(count, _TURN)

            def turn(index: tir.Expr, size: int) -> tir.Stmt:
                return self._turn(panel, number, first + index * _TURN, size, numbers, products)

            def products(at: tir.Expr, size: int) -> tir.Stmt:
                return tir.sequence(
                    *self._products(at, size, first_row, rows, together, numbers, totals)
                )

            return tir.sequence(
                tir.loop_of("turn", turns, lambda i: turn(i, _TURN)) if turns else None,
                turn(turns, rest) if rest else None,
            )

        starts = [
            totals.set(self._bias(panel, v), row * plan.vectors + v)
            for row in range(rows)
            for v in range(plan.vectors)
        ]

        def finish(row: tir.Expr) -> tir.Stmt:
            values = [totals.get(row * plan.vectors + v) for v in range(plan.vectors)]
            return self._finish(panel, first_row + row, [values])

        return tir.sequence(
            numbers.declare(),
            totals.declare(),
            *starts,
            self._each_block(block),
            tir.loop_of("row", rows, finish),
        )

    def _turn(
        self,
        panel: tir.Expr,
        number: tir.Expr,
        first: tir.Expr,
        size: int,
        numbers: tir.Local,
        products: Callable[[tir.Expr, int], tir.Stmt],
    ) -> tir.Stmt:
        plan = self.plan
        names = tir.Names()
        zeros = self._zeros(names, panel, number)
        scales = [names.bind("scale", self._scale(panel, number, v)) for v in range(plan.vectors)]

        def one(k: tir.Expr) -> tir.Stmt:
            made = self._integers(panel, first + k, zeros)
            return tir.sequence(
                *(
                    numbers.set(value * scale, k * plan.vectors + v)
                    for v, (value, scale) in enumerate(zip(made, scales, strict=True))
                )
            )

        names.add(tir.loop_of("k", size, one))
        names.add(products(first, size))
        return names.done()

    def _products(
        self,
        at: tir.Expr,
        size: int,
        first_row: tir.Expr,
        rows: int,
        together: int,
        numbers: tir.Local,
        totals: tir.Local,
    ) -> list[tir.Stmt]:
        """What a turn's numbers add to the totals of all rows, some of them at once."""
        plan, done, made = self.plan, 0, []
        for count, times in tile.parts(rows, together):
            sums = self._sums(count)

            def some(index: tir.Expr, count: int = count, done: int = done, sums=sums) -> tir.Stmt:  # type: ignore[no-untyped-def]
                first = done + index * count
                places = [
                    (sums[row][v], (first + row) * plan.vectors + v)
                    for row in range(count)
                    for v in range(plan.vectors)
                ]

                def add(k: tir.Expr, elements: Sequence[tirx.Expr]) -> tir.Stmt:
                    turn = (k - at) * plan.vectors
                    weights = [numbers.get(turn + v) for v in range(plan.vectors)]
                    return self._add(sums, elements, weights)

                return tir.sequence(
                    *(item.declare() for item, _ in places),
                    *(item.set(totals.get(place)) for item, place in places),
                    self._along(at, size, [first_row + first + i for i in range(count)], add),
                    *(totals.set(item.get(), place) for item, place in places),
                )

            made.append(tir.loop_of("some", times, some))
            done += count * times
        return made

    # ------------------------------------------------ their parts

    def _sums(self, rows: int, name: str = "sum") -> list[list[tir.Local]]:
        return [
            [
                tir.Local(f"{name}{row}_{v}", self.plan.lanes, FLOAT32.name)
                for v in range(self.plan.vectors)
            ]
            for row in range(rows)
        ]

    def _start(self, panel: tir.Expr, sums: Sequence[Sequence[tir.Local]]) -> list[tir.Stmt]:
        return [
            statement
            for row in sums
            for v, item in enumerate(row)
            for statement in (item.declare(), item.set(self._bias(panel, v)))
        ]

    def _bias(self, panel: tir.Expr, v: int) -> tirx.Expr:
        at = panel * self.plan.width + v * self.plan.lanes
        return tir.load(self.given["bias"], [at], self.plan.lanes)

    def _scale(self, panel: tir.Expr, number: tir.Expr, v: int) -> tirx.Expr:
        plan = self.plan
        at = (panel * len(plan.blocks) + number) * plan.width + v * plan.lanes
        return tir.load(self.given["scales"], [at], plan.lanes)

    def _zeros(self, names: tir.Names, panel: tir.Expr, number: tir.Expr) -> list[tirx.Expr]:
        """Zero points of a block's columns, as many at a time as integers are loaded; none: 0."""
        plan = self.plan
        if plan.zeros is None or plan.integers is None:
            return []
        lanes = plan.width * plan.integers.bits // 8
        at = (panel * len(plan.blocks) + number) * plan.width
        return [
            names.bind("zero", tir.load(self.given["zeros"], [at + first], lanes))
            for first in range(0, plan.width, lanes)
        ]

    def _integers(
        self, panel: tir.Expr, k: tir.Expr, zeros: Sequence[tirx.Expr]
    ) -> list[tirx.Expr]:
        """A panel's weights for an element of the row, in float32, without their scale."""
        plan = self.plan
        assert plan.integers is not None
        lanes = plan.width * plan.integers.bits // 8
        at = (panel * plan.operator.depth + k) * lanes
        raw = tir.load(self.given["weights"], [at], lanes)
        parts = [raw]
        if plan.integers.bits == 4:
            parts = [_byte_op(tirx.shift_left, raw, 4), raw]
        if zeros:
            assert plan.zeros is not None
            if plan.integers.bits == 4:
                parts = [_byte_op(tirx.shift_right, part, 4) for part in parts]
            parts = [
                tir.cast(part, plan.zeros) - zero for part, zero in zip(parts, zeros, strict=True)
            ]
        elif plan.integers.bits == 4:
            # The upper half of each byte, the lower one all zeros, is 16 times the integer.
            parts[1] = _byte_op(tirx.bitwise_and, raw, -16)
        times = 16 if plan.integers.bits == 4 and not zeros else 1
        return [vector for part in parts for vector in self._as_numbers(part, times)]

    def _as_numbers(self, part: tirx.Expr, times: int) -> list[tirx.Expr]:
        """Vectors of float32 of the bytes of a vector, which are `times` integers."""
        lanes, size = self.plan.lanes, int(part.ty.dtype.lanes)
        kind = str(part.ty.dtype.with_lanes(1))
        if self.plan.cpu.isa != "aarch64" or kind != "int8" or size % 16:
            if times > 1:
                part = _byte_op(tirx.shift_right, part, times.bit_length() - 1)
            return tir.pieces(tir.cast(part, FLOAT32.name), lanes)
        # A table look-up puts each byte on top of zeros, and one instruction makes a number of what
        # is that far up: LLVM finds both in this.
        up = tirx.Broadcast(tir.integer(23 + times.bit_length()), lanes)
        zeros = tirx.Broadcast(tirx.const(0, "int8"), 16)
        made = []
        for vector in tir.pieces(part, 16):
            for first in range(0, 16, 4):
                order = [at for lane in range(first, first + 4) for at in (16, 16, 16, lane)]
                top = tirx.Shuffle([vector, zeros], [tir.integer(at) for at in order])
                down = tirx.shift_right(tirx.reinterpret("int32x4", top), up)
                made.append(tir.cast(down, FLOAT32.name))
        return made

    def _add(
        self,
        sums: Sequence[Sequence[tir.Local]],
        elements: Sequence[tirx.Expr],
        weights: Sequence[tirx.Expr],
    ) -> tir.Stmt:
        names = tir.Names()
        bound = [names.bind("weight", weight) for weight in weights]
        for row, element in zip(sums, elements, strict=True):
            value = names.bind("x", tir.spread(element, self.plan.lanes))
            for item, weight in zip(row, bound, strict=True):
                names.add(item.set(item.get() + value * weight))
        return names.done()

    def _along(
        self,
        first: tir.Expr,
        count: int,
        rows: Sequence[tir.Expr],
        add: Callable[[tir.Expr, Sequence[tirx.Expr]], tir.Stmt],
    ) -> tir.Stmt:
        """Something for each of `count` elements of some rows from `first` on."""
        together = _TOGETHER if self.plan.integers is None else 1
        full, rest = divmod(count, together)

        def some(start: tir.Expr, size: int) -> tir.Stmt:
            names = tir.Names()
            vectors = [
                names.bind("xs", tir.load(self.left, [0, row, self.first + start], size))
                for row in rows
            ]
            for i in range(size):
                elements = [
                    tirx.Shuffle([vector], [tir.integer(i)]) if size > 1 else vector
                    for vector in vectors
                ]
                names.add(add(start + i, elements))
            return names.done()

        return tir.sequence(
            tir.loop_of("k", full, lambda k: some(first + k * together, together))
            if full
            else None,
            *(some(first + full * together + i, 1) for i in range(rest)),
        )

    def _each_block(self, body: Callable[[tir.Expr, tir.Expr, int], tir.Stmt]) -> tir.Stmt:
        """A loop over blocks, given their number, first element and size."""
        blocks = self.plan.blocks
        size, (start, rest) = blocks[0][1], blocks[-1]
        full = len(blocks) - (rest != size)
        return tir.sequence(
            tir.loop_of("block", full, lambda number: body(number, number * size, size)),
            body(full, start, rest) if full < len(blocks) else None,
        )

    def _finish(
        self, panel: tir.Expr, row: tir.Expr, results: Sequence[Sequence[tirx.Expr]]
    ) -> tir.Stmt:
        """Store results of some rows from `row` on, after the arithmetic on them."""
        names = tir.Names()
        for number, values in enumerate(results):
            for v, value in enumerate(values):
                at = (panel * self.plan.vectors + v, 0, row + number)
                names.add(self.target.store(self.epilogue.apply(names, value, *at), *at))
        return names.done()


def _byte_op(
    operation: Callable[[tirx.Expr, tirx.Expr], tirx.Expr], value: tirx.Expr, by: int
) -> tirx.Expr:
    return operation(value, tirx.Broadcast(tirx.const(by, "int8"), int(value.ty.dtype.lanes)))
