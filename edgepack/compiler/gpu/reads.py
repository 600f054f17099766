"""Reads at positions that come at run time, by a GPU, which no error leaves.

The CPU compares positions with their axis (`frontend.positions`), and ends the run at a wrong one.
The GPU that reads with them takes the nearest place that there is, which they are:

    CPU: place[i] = k[i], compared          GPU: y[i] = x[max(min(place[i], n - 1), 0)]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import tvm
import tvm_ffi
from tvm import relax, tirx

from edgepack.compiler.backend import inside
from edgepack.kernels import outside


def find_compared(module: tvm.IRModule) -> Mapping[str, frozenset[int]]:
    """For each function of a lowered module, which of its arguments are positions that another one
    has compared, in every call."""
    comparing = {
        var.name_hint
        for var, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc) and _compares(function)
    }
    found: dict[str, frozenset[int]] = {}
    compared: set[relax.Var] = set()
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call) or call.op not in (_CALL, _RESHAPE):
                continue
            if call.op == _RESHAPE:
                if call.args[0] in compared:
                    compared.add(binding.var)
                continue
            name = call.args[0].name_hint
            if name in comparing:
                compared.add(binding.var)
            own = frozenset(i for i, arg in enumerate(call.args[1]) if arg in compared)
            found[name] = found.get(name, own) & own
    return found


_CALL, _RESHAPE = map(tvm.ir.Op.get, ("relax.call_tir", "relax.reshape"))


def _compares(function: tirx.PrimFunc) -> bool:
    """Whether a function fails at a position outside of a tensor."""
    found: list[tirx.AssertStmt] = []
    tvm_ffi.structural_walk(function.body, (tirx.AssertStmt, found.append))
    return any(str(item.error_kind.value) == outside.KIND for item in found)


def keep_inside(
    function: tirx.PrimFunc, compared: Collection[int], numbers: inside.Numbers
) -> tirx.PrimFunc | None:
    """A function that reads inside of its tensors at positions of the arguments `compared`; None
    if not all that it reads and writes is known to be inside then.

    `numbers` are those of arguments that are constants.
    """
    if not inside.has_positions(function):
        return function
    known = {hash(function.params[index]) for index in compared}
    written: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, written.append))
    # Of two threads that write one place, either may be the last.
    if any(_sources(index) for store in written for index in store.indices):
        return None
    for store in written:  # what only moves positions
        value = store.value
        if isinstance(value, tvm.ir.TensorLoad) and hash(value.source) in known:
            known.add(hash(store.buffer))

    def read(load: tvm.ir.TensorLoad) -> tirx.Expr:
        indices = [
            _nearest(index, extent) if (made := _sources(index)) and made <= known else index
            for index, extent in zip(load.indices, load.source.shape, strict=True)
        ]
        return tirx.BufferLoad(load.source, indices)

    bounded = function.with_body(tvm_ffi.structural_map(function.body, (tvm.ir.TensorLoad, read)))
    try:
        inside.verify(bounded, "", numbers)
    except inside.UnboundedAccessError:
        return None
    return bounded


def _sources(index: tirx.Expr) -> set[int]:
    """The tensors that an index is read from."""
    found: list[tvm.ir.TensorLoad] = []
    tvm_ffi.structural_walk(index, (tvm.ir.TensorLoad, found.append))
    return {hash(load.source) for load in found}


def _nearest(index: tirx.Expr, extent: tirx.Expr) -> tirx.Expr:
    kind = str(index.ty.dtype)
    last = tirx.const(int(extent) - 1, kind)
    return tirx.max(tirx.min(index, last), tirx.const(0, kind))
