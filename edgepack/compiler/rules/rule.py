"""What a rule is: it turns one layer at one place of the network into a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from tvm import tirx

from edgepack.compiler.layers.graph import Layer, Value
from edgepack.compiler.tiles import expression, tile, tir
from edgepack.compiler.tiles.average import Average
from edgepack.compiler.tiles.cpu import CpuModel
from edgepack.compiler.tiles.layout import NO_HALO, Blocked, Halo, Image, clear_halos, pack_channels

# Results in one turn of a pass over them: as many as hide the latency of the arithmetic on each, of
# few operations, and as fit any registers.
_SIDE_BY_SIDE = 4


@dataclass(frozen=True, kw_only=True)
class Site:
    """A layer with the layouts of its tensors and the CPU it will run on.

    `by_pixels`: the cores shared the pixels of the first input, each core made its own ones in all
    channels; else they shared the channels, or one core made it all.
    """

    layer: Layer
    inputs: tuple[Blocked, ...]
    operands: tuple[Blocked, ...]
    output: Blocked
    mean: Blocked | None = None
    by_pixels: bool = False
    cpu: CpuModel


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The code of a layer and the constants it takes.

    The function's arguments are the layer's inputs, its operands, `constants` (already packed),
    the output, the mean if the layer has one, and scratch memory. `tile`, `macs` (multiply-adds)
    and `cycles` (the cost model's) are for people to read. `by_pixels` is that of `Site`, of the
    result.
    """

    name: str
    function: tirx.PrimFunc
    constants: tuple[np.ndarray, ...] = field(repr=False)
    tile: str = ""
    macs: int = 0
    cycles: float = 0.0
    by_pixels: bool = False


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A kernel on plain tensors.

    Its arguments are `inputs`, each with the shape that it sees it in, the kernel's constants and
    the output, of `shape` and `dtype`. These shapes move no data.
    """

    rule: str
    kernel: Kernel
    inputs: tuple[tuple[Value, tuple[int, ...]], ...]
    shape: tuple[int, ...]
    dtype: str = "float32"


def _never(_layer: Layer, _cpu: CpuModel) -> bool:
    return False


def _no_halo(_layer: Layer) -> Halo:
    return NO_HALO


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`takes` says whether a layer is this rule's, `make` makes its kernel.

    `halo` is what the kernel wants around the layer's inputs. `reads_planar` says whether it can
    read a planar first one, which has none. `more_weights`: it is faster because it stores more of
    them than the model has. `averages`: it can compute the mean of its result, too.
    """

    name: str
    takes: Callable[[Layer, CpuModel], bool]
    make: Callable[[Site], Kernel]
    halo: Callable[[Layer], Halo] = _no_halo
    reads_planar: Callable[[Layer, CpuModel], bool] = _never
    more_weights: bool = False
    averages: bool = False


