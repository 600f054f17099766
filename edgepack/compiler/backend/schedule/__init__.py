"""How each kernel that TVM lowered runs: in parallel outside, as vectors inside.

Scratch memory then becomes part of the plan.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from edgepack.base import apart
from edgepack.compiler.backend import constants
from edgepack.compiler.backend.schedule.generic import generic
from edgepack.compiler.backend.schedule.scratch import hoist_scratch
from edgepack.compiler.backend.schedule.vectors import vectorise
from edgepack.kernels.tiles.cpu import cpu_model


def schedule(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Schedule every kernel of a lowered module."""
    cpu = cpu_model(target)
    known = constants.of_calls(module)
    done = tvm.IRModule(dict(module.functions))
    for index, (name, function) in enumerate(module.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            apart.at(f"scheduling the kernel {name}", index, len(module.functions))
            made = hoist_scratch(generic(function, cpu))
            done[name] = vectorise(made, cpu, known.get(name.name_hint, {}))
    return done
