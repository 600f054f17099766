"""Accesses that stay inside of their buffers, whatever the data say.

An index that is made of loop counters and numbers is right or wrong for good. One that a load is
part of comes at run time, and so may point anywhere. Here each of those is shown to lie within its
axis, from the bounds of types, loops, clamps and conditions; and where it cannot be, it is computed
once, in front of the access, and compared:

    y[i] = x[k[i]]          place = k[i] if 0 <= k[i] < n else -1
                            assert 0 <= place < n
                            y[i] = x[place]

A loop in which nothing of an index changes has its comparison in front of it. What is made of
floats, such as places in an image, is moved to the nearest element instead.

Tables that are constants of the model have bounds as well: `numbers` has the least and the largest
element of arguments that are constants in every call.

This is the only place that does so. `verify` refuses a kernel with an access that has not been
through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from edgepack.kernels.outside import Outside, fail_unless
from edgepack.kernels.tiles import tir


class UnboundedAccessError(Exception):
    """A kernel might read or write beside its tensors: a bug of whatever made it."""


# The least and the largest element of arguments, by number.
Numbers: TypeAlias = Mapping[int, tuple[int, int]]


def guard_positions(
    function: tirx.PrimFunc, numbers: Numbers = MappingProxyType({})
) -> tirx.PrimFunc:
    """The function, of loops, with comparisons for all that is not known to be inside."""
    if not has_positions(function):
        return function
    walker = _Walker(function, numbers, check_only=False)
    return function.with_body(walker.of(function.body))


def verify(function: tirx.PrimFunc, name: str, numbers: Numbers = MappingProxyType({})) -> None:
    """Raise UnboundedAccessError if an access of a function might not be inside of its buffer."""
    if has_positions(function):
        walker = _Walker(function, numbers, check_only=True)
        walker.of(function.body)
        if walker.unknown:
            raise UnboundedAccessError(f"{name}: {'; '.join(walker.unknown)}")


# ---------------------------------------------------------------- what to look at


def has_positions(function: tirx.PrimFunc) -> bool:
    """Whether some index, or the place of a pointer, comes at run time."""
    if not _has_late_integers(function.body):
        return False
    late: set[int] = set()
    places: list[tirx.Expr] = []

    def loop(item: tirx.For) -> None:
        if _is_late(item.min, late) or _is_late(item.extent, late):
            late.add(hash(item.loop_var))

    def bind(item: tirx.Bind) -> None:
        if _is_late(item.value, late):
            late.add(hash(item.var))

    tvm_ffi.structural_walk(
        function.body,
        (
            (tirx.For, loop),
            (tirx.Bind, bind),
            ((tvm.ir.TensorLoad, tirx.BufferStore), lambda item: places.extend(item.indices)),
            (tvm.ir.Call, lambda item: places.extend(_numbers_of(item))),
        ),
        order="pre",
    )
    # All in one walk: a kernel that is unrolled has a hundred thousand.
    return _is_late(tvm_ffi.Array(places), late)


def _has_late_integers(body: tirx.Stmt) -> bool:
    """Whether some integer may be, or be made of, what is loaded: what most kernels have none of
    is looked for first."""

    def integer(item: tirx.Expr) -> tvm_ffi.VisitInterrupt | None:
        return tvm_ffi.VisitInterrupt(item) if _is_integer(item) else None

    def cast(item: tirx.Cast) -> tvm_ffi.VisitInterrupt | None:
        return None if _is_integer(item.value) else integer(item)

    def call(item: tvm.ir.Call) -> tvm_ffi.VisitInterrupt | None:
        # What is called by name with nothing knows nothing of what is loaded.
        is_mark = len(item.args) == 1 and isinstance(item.args[0], tvm.ir.StringImm)
        return None if is_mark else integer(item)

    entries = (
        ((tvm.ir.TensorLoad, tirx.Select), integer),
        (tvm.ir.Call, call),
        (tirx.Cast, cast),
    )
    return tvm_ffi.structural_walk(body, entries) is not None


def _is_late(item: tirx.Expr | tvm_ffi.Array, late: set[int]) -> bool:
    """Whether an expression, or one of several, holds a load or a variable that was made of one."""
    if isinstance(item, tirx.IntImm):
        return False
    if isinstance(item, tirx.Var):
        return hash(item) in late

    def variable(item: tirx.Var) -> tvm_ffi.VisitInterrupt | None:
        return tvm_ffi.VisitInterrupt(item) if hash(item) in late else None

    entries = ((tvm.ir.TensorLoad, tvm_ffi.VisitInterrupt), *([(tirx.Var, variable)] * bool(late)))
    return tvm_ffi.structural_walk(item, entries) is not None


def _name(call: tvm.ir.Call) -> str:
    return str(call.op.name) if isinstance(call.op, tvm.ir.Op) else ""


# Calls that are given addresses.
_FOREIGN = {"tirx.call_extern", "tirx.call_llvm_intrin", "tirx.tvm_access_ptr"}


def _numbers_of(call: tvm.ir.Call) -> list[tirx.Expr]:
    """What such a call is given beside addresses, which are looked at as loads are; nothing if it
    is given none."""
    addresses = [isinstance(arg.ty, tvm.ir.PointerType) for arg in call.args]
    if not _is_foreign(call) or not any(addresses):
        return []
    return [arg for arg, skip in zip(call.args, addresses, strict=True) if not skip]


def _is_foreign(call: tvm.ir.Call) -> bool:
    return _name(call) in _FOREIGN


# ---------------------------------------------------------------- bounds


@dataclass(frozen=True)
class _Known:
    """A condition that holds, and the buffers that it was read from."""

    condition: tirx.Expr
    reads: frozenset[int]


@dataclass(frozen=True)
class _Guard:
    """A comparison in front of an access: `local` is the index afterwards."""

    local: tir.Local
    index: tirx.Expr
    value: tirx.Expr
    extent: tirx.Expr
    outside: Outside
    uses: frozenset[int]
    reads: frozenset[int]
    always: bool  # whether it is the index under all conditions

    @property
    def condition(self) -> tirx.Expr:
        return _within(self.local.get(), self.extent)

    def statements(self) -> list[tir.Stmt]:
        error = fail_unless(self.condition, self.outside)
        return [self.local.declare(), self.local.set(self.value), error]


def _within(index: tirx.Expr, extent: tirx.Expr) -> tirx.Expr:
    kind = str(index.ty.dtype)
    return tirx.And(tirx.GE(index, tirx.const(0, kind)), index < tir.cast(extent, kind))


class _Facts:
    """What an analyzer knows, as long as `stack` is open.

    TVM's takes it that no number becomes too large for its type. Here what may do so is any number
    of its type, and has a name of its own.
    """

    def __init__(self, stack: ExitStack, late: set[int]) -> None:
        self.analyzer = Analyzer()
        self.stack, self.late = stack, late
        self.wrapped: list[tuple[tirx.Expr, tirx.Var]] = []

    def know(self, condition: tirx.Expr) -> None:
        self.stack.enter_context(self.analyzer.constraint_scope(self.plain(condition)))

    def bind(self, variable: tirx.Var, value: tirx.Expr) -> None:
        """A variable and what it is."""
        if hash(variable) not in self.late:
            self.analyzer.bind(variable, value)
        elif _is_integer(variable):
            bound = self.analyzer.const_int_bound(self.plain(value))
            if _fits(bound, str(variable.ty.dtype)):
                ends = (bound.min_value, bound.max_value + 1)
                kind = str(variable.ty.dtype)
                span = tvm.ir.Range(*(tirx.IntImm(kind, end) for end in ends))
                self.analyzer.bind(variable, span)

    def plain(self, item: tirx.Expr) -> tirx.Expr:
        """An expression with names for all that may become too large."""
        return tvm_ffi.structural_map(
            item, ((tirx.Add, tirx.Sub, tirx.Mul, tirx.Cast), self._or_any)
        )

    def _or_any(self, item: tirx.Expr) -> tirx.Expr:
        if not _is_integer(item) or not _is_late(item, self.late | self._names()):
            return item
        source = item.value if isinstance(item, tirx.Cast) else item
        if not _is_integer(source):
            return item
        if _fits(self.analyzer.const_int_bound(source), str(item.ty.dtype)):
            return item
        for known, name in self.wrapped:
            if tvm_ffi.structural_equal(known, item):
                return name
        name = tirx.Var("any", item.ty)
        self.wrapped.append((item, name))
        return name

    def _names(self) -> set[int]:
        return {hash(name) for _, name in self.wrapped}


def _is_integer(item: tirx.Expr) -> bool:
    return str(getattr(item.ty, "dtype", "")).startswith(("int", "uint"))


def _fits(bound: tvm.sym.ConstIntBound, kind: str) -> bool:
    """Whether all numbers within a bound are numbers of a type."""
    if max(-bound.min_value, bound.max_value) >= tvm.sym.ConstIntBound.POS_INF:
        return False
    return bool(
        int(tirx.min_value(kind)) <= bound.min_value
        and bound.max_value <= int(tirx.max_value(kind))
    )


class _Walker:
    """Goes through a body in the order in which it runs, with all that is known at each place."""

    def __init__(self, function: tirx.PrimFunc, numbers: Numbers, *, check_only: bool) -> None:
        self.check_only = check_only
        self.unknown: list[str] = []
        self.arguments = {hash(buffer): i for i, buffer in enumerate(function.params)}
        self.numbers = {hash(function.params[i]): bounds for i, bounds in numbers.items()}
        # Two names of one piece of memory.
        self.same = {
            hash(function.params[written]): hash(function.params[read])
            for read, written in tir.in_place(function)
        }
        self.ranges: dict[tirx.Var, tvm.ir.Range] = {}
        self.values: dict[tirx.Var, tirx.Expr] = {}
        self.late: set[int] = set()
        self.known: list[_Known] = []
        # What holds within an expression only.
        self.conditions: list[tirx.Expr] = []
        self.guards: list[_Guard] = []
        self.movable = True

    def of(self, body: tirx.Stmt) -> tirx.Stmt:
        made = tvm_ffi.structural_mutate(
            body,
            (
                (tirx.For, self.loop),
                (tirx.While, self.repeat),
                (tirx.SeqStmt, self.sequence),
                (tirx.IfThenElse, self.branch),
                (tirx.BufferStore, self.store),
                (tirx.Bind, self.bind),
                (tirx.DeclBuffer, self.declare),
                (tvm.ir.TensorLoad, self.load),
                (tirx.Select, self.select),
                (tvm.ir.Call, self.call),
            ),
        )
        return tir.sequence(*self.placed(self.guards), made) if self.guards else made

    # ------------------------------------------------ statements

    def loop(self, item: tirx.For, mutator: Any) -> tirx.Stmt:
        start, extent = (mutator.mutate(part) for part in (item.min, item.extent))
        before = self.swap([])
        written = self.written(item.body)
        late = _is_late(start, self.late) or _is_late(extent, self.late)
        if late:
            self.late.add(hash(item.loop_var))
        self.ranges[item.loop_var] = tvm.ir.Range.from_min_extent(start, extent)
        with self.knowing(without=written):
            if late:  # the end may be a load, whose bounds a condition knows
                self.know(item.loop_var < start + extent)
                self.know(tirx.GE(item.loop_var, start))
            body = mutator.mutate(item.body)
        runs = isinstance(extent, tirx.IntImm) and int(extent) > 0
        stay, leave = self.split(
            self.swap(before), written, {hash(item.loop_var)} if runs else None
        )
        self.guards += leave
        body = tir.sequence(*self.placed(stay), body)
        same = body.same_as(item.body) and start.same_as(item.min) and extent.same_as(item.extent)
        if same:
            return item
        # A comparison ends the kernel at one element, which vectors cannot.
        serial = stay and item.kind == tirx.ForKind.VECTORIZED
        kind = tirx.ForKind.SERIAL if serial else item.kind
        return tirx.For(
            item.loop_var,
            start,
            extent,
            kind,
            body,
            item.thread_binding,
            item.annotations,
            item.step,
        )

    def repeat(self, item: tirx.While, mutator: Any) -> tirx.Stmt:
        with self.knowing(without=self.written(item.body)):
            movable, self.movable = self.movable, False
            condition = mutator.mutate(item.condition)
            self.movable = movable
            self.know(condition)
            body = self.alone(item.body, mutator)
        return tirx.While(condition, body)

    def sequence(self, item: tirx.SeqStmt, mutator: Any) -> tirx.Stmt:
        before, made = self.swap([]), list[tirx.Stmt]()
        written, bound, leaving = set[int](), set[int](), list[_Guard]()
        with self.knowing():
            for one in item.seq:
                done = mutator.mutate(one)
                stay, leave = self.split(self.swap([]), written, bound)
                leaving += leave
                made += [*self.placed(stay), done]
                changed = self.written(one)
                self.known = [known for known in self.known if not known.reads & changed]
                written |= changed
                if isinstance(one, tirx.Bind):
                    bound.add(hash(one.var))
                if isinstance(one, tirx.AllocBuffer | tirx.DeclBuffer):
                    bound.add(hash(one.buffer))
                if isinstance(one, tirx.AssertStmt):
                    self.know(one.condition)
        self.guards = before + leaving
        same = len(made) == len(item.seq) and all(
            a.same_as(b) for a, b in zip(made, item.seq, strict=True)
        )
        return item if same else tir.sequence(*made)

    def branch(self, item: tirx.IfThenElse, mutator: Any) -> tirx.Stmt:
        condition = mutator.mutate(item.condition)
        with self.knowing(condition):
            then = self.alone(item.then_case, mutator)
        other = item.else_case
        if other is not None:
            with self.knowing(tirx.Not(condition)):
                other = self.alone(other, mutator)
        return tirx.IfThenElse(condition, then, other)

    def store(self, item: tirx.BufferStore, mutator: Any) -> tirx.Stmt:
        value = mutator.mutate(item.value)
        indices = self.indices(item.buffer, [mutator.mutate(index) for index in item.indices])
        return tirx.BufferStore(item.buffer, value, indices)

    def bind(self, item: tirx.Bind, mutator: Any) -> tirx.Stmt:
        value = mutator.mutate(item.value)
        if _is_late(value, self.late):
            self.late.add(hash(item.var))
        self.values[item.var] = value
        return tirx.Bind(item.var, value)

    def declare(self, item: tirx.DeclBuffer, mutator: Any) -> tirx.Stmt:
        """Another name of a buffer."""

        def variable(one: tirx.Var) -> None:
            self.same[hash(item.buffer)] = self.memory(one)

        tvm_ffi.structural_walk(item.data, (tirx.Var, variable))
        return item

    def alone(self, body: tirx.Stmt, mutator: Any) -> tirx.Stmt:
        """A statement that may not be done at all, with its comparisons."""
        before = self.swap([])
        made = mutator.mutate(body)
        return tir.sequence(*self.placed(self.swap(before)), made)

    # ------------------------------------------------ expressions

    def load(self, item: tvm.ir.TensorLoad, mutator: Any) -> tirx.Expr:
        indices = [mutator.mutate(index) for index in item.indices]
        return tirx.BufferLoad(item.source, self.indices(item.source, indices))

    def select(self, item: tirx.Select, mutator: Any) -> tirx.Expr:
        # Of loads TVM makes branches (RewriteUnsafeSelect).
        condition = mutator.mutate(item.condition)
        parts = self.either(condition, item.true_value, item.false_value, mutator)
        return tirx.Select(condition, *parts)

    def call(self, item: tvm.ir.Call, mutator: Any) -> tirx.Expr:
        if _name(item) == "prim.if_then_else":
            condition = mutator.mutate(item.args[0])
            parts = self.either(condition, item.args[1], item.args[2], mutator)
            return tirx.if_then_else(condition, *parts)
        if any(_is_late(arg, self.late) for arg in _numbers_of(item)):
            self.unknown.append(f"{item} takes what comes at run time")
        return mutator.default_mutate(item)

    def either(
        self, condition: tirx.Expr, true: tirx.Expr, false: tirx.Expr, mutator: Any
    ) -> list[tirx.Expr]:
        made = []
        for holds, value in ((condition, true), (tirx.Not(condition), false)):
            self.conditions.append(holds)
            made.append(mutator.mutate(value))
            self.conditions.pop()
        return made

    # ------------------------------------------------ accesses

    def indices(self, buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> list[tirx.Expr]:
        return [
            self.inside(buffer, index, extent) if _is_late(index, self.late) else index
            for index, extent in zip(indices, buffer.shape, strict=True)
        ]

    def inside(self, buffer: tirx.Buffer, index: tirx.Expr, extent: tirx.Expr) -> tirx.Expr:
        """An index that is known to be below `extent`, and not below zero."""
        if self.is_inside(index, extent):
            return index
        if self.check_only or _lanes(index) > 1:
            self.unknown.append(f"{buffer.name} of {extent} elements at {index}")
            return index
        if not self.movable or _is_of_floats(index):
            kind = str(index.ty.dtype)
            last = tir.cast(extent, kind) - tirx.const(1, kind)
            return tirx.max(tirx.min(index, last), tirx.const(0, kind))
        for guard in self.guards:
            pairs = ((guard.index, index), (guard.extent, extent))
            if guard.always and all(tvm_ffi.structural_equal(*pair) for pair in pairs):
                return guard.local.get()
        return self.guarded(buffer, index, extent)

    def guarded(self, buffer: tirx.Buffer, index: tirx.Expr, extent: tirx.Expr) -> tirx.Expr:
        wide = index
        while isinstance(wide, tirx.Cast) and "int" in str(wide.value.ty.dtype):
            wide = wide.value  # a narrower type has other numbers
        found = tirx.Select(_within(wide, extent), tir.cast(wide, "int32"), tir.integer(-1))
        for holds in reversed(self.conditions):
            found = tirx.if_then_else(holds, found, tir.integer(0))
        uses, reads = self.depends_on(found)
        guard = _Guard(
            local=tir.Local("place", 1, "int32"),
            index=index,
            value=found,
            extent=extent,
            outside=Outside("", 0, _number(extent) - 1, source=self.source(index)),
            uses=uses,
            reads=reads,
            always=not self.conditions,
        )
        self.guards.append(guard)
        return guard.local.get()

    def source(self, index: tirx.Expr) -> int:
        """The argument that an index is read from, by number; -1 if there is no such one."""
        read = self.depends_on(index)[1]
        return self.arguments.get(next(iter(read)), -1) if len(read) == 1 else -1

    def is_inside(self, index: tirx.Expr, extent: tirx.Expr) -> bool:
        if _lanes(index) > 1:
            if not isinstance(index, tirx.Ramp):
                return False
            end = index.base + index.stride * (_lanes(index) - 1)
            return self.is_inside(index.base, extent) and self.is_inside(end, extent)
        with ExitStack() as stack:
            facts = _Facts(stack, self.late)
            for variable, values in self.ranges.items():
                facts.analyzer.bind(variable, values)
            # First of all what is known by itself, for what is behind it may be made of it.
            values = [self.values[variable] for variable in self.named(index)]
            for condition in (
                *self.of_constants(index),
                *(more for value in values for more in self.of_constants(value)),
            ):
                facts.know(condition)
            for condition in (*(known.condition for known in self.known), *self.conditions):
                facts.know(condition)
            for variable in self.named(index):
                facts.bind(variable, self.values[variable])
            plain = facts.plain(index)
            bound = facts.analyzer.const_int_bound(plain)
            if bound.min_value >= 0 and bound.max_value < _number(extent):
                return True
            return bool(facts.analyzer.can_prove(_within(plain, extent)))

    def named(self, index: tirx.Expr) -> list[tirx.Var]:
        """The variables of an index that have values, each behind those that it is made of."""
        found: list[tirx.Var] = []

        def variable(one: tirx.Var) -> None:
            if one in self.values and not any(one.same_as(other) for other in found):
                found.extend(
                    more
                    for more in self.named(self.values[one])
                    if not any(more.same_as(other) for other in found)
                )
                found.append(one)

        tvm_ffi.structural_walk(index, (tirx.Var, variable))
        return found

    def of_constants(self, item: tirx.Expr) -> list[tirx.Expr]:
        """What is known of the loads of an expression whose buffers are constants."""
        found: list[tirx.Expr] = []

        def load(one: tvm.ir.TensorLoad) -> None:
            bounds = self.numbers.get(self.memory(one.source))
            if bounds is not None and _lanes(one) == 1:
                low, high = (tirx.const(number, str(one.ty.dtype)) for number in bounds)
                found.append(tirx.And(tirx.GE(one, low), tirx.LE(one, high)))

        tvm_ffi.structural_walk(item, (tvm.ir.TensorLoad, load))
        return found

    # ------------------------------------------------ what is known where

    @contextmanager
    def knowing(
        self, *conditions: tirx.Expr, without: frozenset[int] = frozenset()
    ) -> Iterator[None]:
        before = list(self.known)
        self.known = [known for known in before if not known.reads & without]
        for condition in conditions:
            self.know(condition)
        yield
        self.known = before

    def know(self, condition: tirx.Expr) -> None:
        self.known.append(_Known(condition, self.depends_on(condition)[1]))

    def swap(self, guards: list[_Guard]) -> list[_Guard]:
        before, self.guards = self.guards, guards
        return before

    def split(
        self, guards: Sequence[_Guard], written: frozenset[int] | set[int], bound: set[int] | None
    ) -> tuple[list[_Guard], list[_Guard]]:
        """Comparisons that stay where they are, and those that may be done earlier: before
        `written` memory changes and without `bound` variables. Without those, that is None, all
        stay."""
        stay, leave, fixed = list[_Guard](), list[_Guard](), set[int]()
        for guard in guards:
            moves = bound is not None and not guard.uses & bound
            if moves and not guard.reads & (written | fixed | (bound or set())):
                leave.append(guard)
            else:
                stay.append(guard)
                fixed.add(hash(guard.local.buffer))
        return stay, leave

    def placed(self, guards: Sequence[_Guard]) -> list[tirx.Stmt]:
        return [statement for guard in guards for statement in guard.statements()]

    def depends_on(self, item: tirx.Expr) -> tuple[frozenset[int], frozenset[int]]:
        """The variables and the buffers of an expression."""
        uses, reads = set[int](), set[int]()

        def load(one: tvm.ir.TensorLoad) -> None:
            reads.add(self.memory(one.source))

        def variable(one: tirx.Var) -> None:
            uses.add(hash(one))
            if one in self.values:
                more = self.depends_on(self.values[one])
                uses.update(more[0])
                reads.update(more[1])

        tvm_ffi.structural_walk(item, ((tvm.ir.TensorLoad, load), (tirx.Var, variable)))
        return frozenset(uses), frozenset(reads)

    def written(self, body: tirx.Stmt) -> frozenset[int]:
        """The buffers that a statement writes to, or hands on."""
        found = set[int]()

        def call(item: tvm.ir.Call) -> None:
            if _is_foreign(item):
                for arg in item.args:
                    found.update(self.depends_on(arg)[1])

        tvm_ffi.structural_walk(
            body,
            (
                (tirx.BufferStore, lambda item: found.add(self.memory(item.buffer))),
                (tvm.ir.Call, call),
            ),
        )
        return frozenset(found)

    def memory(self, buffer: tirx.Buffer) -> int:
        found = self.same.get(hash(buffer), hash(buffer))
        return found if found == hash(buffer) else self.same.get(found, found)


def _lanes(index: tirx.Expr) -> int:
    return int(index.ty.dtype.lanes)


def _number(extent: tirx.Expr) -> int:
    return int(extent) if isinstance(extent, tirx.IntImm) else 0


def _is_of_floats(index: tirx.Expr) -> bool:
    """Whether floats become an index."""
    found = False

    def cast(item: tirx.Cast) -> None:
        nonlocal found
        found = found or "float" in str(item.value.ty.dtype)

    tvm_ffi.structural_walk(index, (tirx.Cast, cast))
    return found
