"""The product engine: convolutions, and all else that multiplies weights with an image.

`shape` is the arithmetic's extents and how weights are packed, `partition` who does what, `loops`
the loops, `by_llvm` and `by_assembly` the code of a tile.
"""

from edgepack.kernels.tiles.product.by_integers import (
    choose_integer_tile,
    dot_product,
    moved_image,
    pack_integers,
    vpdpbusd,
)
from edgepack.kernels.tiles.product.by_llvm import MOST_COLUMNS, most_unrolled
from edgepack.kernels.tiles.product.loops import ProductLoops
from edgepack.kernels.tiles.product.partition import Partition
from edgepack.kernels.tiles.product.shape import (
    PanelPart,
    Shape,
    Window,
    choose_among,
    choose_tile,
    pack_bias,
    pack_weights,
    rank_tiles,
    stream_cycles,
    type_of_sums,
)
from edgepack.kernels.tiles.product.stored import StoredHalves, stored_halves

__all__ = [
    "MOST_COLUMNS",
    "PanelPart",
    "Partition",
    "ProductLoops",
    "Shape",
    "StoredHalves",
    "Window",
    "choose_among",
    "choose_integer_tile",
    "choose_tile",
    "dot_product",
    "most_unrolled",
    "moved_image",
    "pack_bias",
    "pack_integers",
    "pack_weights",
    "rank_tiles",
    "stored_halves",
    "stream_cycles",
    "type_of_sums",
    "vpdpbusd",
]
