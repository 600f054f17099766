"""Functions of libm that few values need, called only where one of a vector's does.

`Select(near, value, llvm.sin(x))` calls libm for each lane, and takes of most nothing: LLVM makes
no branch of it. Here it becomes one: a vector whose lanes are all `near` jumps over the calls.
"""

from __future__ import annotations

from functools import cache

import tvm
import tvm_ffi
from tvm import tirx

from edgepack.kernels.tiles import functions


def branch_to_rare() -> tvm.transform.Pass:
    """A pass that has a branch around the calls of `functions.LIBM`."""

    def run(
        function: tirx.PrimFunc, _module: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        is_arm = str(function.attrs["target"].attrs["mtriple"]).startswith("arm")
        return function.with_body(
            tvm_ffi.structural_map(
                function.body, (tirx.Select, lambda item: _branched(item, is_arm=is_arm))
            )
        )

    return tirx.transform.prim_func_pass(run, opt_level=0, name="edgepack.BranchToRare")


def _branched(item: tirx.Select, *, is_arm: bool) -> tirx.Expr:
    if not _is_rare(item.false_value):
        return item
    near = _all_lanes(item.condition, is_arm=is_arm)
    # What LLVM takes for likely: it keeps registers there, and spills them where the calls are.
    near = tirx.call_llvm_pure_intrin("bool", "llvm.expect", near, tirx.IntImm("bool", 1))

    def chosen(value: tirx.Expr) -> tirx.Expr:
        far = tirx.Select(item.condition, value, item.false_value)
        return tirx.if_then_else(near, value, far)

    # What has a name, or a place, needs no other: TVM, which knows what the first one stands for,
    # would take the second one for two values.
    if isinstance(item.true_value, tirx.Var | tvm.ir.TensorLoad):
        return chosen(item.true_value)
    name = tirx.Var("value", item.true_value.ty)
    return tirx.Let(name, item.true_value, chosen(name))


def _all_lanes(truths: tirx.Expr, *, is_arm: bool) -> tirx.Expr:
    """Whether all lanes are true.

    For 32-bit ARM as one comparison of integers: LLVM would move them to core registers one by one.
    """
    lanes = int(truths.ty.dtype.lanes)
    if lanes == 1:
        return truths
    if not is_arm or lanes < _LEAST_LANES:
        return tirx.call_llvm_pure_intrin("bool", "llvm.vector.reduce.and", truths)
    kind = "int16" if lanes == _LEAST_LANES else "int8"
    marks = tirx.Select(
        truths, *(tirx.Broadcast(tirx.IntImm(kind, mark), lanes) for mark in (-1, 0))
    )
    words = max(1, lanes // 8)
    whole = tirx.reinterpret(f"int64x{words}" if words > 1 else "int64", marks)
    if words > 1:
        whole = tirx.call_llvm_pure_intrin("int64", "llvm.vector.reduce.and", whole)
    return tirx.EQ(whole, tirx.IntImm("int64", -1))


# Of a vector of four floats, the smallest of 32-bit ARM's.
_LEAST_LANES = 4


def _is_rare(value: tirx.Expr) -> bool:
    is_call = isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op)
    return (
        is_call
        and value.op.name == "tirx.call_llvm_pure_intrin"
        and int(value.args[0]) in _numbers()
    )


@cache
def _numbers() -> frozenset[int]:
    return frozenset(
        int(tirx.call_llvm_pure_intrin("float32", name, tirx.FloatImm("float32", 0)).args[0])
        for name in functions.LIBM
    )
