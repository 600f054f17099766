"""A schedule for any kernel: fused, parallel outside, contiguous inside.

Element-wise stages are inlined into what reads them. What follows a reduction
runs right after it, on a tile that is still in cache. The innermost loop walks
contiguous memory, as far as it can: axes that lie one after the other in every
operand become one. `vectors` turns it into vector code whatever its length.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32

_realize = tvm.get_global_func("s_tir.schedule.GetSBlockRealize")

# A kernel with fewer steps than this is over before other threads are awake.
_PARALLEL_STEPS = 1 << 15
# Elements of an accumulator tile. TVM keeps up to 1 KiB on the stack
# (kMaxStackAlloca) and asks the workspace pool for more; 240 float32 fit.
_TILE = 240
# Registers left to operands, addresses and LLVM.
_KEPT_BACK = 4
# Rows of the tile: outputs that share each load of the inner loop.
_ROWS = 4


def generic(function: tirx.PrimFunc, cpu: CpuModel) -> tirx.PrimFunc:
    """Schedule any function made of blocks; `te.extern` makes others, which stay as they are."""
    if (
        not isinstance(function.body, s_tir.SBlockRealize)
        or function.body.block.name_hint != "root"
    ):
        return function
    cores = cpu.cores
    sch = s_tir.Schedule(function)
    root = sch.get_sblock("root")
    _inline(sch, root)
    attached: set[str] = set()
    for block in sch.get_child_blocks(root):
        nest = _Nest.of(sch, block)
        if nest is None or sch.get(block).name_hint in attached:
            continue
        sch.reorder(*nest.units, *nest.spatial, *nest.reduction)
        if nest.reduction:
            follower = _reduction(sch, nest, cpu)
            if follower is not None:
                attached.add(sch.get(follower).name_hint)
        elif nest.spatial:
            _elementwise(sch, nest, cores)
    return sch.mod["main"]


@dataclass(frozen=True, kw_only=True)
class _Nest:
    """A block and the loops around it, in order; spatial loops of one step apart."""

    block: SBlockRV
    units: list[LoopRV]
    spatial: list[LoopRV]
    reduction: list[LoopRV]
    # Iteration variables of `spatial` and `reduction`, as index expressions have them.
    variables: list[tirx.Var]
    extents: list[int]
    reduced: list[tirx.Var]
    shape: list[int]
    steps: int

    @staticmethod
    def of(sch: s_tir.Schedule, block: SBlockRV) -> _Nest | None:
        """None where loops and iteration variables are not one to one (scans, scatters)."""
        nest = _Nest(
            block=block,
            units=[],
            spatial=[],
            reduction=[],
            variables=[],
            extents=[],
            reduced=[],
            shape=[],
            steps=1,
        )
        loops, axes = sch.get_loops(block), sch.get(block).iter_vars
        bindings = _realize(sch, block).iter_values
        if len(loops) != len(axes):
            return None
        steps = 1
        for loop, axis, binding in zip(loops, axes, bindings, strict=True):
            if not isinstance(axis.dom.extent, tirx.IntImm):
                return None
            if not binding.same_as(sch.get(loop).loop_var):
                return None
            extent = int(axis.dom.extent)
            steps *= extent
            if axis.iter_type == tirx.IterVar.CommReduce:
                nest.reduction.append(loop)
                nest.reduced.append(axis.var)
            elif axis.iter_type == tirx.IterVar.DataPar:
                nest.shape.append(extent)
                if extent == 1:
                    nest.units.append(loop)
                else:
                    nest.spatial.append(loop)
                    nest.variables.append(axis.var)
                    nest.extents.append(extent)
            else:
                return None
        return replace(nest, steps=steps)


def _inline(sch: s_tir.Schedule, root: SBlockRV) -> None:
    """Compute element-wise blocks where they are read, unless that repeats real work."""
    for block in sch.get_child_blocks(root):
        nest = _Nest.of(sch, block)
        if nest is None or nest.reduction:
            continue
        consumers = [_Nest.of(sch, consumer) for consumer in sch.get_consumers(block)]
        if not consumers:  # the result
            continue
        into_loops = any(nest is None or nest.reduction for nest in consumers)
        # A plain copy costs nothing wherever it is read. Anything else in a
        # reduction would be done again for every element that is summed.
        if _is_copy(sch.get(block)) or (len(consumers) == 1 and not into_loops):
            with contextlib.suppress(ScheduleError):
                sch.compute_inline(block)


def _is_copy(block: s_tir.SBlock) -> bool:
    return isinstance(block.body, tirx.BufferStore) and isinstance(
        block.body.value, tvm.ir.TensorLoad
    )


def _elementwise(sch: s_tir.Schedule, nest: _Nest, cores: int) -> None:
    """One loop over what is contiguous in all operands, and one around it that is shared."""
    block = sch.get(nest.block)
    count = _contiguous([*block.reads, *block.writes], nest.variables, nest.extents)
    shared = cores > 1 and nest.steps >= _PARALLEL_STEPS
    pieces = _share(nest.extents[-count:], cores)
    if shared and 1 < count == len(nest.spatial) and pieces == 1:
        # The cores share the turns of the first loop as they are.
        count -= 1
    outer, inner = nest.spatial[:-count], sch.fuse(*nest.spatial[-count:])
    across = _across(block, nest.variables)
    if across is not None and count == 1:
        # A transposition: the axis that the operand lies along comes next to the last one.
        column = outer.pop(across)
        sch.reorder(*outer, column, inner)
        inner = column
    if not outer and shared:
        first, _ = sch.split(inner, [pieces, None])
        outer = [first]
    _parallel(sch, outer, nest.steps, cores)


def _across(block: s_tir.SBlock, axes: Sequence[tirx.Var]) -> int | None:
    """Which but the last of the axes a copy's operand lies along; None for anything else."""
    if not _is_copy(block) or len(block.reads) != 1:
        return None
    last = [axis.min for axis in block.reads[0].region][-1:]
    return next((i for i, axis in enumerate(axes[:-1]) if last and last[0].same_as(axis)), None)


