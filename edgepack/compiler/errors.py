"""What is wrong with a model that only the compiler can know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ModelError

DATA_SHAPE_HINT = "make the inputs that hold shapes, sizes or axes constants of the model"


@dataclass(frozen=True)
class Reason:
    """Why an operator is not compiled, and what can be done instead."""

    why: str
    instead: str


class UnsupportedOperatorError(ModelError):
    """The model holds operators, or forms of them, that cannot be compiled.

    `operators` maps each one to why; the hint says what can be done instead, for each.
    """

    def __init__(self, path: Path, reasons: Mapping[str, Reason]) -> None:
        ordered = sorted(reasons.items())
        lines = "".join(f"\n  {name}: {reason.why}" for name, reason in ordered)
        super().__init__(
            f"{path}: operators that cannot be compiled ({len(reasons)}){lines}",
            hint="\n  ".join(f"{name}: {reason.instead}" for name, reason in ordered),
        )
        self.operators = {name: reason.why for name, reason in ordered}


class ImportModelError(ModelError):
    """The model is no valid ONNX graph, or holds a form of an operator that TVM refuses."""


def first_line(error: Exception) -> str:
    """What an exception of TVM or onnxruntime says, without its trace of C++ frames."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
