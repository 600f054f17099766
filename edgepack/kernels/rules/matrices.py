"""Products of plain matrices: of two tensors (attention), or of one of any rank and a constant.

    for each product of the batch
        for each panel of columns
            pack the panel of the right matrix, unless it is constant
            for each tile of rows
                sums in registers, as for a convolution of 1x1

A row of the left matrix is a pixel, its elements are the channels. Rows are read and written where
they are. Nothing is padded: where columns are no multiple of a vector, the last panel starts
earlier, and computes some of them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.layer import Layer, RowProduct
from edgepack.kernels.rules.rule import LayerKernel, Rows, RowsSite, Rule
from edgepack.kernels.tiles import arm, micro, tile, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32, Element
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.expression import Expression
from edgepack.kernels.tiles.layout import Blocked, pack_channels
from edgepack.kernels.tiles.matrix import Matrix, RowEpilogue
from edgepack.kernels.tiles.partition import worth_sharing
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    Window,
    choose_among,
    rank_tiles,
    type_of_sums,
)

# Fewer rows are over before a panel is packed.
_FEWEST_ROWS = 4


def takes(layer: Layer, cpu: CpuModel) -> bool:
    """Products that are no small ones, and whose results there is a way to finish once."""
    operator = layer.operator
    if not isinstance(operator, RowProduct):
        return False
    narrowest = cpu.narrowest(layer.element)
    if operator.rows < _FEWEST_ROWS or min(operator.depth, operator.columns) < narrowest:
        return False
    if operator.left_at is not None and operator.batch > 1:
        return False
    return _ProductKernel(layer=layer, cpu=cpu).finishes


def rows_of(layer: Layer, cpu: CpuModel) -> RowsSite:
    """Matrices, as many as there are products; operands are like the result."""
    operator = layer.operator
    assert isinstance(operator, RowProduct)
    step = operator.left_at.step if operator.left_at else operator.depth
    right, dtype = (operator.depth, operator.columns), layer.element.name
    inputs = [Rows(shape=(operator.left_batch, operator.rows, step), dtype=dtype)]
    if operator.weight is None:
        sizes = right[::-1] if operator.transposed else right
        inputs.append(Rows(shape=(operator.right_batch, *sizes), dtype=dtype))
    made = Rows(shape=(operator.batch, operator.rows, operator.columns), dtype=dtype)
    return RowsSite(
        layer=layer,
        inputs=tuple(inputs),
        operands=(made,) * len(layer.operands),
        output=made,
        cpu=cpu,
    )


def make(site: RowsSite) -> LayerKernel:
    """The kernel; packed panels of a right matrix that is no constant are its scratch."""
    return _ProductKernel(layer=site.layer, cpu=site.cpu).kernel(site)


def ways(site: RowsSite) -> list[Ranked]:
    """All tiles."""
    kernel = _ProductKernel(layer=site.layer, cpu=site.cpu)
    return [
        Ranked(
            choice=Way(rule=RULE.name, pixels=item.pixels, vectors=item.vectors),
            cycles=item.cycles * kernel.sizes.batch,
        )
        for item in kernel.tiles(kernel.lanes)
    ]


RULE = Rule(name="product", takes=takes, rows=rows_of, make=make, kept=True, ways=ways)


@dataclass(frozen=True, kw_only=True)
class _ProductKernel:
    layer: Layer
    cpu: CpuModel

    @property
    def sizes(self) -> RowProduct:
        """The operator, which has them."""
        assert isinstance(self.layer.operator, RowProduct)
        return self.layer.operator

    @property
    def element(self) -> Element:
        """Of both matrices and the result."""
        return self.layer.element

    @property
    def expression(self) -> Expression:
        """What is done to each result."""
        return self.layer.expression

    @property
    def finishes(self) -> bool:
        """Whether there is a way to finish each result once."""
        return bool(self._widths)

    @property
    def _in_a_pass(self) -> bool:
        """Whether results are finished in a pass over what is stored already."""
        if arm.micro_kernel(self.cpu, self.element) is None:
            return Epilogue(self._layout(1, 1), self.expression).is_long
        return micro.assembly_epilogue(self.expression) is None

    @property
    def _widths(self) -> list[int]:
        """Columns that a vector of results may have. Sums of halves are not stored before they are
        finished where two panels store them, see `_finished`: they would be rounded."""
        columns = self.sizes.columns
        fitting = [lanes for lanes in self.cpu.lanes(self.element) if lanes <= columns]
        whole = self._in_a_pass and self.element != FLOAT32
        return [lanes for lanes in fitting if not whole or columns % lanes == 0]

    @property
    def lanes(self) -> int:
        """Columns of a vector of results: of the cheapest tiles, the most."""
        return min(self._widths, key=lambda lanes: (self.tiles(lanes)[0].cycles, -lanes))

    def tiles(self, lanes: int) -> list[tile.RegisterTile]:
        """All tiles with vectors of `lanes` columns, the cheapest first."""
        target = self._layout(self.sizes.columns, lanes)
        return rank_tiles(
            target,
            blocks=target.blocks,
            reduction=self.sizes.depth,
            cpu=self.cpu,
            # Whole vectors: the last panel could not start earlier than the first column.
            most_vectors=self.sizes.columns // lanes,
        )

    def kernel(self, site: RowsSite) -> LayerKernel:
        """The kernel of a site."""
        sizes, cpu = self.sizes, self.cpu
        weight, layer = sizes.weight, self.layer
        lanes = self.lanes
        source = self._layout(sizes.depth, cpu.narrowest(self.element))
        target = self._layout(sizes.columns, lanes)
        shape = Shape(
            groups=1,
            in_blocks=source.blocks,
            in_block=source.block,
            last_lanes=(sizes.depth - 1) % source.block + 1,
            out_blocks=target.blocks,
            lanes=lanes,
            kernel=(1, 1),
            element=self.element,
        )
        chosen = choose_among(self.tiles(lanes), site.chosen(RULE.name))
        cycles = chosen.cycles * sizes.batch
        parallel = worth_sharing(cycles, cpu)
        by_batch = parallel and sizes.batch >= cpu.cores
        size = shape.panel(shape.out_blocks)
        last = (target.blocks - 1) // chosen.vectors * chosen.vectors
        shift = target.blocks * lanes - sizes.columns
        # What two panels store, one of them might find finished by the other.
        behind = bool(shift) and self._in_a_pass

        assert isinstance(site.output, Rows)
        left, *rights = (
            tir.buffer(name, seen.shape, self.element.name)
            for name, seen in zip(("left", "right"), site.inputs, strict=False)
        )
        out = tir.buffer("out", site.output.shape, self.element.name)
        kept = 1 if weight is not None or not by_batch else sizes.batch
        weights = tir.buffer("weights", (kept * size,), self.element.name)
        sums = type_of_sums(self.element, cpu)
        bias = tir.buffer("bias", (target.blocks * lanes,), sums)
        others = [
            tir.buffer(f"operand{i}", seen.shape, self.element.name)
            for i, seen in enumerate(site.operands)
        ]
        per_column = [
            tir.buffer(f"constant{i}", (target.blocks * lanes,), self.element.accumulator)
            for i in range(len(layer.constants))
        ]
        functions = micro.AssemblyFunctions()

        def finish(index: tir.Expr) -> RowEpilogue:
            given = [Matrix(item, index, target, last=last, shift=shift) for item in others]
            return RowEpilogue(target, self.expression, per_column, given)

        def loops_of(index: tir.Expr) -> ProductLoops:
            made = Matrix(out, index, target, last=last, shift=shift)
            first = index * size if kept > 1 else 0

            def pack(panel: tir.Expr, vectors: int) -> tir.Stmt:
                at = first + panel * shape.panel(chosen.vectors)
                column = made.column(panel * chosen.vectors)
                matrix = index if sizes.right_batch > 1 else 0
                return self._pack(rights[0], matrix, column, weights, at, vectors * lanes, lanes)

            return ProductLoops(
                cpu=cpu,
                window=Window(),
                shape=shape,
                tile=chosen,
                source=Matrix(
                    left,
                    index if sizes.left_batch > 1 else 0,
                    source,
                    start=sizes.left_at.first if sizes.left_at else 0,
                ),
                target=made,
                weights=weights,
                bias=bias,
                bias_first=sizes.bias is None,
                epilogue=RowEpilogue(target, (), (), ()) if behind else finish(index),
                functions=functions,
                prepare=pack if weight is None else None,
                first_weight=first,
            )

        def one(index: tir.Expr) -> tir.Stmt:
            shared = parallel and not by_batch
            made = Matrix(out, index, target, last=last, shift=shift)
            return tir.sequence(
                loops_of(index).group(0, 0, parallel=shared),
                _finished(finish(index), made, last, parallel=shared) if behind else None,
            )

        if weight is not None:
            arguments = [left, *others, weights, bias, *per_column, out]
        else:
            arguments = [left, *rights, *others, bias, *per_column, out, weights]

        def function() -> tirx.PrimFunc:
            body = tir.loop_of("matrix", sizes.batch, one, parallel=by_batch)
            # A result that two panels store would find what the first one left, not the operand.
            finishes = shift == 0 and loops_of(0).code.finishes
            in_place = [(item, out) for item in others] if finishes else []
            return tir.function(arguments, functions.imported(body), in_place=in_place)

        by_column = partial(_by_column, target=target, last=last, shift=shift)
        constants = [by_column(sizes.bias).astype(sums), *map(by_column, layer.constants)]
        if weight is not None:
            constants.insert(0, self._packed(weight, chosen, lanes))
        turned = "t" if sizes.transposed else ""
        return LayerKernel(
            name=f"product{turned}_{sizes.batch}_{sizes.rows}x{sizes.depth}x{sizes.columns}",
            function=function,
            constants=tuple(constants),
            tile=str(chosen),
            macs=sizes.batch * sizes.rows * sizes.depth * sizes.columns,
            cycles=cycles,
        )

    def _layout(self, channels: int, block: int) -> Blocked:
        return Blocked(
            element=self.element,
            batch=1,
            channels=channels,
            height=1,
            width=self.sizes.rows,
            block=block,
        )

    def _packed(self, value: np.ndarray, chosen: tile.RegisterTile, lanes: int) -> np.ndarray:
        """A constant's panels."""
        panels, start = [], 0
        for vectors, count in tile.parts(-(-self.sizes.columns // lanes), chosen.vectors):
            for _ in range(count):
                wide = vectors * lanes
                first = min(start, self.sizes.columns - wide)
                panels.append(value[:, first : first + wide].ravel())
                start += wide
        return np.concatenate(panels).astype(self.element.name)

    def _pack(
        self,
        right: tirx.Buffer,
        matrix: tir.Expr,
        column: tir.Expr,
        weights: tirx.Buffer,
        at: tir.Expr,
        wide: int,
        lanes: int,
    ) -> tir.Stmt:
        """`wide` columns from `column` on, row after row, to `weights` from `at` on."""
        depth = self.sizes.depth
        if not self.sizes.transposed:

            def row(k: tir.Expr) -> tir.Stmt:
                copies = (
                    tir.store(
                        weights,
                        tir.load(right, [matrix, k, column + v], lanes),
                        [at + k * wide + v],
                        lanes,
                    )
                    for v in range(0, wide, lanes)
                )
                return tir.sequence(*copies)

            return tir.loop_of("k", depth, row)
        side = 1 << (min(lanes, depth).bit_length() - 1)

        def square(k: tir.Expr, first: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            lines = [tir.load(right, [matrix, column + first + i, k], side) for i in range(side)]
            for i, line in enumerate(tir.transpose(names, lines)):
                names.add(tir.store(weights, line, [at + (k + i) * wide + first], side))
            return names.done()

        def squares(k: tir.Expr) -> tir.Stmt:
            return tir.loop_of("square", wide // side, lambda i: square(k, i * side))

        return tir.sequence(
            tir.loop_of("k", depth // side, lambda k: squares(k * side)),
            squares(depth - side) if depth % side else None,
        )


def _by_column(values: np.ndarray | None, *, target: Blocked, last: int, shift: int) -> np.ndarray:
    """One value per column, for each block those of its columns."""
    if values is None:
        return pack_channels(None, target)
    lanes = target.block
    starts = (block * lanes - shift * (block >= last) for block in range(target.blocks))
    return np.concatenate([values[start : start + lanes] for start in starts])


def _finished(epilogue: RowEpilogue, made: Matrix, last: int, *, parallel: bool) -> tir.Stmt:
    """The arithmetic on all sums of a product, each once: block `last` begins before the one in
    front of it ends, so it is read before that is finished, and stored behind it."""
    blocks, before = made.layout.blocks, tir.Local("first", made.layout.block, FLOAT32.name)

    def result(names: tir.Names, block: tir.Expr, row: tir.Expr, value: tirx.Expr) -> tirx.Expr:
        return epilogue.apply(names, value, block, 0, row, channel_block=block)

    def one(row: tir.Expr, block: tir.Expr) -> tir.Stmt:
        names = tir.Names()
        names.add(made.store(result(names, block, row, made.load(block, 0, row)), block, 0, row))
        return names.done()

    def row_of(row: tir.Expr) -> tir.Stmt:
        names = tir.Names()
        names.add(made.store(result(names, last, row, before.get()), last, 0, row))
        return tir.sequence(
            before.declare(),
            before.set(made.load(last, 0, row)),
            tir.loop_of("block", last, lambda block: one(row, block)),
            tir.loop_of("block", blocks - last - 1, lambda block: one(row, last + 1 + block))
            if blocks - last > 1
            else None,
            names.done(),
        )

    return tir.loop_of("row", made.layout.width, row_of, parallel=parallel)
