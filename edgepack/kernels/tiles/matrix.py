"""Matrices that lie as the model has them, as images inside of kernels."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.expression import Expression
from edgepack.kernels.tiles.layout import Blocked, Image


class Matrix(Image):
    """One matrix of a batch as an image: a row of pixels, blocks of channels side by side.

    Planes from `last` on, which are the last panel's, start `shift` columns earlier. The matrix
    itself starts at column `start` of the buffer, whose rows may be longer.
    """

    overlaps = True

    def __init__(
        self,
        buffer: tirx.Buffer,
        index: tir.Expr,
        layout: Blocked,
        *,
        last: int = 0,
        shift: int = 0,
        start: int = 0,
    ) -> None:
        self.layout, self.buffer = layout, buffer
        self.step, self.first = (1, 1), (0, 0)
        self.index, self.last, self.shift, self.start = index, last, shift, start

    @property
    def pixel_bytes(self) -> int:
        return self.layout.element.bytes * int(self.buffer.shape[2])

    @property
    def row_bytes(self) -> int:
        return self.pixel_bytes * int(self.buffer.shape[1])

    @property
    def plane_bytes(self) -> int:
        return self.layout.element.bytes * self.layout.block

    def column(self, plane: tir.Expr) -> tir.Expr:
        """The first column of a block."""
        column = plane * self.layout.block
        if not self.shift:
            return column
        if isinstance(plane, int):
            return column - self.shift * (plane >= self.last)
        return column - tirx.Select(plane >= self.last, tir.integer(self.shift), tir.integer(0))

    def at(
        self, plane: tir.Expr, row: tir.Expr, column: tir.Expr, lane: tir.Expr = 0
    ) -> list[tir.Expr]:
        return [self.index, column, self.start + self.column(plane) + lane]


class RowEpilogue(Epilogue):
    """The arithmetic on the results of a product, with operands that are matrices, too."""

    def __init__(
        self,
        output: Blocked,
        expression: Expression,
        constants: Sequence[tirx.Buffer],
        operands: Sequence[Matrix],
    ) -> None:
        super().__init__(output, expression)
        self.constants = list(constants)
        self.operands = list(operands)
