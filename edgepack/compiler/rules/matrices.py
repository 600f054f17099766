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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx

from edgepack.compiler.layers.rows import RowProduct
from edgepack.compiler.layers.strided import RowsAt
from edgepack.compiler.layers.tensors import constant_of, shape_of
from edgepack.compiler.rules.rule import LayerKernel, PlainKernel, product
from edgepack.compiler.tiles import arm, micro, tile, tir
from edgepack.compiler.tiles.cpu import CpuModel
from edgepack.compiler.tiles.element import FLOAT32
from edgepack.compiler.tiles.epilogue import Epilogue
from edgepack.compiler.tiles.expression import Expression
from edgepack.compiler.tiles.layout import Blocked, pack_channels
from edgepack.compiler.tiles.matrix import Matrix
from edgepack.compiler.tiles.partition import worth_sharing
from edgepack.compiler.tiles.product import ProductLoops, Shape, Window, choose_tile

# What there are kernels for.
_ELEMENT = FLOAT32
# Fewer rows are over before a panel is packed.
_FEWEST_ROWS = 4


def make(
    call: relax.Call,
    made: Mapping[relax.Var, relax.Expr],
    cpu: CpuModel,
    rows: RowProduct | None = None,
    left_at: RowsAt | None = None,
) -> PlainKernel | None:
    """The kernel of a `relax.matmul`; None for anything else, small ones and other types.

    A right matrix that was transposed before is read as it was. With `rows`, which has the call,
    the arithmetic on its results is part of it. With `left_at` the rows of the left matrix, of
    which there is one then, lie in a larger tensor.
    """
    if call.op != tvm.ir.Op.get("relax.matmul") or str(call.ty.dtype) != _ELEMENT.name:
        return None
    left, right = call.args
    out, turned = shape_of(call), False
    if constant_of(left) is not None or not out or len(shape_of(left)) < 2:
        return None
    before = made.get(right) if isinstance(right, relax.Var) else None
    if isinstance(before, relax.Call) and _is_transpose(before):
        right, turned = before.args[0], True
    sizes = _sizes(shape_of(left), shape_of(right), turned)
    if sizes is None or product(out) != sizes.batch * sizes.rows * sizes.columns:
        return None
    narrowest = cpu.narrowest(_ELEMENT)
    if sizes.rows < _FEWEST_ROWS or min(sizes.depth, sizes.columns) < narrowest:
        return None
    value = constant_of(right)
    is_odd = value is not None and (turned or sizes.right_batch > 1)
    matrices = _Product(
        sizes=sizes,
        left_at=left_at or RowsAt(first=0, step=sizes.depth),
        turned=turned,
        constant=value,
        cpu=cpu,
        rows=rows,
    )
    is_odd = is_odd or (left_at is not None and sizes.batch > 1)
    if is_odd or not matrices.finishes:
        return None
    inputs = [(left, matrices.left_shape)]
    if value is None:
        inputs.append((right, sizes.right_shape(turned)))
    if rows is not None:
        inputs += [(operand, matrices.shape) for operand in rows.operands]
    return PlainKernel(
        rule="product",
        kernel=matrices.kernel(),
        inputs=tuple(inputs),
        shape=matrices.shape,
        dtype=_ELEMENT.name,
        made_from=matrices.made_from,
    )


def _is_transpose(value: relax.Call) -> bool:
    """Whether it swaps the last two axes of a variable, and nothing else."""
    if value.op != tvm.ir.Op.get("relax.permute_dims") or not isinstance(value.args[0], relax.Var):
        return False
    rank = len(shape_of(value))
    axes = [int(axis) for axis in value.attrs.axes or reversed(range(rank))]
    return axes == [*range(rank - 2), rank - 1, rank - 2]


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """`batch` products of [rows, depth] and [depth, columns]; a batch of 1 serves all of them."""

    left_batch: int
    right_batch: int
    rows: int
    depth: int
    columns: int

    @property
    def batch(self) -> int:
        return max(self.left_batch, self.right_batch)

    def right_shape(self, turned: bool) -> tuple[int, int, int]:
        sizes = (self.columns, self.depth) if turned else (self.depth, self.columns)
        return self.right_batch, *sizes


