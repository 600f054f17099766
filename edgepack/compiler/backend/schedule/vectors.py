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
from types import MappingProxyType

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer, detect_linear_equation

from edgepack.compiler.backend import exact, inside
from edgepack.compiler.backend.schedule.narrow import narrow_counters
from edgepack.compiler.backend.schedule.pieces import cut, substitute
from edgepack.kernels.tiles import functions, tir
from edgepack.kernels.tiles.cpu import CpuModel

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
    ]
)
_TO_FLAT_LOOPS = tvm.transform.Sequential(
    [
        exact.hide_remainders(),
        tirx.transform.FlattenBuffer(),
        exact.show_remainders(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.StmtSimplify(),
    ]
)


def to_loops(
    function: tirx.PrimFunc, numbers: inside.Numbers = MappingProxyType({})
) -> tirx.PrimFunc:
    """A function of blocks as loops over flat buffers.

    Indices that come at run time are compared with their axes in between, where there are any
    (`inside.guard_positions`).
    """

    def lowered(blocks: tirx.PrimFunc) -> tirx.PrimFunc:
        loops = inside.guard_positions(_TO_LOOPS(tvm.IRModule({"main": blocks}))["main"], numbers)
        return _TO_FLAT_LOOPS(tvm.IRModule({"main": loops}))["main"]

    return exact.without_floats(lowered, function)


def vectorise(
    function: tirx.PrimFunc, cpu: CpuModel, numbers: inside.Numbers = MappingProxyType({})
) -> tirx.PrimFunc:
    """Lower a scheduled function of blocks to loops of vectors."""
    body = tvm_ffi.structural_map(function.body, (tvm.ir.Call, _chosen))
    lowered = to_loops(function.with_body(body), numbers)
    body = tvm_ffi.structural_map(narrow_counters(lowered.body), (tirx.For, cut))
    body = tvm_ffi.structural_map(body, (tvm.ir.Call, _expand))
    widths = cpu.vector_bytes
    return lowered.with_body(
        tvm_ffi.structural_map(body, (tirx.For, lambda loop: _vector_loop(loop, widths)))
    )


def _expand(call: tvm.ir.Call) -> tirx.Expr:
    """A function of float32 as arithmetic, where there is such a form."""
    name = functions.name_of(call)
    if name not in _OF_LIBM and name not in functions.FUNCTIONS:
        return call
    dtype = str(call.ty.dtype)
    if dtype in _OF_LIBM.get(name, ()):
        return tirx.call_pure_extern(dtype, name + "f" * (dtype == "float32"), *call.args)
    function = functions.FUNCTIONS.get(name)
    if function is None or dtype != "float32":
        return call
    return functions.as_expression(function, *call.args)


# TVM computes these as 1 plus and minus something, of which nothing is left where that is small.
_OF_LIBM = {"atanh": ("float32", "float64"), "tanh": ("float64",)}


def _chosen(call: tvm.ir.Call) -> tirx.Expr:
    """A choice of one of two indices without a branch: where nothing is read, both may be made.

    Branches would be in every turn of a loop, and indices with one in it stay 64 bits wide.
    """
    if functions.name_of(call) != "if_then_else" or str(call.ty.dtype) not in ("int32", "int64"):
        return call
    reads: list[tvm.ir.TensorLoad] = []
    tvm_ffi.structural_walk(call, (tvm.ir.TensorLoad, reads.append))
    return call if reads else tirx.Select(*call.args)


# Bytes of the elements that vectors are made of.
_BYTES = {f"{kind}{8 * size}": size for kind in ("int", "uint") for size in (1, 2, 4, 8)}
_BYTES |= {"float16": 2, "float32": 4, "float64": 8, "bool": 1}
# Registers that one vector may take where a loop has elements of several sizes.
_MOST_REGISTERS = 4
# Lanes of the largest square that is turned, and of the smallest vector.
_MOST_SIDE, _LEAST = 16, 4


def _lanes_for(sizes: Sequence[int], widths: Sequence[int]) -> list[int]:
    """Lanes to cut a loop into, most first, of elements of these sizes in bytes.

    `widths` are those of registers, in bytes. The smallest elements fill a register, the others
    several.
    """
    register = widths[0]
    most = min(register // min(sizes), _MOST_REGISTERS * register // max(sizes))
    least = min(_LEAST, widths[-1] // max(sizes))
    return [1 << bit for bit in range(most.bit_length() - 1, least.bit_length() - 2, -1)]


def _sizes(stores: Sequence[tirx.BufferStore]) -> list[int] | None:
    """Bytes of all elements that some stores read and write; None for types without vectors."""
    types = {str(store.buffer.dtype) for store in stores}

    def read(load: tvm.ir.TensorLoad) -> None:
        types.add(str(load.source.dtype))

    for store in stores:
        tvm_ffi.structural_walk(store.value, (tvm.ir.TensorLoad, read))
    return [_BYTES[item] for item in types] if types <= _BYTES.keys() else None


def _vector_loop(loop: tirx.For, widths: Sequence[int]) -> tirx.Stmt:
    """An innermost loop in vectors, two that transpose in squares; any other as it is."""
    if loop.kind != tirx.ForKind.SERIAL or not isinstance(loop.extent, tirx.IntImm):
        return loop
    body = loop.body
    if isinstance(body, tirx.For):
        return _transpose(loop, body, widths)
    stores = list(body) if isinstance(body, tirx.SeqStmt) else [body]
    if not all(isinstance(item, tirx.BufferStore) and len(item.indices) == 1 for item in stores):
        return loop
    part, sizes = _part(loop, stores), _sizes(stores)
    if part is None or sizes is None:
        return loop
    return _over(int(loop.extent), _lanes_for(sizes, widths), part)


# Makes so many vectors of so many lanes from an element of a loop on.
_Part = Callable[[int, int, int], tirx.Stmt]


def _part(loop: tirx.For, stores: Sequence[tirx.BufferStore]) -> _Part | None:
    """How to do a part of a loop with vectors, if there is a way."""
    if all(_step(item.indices[0], loop.loop_var) == 1 for item in stores):
        if all(_is_linear(item.value, loop, special=True) for item in stores):
            return lambda at, lanes, turns: _map(loop, at, lanes, turns)
        return None
    total = _Sum.of(stores[0], loop.loop_var) if len(stores) == 1 else None
    if total is not None and _is_linear(total.value, loop, special=False):
        return lambda at, lanes, turns: _reduce(loop, total, at, lanes, turns)
    return None


def _over(extent: int, widths: Sequence[int], body: _Part) -> tirx.Stmt:
    """`body` for each width that has whole vectors left."""
    parts, at = [], 0
    for lanes in (*widths, 1):
        turns = (extent - at) // lanes
        if turns:
            parts.append(body(at, lanes, turns))
            at += turns * lanes
    return tir.sequence(*parts)


def _map(loop: tirx.For, at: int, lanes: int, turns: int) -> tirx.Stmt:
    """`turns` vectors; loads that are no vector in memory are put into a register first."""
    if lanes == 1:
        return tir.loop_of("rest", turns, lambda turn: _with(loop, loop.body, at + turn))
    special = _special_loads(loop.body, loop)

    def one(turn: tir.Expr) -> tirx.Stmt:
        start = at + turn * lanes
        made = [
            (load, tir.Local("loaded", lanes, str(load.source.dtype)), build)
            for load, build in special
        ]
        return tir.sequence(
            *(local.declare() for _, local, _ in made),
            *(local.set(build(start, lanes)) for _, local, build in made),
            _lanes(lanes, lambda lane: _with(loop, loaded(lane, made), start + lane)),
        )

    def loaded(lane: tirx.Expr, made: Sequence[tuple[tirx.Expr, tir.Local, object]]) -> tirx.Stmt:
        def replace(load: tvm.ir.TensorLoad) -> tirx.Expr:
            for other, local, _ in made:
                if tvm_ffi.structural_equal(load, other):
                    return tirx.BufferLoad(local.buffer, [lane])
            return load

        return tvm_ffi.structural_map(loop.body, (tvm.ir.TensorLoad, replace))

    return tir.loop_of("vector", turns, one)


# Makes `lanes` elements from turn `start` of a loop on.
_Build = Callable[[tir.Expr, int], tirx.Expr]


def _special_loads(body: tirx.Stmt, loop: tirx.For) -> list[tuple[tirx.Expr, _Build]]:
    """Loads of every second element, backwards, or of each element several times.

    And how to make them.
    """
    found: list[tuple[tirx.Expr, _Build]] = []

    def visit(load: tvm.ir.TensorLoad) -> None:
        build = _special(load, loop)
        if build is not None and not any(tvm_ffi.structural_equal(load, x) for x, _ in found):
            found.append((load, build))

    tvm_ffi.structural_walk(body, (tvm.ir.TensorLoad, visit))
    return found


def _special(load: tvm.ir.TensorLoad, loop: tirx.For) -> _Build | None:
    index = load.indices[0]

    def elements(start: tir.Expr, further: int, lanes: int) -> tirx.Expr:
        return tir.load(load.source, [_with(loop, index, start) + further], lanes)

    def every_second(start: tir.Expr, lanes: int) -> tirx.Expr:
        # The second vector ends with the last element wanted: nothing beyond it is read.
        pair = [elements(start, 0, lanes), elements(start, lanes - 1, lanes)]
        picked = [2 * i if 2 * i < lanes else 2 * i + 1 for i in range(lanes)]
        return tirx.Shuffle(pair, [tir.integer(i) for i in picked])

    def backwards(start: tir.Expr, lanes: int) -> tirx.Expr:
        picked = [tir.integer(i) for i in reversed(range(lanes))]
        return tirx.Shuffle([elements(start, 1 - lanes, lanes)], picked)

    step = _step(index, loop.loop_var)
    if step in (2, -1):
        return every_second if step == 2 else backwards
    times = _repeats(index, loop)
    if times is None:
        return None

    def repeated(start: tir.Expr, lanes: int) -> tirx.Expr:
        if lanes == times:
            return tir.spread(elements(start, 0, 1), lanes)
        picked = [tir.integer(i // times) for i in range(lanes)]
        # A shuffle has no more lanes than its operands together.
        return tirx.Shuffle([elements(start, 0, lanes // times)] * times, picked)

    return repeated


def _repeats(index: tirx.Expr, loop: tirx.For) -> int | None:
    """How many turns in a row load the same element, before the next one: 2 or 4."""
    for times in (2, 4):
        group, turn = tir.var("group"), tir.var("turn")
        analyzer = Analyzer()
        analyzer.bind(group, tvm.ir.Range(0, -(-int(loop.extent) // times)))
        analyzer.bind(turn, tvm.ir.Range(0, times))
        split = analyzer.simplify(_with(loop, index, group * times + turn))
        if _step(split, group) == 1 and _step(split, turn) == 0:
            return times
    return None


def _transpose(outer: tirx.For, inner: tirx.For, widths: Sequence[int]) -> tirx.Stmt:
    """Two loops that copy from rows to columns, in squares that are turned in registers.

    The last square of a row overlaps the one before. Other loops stay as they are.
    """
    store = inner.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(inner.extent, tirx.IntImm):
        return outer
    load = store.value
    sizes = _sizes([store])
    if not isinstance(load, tvm.ir.TensorLoad) or sizes is None or len(load.indices) != 1:
        return outer
    to, source = store.indices[0], load.indices[0]
    steps = [_step(index, loop.loop_var) for index, loop in ((to, inner), (source, outer))]
    others = [_step(index, loop.loop_var) for index, loop in ((to, outer), (source, inner))]
    extents = [int(outer.extent), int(inner.extent)]
    most = min(_MOST_SIDE, *extents)
    sides = [lanes for lanes in _lanes_for(sizes, widths) if lanes <= most]
    if steps != [1, 1] or None in others or not sides:
        return outer
    side = sides[0]

    def at(index: tirx.Expr, row: tir.Expr, column: tir.Expr) -> tirx.Expr:
        return _with(inner, _with(outer, index, row), column)

    def square(row: tir.Expr, column: tir.Expr) -> tirx.Stmt:
        names = tir.Names()
        lines = [tir.load(load.source, [at(source, row, column + i)], side) for i in range(side)]
        for i, line in enumerate(tir.transpose(names, lines)):
            names.add(tir.store(store.buffer, line, [at(to, row + i, column)], side))
        return names.done()

    def along(name: str, extent: int, body: Callable[[tir.Expr], tirx.Stmt]) -> tirx.Stmt:
        return tir.sequence(
            tir.loop_of(name, extent // side, lambda i: body(i * side)),
            body(extent - side) if extent % side else None,
        )

    return along("row", extents[0], lambda r: along("column", extents[1], lambda c: square(r, c)))


@dataclass(frozen=True, kw_only=True)
class _Sum:
    """`buffer[index] = combine(buffer[index], value)`, or another commutative operation."""

    store: tirx.BufferStore
    combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
    neutral: Callable[[str], tirx.Expr]
    value: tirx.Expr

    @staticmethod
    def of(store: tirx.BufferStore, variable: tirx.Var) -> _Sum | None:
        """None for any other store, and for one that the loop moves along."""
        if type(store.value) not in _OPERATIONS or _step(store.indices[0], variable) != 0:
            return None
        combine, neutral = _OPERATIONS[type(store.value)]
        own = tirx.BufferLoad(store.buffer, store.indices)
        for mine, other in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
            if tvm_ffi.structural_equal(mine, own):
                return _Sum(store=store, combine=combine, neutral=neutral, value=other)
        return None


def _lowest(dtype: str) -> tirx.Expr:
    return tirx.const(float("-inf"), dtype) if "float" in dtype else tirx.min_value(dtype)


def _highest(dtype: str) -> tirx.Expr:
    return tirx.const(float("inf"), dtype) if "float" in dtype else tirx.max_value(dtype)


# How two results become one, and what changes nothing, by type.
_OPERATIONS: dict[
    type, tuple[Callable[[tirx.Expr, tirx.Expr], tirx.Expr], Callable[[str], tirx.Expr]]
] = {
    tirx.Add: (lambda a, b: a + b, lambda dtype: tirx.const(0, dtype)),
    tirx.Mul: (lambda a, b: a * b, lambda dtype: tirx.const(1, dtype)),
    tirx.Max: (tirx.max, _lowest),
    tirx.Min: (tirx.min, _highest),
}


def _reduce(loop: tirx.For, total: _Sum, at: int, lanes: int, turns: int) -> tirx.Stmt:
    """`turns` vectors, added to several sums in turn; the sums' own sum goes to memory."""
    if lanes == 1:
        return tir.loop_of("rest", turns, lambda turn: _with(loop, loop.body, at + turn))
    dtype = str(total.store.buffer.dtype)
    sums = [tir.Local(f"sum{i}", lanes, dtype) for i in range(min(_SUMS, turns))]

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
    value = tir.fold_lanes(names, [item.get() for item in sums], total.combine)
    own = tirx.BufferLoad(total.store.buffer, total.store.indices)
    names.add(tirx.BufferStore(total.store.buffer, total.combine(own, value), total.store.indices))
    return tir.sequence(
        *(item.declare() for item in sums),
        *(item.set(tir.spread(total.neutral(dtype), lanes)) for item in sums),
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
    return substitute(item, loop.loop_var, value)


def _step(index: tirx.Expr, variable: tirx.Var) -> int | None:
    """How far an index moves per turn; None where that is no constant."""
    found = detect_linear_equation(index, [variable])
    return int(found[0]) if found and isinstance(found[0], tirx.IntImm) else None


def _is_linear(expr: tirx.Expr, loop: tirx.For, *, special: bool) -> bool:
    """Whether all of it can be computed on vectors: no branch, and loads at regular places.

    `special`: also those of `_special`.
    """
    good = True

    def load(item: tvm.ir.TensorLoad) -> None:
        nonlocal good
        regular = len(item.indices) == 1 and _step(item.indices[0], loop.loop_var) in (0, 1)
        good = good and (regular or (special and _special(item, loop) is not None))

    def call(item: tvm.ir.Call) -> None:
        nonlocal good
        good = good and functions.name_of(item) in _ON_VECTORS

    tvm_ffi.structural_walk(expr, ((tvm.ir.TensorLoad, load), (tvm.ir.Call, call)))
    return good


# Calls that have a form on vectors; `if_then_else` is the one that matters that has none.
_ON_VECTORS = frozenset(
    {
        "call_llvm_pure_intrin",
        "ceil",
        "fabs",
        "floor",
        "nearbyint",
        "reinterpret",
        "round",
        "rsqrt",
        "sqrt",
        "trunc",
    }
    | {f"bitwise_{name}" for name in ("and", "or", "xor", "not")}
    | {"shift_left", "shift_right"}
)
