"""Floats as IEEE 754 has them, where TVM takes them for real numbers.

TVM's simplifier makes `a` of `(a + 1e8) - 1e8`, 0 of `a - a` and `b <= a` of `not a < b`: false for
NaN, for infinities, and for all that is rounded. So arithmetic on floats is hidden from it, as
calls of functions that it does not know, and is shown again to LLVM, which knows IEEE 754.

`max(a, b)` is `b` in TVM if either is NaN. Here it is NaN if either is, and so is `min`:

    ARM     fmax, vmax.f32: one instruction
    x86     its own `max` does if the first operand is a known number; else one more comparison,
            of the first or, if that is shorter, of the second

Unsigned integers of 32 and 64 bits wrap, as in C. TVM's simplifier takes them for numbers without
an end, and tells LLVM that they never wrap, which then makes 0 of `0 - a`. So sums, differences and
products of them are hidden as well, and shown to LLVM as ones that stay within 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import cpu_model
from edgepack.kernels.tiles.element import FLOAT16

_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_KINDS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max, *_COMPARISONS)
_WRAPPING = (tirx.Add, tirx.Sub, tirx.Mul)
_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod)
_PREFIX = "edgepack.exact."
_BY_NAME = {_PREFIX + kind.__name__: kind for kind in (*_KINDS, *_QUOTIENTS)}
_CALL = "tirx.call_pure_extern"
_SHORT = (tirx.Var, tvm.ir.TensorLoad)
_INT8 = tvm_ffi.dtype("int8")
_SIGNED, _UNSIGNED, _FLOATING = (
    tvm_ffi.dtype(name).type_code for name in ("int8", "uint8", "float32")
)
# LLVM's names of what IEEE 754 calls maximum and minimum.
_INTRINSICS = {tirx.Max: "llvm.maximum", tirx.Min: "llvm.minimum"}


def hide() -> tvm.transform.Pass:
    """A pass that hides arithmetic on floats from those that follow."""
    return _on_each("edgepack.HideFloats", lambda body, _: hide_arithmetic(body))


def hide_remainders() -> tvm.transform.Pass:
    """A pass that hides quotients and remainders of what falls with a counter, or is a constant
    further.

    `show_remainders` shows them. TVM's FlattenBuffer makes `i % -3 * -2` of `(8 - 2 i) % 6`,
    without the 8, and gives the 2 of `i // 8 * 24 + (i + 2) % 4` to both.
    """
    return _on_each("edgepack.HideRemainders", lambda body, _: _without_remainders(body))


def show_remainders() -> tvm.transform.Pass:
    """A pass that shows those again, and nothing else."""
    return _on_each(
        "edgepack.ShowRemainders", lambda body, _: _shown(body, lambda item: item, _QUOTIENTS)
    )


def show() -> tvm.transform.Pass:
    """A pass that shows it again, with maxima and minima that are NaN where an operand is, and
    unsigned integers that wrap."""

    def change(body: tirx.Stmt, target: tvm.target.Target | None) -> tirx.Stmt:
        propagating = _propagating(target)
        return _shown(body, lambda item: _wrapped(item) if _wraps(item) else propagating(item))

    return _on_each("edgepack.ShowFloats", change)


def _on_each(
    name: str, change: Callable[[tirx.Stmt, tvm.target.Target | None], tirx.Stmt]
) -> tvm.transform.Pass:
    def run(
        function: tirx.PrimFunc, _module: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        return function.with_body(change(function.body, function.attrs.get("target")))

    return tirx.transform.prim_func_pass(run, opt_level=0, name=name)


def without_floats(
    simplify: Callable[[tirx.PrimFunc], tirx.PrimFunc], function: tirx.PrimFunc
) -> tirx.PrimFunc:
    """What `simplify` makes of a function, whose arithmetic on floats it does not see."""
    made = simplify(function.with_body(hide_arithmetic(function.body)))
    return made.with_body(show_arithmetic(made.body))


def show_arithmetic(body: tirx.Stmt | tirx.Expr) -> tirx.Stmt | tirx.Expr:
    """What `hide_arithmetic` hid, as it was."""
    return _shown(body, lambda item: item)


def hide_arithmetic(body: tirx.Stmt | tirx.Expr) -> tirx.Stmt | tirx.Expr:
    """A statement, or an expression, whose arithmetic on floats is calls of unknown functions.

    Truth values are compared as integers: TVM's code for LLVM takes all that are none for floats.
    """

    def hide_one(item: tirx.Expr) -> tirx.Expr:
        if isinstance(item, tirx.EQ | tirx.NE) and _is_truth(item.a):
            integers = _INT8.with_lanes(item.a.ty.dtype.lanes)
            return type(item)(tirx.Cast(integers, item.a), tirx.Cast(integers, item.b))
        if not _is_float(item.a) and not _wraps(item):
            return item
        name = _PREFIX + type(item).__name__
        return tirx.call_pure_extern(str(item.ty.dtype), name, item.a, item.b)

    return tvm_ffi.structural_map(body, (_KINDS, hide_one))


def _without_remainders(body: tirx.Stmt) -> tirx.Stmt:
    def hide_one(item: tirx.Expr) -> tirx.Expr:
        if not _is_shifted(item.a):
            return item
        name = _PREFIX + type(item).__name__
        return tirx.call_pure_extern(str(item.ty.dtype), name, item.a, item.b)

    return tvm_ffi.structural_map(body, (_QUOTIENTS, hide_one))


def _is_shifted(dividend: tirx.Expr) -> bool:
    """Whether something is added or subtracted in it, or multiplied by a negative number."""
    found = False

    def addition(item: tirx.Add) -> None:
        nonlocal found
        found = found or any(isinstance(n, tirx.IntImm) for n in (item.a, item.b))

    def subtraction(_: tirx.Sub) -> None:
        nonlocal found
        found = True

    def product(item: tirx.Mul) -> None:
        nonlocal found
        found = found or any(isinstance(n, tirx.IntImm) and n.value < 0 for n in (item.a, item.b))

    kinds = ((tirx.Add, addition), (tirx.Sub, subtraction), (tirx.Mul, product))
    tvm_ffi.structural_walk(dividend, kinds)
    return found


def _shown(
    body: tirx.Stmt | tirx.Expr,
    make: Callable[[tirx.Expr], tirx.Expr],
    kinds: tuple[type[tirx.Expr], ...] = _KINDS,
) -> tirx.Stmt | tirx.Expr:
    is_fenced = kinds is _KINDS

    def show_one(call: tvm.ir.Call) -> tirx.Expr:
        op = call.op
        if not isinstance(op, tvm.ir.Op) or op.name != _CALL:
            known = tir.in_fence(call) if is_fenced else None
            return known if isinstance(known, tirx.FloatImm | tirx.Broadcast) else call
        args = call.args
        kind = _BY_NAME.get(args[0].value)
        return make(kind(args[1], args[2])) if kind in kinds else call

    return tvm_ffi.structural_map(body, (tvm.ir.Call, show_one))


def _propagating(target: tvm.target.Target) -> Callable[[tirx.Expr], tirx.Expr]:
    """How a maximum or minimum is NaN if an operand is, on a CPU, and NaN unequal to all; other
    operations stay."""
    triple, has_instruction = str(target.attrs["mtriple"]), set()
    if triple.startswith("aarch64"):
        has_instruction = {"float32", "float64"}
        if cpu_model(target).computes(FLOAT16):
            has_instruction |= {"float16"}
    elif triple.startswith("arm"):
        has_instruction = {"float32"}

    def make(item: tirx.Expr) -> tirx.Expr:
        if isinstance(item, tirx.NE):
            # LLVM is asked for `one` by TVM, which is false for NaN.
            return tirx.Not(tirx.EQ(item.a, item.b))
        intrinsic = _INTRINSICS.get(type(item))
        if intrinsic is None:
            return item
        if str(item.a.ty.dtype.with_lanes(1)) in has_instruction:
            return tirx.call_llvm_pure_intrin(str(item.ty.dtype), intrinsic, item.a, item.b)
        if _is_number(item.a):
            return item
        if _is_number(item.b):
            return type(item)(item.b, item.a)
        # What is compared with itself is there three times: the shorter one, for in a chain of n
        # the longer one would make 3 to the n expressions.
        a, b = (item.b, item.a) if _is_longer(item.a, item.b) else (item.a, item.b)
        return tirx.Select(tirx.EQ(a, a), type(item)(a, b), a)

    return make


def _wraps(item: tirx.Expr) -> bool:
    """Whether it is arithmetic that TVM does not know to wrap."""
    if not isinstance(item, _WRAPPING):
        return False
    dtype = item.a.ty.dtype
    return dtype.type_code == _UNSIGNED and dtype.bits in (32, 64)


def _wrapped(item: tirx.Expr) -> tirx.Expr:
    """The same of numbers below 2^64; of 64 bits by halves, as in long arithmetic by hand."""
    dtype = item.a.ty.dtype
    wide = tvm_ffi.dtype("uint64").with_lanes(dtype.lanes)

    def number(value: int) -> tirx.Expr:
        return tirx.const(value, str(wide))

    half, last = number(32), number(2**32 - 1)
    if dtype.bits == 32:
        a, b = tirx.Cast(wide, item.a), tirx.Cast(wide, item.b)
        if isinstance(item, tirx.Sub):
            a = tirx.Add(a, number(2**32))
        return tirx.Cast(dtype, type(item)(a, b))

    def low(value: tirx.Expr) -> tirx.Expr:
        return tirx.bitwise_and(value, last)

    def high(value: tirx.Expr) -> tirx.Expr:
        return tirx.shift_right(value, half)

    # As variables, for each is there several times.
    a, b = tirx.Var("a", wide), tirx.Var("b", wide)
    if isinstance(item, tirx.Mul):
        lower = low(a) * low(b)
        upper = low(low(a) * high(b)) + low(high(a) * low(b))
    elif isinstance(item, tirx.Add):
        lower, upper = low(a) + low(b), high(a) + high(b)
    else:
        lower = (low(a) + number(2**32)) - low(b)
        upper = (high(a) + last) - high(b)
    start = tirx.Var("start", wide)
    whole = tirx.bitwise_or(tirx.shift_left(upper + high(start), half), low(start))
    whole = tirx.Let(start, lower, whole)
    return tirx.Let(a, item.a, tirx.Let(b, item.b, whole))


def _is_number(value: tirx.Expr) -> bool:
    """Whether it is known, and not NaN."""
    if isinstance(value, tirx.Broadcast):
        value = value.value
    return isinstance(value, tirx.FloatImm) and not math.isnan(value.value)


def _is_longer(value: tirx.Expr, other: tirx.Expr) -> bool:
    """Whether an expression has more parts than another."""
    if isinstance(value, _SHORT) or isinstance(other, _SHORT):
        return not isinstance(value, _SHORT)
    return _parts(value) > _parts(other)


def _parts(value: tirx.Expr) -> int:
    count = 0

    def visit(_: object) -> None:
        nonlocal count
        count += 1

    tvm_ffi.structural_walk(value, visit)
    return count


def _is_truth(value: tirx.Expr) -> bool:
    return str(value.ty.dtype).startswith("bool")


def _is_float(value: tirx.Expr) -> bool:
    dtype = value.ty.dtype
    code = dtype.type_code
    if code in (_SIGNED, _UNSIGNED):  # most, and writing names takes time
        return False
    return code == _FLOATING or str(dtype).startswith("float")
