"""What is wrong with a model that only the compiler can know."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgepack.base.errors import ModelError

DATA_SHAPE_HINT = "make the inputs that hold shapes, sizes or axes constants of the model"


class UnsupportedOperatorError(ModelError):
    """The model holds operators, or forms of them, that cannot be compiled.

    `operators` maps each one to the reason.
    """

    def __init__(self, path: Path, operators: Mapping[str, str]) -> None:
        lines = "\n".join(f"  {name}: {reason}" for name, reason in sorted(operators.items()))
        super().__init__(
            f"{path}: operators that cannot be compiled ({len(operators)})\n{lines}",
            hint="export the model for inference, or replace these layers and export it again",
        )
        self.operators = dict(operators)


class ImportModelError(ModelError):
    """The model is no valid ONNX graph, or holds a form of an operator that TVM refuses."""


def first_line(error: Exception) -> str:
    """What an exception of TVM or onnxruntime says, without its trace of C++ frames."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
