"""Maximum and average pooling, and the mean, the largest and the smallest of whole images.

Windows that reach over the border are cut to the image, so pooling needs no halo. The image
is cut into its border rows and columns, where each position has a window of its own, and the
inside, which is a loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass

from tvm import tirx

from edgepack.kernels.layer import GlobalPooling, Layer, Pooling
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule, product
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.average import PlaneFold
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Image, clear_halos
from edgepack.kernels.tiles.partition import worth_sharing
from edgepack.kernels.value import extent

# Windows are unrolled; larger ones would be more code than they are worth.
_MOST_POINTS = 64
# Each row and column of results at the borders has code of its own, for other points of the window;
# one that would need more than this is rare, and is left to TVM.
_MOST_KINDS = 81


def _borders(axis: int, operator: Pooling, size: int, out: int) -> tuple[int, int]:
    """Output positions before and after the ones whose window is inside the image."""
    reach = (operator.kernel[axis] - 1) * operator.dilation[axis]
    stride, before = operator.stride[axis], operator.before[axis]
    first = min(out, -(-before // stride))
    last = max(first, min(out, (size - 1 - reach + before) // stride + 1))
    return first, out - last


@dataclass(frozen=True, kw_only=True)
class _EqualWindows:
    """`count` output positions from `first` on with equal windows along one axis.

    `taps` are the window's points inside the image, `divisor` how many of its points the
    average counts.
    """

    first: int
    count: int
    taps: tuple[int, ...]
    divisor: int


def _runs(axis: int, operator: Pooling, size: int, out: int) -> Iterator[_EqualWindows]:
    """All output positions of an axis: the borders one by one, the inside as one run."""
    before, after = _borders(axis, operator, size, out)

    def run(position: int, count: int = 1) -> _EqualWindows:
        start = position * operator.stride[axis] - operator.before[axis]
        at = [start + tap * operator.dilation[axis] for tap in range(operator.kernel[axis])]
        inside = tuple(tap for tap, point in enumerate(at) if 0 <= point < size)
        counted = sum(point < size + operator.after[axis] for point in at)
        divisor = counted if operator.count_padding else len(inside)
        return _EqualWindows(first=position, count=count, taps=inside, divisor=divisor)

    for position in range(before):
        yield run(position)
    if out - before - after:
        yield run(before, out - before - after)
    for position in range(out - after, out):
        yield run(position)


def takes_window(layer: Layer, _cpu: CpuModel) -> bool:
    """Pooling with windows that are not huge and all touch the image."""
    operator = layer.operator
    if not isinstance(operator, Pooling) or product(operator.kernel) > _MOST_POINTS:
        return False
    size, out = extent(layer.inputs[0])[2:], extent(layer.output)[2:]
    rows, columns = (1 + sum(_borders(axis, operator, size[axis], out[axis])) for axis in (0, 1))
    if rows * columns > _MOST_KINDS:
        return False
    runs = (_runs(axis, operator, size[axis], out[axis]) for axis in (0, 1))
    return all(run.taps for run in itertools.chain.from_iterable(runs))


def make_window(site: LayerSite) -> LayerKernel:
    """The kernel of a pooling."""
    return PoolingKernel(site).kernel()


class PoolingKernel:
    """The loops of one pooling by windows.

    With `source` its image is there, a part at a time (see `reading`), and the rows are done in
    `parts` equal parts.
    """

    def __init__(self, site: LayerSite, source: Image | None = None, parts: int = 1) -> None:
        operator = site.layer.operator
        assert isinstance(operator, Pooling)
        self.site, self.operator, self.output = site, operator, site.output
        self.source = source or Image("source", site.inputs[0])
        self.target = Image("target", site.output)
        self.epilogue = site.epilogue()
        self.parts = parts
        layout, output = site.inputs[0], site.output
        self.down = list(_runs(0, operator, layout.height, output.height))
        self.across = list(_runs(1, operator, layout.width, output.width))
        points = product((*output.shape[:1], output.height, output.width))
        self.cycles = points * product(operator.kernel) / site.cpu.loads_per_cycle

    def kernel(self) -> LayerKernel:
        """Constants, what they cost, and how the code is made."""
        operator, output = self.operator, self.output
        name = f"{operator.kind}_pool{operator.kernel[0]}x{operator.kernel[1]}"
        return LayerKernel(
            name=f"{name}_{output.channels}_{output.height}x{output.width}",
            function=self.function,
            constants=self.epilogue.packed,
            cycles=self.cycles,
        )

    @property
    def constant_buffers(self) -> list[tirx.Buffer]:
        """Arguments for the kernel's constants."""
        return self.epilogue.constants

    @property
    def in_place(self) -> list[tuple[tirx.Buffer, tirx.Buffer]]:
        """See `tir.function`: none is looked for."""
        return []

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """`body`: nothing is called."""
        return body

    def reading(self, source: Image) -> PoolingKernel:
        """The same on the memory of the image where it lies now."""
        kernel = copy(self)
        kernel.source = source
        return kernel

    def function(self) -> tirx.PrimFunc:
        """The code."""
        body = _over_blocks(self.site, self.cycles, lambda n, block: self.rows(n, block, 0))
        return tir.function(
            [
                self.source.buffer,
                *self.epilogue.operand_buffers,
                *self.epilogue.constants,
                self.target.buffer,
            ],
            tir.sequence(self.clear(), body),
        )

    def clear(self) -> tir.Stmt | None:
        """Write the zeros around the results."""
        return clear_halos(self.target)

    def rows(self, n: tir.Expr, block: tir.Expr, part: tir.Expr) -> tir.Stmt:
        """A part of the rows of one block of channels of one image."""
        rows = self.output.height // self.parts
        first = part * rows if self.parts > 1 else 0

        def some(down: _EqualWindows, start: tir.Expr, count: tir.Expr) -> tir.Stmt:
            return tir.loop_of("row", count, lambda i: self._row(n, block, start + i, down))

        def mine(down: _EqualWindows) -> tir.Stmt:
            if self.parts == 1:
                return some(down, down.first, down.count)
            names = tir.Names()
            start = names.bind("start", tirx.max(first, down.first))
            behind = names.bind("behind", tirx.min(first + rows, down.first + down.count))
            names.add(tir.when(start < behind, some(down, start, behind - start)))
            return names.done()

        return tir.sequence(*map(mine, self.down))

    def _row(self, n: tir.Expr, block: tir.Expr, row: tir.Expr, down: _EqualWindows) -> tir.Stmt:
        def run(across: _EqualWindows) -> tir.Stmt:
            return tir.loop_of(
                "column",
                across.count,
                lambda column: self._point(
                    n,
                    block,
                    (row, column + across.first),
                    (down.taps, across.taps),
                    down.divisor * across.divisor,
                ),
            )

        return tir.sequence(*map(run, self.across))

    def _point(
        self,
        n: tir.Expr,
        block: tir.Expr,
        at: tuple[tir.Expr, tir.Expr],
        taps: tuple[tuple[int, ...], tuple[int, ...]],
        divisor: int,
    ) -> tir.Stmt:
        """One result, of the points `taps` of its window."""
        operator, output = self.operator, self.output
        combine: Callable[..., tirx.Expr] = tirx.max if operator.kind == "max" else tirx.Add
        names = tir.Names()
        plane = n * output.blocks + block
        result = None
        for i in taps[0]:
            for j in taps[1]:
                where = [
                    at[axis] * operator.stride[axis]
                    + tap * operator.dilation[axis]
                    - operator.before[axis]
                    for axis, tap in ((0, i), (1, j))
                ]
                value = names.bind("x", self.source.load(plane, where[0], where[1]))
                result = value if result is None else names.bind("r", combine(result, value))
        assert result is not None
        if operator.kind == "average" and divisor != 1:
            result = result * tir.number(1 / divisor, output.element.accumulator, output.block)
        result = self.epilogue.apply(names, result, plane, *at, channel_block=block)
        names.add(self.target.store(result, plane, *at))
        return names.done()


