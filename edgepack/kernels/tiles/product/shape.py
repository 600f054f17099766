"""The extents of a product, its weights in the order they are read, and its cheapest tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from edgepack.kernels.choices import Way
from edgepack.kernels.tiles import arm, tile
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import Element
from edgepack.kernels.tiles.layout import Blocked, pack_channels


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a window goes over the image, each (vertical, horizontal): `before` is the padding at top
    and left. By default it is a single point, as in a product of matrices."""

    stride: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The reduction and the channels of one group, in blocks.

    `last_lanes` channels of the last input block hold something. A step of the reduction takes `kr`
    of a block's channels; where a block has no multiple of that, the last step has weights of zero.

    Of `side_by_side` groups, if more than one, each has `in_block` of the channels of one block in
    memory, and as many of a block of results.
    """

    groups: int
    in_blocks: int
    in_block: int
    last_lanes: int
    out_blocks: int
    lanes: int
    kernel: tuple[int, int]
    element: Element
    kr: int = 1
    side_by_side: int = 1

    @classmethod
    def of(cls, weight: np.ndarray, source: Blocked, output: Blocked, kr: int = 1) -> Shape:
        """That of weights [groups, out, in, rows, columns]."""
        in_block, lanes = source.block, output.block
        groups, outs, ins, rows, columns = weight.shape
        return cls(
            groups=groups,
            in_blocks=-(-ins // in_block),
            in_block=in_block,
            last_lanes=(ins - 1) % in_block + 1,
            out_blocks=-(-outs // lanes),
            lanes=lanes,
            kernel=(rows, columns),
            element=source.element,
            kr=kr,
        )

    @classmethod
    def of_groups_in_blocks(cls, weight: np.ndarray, source: Blocked, output: Blocked) -> Shape:
        """That of weights [groups, out, in, rows, columns] of which each group's results are one
        block: those of several groups, each of `in` channels, that are read as one block, too."""
        groups, _, ins, rows, columns = weight.shape
        return cls(
            groups=groups,
            in_blocks=1,
            in_block=ins,
            last_lanes=ins,
            out_blocks=1,
            lanes=output.block,
            kernel=(rows, columns),
            element=source.element,
            side_by_side=source.block // ins,
        )

    @property
    def reduction(self) -> int:
        """Multiply-adds per result, those with zeros that fill a step included."""
        per_block, last = (-(-size // self.kr) for size in (self.in_block, self.last_lanes))
        return prod(self.kernel) * ((self.in_blocks - 1) * per_block + last) * self.kr

    def panel(self, vectors: int) -> int:
        """Weights of `vectors` blocks of output channels."""
        return self.reduction * vectors * self.lanes

    @property
    def weight_bytes(self) -> int:
        """Bytes of a group's weights."""
        return self.element.bytes * self.panel(self.out_blocks)


@dataclass(frozen=True, kw_only=True)
class PanelPart:
    """Which weights of each panel a product takes, of those packed for a larger one: all that this
    one, of the shape `of`, multiplies from step `first` of its reduction on."""

    of: Shape
    first: int


