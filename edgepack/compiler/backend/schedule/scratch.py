"""Scratch memory as an argument, so that a model's whole memory is known and planned."""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import s_tir, tirx

# What TVM keeps on the stack (kMaxStackAlloca); it would take more from the
# runtime's workspace pool.
_STACK_BYTES = 1024


def hoist_scratch(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn the buffers that a whole kernel uses inside into parameters after its outputs.

    Buffers inside loops stay: they are small, and one per thread.
    """
    if not isinstance(function.body, s_tir.SBlockRealize):
        return function
    place = tvm.transform.Sequential(
        [
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        ]
    )
    function = place(tvm.IRModule({"main": function}))["main"]
    root = function.body.block
    hoisted = [buffer for buffer in root.alloc_buffers if _nbytes(buffer) > _STACK_BYTES]
    if not hoisted:
        return function
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        root.body,
        root.init,
        [b for b in root.alloc_buffers if not any(b.same_as(h) for h in hoisted)],
        root.match_buffers,
        root.annotations,
    )
    body = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc([*function.params, *hoisted], body, attrs=function.attrs)


def _nbytes(buffer: tirx.Buffer) -> int:
    return math.prod(int(dim) for dim in buffer.shape) * np.dtype(str(buffer.dtype)).itemsize