class Epilogue:
    """The layer's expression inside a kernel: its operands and constants as arguments.

    `average` is there if the mean of the result is wanted, for kernels of tiles of `pixels`, that
    do the rows in `parts`.
    """

    def __init__(self, site: Site, *, flat: bool = False, pixels: int = 1, parts: int = 1) -> None:
        layer = site.layer
        self.expression = layer.expression
        self.output = site.output
        self.layouts = site.operands
        self.operands = [
            Image(f"operand{i}", layout, layout.flat if flat and _same(layout, site) else None)
            for i, layout in enumerate(site.operands)
        ]
        self.packed = tuple(pack_channels(values, site.output) for values in layer.constants)
        self.constants = [
            tir.buffer(f"constant{i}", values.shape) for i, values in enumerate(self.packed)
        ]
        view = site.output.flat if flat else site.output
        self.average = Average(view, site.mean, pixels, parts) if site.mean else None

    @property
    def operand_buffers(self) -> list[tirx.Buffer]:
        """Arguments that follow the inputs."""
        return [image.buffer for image in self.operands]

    @property
    def average_buffers(self) -> list[tirx.Buffer]:
        """Arguments that follow the result."""
        return self.average.buffers if self.average else []

    def clear_around_means(self) -> tir.Stmt | None:
        """Write the zeros around the mean, if there is one and it has any."""
        return clear_halos(self.average.mean) if self.average else None

    def means(self) -> tir.Stmt | None:
        """The means of all planes, once all results are stored."""
        if self.average is None:
            return None
        planes = self.output.shape[0]
        return tir.loop_of("plane", planes, self.average.finish)

    def apply(
        self,
        names: tir.Names,
        value: tirx.Expr,
        plane: tir.Expr,
        row: tir.Expr,
        column: tir.Expr,
        channel_block: tir.Expr | None = None,
    ) -> tirx.Expr:
        """The result for one pixel of one plane; `channel_block` where it is not the plane."""
        lanes = self.output.block
        block = plane if channel_block is None else channel_block
        if not self.expression:
            return value

        def channel(index: int) -> tirx.Expr:
            return tir.load(self.constants[index], [block * lanes], lanes)

        def operand(index: int, pixel: bool) -> tirx.Expr:
            image = self.operands[index]
            return image.load(plane, 0, 0) if pixel else image.load(plane, row, column)

        return expression.evaluate(self.expression, value, lanes, names, channel, operand)

    def viewed(self, view: Callable[[Image], Image]) -> Epilogue:
        """The same for a part of the result: `view` is its part of an image of that size."""
        epilogue = copy(self)
        epilogue.operands = [
            view(image) if (image.layout.height, image.layout.width) == self._size else image
            for image in self.operands
        ]
        return epilogue

    @property
    def _size(self) -> tuple[int, int]:
        return self.output.height, self.output.width

    def in_place(self, target: Image) -> list[tuple[tirx.Buffer, tirx.Buffer]]:
        """The operands whose memory the result may take (see `tir.function`).

        For kernels that store what `apply` makes of each result, and nothing before.
        """
        return [
            (image.buffer, target.buffer)
            for image, layout in zip(self.operands, self.layouts, strict=True)
            if layout == self.output
        ]

    @property
    def is_long(self) -> bool:
        """Whether it is so much code that it should be in a loop, not once per sum."""
        return any(operation.name in expression.LONG for operation in self.expression)

    def pass_over(self, target: Image, tile: _Results) -> tir.Stmt:
        """Apply the expression to results that are stored already, as they come."""
        total = tir.Local("total", self.output.block)

        def one(v: int, r: tir.Expr) -> tir.Stmt:
            at = (tile.plane + v, tile.row, tile.column + r)
            names = tir.Names()
            block = tile.channel_block + v
            result = self.apply(names, target.load(*at), *at, channel_block=block)
            names.add(target.store(result, *at))
            if self.average:
                names.add(total.set(total.get() + result))
            return names.done()

        def vector(v: int) -> tir.Stmt:
            pixels = self._in_turns(tile.pixels, partial(one, v))
            if self.average is None:
                return pixels
            start = total.set(tir.number(0.0, self.output.block))
            at = (tile.plane + v, tile.row, tile.column)
            return tir.sequence(start, pixels, self.average.leave([total.get()], *at))

        return tir.sequence(
            total.declare() if self.average else None, *map(vector, range(tile.vectors))
        )

    def _in_turns(self, pixels: int, one: Callable[[tir.Expr], tir.Stmt]) -> tir.Stmt:
        """Something for each of a row of pixels, some of them side by side."""
        if self.is_long:
            return tir.loop_of("pixel", pixels, one)
        full, rest = divmod(pixels, _SIDE_BY_SIDE)

        def some(first: tir.Expr, count: int) -> tir.Stmt:
            return tir.sequence(*(one(first + i) for i in range(count)))

        def turn(index: tir.Expr) -> tir.Stmt:
            return tir.not_unrolled(some(index * _SIDE_BY_SIDE, _SIDE_BY_SIDE))

        return tir.sequence(
            tir.loop_of("pixels", full, turn) if full else None,
            some(full * _SIDE_BY_SIDE, rest) if rest else None,
        )


class _Results(Protocol):
    """`pixels` x `vectors` results from a pixel of a plane on."""

    @property
    def plane(self) -> tir.Expr: ...
    @property
    def channel_block(self) -> tir.Expr: ...
    @property
    def row(self) -> tir.Expr: ...
    @property
    def column(self) -> tir.Expr: ...
    @property
    def pixels(self) -> int: ...
    @property
    def vectors(self) -> int: ...


def _same(layout: Blocked, site: Site) -> bool:
    return (layout.height, layout.width) == (site.output.height, site.output.width)


def worth_sharing(cycles: float, cpu: CpuModel) -> bool:
    """Whether work is large enough to be shared between the cores.

    A launch costs up to a microsecond while the other threads are still awake: 2,000 cycles of a
    2 GHz core, of the 2,500 that two cores would save. It never costs a wait for a thread that has
    to be woken, for the launching one goes on with its tasks (thread_pool.h).
    """
    return cpu.cores > 1 and cycles > 5_000


def shared_loops(cycles: float, output: Blocked, cpu: CpuModel) -> tuple[bool, bool]:
    """Which loop of a kernel the cores share: the one over blocks, or that over a block's rows.

    The outer one costs one launch; but a few blocks may leave cores without work.
    """
    if not worth_sharing(cycles, cpu):
        return False, False
    uneven = tile.balance(output.blocks, cpu.cores) < 0.75
    by_rows = uneven and worth_sharing(cycles / output.blocks, cpu)
    return not by_rows, by_rows


def even_pieces(rows: int, cores: int) -> int | None:
    """In how many equal pieces to cut the rows of an image, so that each core has one or two.

    None if they would not come out even.
    """
    fitting = [pieces for pieces in range(cores, 2 * cores + 1) if rows % pieces == 0]
    return next((pieces for pieces in fitting if tile.balance(pieces, cores) >= 0.95), None)


def even_parts(output: Blocked, cores: int) -> int:
    """In how many equal parts to cut the rows of each block so that all cores come out even.

    The fewest that leave less than a twentieth of the time unused, or the best there are.
    """
    sizes = [parts for parts in range(1, output.height + 1) if output.height % parts == 0]
    busy = {parts: tile.balance(output.blocks * parts, cores) for parts in sizes}
    return next((parts for parts in sizes if busy[parts] > 0.95), max(sizes, key=busy.__getitem__))


def product(values: Sequence[int]) -> int:
    """The product of some sizes."""
    return int(np.prod(values, dtype=np.int64))