def pack_weights(weight: np.ndarray, shape: Shape, vectors: int) -> np.ndarray:
    """[groups, out, in, rows, columns] -> the order in which the reduction reads them.

    In the type of the shape's elements. Per group and panel:
    [in block][row][column][step][vectors * lanes][kr], where a step is `kr` of the block's
    channels.
    """
    groups, outs, ins, rows, columns = weight.shape
    missing = shape.out_blocks * shape.lanes - outs
    if missing:
        weight = np.pad(weight, ((0, 0), (0, missing), (0, 0), (0, 0), (0, 0)))
    packed = np.empty((groups, shape.panel(shape.out_blocks)), shape.element.name)
    start = at = 0
    for size, count in tile.parts(shape.out_blocks, vectors):
        wide, panel = size * shape.lanes, shape.panel(size)
        those = weight[:, start : start + count * wide]
        panels = packed[:, at : at + count * panel].reshape(groups, count, panel)
        start, at = start + count * wide, at + count * panel
        whole, filled = ins // shape.in_block, 0
        for blocks, channels in ((whole, shape.in_block), (1, ins % shape.in_block)):
            if not blocks * channels:
                continue
            first = ins - channels if channels < shape.in_block else 0
            taken = those[:, :, first : first + blocks * channels]
            steps = -(-channels // shape.kr)
            taken = taken.reshape(groups, count, wide, blocks, channels, rows, columns)
            if channels % shape.kr:
                around = [(0, 0)] * taken.ndim
                around[4] = (0, -channels % shape.kr)
                taken = np.pad(taken, around)
            taken = taken.reshape(groups, count, wide, blocks, steps, shape.kr, rows, columns)
            ordered = taken.transpose(0, 1, 3, 6, 7, 4, 2, 5)
            end = filled + ordered[0, 0].size
            panels[:, :, filled:end].reshape(ordered.shape)[...] = ordered
            filled = end
    return packed.reshape(-1)


def type_of_sums(element: Element, cpu: CpuModel) -> str:
    """The type in which products of such elements are added up."""
    kernel = arm.micro_kernel(cpu, element)
    return kernel.element.name if kernel else element.accumulator


def pack_bias(bias: np.ndarray | None, output: Blocked, cpu: CpuModel) -> np.ndarray:
    """The values that sums start with, in the type that they are added up in."""
    return pack_channels(bias, output, type_of_sums(output.element, cpu))


def rank_tiles(
    output: Blocked,
    *,
    blocks: int,
    reduction: int,
    cpu: CpuModel,
    groups: int = 1,
    columns: int = 1,
    most_vectors: int = 1 << 30,
    others: Sequence[tuple[int, int]] = (),
) -> list[tile.RegisterTile]:
    """All tiles for one group's `blocks` blocks of output channels, the cheapest first.

    `reduction` is that of `Shape`, and `columns` are those of its window; `others` are those of
    `tile.rank`.
    """
    key = ("tiles", output, blocks, reduction, groups, columns, most_vectors, tuple(others))
    if (known := cpu.memo.get(key)) is not None:
        return list(known)
    kernel = arm.micro_kernel(cpu, output.element)
    found = tile.rank(
        width=output.width,
        rows=output.height * output.batch * groups,
        blocks=blocks,
        lanes=output.block,
        reduction=reduction,
        element=output.element,
        kr=kernel.kr if kernel else 1,
        cpu=cpu,
        columns=columns,
        fits=partial(kernel.fits, registers=cpu.registers, ahead=bool(cpu.pipeline))
        if kernel
        else None,
        most_vectors=most_vectors,
        others=others,
    )
    cpu.memo[key] = found
    return list(found)


def choose_tile(
    output: Blocked,
    *,
    blocks: int,
    reduction: int,
    cpu: CpuModel,
    groups: int = 1,
    columns: int = 1,
    most_vectors: int = 1 << 30,
    choice: Way | None = None,
) -> tile.RegisterTile:
    """The tile of `choice`, if it has one that can be held, else the cheapest; see `rank_tiles`."""
    tiles = rank_tiles(
        output,
        blocks=blocks,
        reduction=reduction,
        cpu=cpu,
        groups=groups,
        columns=columns,
        most_vectors=most_vectors,
    )
    return choose_among(tiles, choice)


def choose_among(tiles: Sequence[tile.RegisterTile], choice: Way | None) -> tile.RegisterTile:
    """The tile of `choice`, if it has one that is among them, else the first."""
    wanted = choice.tile if choice else None
    return next((item for item in tiles if (item.pixels, item.vectors) == wanted), tiles[0])


def stream_cycles(weights: int, times: int, cpu: CpuModel) -> float:
    """Cycles to read `weights` bytes of weights `times` times, on top of the arithmetic.

    The first time they come from memory, for no cache holds a whole network; later ones do, too,
    if they do not fit the second-level cache. A core that issues in order waits for all of it; one
    that does not is taken to hide half (a guess).
    """
    fetched = weights * (times if weights > cpu.l2_bytes / 2 else 1)
    return fetched / cpu.memory_bandwidth / (1 if cpu.in_order else 2)
