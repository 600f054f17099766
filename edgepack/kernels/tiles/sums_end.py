"""The end of a kernel whose sums of integers become numbers, by scales that are known only then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import INT8_BLOCK, CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.expression import Expression, evaluate
from edgepack.kernels.tiles.layout import Blocked, Image


@dataclass(frozen=True, kw_only=True, eq=False)
class SumsOperand:
    """A tensor that the arithmetic reads: of the result's shape, [1, pixel, column]; or of one
    number, or one for each column."""

    buffer: tirx.Buffer

    def load(self, pixel: tir.Expr, column: tir.Expr, lanes: int) -> tirx.Expr:
        """Its numbers for some columns of a pixel."""
        if len(self.buffer.shape) == 3:
            return tir.load(self.buffer, [0, pixel, column], lanes)
        if int(self.buffer.shape[0]) == 1:
            return tir.spread(tir.load(self.buffer, [0]), lanes)
        return tir.load(self.buffer, [column], lanes)


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightZeros:
    """What the zero points of weights take from sums: `zeros` (int32), one for each column, times
    `inputs` (int32), the sum of a pixel's inputs less their zero point, one for each pixel."""

    zeros: tirx.Buffer
    inputs: tirx.Buffer


class SumsEnd(Epilogue):
    """The arithmetic on float32 of the sums, once `less` is taken away; without `converts` they
    stay int32. `per_column` are its constants."""

    def __init__(
        self,
        output: Blocked,
        expression: Expression,
        per_column: Sequence[tirx.Buffer],
        operands: Sequence[SumsOperand],
        cpu: CpuModel,
        *,
        converts: bool,
        less: WeightZeros | None = None,
    ) -> None:
        super().__init__(output, expression)
        self.per_column, self.given = list(per_column), list(operands)
        self.converts, self.less = converts, less
        self.lanes = min(INT8_BLOCK, cpu.widest(FLOAT32))

    def finish(
        self,
        names: tir.Names,
        target: Image,
        sums: tirx.Expr,
        plane: tir.Expr,
        row: tir.Expr,
        pixel: tir.Expr,
    ) -> None:
        """Stores what a block's sums for a pixel become."""
        at, column = target.at(plane, row, pixel), self._column(target, plane)
        for part, piece in enumerate(tir.pieces(sums, self.lanes)):
            first, one = part * self.lanes, piece
            if self.less is not None:
                index = (plane // self.output.blocks * target.layout.height + row) * (
                    target.layout.width
                ) + pixel
                by = tir.load(self.less.zeros, [column + first], self.lanes)
                inputs = tir.spread(tir.load(self.less.inputs, [index]), self.lanes)
                one = names.keep("sum", one - by * inputs)
            value = tir.cast(one, "float32") if self.converts else one
            if self.expression:
                value = self._made(names, value, column + first, pixel)
            names.add(tir.store(target.buffer, value, [*at[:-1], at[-1] + first], self.lanes))

    def _column(self, target: Image, plane: tir.Expr) -> tir.Expr:
        """The first column of a block."""
        column = getattr(target, "column", None)
        return column(plane) if column else plane % self.output.blocks * INT8_BLOCK

    def _made(
        self, names: tir.Names, value: tirx.Expr, column: tir.Expr, pixel: tir.Expr
    ) -> tirx.Expr:
        def channel(index: int) -> tirx.Expr:
            return tir.load(self.per_column[index], [column], self.lanes)

        def operand(index: int, _pixel: bool) -> tirx.Expr:
            return self.given[index].load(pixel, column, self.lanes)

        return evaluate(self.expression, value, self.lanes, names, channel, operand)