def _sizes(left: tuple[int, ...], right: tuple[int, ...], turned: bool) -> _Sizes | None:
    """None where batches are not equal, nor one of them 1."""
    if len(right) < 2:
        return None
    ones, others = product(left[:-2]), product(right[:-2])
    depth, columns = reversed(right[-2:]) if turned else right[-2:]
    if others == 1:
        # The rows of all products are those of one.
        return _Sizes(
            left_batch=1,
            right_batch=1,
            rows=ones * left[-2],
            depth=depth,
            columns=columns,
        )
    if ones != 1 and left[:-2] != right[:-2]:
        return None
    return _Sizes(left_batch=ones, right_batch=others, rows=left[-2], depth=depth, columns=columns)


class _RowEpilogue(Epilogue):
    """The arithmetic on a product's results, with operands that are matrices, too."""

    def __init__(
        self,
        output: Blocked,
        expression: Expression,
        constants: list[tirx.Buffer],
        operands: list[Matrix],
    ) -> None:
        super().__init__(output, expression)
        self.constants = constants
        self.operands = list(operands)


@dataclass(frozen=True, kw_only=True)
class _Product:
    sizes: _Sizes
    left_at: RowsAt
    turned: bool
    constant: np.ndarray | None
    cpu: CpuModel
    rows: RowProduct | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """That of the result."""
        return self.sizes.batch, self.sizes.rows, self.sizes.columns

    @property
    def left_shape(self) -> tuple[int, int, int]:
        """That of the memory in which the left matrices lie."""
        return self.sizes.left_batch, self.sizes.rows, self.left_at.step

    @property
    def made_from(self) -> tuple[object, ...]:
        """All that the kernel's function depends on."""
        constant, rows = self.constant is not None, self.rows
        counts = (len(rows.operands), len(rows.constants)) if rows else (0, 0)
        return self.sizes, self.left_at, self.turned, constant, self.cpu, self.expression, counts

    @property
    def expression(self) -> Expression:
        """What is done to each result."""
        return self.rows.expression if self.rows else ()

    @property
    def finishes(self) -> bool:
        """Whether there is a way to finish each result once."""
        return bool(self._widths)

    @property
    def _widths(self) -> list[int]:
        """Columns that a vector of results may have.

        Where the last panel overlaps the one before, results are stored by both. Each may find what
        the other one has finished, if that is done in a pass over what is stored already.
        """
        columns = self.sizes.columns
        fitting = [lanes for lanes in self.cpu.lanes(_ELEMENT) if lanes <= columns]
        if arm.micro_kernel(self.cpu, _ELEMENT) is None:
            in_a_pass = Epilogue(self._layout(1, 1), self.expression).is_long
        else:
            in_a_pass = micro.assembly_epilogue(self.expression) is None
        return [lanes for lanes in fitting if not in_a_pass or columns % lanes == 0]

    @property
    def lanes(self) -> int:
        """Columns of a vector of results: of the cheapest tiles, the most."""
        return min(self._widths, key=lambda lanes: (self._tile(lanes).cycles, -lanes))

    def _tile(self, lanes: int) -> tile.RegisterTile:
        target = self._layout(self.sizes.columns, lanes)
        return choose_tile(
            target,
            blocks=target.blocks,
            reduction=self.sizes.depth,
            cpu=self.cpu,
            # Whole vectors: the last panel could not start earlier than the first column.
            most_vectors=self.sizes.columns // lanes,
        )

    def kernel(self) -> LayerKernel:
        """The kernel; packed panels of a right matrix that is no constant are its scratch."""
        sizes, cpu = self.sizes, self.cpu
        lanes = self.lanes
        source = self._layout(sizes.depth, cpu.narrowest(_ELEMENT))
        target = self._layout(sizes.columns, lanes)
        shape = Shape(
            groups=1,
            in_blocks=source.blocks,
            in_block=source.block,
            last_lanes=(sizes.depth - 1) % source.block + 1,
            out_blocks=target.blocks,
            lanes=lanes,
            kernel=(1, 1),
            element=_ELEMENT,
        )
        chosen = self._tile(lanes)
        cycles = chosen.cycles * sizes.batch
        parallel = worth_sharing(cycles, cpu)
        by_batch = parallel and sizes.batch >= cpu.cores
        size = shape.panel(shape.out_blocks)
        last = (target.blocks - 1) // chosen.vectors * chosen.vectors
        shift = target.blocks * lanes - sizes.columns

        left = tir.buffer("left", self.left_shape, _ELEMENT.name)
        right = tir.buffer("right", sizes.right_shape(self.turned), _ELEMENT.name)
        out = tir.buffer("out", self.shape, _ELEMENT.name)
        kept = 1 if self.constant is not None or not by_batch else sizes.batch
        weights = tir.buffer("weights", (kept * size,), _ELEMENT.name)
        bias = tir.buffer("bias", (target.blocks * lanes,), _ELEMENT.accumulator)
        given = self.rows.constants if self.rows else ()
        others = [
            tir.buffer(f"operand{i}", self.shape, _ELEMENT.name)
            for i in range(len(self.rows.operands) if self.rows else 0)
        ]
        per_column = [
            tir.buffer(f"constant{i}", (target.blocks * lanes,), _ELEMENT.name)
            for i in range(len(given))
        ]
        functions = micro.AssemblyFunctions()

        def by_column(values: np.ndarray | None) -> np.ndarray:
            """One value per column, for each block those of its columns."""
            if values is None:
                return pack_channels(None, target)
            starts = (block * lanes - shift * (block >= last) for block in range(target.blocks))
            return np.concatenate([values[start : start + lanes] for start in starts])

        def loops_of(index: tir.Expr) -> ProductLoops:
            made = Matrix(out, index, target, last=last, shift=shift)
            first = index * size if kept > 1 else 0

            def pack(panel: tir.Expr, vectors: int) -> tir.Stmt:
                at = first + panel * shape.panel(chosen.vectors)
                column = made.column(panel * chosen.vectors)
                matrix = index if sizes.right_batch > 1 else 0
                return self._pack(right, matrix, column, weights, at, vectors * lanes, lanes)

            return ProductLoops(
                cpu=cpu,
                window=Window(),
                shape=shape,
                tile=chosen,
                source=Matrix(
                    left,
                    index if sizes.left_batch > 1 else 0,
                    source,
                    start=self.left_at.first,
                ),
                target=made,
                weights=weights,
                bias=bias,
                bias_first=self.rows is None or self.rows.bias is None,
                epilogue=_RowEpilogue(
                    target,
                    self.expression,
                    per_column,
                    [Matrix(item, index, target, last=last, shift=shift) for item in others],
                ),
                functions=functions,
                prepare=pack if self.constant is None else None,
                first_weight=first,
            )

        def one(index: tir.Expr) -> tir.Stmt:
            return loops_of(index).group(0, 0, parallel=parallel and not by_batch)

        if self.constant is not None:
            arguments = [left, *others, weights, bias, *per_column, out]
        else:
            arguments = [left, right, *others, bias, *per_column, out, weights]

        def function() -> tirx.PrimFunc:
            body = tir.loop_of("matrix", sizes.batch, one, parallel=by_batch)
            # A result that two panels store would find what the first one left, not the operand.
            finishes = shift == 0 and loops_of(0).code.finishes
            in_place = [(item, out) for item in others] if finishes else []
            return tir.function(arguments, functions.imported(body), in_place=in_place)

        constants = [by_column(self.rows.bias if self.rows else None), *map(by_column, given)]
        if self.constant is not None:
            value = self.constant.reshape(sizes.depth, sizes.columns)
            constants.insert(0, self._packed(value, chosen, lanes))
        turned = "t" if self.turned else ""
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
            element=_ELEMENT,
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
        return np.concatenate(panels)

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
        if not self.turned:

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
            for i, line in enumerate(tir.transposed(names, lines)):
                names.add(tir.store(weights, line, [at + (k + i) * wide + first], side))
            return names.done()

        def squares(k: tir.Expr) -> tir.Stmt:
            return tir.loop_of("square", wide // side, lambda i: square(k, i * side))

        return tir.sequence(
            tir.loop_of("k", depth // side, lambda k: squares(k * side)),
            squares(depth - side) if depth % side else None,
        )
