"""How cores share a parallel loop: evenly, and the same way each time.

Code made by TVM learns from the runtime how many tasks there are, and gives each of them the same
number of turns, rounded up: of 70 turns and 16 tasks the first 14 get 5 each, the last two none.
Neighbouring tasks run on one core, so one core would have 40 turns and another one 30. Hence each
parallel loop becomes one of PARTS turns, each with its even share of the original ones. PARTS is a
multiple of the runtime's number of tasks (cpp_runtime/app/src/platform/tvm_ffi/backend.cc).

Thus a core has the same part of every image of as many rows, and finds in its own cache what it
wrote there.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from edgepack.compiler.backend.schedule.pieces import substitute
from edgepack.kernels.tiles import tir

PARTS = 64


def in_parts(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel with all its parallel loops in parts."""
    return kernel.with_body(tvm_ffi.structural_map(kernel.body, (tirx.For, _cut)))


def _cut(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    turns, part = int(loop.extent), tir.var("part")
    if turns % PARTS == 0:  # tasks share these evenly as they are
        return loop
    first, behind = turns * part // PARTS, turns * (part + 1) // PARTS
    # From 0 on: TVM makes it so, but forgets bounds of loops inside that depend on the counter.
    turn = tir.var(loop.loop_var.name)
    body = substitute(loop.body, loop.loop_var, turn + (first + loop.min))
    each = tirx.For(turn, tir.integer(0), behind - first, tirx.ForKind.SERIAL, body)
    return tir.loop(part, PARTS, each, parallel=True)
