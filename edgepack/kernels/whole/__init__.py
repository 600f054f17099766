"""Whole operators as loops: what is no arithmetic on images and no product.

Innermost loops over memory become vectors, and functions like `exp` arithmetic, in
`compiler.backend.schedule`, as in what TVM lowered.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import s_tir, tirx

from edgepack.kernels.tiles import tir


def kernel(
    inputs: Sequence[tirx.Buffer], results: Sequence[tirx.Buffer], body: tir.Stmt
) -> tirx.PrimFunc:
    """A function of a module: loops as one block that nothing is fused with.

    Scratch memory is the last of the results.
    """

    def whole(buffer: tirx.Buffer) -> tirx.BufferRegion:
        return tirx.BufferRegion(buffer, [tvm.ir.Range(0, extent) for extent in buffer.shape])

    block = s_tir.SBlock([], [whole(b) for b in inputs], [whole(b) for b in results], "loops", body)
    made = tirx.PrimFunc([*inputs, *results], s_tir.SBlockRealize([], True, block))
    return made.with_attr({"tirx.noalias": True, "op_pattern": 8})
