"""The code of a tile as a call of a micro-kernel in assembly."""

from __future__ import annotations

from math import prod

from edgepack.kernels.tiles import arm, micro, tir
from edgepack.kernels.tiles.product.code import ProductTensors, TileAt


class AssemblyTiles:
    """Tiles by a micro-kernel, in the instruction set `isa`, see `TileCode`; for
    `results` see `arm.longest_chain`."""

    def __init__(
        self,
        tensors: ProductTensors,
        kernel: arm.MicroKernel,
        isa: arm.Isa,
        functions: micro.AssemblyFunctions | None,
        results: int,
    ) -> None:
        self.tensors, self.kernel = tensors, kernel
        self.results = results
        self.tiles = micro.MicroKernelCalls(
            isa,
            tensors.source,
            tensors.target,
            tensors.weights,
            tensors.bias,
            tensors.epilogue,
            functions,
            bias_first=tensors.bias_first,
        )

    @property
    def finishes(self) -> bool:
        """Whether results are stored finished, without a pass over them."""
        return self.tiles.finishes

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """`body` with the functions that its tiles call."""
        return self.tiles.imported(body)

    def tile(self, place: TileAt) -> tir.Stmt:
        """One tile: a call."""
        shape, window, source = self.tensors.shape, self.tensors.window, self.tensors.source
        # Channels of the last block: of a matrix they are the last ones of a whole vector.
        lanes = self.tiles.isa.lanes
        back = lanes - shape.last_lanes if source.overlaps else 0
        blocks = shape.in_blocks - (shape.last_lanes < lanes)
        products = blocks * lanes * prod(shape.kernel)
        reduction = self.kernel.code(
            blocks=blocks,
            last_lanes=shape.last_lanes % lanes,
            kernel=shape.kernel,
            pixel_step=source.pixel_bytes * window.stride[1],
            column_step=source.pixel_bytes * window.dilation[1],
            row_step=source.row_bytes * window.dilation[0],
            plane_step=source.plane_bytes,
            back=back % lanes,
            chain=arm.longest_chain(self.kernel.element, products, self.results),
        )
        return self.tiles.call(
            reduction,
            micro.TileAddress(
                source=source.at(place.in_plane, *self.tensors.input(place, 0, 0, 0)),
                weights=[place.weights],
                plane=place.plane,
                channel_block=place.channel_block,
                row=place.row,
                column=place.column,
                pixels=place.pixels,
                vectors=place.vectors,
            ),
        )
