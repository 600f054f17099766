"""What is in a model, and whether it can be compiled: asked of the compiler itself."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.base.errors import ModelError, TimeLimitError
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.boards import Board
from edgepack.compiler import estimate_apart
from edgepack.compiler.backend.report import Estimate
from edgepack.compiler.frontend.inspect import ModelInfo, inspect_model
from edgepack.compiler.limited import limits_for, within
from edgepack.flow.growth import DEFAULT_OPTIMIZE, GROWTH
from edgepack.model import ModelSpec, check_model, read_model


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A model's facts; what it takes on a board, or the `obstacle` to compiling it."""

    info: ModelInfo
    estimate: Estimate | None
    obstacle: str | None


def inspect_for(spec: ModelSpec, board: Board, *, progress: Progress = NO_PROGRESS) -> Inspection:
    """Read a model, and take it through the compiler up to the plan.

    Raises the errors of `edgepack.model.read_model`, and of `within` for what cannot even be read.
    """
    model = read_model(spec)
    limits = limits_for(model)
    info = within(
        spec.path,
        limits,
        progress,
        inspect_model,
        spec.path,
        spec.shapes,
        spec.constants,
        spec.states,
    )
    estimate, obstacle = None, None
    try:
        check_model(model)
        if info.unsupported:
            names = sorted({node.operator for node in info.unsupported})
            obstacle = f"operators: {', '.join(names)}"
        else:
            estimate = estimate_apart(
                spec, board, limits=limits, growth=GROWTH[DEFAULT_OPTIMIZE], progress=progress
            )
    except (ModelError, TimeLimitError) as error:
        obstacle = error.message.removeprefix(f"{spec.path}: ")
        if error.hint is not None:
            obstacle += f" ({error.hint})"
    return Inspection(info=info, estimate=estimate, obstacle=obstacle)