def _contiguous(
    regions: Sequence[tvm.ir.TensorRegion], axes: Sequence[tirx.Var], extents: Sequence[int]
) -> int:
    """How many of the last `axes` lie one after the other in every operand that has them."""

    def is_one(
        region: tvm.ir.TensorRegion, axes: Sequence[tirx.Var], extents: Sequence[int]
    ) -> bool:
        # Others are what TVM cannot tell, clamped or mirrored, or two places of one tensor.
        sizes = [axis.extent for axis in region.region]
        if not all(isinstance(size, tirx.IntImm) and int(size) == 1 for size in sizes):
            return False
        indices = [
            (item.min, int(dim))
            for item, dim in zip(region.region, region.source.shape, strict=True)
            if int(dim) != 1
        ]
        used = [any(_uses(index, axis) for axis in axes) for index, _ in indices]
        last = indices[-len(axes) :]
        return not any(used) or (
            not any(used[: -len(axes)])
            and len(last) == len(axes)
            and all(index.same_as(axis) for (index, _), axis in zip(last, axes, strict=True))
            and [size for _, size in last] == list(extents)
        )

    count = 1
    while count < len(axes) and all(
        is_one(region, axes[-count - 1 :], extents[-count - 1 :]) for region in regions
    ):
        count += 1
    return count


