"""Building blocks of kernels written directly as loops, without a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import tvm
from tvm import tirx

Expr: TypeAlias = tirx.Expr | int
Stmt: TypeAlias = tirx.Stmt

_SERIAL = tirx.ForKind.SERIAL
_PARALLEL = tirx.ForKind.PARALLEL


def var(name: str) -> tirx.Var:
    """A loop counter."""
    return tirx.Var(name, "int32")


def integer(value: int) -> tirx.IntImm:
    """An int32 constant."""
    return tirx.IntImm("int32", value)


def expr(value: Expr) -> tirx.Expr:
    """A number of either kind as an expression."""
    return integer(value) if isinstance(value, int) else value


def number(value: float, dtype: str, lanes: int = 1) -> tirx.Expr:
    """A constant of a floating-point type, in every lane."""
    return spread(tirx.FloatImm(dtype, value), lanes)


def rounded_product(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """a * b as a number of its type, which LLVM does not fuse into a sum that follows."""
    product = tirx.Mul(a, b)
    return fence(product) if str(product.ty.dtype).startswith(("float32", "float64")) else product


def fence(value: tirx.Expr) -> tirx.Expr:
    """A float as it is, of which nobody knows how it was made. It takes no instruction."""
    return tirx.call_llvm_pure_intrin(str(value.ty.dtype), _FENCE, value)


def in_fence(call: tvm.ir.Call) -> tirx.Expr | None:
    """What a `fence` is around; None if it is none."""
    if not isinstance(call.op, tvm.ir.Op) or call.op.name != "tirx.call_llvm_pure_intrin":
        return None
    return call.args[1] if int(call.args[0]) == _fence_number() else None


_FENCE = "llvm.arithmetic.fence"


@cache
def _fence_number() -> int:
    return int(tirx.call_llvm_pure_intrin("float32", _FENCE, tirx.FloatImm("float32", 0)).args[0])


def cast(value: tirx.Expr, dtype: str) -> tirx.Expr:
    """A value, or a vector of values, in another type; itself if it is of that."""
    lanes = int(value.ty.dtype.lanes)
    if str(value.ty.dtype.with_lanes(1)) == dtype:
        return value
    return tirx.Cast(f"{dtype}x{lanes}" if lanes > 1 else dtype, value)


def spread(value: tirx.Expr, lanes: int) -> tirx.Expr:
    """A scalar in every lane of a vector."""
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


def sequence(*statements: Stmt | None) -> Stmt:
    """Statements one after the other; None is left out."""
    items = [item for item in statements if item is not None]
    return items[0] if len(items) == 1 else tirx.SeqStmt(items)


def loop(counter: tirx.Var, extent: Expr, body: Stmt, *, parallel: bool = False) -> Stmt:
    """`for counter in range(extent)`, shared out between the cores if `parallel`."""
    return tirx.For(counter, integer(0), expr(extent), _PARALLEL if parallel else _SERIAL, body)


def loop_of(
    name: str, extent: Expr, body: Callable[[Expr], Stmt], *, parallel: bool = False
) -> Stmt:
    """A loop whose body is a function of its counter; a loop of one turn is just its body."""
    if isinstance(extent, int) and extent == 1:
        return body(0)
    counter = var(name)
    return loop(counter, extent, body(counter), parallel=parallel)


def when(condition: tirx.Expr, then: Stmt) -> Stmt:
    """A statement that is done only if a condition holds."""
    return tirx.IfThenElse(condition, then, None)


def split(
    name: str,
    full: int,
    body: Callable[[Expr], Stmt],
    rest: Callable[[], Stmt] | None,
    **kind: bool,
) -> Stmt:
    """A loop of `full` equal turns and, in the same loop, a last different one."""
    if rest is None:
        return loop_of(name, full, body, **kind)
    if full == 0:
        return rest()
    counter = var(name)
    return loop(counter, full + 1, turn(counter, full, body, rest), **kind)


def turn(
    index: Expr, full: int, body: Callable[[Expr], Stmt], rest: Callable[[], Stmt] | None
) -> Stmt:
    """One turn of such a loop, by its number."""
    if rest is None or full == 0:
        return body(index) if rest is None else rest()
    return tirx.IfThenElse(index < full, body(index), rest())


def indices(items: Sequence[Expr], lanes: int) -> list[tirx.Expr]:
    """Buffer indices of `lanes` elements that lie one after the other."""
    exprs = [expr(item) for item in items]
    if lanes > 1:
        exprs[-1] = tirx.Ramp(exprs[-1], integer(1), lanes)
    return exprs


def load(buffer: tirx.Buffer, items: Sequence[Expr], lanes: int = 1) -> tirx.Expr:
    """`lanes` elements of a buffer as a vector."""
    return tirx.BufferLoad(buffer, indices(items, lanes))


def store(buffer: tirx.Buffer, value: tirx.Expr, items: Sequence[Expr], lanes: int = 1) -> Stmt:
    """Write a vector of `lanes` elements."""
    return tirx.BufferStore(buffer, value, indices(items, lanes))


def prefetch(source: tirx.Buffer, at: Expr) -> Stmt:
    """Have the line of an element brought into the second cache; there need be no such element."""
    address = tirx.address_of(load(source, [at]))
    # To be read, into the second cache, as data: LLVM's language reference, llvm.prefetch.
    wanted = (integer(0), integer(2), integer(1))
    return evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *wanted))


def buffer(name: str, shape: Sequence[int], dtype: str) -> tirx.Buffer:
    """An argument of a kernel."""
    return tirx.decl_buffer([integer(dim) for dim in shape], dtype, name)


class Local:
    """A vector variable that lives in a register; or `count` of them, on the stack."""

    def __init__(self, name: str, lanes: int, dtype: str, *, count: int = 1) -> None:
        self.lanes = lanes
        self.buffer = tirx.decl_buffer([integer(lanes * count)], dtype, name, scope="local")

    def declare(self) -> Stmt:
        """Its declaration; without the annotation it would be taken from the heap."""
        return tirx.AllocBuffer(self.buffer, {"disable_lower_builtin": tirx.IntImm("bool", 1)})

    def get(self, index: Expr = 0) -> tirx.Expr:
        return load(self.buffer, [index * self.lanes], self.lanes)

    def set(self, value: tirx.Expr, index: Expr = 0) -> Stmt:
        return store(self.buffer, value, [index * self.lanes], self.lanes)


class Names:
    """Binds values to names, so that each is computed once, in the order of binding."""

    def __init__(self) -> None:
        self.statements: list[Stmt] = []

    def bind(self, name: str, value: Expr) -> tirx.Var:
        value = expr(value)
        bound = tirx.Var(name, value.ty)
        self.statements.append(tirx.Bind(bound, value))
        return bound

    def keep(self, name: str, value: Expr) -> tirx.Expr:
        """The same as a variable, for integers: TVM's analysis looks through their names, which
        takes longer with each one that is made of others."""
        value = expr(value)
        lanes = int(value.ty.dtype.lanes)
        kept = Local(name, lanes, str(value.ty.dtype.with_lanes(1)))
        self.statements += [kept.declare(), kept.set(value)]
        return kept.get()

    def add(self, statement: Stmt) -> None:
        self.statements.append(statement)

    def done(self) -> Stmt:
        return sequence(*self.statements)


def in_step(parts: Sequence[Names]) -> Stmt:
    """The same statements for several values, each of them for all before the next one.

    CPUs that find out themselves what may start look ahead less far than functions are long.
    """
    lists = [part.statements for part in parts]
    return sequence(*(item for items in zip(*lists, strict=True) for item in items))


def pieces(vector: tirx.Expr, size: int) -> list[tirx.Expr]:
    """A vector cut into pieces of `size` lanes."""
    lanes = int(vector.ty.dtype.lanes)
    if lanes == size:
        return [vector]
    return [
        tirx.Shuffle([vector], [integer(lane) for lane in range(first, first + size)])
        for first in range(0, lanes, size)
    ]


def join_vectors(parts: Sequence[tirx.Expr]) -> tirx.Expr:
    """Vectors of one size as one."""
    lanes = sum(int(part.ty.dtype.lanes) for part in parts)
    if len(parts) == 1:
        return parts[0]
    return tirx.Shuffle(list(parts), [integer(lane) for lane in range(lanes)])


_IN_PLACE = "edgepack.in_place"


def transpose(names: Names, vectors: Sequence[tirx.Expr]) -> list[tirx.Var]:
    """n vectors of n lanes, a power of two, as the rows of a matrix: its columns.

    Blocks of 1, 2, 4, ... lanes change places with their mirror image: log2 n rounds of n shuffles.
    """
    rows = [names.bind("row", vector) for vector in vectors]
    size = len(rows)
    block = 1
    while block < size:
        # Lanes of the pair (upper row, lower row) that become the new upper and lower row.
        upper = [size + i - block if i & block else i for i in range(size)]
        lower = [size + i if i & block else i + block for i in range(size)]
        for i in range(size):
            if not i & block:
                pair = [rows[i], rows[i + block]]
                rows[i], rows[i + block] = (
                    names.bind("row", tirx.Shuffle(pair, [integer(lane) for lane in lanes]))
                    for lanes in (upper, lower)
                )
        block *= 2
    return rows


def sums_of_lanes(names: Names, vectors: Sequence[tirx.Expr]) -> tirx.Expr:
    """n vectors of n lanes, a power of two, as one of their sums.

    Pairs of vectors become one with half of each one's sums: log2 n rounds, as `transpose`.
    """
    rows, size, block = list(vectors), len(vectors), 1
    while block < size:
        upper = [size + i - block if i & block else i for i in range(size)]
        lower = [size + i if i & block else i + block for i in range(size)]
        rows = [
            names.bind(
                "half",
                tirx.Shuffle(list(pair), [integer(lane) for lane in upper])
                + tirx.Shuffle(list(pair), [integer(lane) for lane in lower]),
            )
            for pair in zip(rows[::2], rows[1::2], strict=True)
        ]
        block *= 2
    return rows[0]


def fold_lanes(
    names: Names,
    vectors: Sequence[tirx.Expr],
    combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
) -> tirx.Expr:
    """All lanes of some vectors, of a power of two lanes, as one value: two by two."""
    value = vectors[0]
    for other in vectors[1:]:
        value = combine(value, other)
    width = int(value.ty.dtype.lanes)
    while width > 1:
        width //= 2
        value = names.bind("h", value)
        halves = (
            tirx.Shuffle([value], [integer(i) for i in range(first, first + width)])
            for first in (0, width)
        )
        value = combine(*halves)
    return value


def function(
    arguments: Sequence[tirx.Buffer],
    body: Stmt,
    *,
    in_place: Sequence[tuple[tirx.Buffer, tirx.Buffer]] = (),
) -> tirx.PrimFunc:
    """A kernel: inputs first, then constants, then the output.

    `in_place` are pairs of an argument and a result that may be the same memory, of which the
    kernel reads each element before it writes it, and never after.
    """
    made = tirx.PrimFunc(list(arguments), body)
    made = made.with_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": 8})
    return may_share(made, in_place)


def may_share(
    function: tirx.PrimFunc, in_place: Sequence[tuple[tirx.Buffer, tirx.Buffer]]
) -> tirx.PrimFunc:
    """The function, where pairs of an argument and a result may be the same memory."""
    if not in_place:
        return function
    numbers = [
        next(i for i, argument in enumerate(function.params) if argument.same_as(buffer))
        for pair in in_place
        for buffer in pair
    ]
    return function.with_attr({"tirx.noalias": False, _IN_PLACE: numbers})


def in_place(function: tirx.PrimFunc) -> list[tuple[int, int]]:
    """Numbers of the arguments and results that may share memory."""
    numbers = [int(number) for number in (function.attrs or {}).get(_IN_PLACE, ())]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def evaluate(value: tirx.Expr) -> Stmt:
    """A call for its effect."""
    return tirx.Evaluate(value)


def import_functions(llvm_ir: str, body: Stmt) -> Stmt:
    """`body`, which may call the functions of a piece of LLVM IR."""
    return tirx.AttrStmt(integer(0), "pragma_import_llvm", tvm.ir.StringImm(llvm_ir), body)


# An empty piece of assembly that LLVM may not copy.
_ONCE = """define internal i32 @edgepack_once() alwaysinline nounwind {
  call void asm sideeffect "", ""() noduplicate
  ret i32 0
}
"""


def not_unrolled(body: Stmt) -> Stmt:
    """The body of a loop that LLVM shall leave as it is."""
    mark = evaluate(tirx.call_extern("int32", "edgepack_once"))
    return import_functions(_ONCE, sequence(mark, body))
