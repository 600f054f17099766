"""What is in a model, and whether it can be compiled: asked of the compiler itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgepack.base.apart import Limits
from edgepack.base.errors import ModelError, TimeLimitError
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.boards import Board
from edgepack.compiler import estimate_model
from edgepack.compiler.backend.report import Estimate
from edgepack.compiler.limited import limits_for, within
from edgepack.flow.optimize import DEFAULT_OPTIMIZE, GROWTH
from edgepack.frontend.errors import ImportModelError, UnsupportedOperatorError
from edgepack.frontend.inspect import ModelInfo, inspect_model, with_some_shapes
from edgepack.model import LoadedModel, ModelSpec, check_model, read_model
from edgepack.model.errors import DynamicShapeError


def _estimate(spec: ModelSpec, board: Board, limits: Limits, progress: Progress) -> Estimate:
    growth = GROWTH[DEFAULT_OPTIMIZE]
    return within(spec.path, limits, estimate_model, spec, board, growth=growth, progress=progress)


def _behind_shapes(
    spec: ModelSpec, model: LoadedModel, board: Board, limits: Limits, progress: Progress
) -> tuple[str, Mapping[str, Sequence[int]]]:
    """What else the compiler would refuse of a model without shapes, as far as some shapes tell;
    and these shapes, if it refuses nothing."""
    tried = with_some_shapes(spec, model)
    if tried is None:
        return "", {}
    try:
        _estimate(tried, board, limits, progress)
    except (DynamicShapeError, ImportModelError, UnsupportedOperatorError) as error:
        given = ", ".join(
            f"{name}={','.join(map(str, shape))}" for name, shape in tried.shapes.items()
        )
        return f"; and with {given}: " + error.message.removeprefix(f"{spec.path}: "), {}
    except (ModelError, TimeLimitError):
        return "", {}  # which may be for these shapes only
    return "", tried.shapes


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A model's facts; what it takes on a board, or the `obstacle` to compiling it.

    `with_shapes`: if nothing but shapes is missing, some with which it can be compiled.
    """

    info: ModelInfo
    estimate: Estimate | None
    obstacle: str | None
    with_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


def inspect_for(spec: ModelSpec, board: Board, *, progress: Progress = NO_PROGRESS) -> Inspection:
    """Read a model, and take it through the compiler up to the plan.

    Raises the errors of `edgepack.model.read_model`, and of `within` for what cannot even be read.
    """
    model = read_model(spec)
    limits = limits_for(model)
    info = within(
        spec.path,
        limits,
        inspect_model,
        spec.path,
        spec.shapes,
        spec.constants,
        spec.states,
    )
    estimate, obstacle = None, None
    with_shapes: Mapping[str, Sequence[int]] = {}
    # First, for whoever gives shapes would meet them next.
    names = sorted({node.operator for node in info.unsupported})
    operators = f"operators: {', '.join(names)}" if names else None
    try:
        check_model(model)
        if operators is not None:
            obstacle = operators
        else:
            estimate = _estimate(spec, board, limits, progress)
    except (ModelError, TimeLimitError) as error:
        obstacle = error.message.removeprefix(f"{spec.path}: ")
        if error.hint is not None:
            obstacle += f" ({error.hint})"
        if operators is not None:
            obstacle = f"{operators}; {obstacle}"
        elif isinstance(error, DynamicShapeError):
            more, with_shapes = _behind_shapes(spec, model, board, limits, progress)
            obstacle += more
    return Inspection(info=info, estimate=estimate, obstacle=obstacle, with_shapes=with_shapes)
