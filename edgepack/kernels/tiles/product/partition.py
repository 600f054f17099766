"""Who does what of a product: the order of its loops, and what of them the cores share."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.kernels.choices import PIXELS
from edgepack.kernels.tiles import tile
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.tiles.partition import (
    BUSY_BY_ONE_LOOP,
    busy,
    even_pieces,
    even_run,
    worth_sharing,
)
from edgepack.kernels.tiles.product.shape import Shape, stream_cycles


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The loops over a group of an image: panels of weights, and rows of tiles.

    `source` and `target` are the layouts as the product sees them. Where panels are `prepared`
    before they are used, they are the outer loop; else what `order` says. `share` says what the
    cores share; both are words of `choices.ORDERS`.
    """

    cpu: CpuModel
    shape: Shape
    tile: tile.RegisterTile
    source: Blocked
    target: Blocked
    prepared: bool = False
    order: str = ""
    share: str = ""

    @property
    def pixels_outer(self) -> bool:
        """Whether each row of pixels is finished in all channels before the next one is read."""
        if self.order and not self.prepared:
            return self.order == PIXELS
        return not self.prepared and _pixels_outer(self.shape, self.tile, self.source, self.target)

    @property
    def in_one_loop(self) -> bool:
        """Whether panels and tiles are one loop that the cores share: those of the outer one alone
        are too few, or each core is to have its own pixels."""
        return (self.by_pixels and not self.pixels_outer) or not self.comes_out_even

    @property
    def worth_sharing(self) -> bool:
        """Whether a group is enough work for all cores."""
        weights = self.shape.weight_bytes
        cycles = self.tile.cycles / self.shape.groups + stream_cycles(weights, 1, self.cpu)
        return worth_sharing(cycles, self.cpu)

    @property
    def by_pixels(self) -> bool:
        """Whether the cores share the pixels rather than the channels.

        Then each core reads all weights, but only its own pixels, which are in its own cache if the
        layers before and after are shared in the same way.
        """
        weights = self.shape.weight_bytes
        images = self.source.nbytes + self.target.nbytes
        fits = self.pixels_outer or even_pieces(self.pixel_turns, self.cpu.cores) is not None
        worth = weights < images // self.source.batch
        if self.share:
            worth = self.share == PIXELS
        return self.worth_sharing and fits and worth

    @property
    def panels(self) -> int:
        return -(-self.shape.out_blocks // self.tile.vectors)

    @property
    def tiles(self) -> int:
        """Tiles along a row."""
        return -(-self.target.width // self.tile.pixels)

    @property
    def pixel_turns(self) -> int:
        """Rows; tiles if there is but one."""
        rows = self.target.height
        return rows if rows > 1 else self.tiles

    @property
    def comes_out_even(self) -> bool:
        """Whether the turns of the outer loop keep all cores busy to the end."""
        layout, cores = self.target, self.cpu.cores
        total, size = self.shape.out_blocks, self.tile.vectors
        if self.pixels_outer:
            rows = (layout.height, 1)
            total, size = rows if layout.height > 1 else (layout.width, self.tile.pixels)
        return busy(total, cores, size) >= BUSY_BY_ONE_LOOP

    def piece(self) -> tuple[int, int]:
        """What is done of an image at a time: so many rows, and so many tiles of each."""
        height, cores = self.target.height, self.cpu.cores
        if not self.by_pixels or self.pixels_outer:
            return 1, even_run(self.panels * height, self.tiles, cores)
        pieces = even_pieces(self.pixel_turns, cores)
        assert pieces is not None
        each = self.pixel_turns // pieces
        return (each, self.tiles) if height > 1 else (1, each)


def _pixels_outer(
    shape: Shape, chosen: tile.RegisterTile, view_in: Blocked, view_out: Blocked
) -> bool:
    """Which of image and weights is better read again and again.

    Panels outside: the image is read once per panel. Pixels outside: all weights are read
    once per row of pixels (per tile, when the image is one flat row).
    """
    panels = -(-shape.out_blocks // chosen.vectors)
    per_row = view_out.width > 1 and view_out.height == 1
    rows = -(-view_out.width // chosen.pixels) if per_row else view_out.height
    image_bytes = view_in.nbytes // view_in.batch // shape.groups
    weight_bytes = shape.weight_bytes
    return rows * weight_bytes + image_bytes < panels * image_bytes + weight_bytes
