"""How each kernel runs: rules tried in order.

A rule takes a fused PrimFunc and the target, and returns the scheduled PrimFunc,
or None for "not mine". The first that takes a kernel decides; the last takes
everything. Scratch memory then becomes part of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import tirx

from edgepack.compiler.backend.schedule.generic import generic
from edgepack.compiler.backend.schedule.scratch import hoist_scratch
from edgepack.compiler.backend.schedule.vectors import vectorise
from edgepack.compiler.tiles.cpu import cpu_model

Rule = Callable[[tirx.PrimFunc, tvm.target.Target], tirx.PrimFunc | None]

RULES: Sequence[Rule] = (generic,)


def schedule(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Schedule every kernel of a lowered module by the first rule that takes it."""
    done = tvm.IRModule(dict(module.functions))
    for name, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc):
            results = (rule(function, target) for rule in RULES)
            scheduled = next((result for result in results if result is not None), function)
            done[name] = vectorise(hoist_scratch(scheduled), cpu_model(target))
    return done
