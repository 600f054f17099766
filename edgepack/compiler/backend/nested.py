"""Values of values, of which TVM would take too long to make code, in local memory.

TVM analyses each value that has a name (Bind, Let) with the values of all that it reads put in
their places, in several passes and when it makes code for LLVM. A logarithm reads its argument in a
hundred places: one of a logarithm takes 39 s so, and one of a power does not end. What is stored is
not looked at again; LLVM keeps it in registers.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from edgepack.kernels.tiles import tir

# Parts of a value with all others put in their places. TVM takes 1.4 s for a Softplus of 400,000,
# and 7 s for a Mish of ten million.
_MOST_PARTS = 2_000
_STORED = ("float32", "float64", "float16", "int32", "uint32")
_LAZY = "if_then_else"


def cut_nested() -> tvm.transform.Pass:
    """A pass that stores values with more than `_MOST_PARTS` parts."""

    def run(
        function: tirx.PrimFunc, _module: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        return (
            function.with_body(_Cut().of(function.body)) if _may_nest(function.body) else function
        )

    return tirx.transform.prim_func_pass(run, opt_level=0, name="edgepack.CutNested")


def _may_nest(body: tirx.Stmt) -> bool:
    """Whether some value may have more than `_MOST_PARTS` parts: in one walk, where `_Parts` has
    one for each value. It counts what is between two statements as parts of the second."""
    of_variable: dict[tirx.Var, int] = {}
    count = 0

    def expression(_: tvm.ir.Expr) -> None:
        nonlocal count
        count += 1

    def variable(item: tirx.Var) -> None:
        nonlocal count
        count += of_variable.get(item, 1)

    def statement(item: tirx.Stmt) -> tvm_ffi.VisitInterrupt | None:
        nonlocal count
        parts, count = count, 0
        if isinstance(item, tirx.Bind):
            of_variable[item.var] = parts
        return tvm_ffi.VisitInterrupt(item) if parts > _MOST_PARTS else None

    # A Let's variable has its value once both have been walked through.
    entries = (
        (tirx.Let, tvm_ffi.VisitInterrupt),
        (tirx.Stmt, statement),
        (tirx.Var, variable),
        (tvm.ir.Expr, expression),
    )
    return tvm_ffi.structural_walk(body, entries) is not None


class _Parts:
    """How many parts expressions have, with the values of variables put in their places."""

    def __init__(self) -> None:
        self._of_variable: dict[tirx.Var, int] = {}
        self._count = 0

    def of(self, value: tirx.Expr) -> int:
        before, self._count = self._count, 0
        tvm_ffi.structural_visit(
            value, ((tirx.Let, self._let), (tirx.Var, self._variable), (tvm.ir.Expr, self._other))
        )
        before, self._count = self._count, before
        return before

    def bind(self, variable: tirx.Var, parts: int) -> None:
        self._of_variable[variable] = parts

    def _let(self, item: tirx.Let, visitor: Any) -> None:
        self.bind(item.var, self.of(item.value))
        self._count += self._of_variable[item.var]
        visitor.visit(item.body)

    def _variable(self, item: tirx.Var, _visitor: Any) -> None:
        self._count += self._of_variable.get(item, 1)

    def _other(self, item: tvm.ir.Expr, visitor: Any) -> None:
        self._count += 1
        visitor.default_visit(item)


class _Cut:
    """The statements of a kernel, in order."""

    def __init__(self) -> None:
        self._parts = _Parts()
        self._kept: dict[tirx.Var, tirx.Expr] = {}

    def of(self, body: tirx.Stmt) -> tirx.Stmt:
        return tvm_ffi.structural_mutate(
            body,
            (
                (tirx.For, self._loop),
                (tirx.SeqStmt, self._sequence),
                (tirx.BufferStore, self._store),
                (tirx.Bind, self._bind),
                (tirx.Var, lambda item, _: self._kept.get(item, item)),
            ),
        )

    def _loop(self, item: tirx.For, mutator: Any) -> tirx.Stmt:
        """What becomes vectors is cut when it is some."""
        return item if item.kind == tirx.ForKind.VECTORIZED else mutator.default_mutate(item)

    def _sequence(self, item: tirx.SeqStmt, mutator: Any) -> tirx.Stmt:
        """One sequence, for what a sequence within it names has an end with it."""
        made = [mutator.mutate(one) for one in item.seq]
        parts = [list(one.seq) if isinstance(one, tirx.SeqStmt) else [one] for one in made]
        return tir.sequence(*chain.from_iterable(parts))

    def _store(self, item: tirx.BufferStore, mutator: Any) -> tirx.Stmt:
        if self._parts.of(item.value) <= _MOST_PARTS:
            return mutator.default_mutate(item)
        pieces = _Pieces(self._parts, self._kept)
        value = pieces.of(item.value)
        indices = [mutator.mutate(index) for index in item.indices]
        return tir.sequence(*pieces.statements, tirx.BufferStore(item.buffer, value, indices))

    def _bind(self, item: tirx.Bind, mutator: Any) -> tirx.Stmt:
        parts = self._parts.of(item.value)
        self._parts.bind(item.var, parts)
        if parts <= _MOST_PARTS or not _is_stored(item.value):
            return mutator.default_mutate(item)
        pieces = _Pieces(self._parts, self._kept)
        self._kept[item.var] = pieces.keep(item.var.name, pieces.of(item.value))
        self._parts.bind(item.var, 1)
        return tir.sequence(*pieces.statements)


class _Pieces:
    """The Lets of one expression as statements: each once, those with many parts stored."""

    def __init__(self, parts: _Parts, kept: dict[tirx.Var, tirx.Expr]) -> None:
        self._names = tir.Names()
        self._parts = parts
        self._values = dict(kept)
        self._is_lazy = False

    @property
    def statements(self) -> list[tirx.Stmt]:
        return self._names.statements

    def keep(self, name: str, value: tirx.Expr) -> tirx.Expr:
        """What reads the value from where it is stored."""
        return self._names.keep(name, value)

    def of(self, value: tirx.Expr) -> tirx.Expr:
        return tvm_ffi.structural_mutate(
            value,
            (
                (tirx.Let, self._let),
                (tirx.Var, lambda item, _: self._values.get(item, item)),
                (tvm.ir.Call, self._call),
            ),
        )

    def _let(self, item: tirx.Let, mutator: Any) -> tirx.Expr:
        if item.var not in self._values:
            if self._is_lazy:
                return mutator.default_mutate(item)
            self._values[item.var] = self._named(item.var.name, mutator.mutate(item.value))
        return mutator.mutate(item.body)

    def _named(self, name: str, value: tirx.Expr) -> tirx.Expr:
        parts = self._parts.of(value)
        if parts > _MOST_PARTS and _is_stored(value):
            return self.keep(name, value)
        # A name of its own: a loop that was unrolled has the same variable in each turn.
        own = self._names.bind(name, value)
        self._parts.bind(own, parts)
        return own

    def _call(self, item: tvm.ir.Call, mutator: Any) -> tirx.Expr:
        """What if_then_else does not choose may be no valid load: its Lets stay in it."""
        if not isinstance(item.op, tvm.ir.Op) or item.op.name.rpartition(".")[2] != _LAZY:
            return mutator.default_mutate(item)
        before, self._is_lazy = self._is_lazy, True
        made = mutator.default_mutate(item)
        self._is_lazy = before
        return made


def _is_stored(value: tirx.Expr) -> bool:
    return str(value.ty.dtype.with_lanes(1)) in _STORED
