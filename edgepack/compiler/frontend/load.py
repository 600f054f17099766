"""How a model enters the compiler: read, with fixed shapes, all of its operators known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgepack.model import LoadedModel, ModelSpec, check_model, read_model


@dataclass(frozen=True, kw_only=True)
class CheckedModel(LoadedModel):
    """A model whose inputs have fixed shapes, and whose operators can all be compiled.

    `expanded` is `proto` with definitions for the operators that have no other conversion: the
    same object where there are none.
    """

    expanded: Any


def load_model(spec: ModelSpec) -> CheckedModel:
    """Read a model, fix its shapes, and check that it can be compiled.

    Raises the errors of `edgepack.model.read_model` and `check_model`, and
    `UnsupportedOperatorError` (naming every operator).
    """
    from edgepack.compiler.frontend.expand import expand
    from edgepack.compiler.frontend.operators import check_operators

    model = read_model(spec)
    check_model(model)
    expanded = expand(model.proto)
    check_operators(model.path, expanded)
    return CheckedModel(**vars(model), expanded=expanded)
