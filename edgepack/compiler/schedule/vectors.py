"""Innermost loops over contiguous memory -> vectors, and functions -> arithmetic.

LLVM would do so for most CPUs, but not for 32-bit ARM (NEON flushes denormals), nor does it ever
reorder a sum of floats, nor look into libm. Here a loop of n turns becomes turns of as many
elements as the widest vector has, then narrower ones for what is left:

    for i in n: y[i] = f(x[i])          for i in n / L: y[i * L : +L] = f(x[i * L : +L])

    for k in n: s = s + f(x[k])         sums 0..U-1 of L lanes each, added up after the loop
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import detect_linear_equation

from edgepack.compiler.kernels import functions, tir
from edgepack.compiler.kernels.cpu import CpuModel

# Sums that run side by side: as many as cover the latency of an addition, 3 to 4 cycles of one
# or two additions each on all CPUs here.
_SUMS = 4

_TO_LOOPS = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.StmtSimplify(),
    ]
)


def vectorise(function: tirx.PrimFunc, cpu: CpuModel) -> tirx.PrimFunc:
    """Lower a scheduled function of blocks to loops of vectors."""
    lowered = _TO_LOOPS(tvm.IRModule({"main": function}))["main"]
    body = tvm_ffi.structural_map(lowered.body, (tvm.ir.Call, _expand))
    widths = sorted(cpu.lanes, reverse=True)
    return lowered.with_body(
        tvm_ffi.structural_map(body, (tirx.For, lambda loop: _vector_loop(loop, widths)))
    )


def _expand(call: tvm.ir.Call) -> tirx.Expr:
    """A function of float32 as arithmetic, where there is such a form."""
    function = functions.FUNCTIONS.get(_name(call))
    if function is None or str(call.ty.dtype) != "float32":
        return call
    return functions.as_expression(function, *call.args)


def _name(call: tvm.ir.Call) -> str:
    return call.op.name.removeprefix("tirx.") if isinstance(call.op, tvm.ir.Op) else ""


def _vector_loop(loop: tirx.For, widths: Sequence[int]) -> tirx.Stmt:
    """An innermost loop in vectors; any other as it is."""
    if loop.kind != tirx.ForKind.SERIAL or not isinstance(loop.extent, tirx.IntImm):
        return loop
    body = loop.body
    stores = list(body) if isinstance(body, tirx.SeqStmt) else [body]
    if not all(isinstance(item, tirx.BufferStore) and _is_float(item) for item in stores):
        return loop
    extent = int(loop.extent)
    if all(_step(item.indices[0], loop.loop_var) == 1 for item in stores):
        if not all(_is_linear(item.value, loop.loop_var) for item in stores):
            return loop
        return _over(extent, widths, lambda at, lanes, turns: _map(loop, at, lanes, turns))
    sums = [_Sum.of(item, loop.loop_var) for item in stores]
    if len(sums) == 1 and sums[0] is not None and _is_linear(sums[0].value, loop.loop_var):
        total = sums[0]
        return _over(
            extent, widths, lambda at, lanes, turns: _reduce(loop, total, at, lanes, turns)
        )
    return loop


def _over(
    extent: int, widths: Sequence[int], body: Callable[[int, int, int], tirx.Stmt]
) -> tirx.Stmt:
    """`body(first element, lanes, turns)` for each width that has whole vectors left."""
    parts, at = [], 0
    for lanes in (*widths, 1):
        turns = (extent - at) // lanes
        if turns:
            parts.append(body(at, lanes, turns))
            at += turns * lanes
    return tir.sequence(*parts)


def _map(loop: tirx.For, at: int, lanes: int, turns: int) -> tirx.Stmt:
    return tir.loop_of(
        "vector",
        turns,
        lambda turn: _lanes(lanes, lambda lane: _with(loop, loop.body, at + turn * lanes + lane)),
    )


@dataclass(frozen=True, kw_only=True)
class _Sum:
    """`buffer[index] = combine(buffer[index], value)`, or another commutative operation."""

    store: tirx.BufferStore
    combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
    neutral: float
    value: tirx.Expr

    @staticmethod
    def of(store: tirx.BufferStore, variable: tirx.Var) -> _Sum | None:
        """None for any other store, and for one that the loop moves along."""
        if type(store.value) not in _OPERATIONS or _step(store.indices[0], variable) != 0:
            return None
        combine, neutral = _OPERATIONS[type(store.value)]
        own = tirx.BufferLoad(store.buffer, store.indices)
        for mine, other in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
            if tvm_ffi.structural_equal(mine, own, map_free_vars=True):
                return _Sum(store=store, combine=combine, neutral=neutral, value=other)
        return None


_OPERATIONS: dict[type, tuple[Callable[[tirx.Expr, tirx.Expr], tirx.Expr], float]] = {
    tirx.Add: (lambda a, b: a + b, 0.0),
    tirx.Mul: (lambda a, b: a * b, 1.0),
    tirx.Max: (tirx.max, float("-inf")),
    tirx.Min: (tirx.min, float("inf")),
}


def _reduce(loop: tirx.For, total: _Sum, at: int, lanes: int, turns: int) -> tirx.Stmt:
    """`turns` vectors, added to several sums in turn; the sums' own sum goes to memory."""
    if lanes == 1:
        return tir.loop_of("rest", turns, lambda turn: _with(loop, loop.body, at + turn))
    sums = [tir.Local(f"sum{i}", lanes) for i in range(min(_SUMS, turns))]

    def add(count: int, first: tir.Expr) -> tirx.Stmt:
        def one(index: int) -> tirx.Stmt:
            start = first + index * lanes
            buffer = sums[index].buffer
            return _lanes(
                lanes,
                lambda lane: tirx.BufferStore(
                    buffer,
                    total.combine(
                        tirx.BufferLoad(buffer, [lane]),
                        _with(loop, total.value, start + lane),
                    ),
                    [lane],
                ),
            )

        return tir.sequence(*(one(index) for index in range(count)))

    together = lanes * len(sums)
    full, rest = divmod(turns, len(sums))
    names = tir.Names()
    value, width = sums[0].get(), lanes
    for other in sums[1:]:
        value = total.combine(value, other.get())
    while width > 1:
        width //= 2
        value = names.bind("h", value)
        halves = (
            tirx.Shuffle([value], [tir.integer(i) for i in range(first, first + width)])
            for first in (0, width)
        )
        value = total.combine(*halves)
    own = tirx.BufferLoad(total.store.buffer, total.store.indices)
    names.add(tirx.BufferStore(total.store.buffer, total.combine(own, value), total.store.indices))
    return tir.sequence(
        *(item.declare() for item in sums),
        *(item.set(tir.number(total.neutral, lanes)) for item in sums),
        tir.loop_of("vectors", full, lambda turn: add(len(sums), at + turn * together)),
        add(rest, at + full * together) if rest else None,
        names.done(),
    )


