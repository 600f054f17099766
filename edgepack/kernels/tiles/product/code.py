"""What the loops of a product want of the code of one tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import Image
from edgepack.kernels.tiles.product.shape import Shape, Window


@dataclass(frozen=True, kw_only=True)
class TileAt:
    """Where a tile lies in the tensors and in the packed weights.

    It is `pixels` results from `column` on, in `vectors` blocks of channels.
    """

    in_plane: tir.Expr
    plane: tir.Expr
    channel_block: tir.Expr
    weights: tir.Expr
    row: tir.Expr
    column: tir.Expr
    pixels: int
    vectors: int


@dataclass(frozen=True, kw_only=True)
class ProductTensors:
    """What a product reads and writes, and what is done to its sums.

    A group's planes follow the one before's in `source` and `target`; there may be more of them
    than `shape` says. The bias is added to sums that are done, for the large number that it may be
    would round each product away that follows; they start with it if `bias_first`, where it is
    mostly zero.
    """

    shape: Shape
    window: Window
    source: Image
    target: Image
    weights: tirx.Buffer
    bias: tirx.Buffer
    epilogue: Epilogue
    bias_first: bool = False

    def input(
        self, at: TileAt, pixel: int, row: tir.Expr, column: tir.Expr
    ) -> tuple[tir.Expr, tir.Expr]:
        """The input pixel under a point of the window, counted from the image's corner."""
        window = self.window
        return (
            at.row * window.stride[0] + row * window.dilation[0] - window.before[0],
            (at.column + pixel) * window.stride[1] + column * window.dilation[1] - window.before[1],
        )


class TileCode(Protocol):
    """Writes the code of tiles: reduce, add the bias, finish, store."""

    @property
    def finishes(self) -> bool:
        """Whether results are stored finished, without a pass over them."""

    def tile(self, at: TileAt) -> tir.Stmt:
        """One tile."""

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """`body`, which has such tiles, with the functions that they call."""
