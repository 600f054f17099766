"""The arithmetic on each result of a layer, as text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgepack.kernels.tiles.expression import (
    Argument,
    Expression,
    Operand,
    PerChannel,
    Scalar,
    Step,
    with_gelus,
)

_FUNCTIONS: dict[str, str] = {
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "divide": "{0} / {1}",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "prelu": "maximum({0}, 0.0f) + minimum({0}, 0.0f) * {1}",
    "negative": "-{0}",
    "abs": "ABS({0})",
    "sqrt": "SQRT({0})",
    "exp": "EXP({0})",
    "log": "LOG({0})",
    "sin": "SIN({0})",
    "cos": "COS({0})",
    "erf": "ERF({0})",
    "sigmoid": "sigmoid({0})",
    "tanh": "TANH({0})",
    "gelu": "gelu({0})",
    "gelu_tanh": "gelu_tanh({0})",
    "silu": "{0} * sigmoid({0})",
}


def number(value: float) -> str:
    """A float32 as text that every compiler reads as that number."""
    rounded = float(np.float32(value))
    if np.isnan(rounded):
        return "(INFINITE - INFINITE)"
    if np.isinf(rounded):
        return "INFINITE" if rounded > 0 else "(-INFINITE)"
    text = f"{rounded:.9g}"
    text = text if any(mark in text for mark in ".e") else text + ".0"
    return f"({text}f)" if rounded < 0 else text + "f"


def knows(expression: Expression) -> bool:
    """Whether there is text for all steps."""
    return all(operation.name in _FUNCTIONS for operation in with_gelus(expression))


def statements(
    expression: Expression,
    start: str,
    *,
    channel: Callable[[int], str],
    operand: Callable[[int, bool], str],
) -> tuple[str, str]:
    """Declarations that compute the expression of the value `start`, and the name of its result.

    `channel(i)` and `operand(i, pixel)` are texts that read what the expression refers to.
    """
    names, lines = [start], []

    def text(argument: Argument) -> str:
        match argument:
            case Step():
                return names[argument.index]
            case Scalar():
                return number(argument.value)
            case PerChannel():
                return channel(argument.index)
            case Operand():
                return operand(argument.index, argument.pixel)

    for index, operation in enumerate(with_gelus(expression), 1):
        value = _FUNCTIONS[operation.name].format(*map(text, operation.arguments))
        lines.append(f"const float e{index} = {value};")
        names.append(f"e{index}")
    return " ".join(lines), names[-1]