def _share(extents: Sequence[int], cores: int) -> int:
    """Pieces to cut loops that were made one into: equal, at least one per core, of whole vectors
    if possible.

    All begin where a turn of one of the loops does, and end there. Otherwise TVM's simplifier
    would not see that their elements lie one after the other.
    """
    extent = math.prod(extents)
    turns = [math.prod(extents[axis:]) for axis in range(1, len(extents))]

    def fits(piece: int) -> bool:
        return all(piece % turn == 0 or turn % piece == 0 for turn in turns)

    counts = [count for count in range(cores, 8 * cores + 1) if extent % count == 0]
    pieces = [count for count in counts if fits(extent // count)]
    return min(pieces, key=lambda count: (extent // count % 16 != 0, count), default=1)


def _reduction(sch: s_tir.Schedule, nest: _Nest, cpu: CpuModel) -> SBlockRV | None:
    """Tile a reduction, and run its element-wise follower tile by tile.

    The loops become: outer spatial (parallel), reduction, rows, columns; or just
    outer spatial, reduction where what is reduced lies along the reduction.
    Returns the follower, or None.
    """
    outer, tile, reduction = list(nest.spatial), [], list(nest.reduction)
    if nest.spatial and any(_walks(region, nest.variables[-1]) for region in _reduced(sch, nest)):
        shared = [i for i in range(len(nest.variables) - 1) if _is_shared(sch, nest, i)]
        rows = _divisor(_extent(sch, outer[shared[-1]]), _ROWS) if shared else 1
        high, low = sch.split(outer.pop(), [None, _columns(nest.extents[-1], rows, cpu)])
        outer.append(high)
        tile = [low]
        if shared:
            high, low = sch.split(outer[shared[-1]], [None, rows])
            outer[shared[-1]] = high
            tile.insert(0, low)
    else:
        extents = [_extent(sch, loop) for loop in reduction]
        count = _contiguous(_reduced(sch, nest), nest.reduced, extents)
        reduction[-count:] = [sch.fuse(*reduction[-count:])]
    sch.reorder(*outer, *reduction, *tile)
    for loop in tile[:-1]:
        sch.unroll(loop)
    parallel = _parallel(sch, outer, nest.steps, cpu.cores)
    follower = None
    if parallel is not None or outer:
        follower = _attach_follower(sch, nest, outer[-1] if parallel is None else parallel)
    sch.decompose_reduction(nest.block, reduction[0])
    return follower


def _columns(extent: int, rows: int, cpu: CpuModel) -> int:
    """Columns of a tile of `rows` rows: whole vectors, as many as there are registers for.

    Each column of vectors takes one register per row, and one for its operand.
    """
    vectors = max(1, (cpu.registers - _KEPT_BACK) // (rows + 1))
    most = min(_TILE // rows, vectors * cpu.widest(FLOAT32), extent)
    narrowest = cpu.narrowest(FLOAT32)
    fitting = (count for count in range(most, 0, -1) if extent % count == 0)
    # Where none fits, a prime number of columns, say: all of them, through memory.
    return next((count for count in fitting if count % narrowest == 0), extent)


def _reduced(sch: s_tir.Schedule, nest: _Nest) -> list[tvm.ir.TensorRegion]:
    """What changes from one step of the reduction to the next."""
    return [
        region
        for region in sch.get(nest.block).reads
        if any(_uses(axis.min, variable) for axis in region.region for variable in nest.reduced)
    ]


def _attach_follower(sch: s_tir.Schedule, nest: _Nest, loop: LoopRV) -> SBlockRV | None:
    consumers = sch.get_consumers(nest.block)
    if len(consumers) != 1:
        return None
    follower = _Nest.of(sch, consumers[0])
    if follower is None or follower.reduction or follower.shape != nest.shape:
        return None
    with contextlib.suppress(ScheduleError):
        sch.reverse_compute_at(follower.block, loop)
        return follower.block
    return None


def _parallel(sch: s_tir.Schedule, loops: list[LoopRV], steps: int, cores: int) -> LoopRV | None:
    """Fuse all `loops` into one that runs on all cores, if the work is worth it."""
    if not loops:
        return None
    fused = sch.fuse(*loops)
    if cores > 1 and steps >= _PARALLEL_STEPS:
        sch.parallel(fused)
    return fused


def _walks(region: tvm.ir.TensorRegion, variable: tirx.Var) -> bool:
    """Whether a step of `variable` is a step to the next element of an operand."""
    return bool(region.region) and _uses(region.region[-1].min, variable)


def _is_shared(sch: s_tir.Schedule, nest: _Nest, index: int) -> bool:
    """Whether an operand that walks with the last spatial axis is the same along axis `index`."""
    return any(
        _walks(region, nest.variables[-1])
        and not any(_uses(axis.min, nest.variables[index]) for axis in region.region)
        for region in sch.get(nest.block).reads
    )


def _uses(expr: tirx.Expr, variable: tirx.Var) -> bool:
    return any(var.same_as(variable) for var in tirx.analysis.undefined_vars(expr))


def _extent(sch: s_tir.Schedule, loop: LoopRV) -> int:
    return int(sch.get(loop).extent)


def _divisor(extent: int, limit: int) -> int:
    """The largest divisor of `extent` up to `limit`."""
    return max(d for d in range(1, min(extent, limit) + 1) if extent % d == 0)