def _lanes(lanes: int, body: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
    """`body` for all lanes at once."""
    if lanes == 1:
        return body(tir.integer(0))
    lane = tir.var("lane")
    return tirx.For(lane, tir.integer(0), tir.integer(lanes), tirx.ForKind.VECTORIZED, body(lane))


def _with(loop: tirx.For, item: tirx.Stmt | tirx.Expr, value: tir.Expr) -> tirx.Stmt | tirx.Expr:
    """A part of a loop's body for one value of its counter."""
    value = tir.integer(value) if isinstance(value, int) else value
    return tvm_ffi.structural_map(
        item, (tvm.ir.Var, lambda var: value if var.same_as(loop.loop_var) else var)
    )


def _is_float(store: tirx.BufferStore) -> bool:
    return str(store.buffer.dtype) == "float32" and len(store.indices) == 1


def _step(index: tirx.Expr, variable: tirx.Var) -> int | None:
    """How far an index moves per turn; None where that is no constant."""
    found = detect_linear_equation(index, [variable])
    return int(found[0]) if found and isinstance(found[0], tirx.IntImm) else None


def _is_linear(expr: tirx.Expr, variable: tirx.Var) -> bool:
    """Whether all of it can be computed on vectors: no branch, and loads at regular places."""
    good = True

    def load(item: tvm.ir.TensorLoad) -> None:
        nonlocal good
        good = good and len(item.indices) == 1 and _step(item.indices[0], variable) in (0, 1)

    def call(item: tvm.ir.Call) -> None:
        nonlocal good
        good = good and _name(item) in _ON_VECTORS

    tvm_ffi.structural_walk(expr, ((tvm.ir.TensorLoad, load), (tvm.ir.Call, call)))
    return good


# Calls that have a form on vectors; `if_then_else` is the one that matters that has none.
_ON_VECTORS = frozenset(
    {
        "reinterpret",
        "sqrt",
        "fabs",
        "floor",
        "ceil",
        "shift_left",
        "shift_right",
        "bitwise_and",
        "bitwise_or",
        "rsqrt",
        "round",
        "trunc",
    }
)