def _over_blocks(
    site: LayerSite, cycles: float, one_block: Callable[[tir.Expr, tir.Expr], tir.Stmt]
) -> tir.Stmt:
    parallel = worth_sharing(cycles, site.cpu)
    return tir.loop_of(
        "n",
        site.output.batch,
        lambda n: tir.loop_of(
            "block", site.output.blocks, lambda block: one_block(n, block), parallel=parallel
        ),
    )


def takes_mean(layer: Layer, _cpu: CpuModel) -> bool:
    """The mean of each channel's image."""
    return isinstance(layer.operator, GlobalPooling) and layer.operator.kind == "average"


def takes_global(layer: Layer, _cpu: CpuModel) -> bool:
    """The largest or the smallest of each channel's image."""
    return isinstance(layer.operator, GlobalPooling) and layer.operator.kind != "average"


def make_mean(site: LayerSite) -> LayerKernel:
    """The kernel of a mean."""
    source = Image("source", site.inputs[0])
    pixels = source.layout.height * source.layout.width
    scale = tir.number(1 / pixels, site.output.element.accumulator, site.output.block)

    def mean(plane: tir.Expr) -> tuple[tir.Stmt, tirx.Expr]:
        sums = PlaneFold(source, plane)
        return sums.code, sums.total * scale

    return _whole_image("mean", site, source, mean)


def make_global(site: LayerSite) -> LayerKernel:
    """The kernel of a largest or a smallest."""
    operator = site.layer.operator
    assert isinstance(operator, GlobalPooling)
    source = Image("source", site.inputs[0])
    combine = {"max": tirx.max, "min": tirx.min}[operator.kind]
    first = -math.inf if operator.kind == "max" else math.inf

    def extremum(plane: tir.Expr) -> tuple[tir.Stmt, tirx.Expr]:
        found = PlaneFold(source, plane, combine, first)
        return found.code, found.total

    return _whole_image(f"global_{operator.kind}", site, source, extremum)


def _whole_image(
    name: str,
    site: LayerSite,
    source: Image,
    of_plane: Callable[[tir.Expr], tuple[tir.Stmt, tirx.Expr]],
) -> LayerKernel:
    """The kernel of one result for each plane: what `of_plane` computes by some code."""
    layout, output = source.layout, site.output
    target = Image("target", output)
    epilogue = site.epilogue()

    def one_block(n: tir.Expr, block: tir.Expr) -> tir.Stmt:
        plane = n * output.blocks + block
        names = tir.Names()
        code, value = of_plane(plane)
        result = epilogue.apply(names, value, plane, 0, 0, channel_block=block)
        names.add(target.store(result, plane, 0, 0))
        return tir.sequence(code, names.done())

    cycles = output.shape[0] * layout.height * layout.width / site.cpu.loads_per_cycle

    def function() -> tirx.PrimFunc:
        return tir.function(
            [source.buffer, *epilogue.operand_buffers, *epilogue.constants, target.buffer],
            tir.sequence(clear_halos(target), _over_blocks(site, cycles, one_block)),
        )

    return LayerKernel(
        name=f"{name}_{output.channels}_{layout.height}x{layout.width}",
        function=function,
        constants=epilogue.packed,
        cycles=cycles,
    )


WINDOW = Rule(name="pool", takes=takes_window, make=make_window, kept=True)
MEAN = Rule(name="mean", takes=takes_mean, make=make_mean, kept=True, is_mean=True)
GLOBAL = Rule(name="global_pool", takes=takes_global, make=make_global, kept=True)
