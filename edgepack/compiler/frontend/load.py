"""How a model enters the compiler: read, with fixed shapes, all of its operators known."""

from __future__ import annotations

from edgepack.compiler.errors import UnsupportedOperatorError
from edgepack.model import LoadedModel, ModelSpec, check_model, read_model


def load_model(spec: ModelSpec) -> LoadedModel:
    """Read a model, fix its shapes, and check that it can be compiled.

    Raises the errors of `edgepack.model.read_model` and `check_model`, and
    `UnsupportedOperatorError` (naming every operator).
    """
    from edgepack.compiler.frontend.operators import unsupported

    model = read_model(spec)
    check_model(model)
    problems = unsupported(model.proto)
    if problems:
        raise UnsupportedOperatorError(model.path, problems)
    return model
