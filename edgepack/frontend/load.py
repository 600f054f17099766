"""How a model enters the compiler: read, with fixed shapes, all of its operators known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgepack.base import apart
from edgepack.frontend.errors import named_failures
from edgepack.frontend.memory import check_folding
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
    from edgepack.frontend.expand import expand
    from edgepack.frontend.operators import check_operators

    apart.at("reading it")
    model = read_model(spec)
    check_model(model)
    with named_failures(model.path):
        apart.at("looking at its constants")
        check_folding(model.path, model.proto, model.size_bytes)
        apart.at("replacing operators by their definitions")
        expanded = expand(model.proto)
        apart.at("checking its operators")
        check_operators(model.path, expanded)
    return CheckedModel(**vars(model), expanded=expanded)
