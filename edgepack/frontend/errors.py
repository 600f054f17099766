"""What is wrong with a model that only the compiler can know."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base import apart
from edgepack.base.errors import EdgepackError, ModelError, TimeLimitError
from edgepack.base.text import format_count

log = logging.getLogger(__name__)

DATA_SHAPE_HINT = "make the inputs that hold shapes, sizes or axes constants of the model"


@dataclass(frozen=True)
class Reason:
    """Why an operator is not compiled, and what can be done instead."""

    why: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class Unsupported:
    """A node that is not compiled: its operator, its own name and attributes as text, and `inside`,
    the node in whose branch, body or definition it is ("" for the model's own graph)."""

    operator: str
    node: str
    attributes: str
    inside: str
    why: str
    instead: str

    def __str__(self) -> str:
        where = f", in {self.inside}" if self.inside else ""
        attributes = f" ({self.attributes})" if self.attributes else ""
        return f"'{self.node}'{attributes}{where}"


class UnsupportedOperatorError(ModelError):
    """The model holds operators, or forms of them, that cannot be compiled.

    `nodes` are all of them; `operators` maps each operator to why its first one is not. The hint
    says what can be done instead, for each operator and reason.
    """

    def __init__(self, path: Path, nodes: Sequence[Unsupported]) -> None:
        groups: dict[tuple[str, str, str], list[Unsupported]] = {}
        for node in sorted(nodes, key=lambda node: node.operator):
            groups.setdefault((node.operator, node.why, node.instead), []).append(node)
        lines = [
            f"{operator}: {why}: {_listed(members)}"
            for (operator, why, _), members in groups.items()
        ]
        ways = dict.fromkeys(f"{operator}: {instead}" for operator, _, instead in groups)
        super().__init__(
            f"{path}: operators that cannot be compiled ({len({key[0] for key in groups})}, "
            f"in {format_count(len(nodes), 'node')})" + "".join(f"\n  {line}" for line in lines),
            hint="\n  ".join(ways),
        )
        self.nodes = tuple(nodes)
        self.operators: dict[str, str] = {}
        for operator, why, _ in groups:
            self.operators.setdefault(operator, why)


# Nodes that a message names of one operator for one reason.
_NAMED = 3


def _listed(nodes: Sequence[Unsupported]) -> str:
    more = len(nodes) - _NAMED
    return ", ".join(map(str, nodes[:_NAMED])) + (f" and {more} more" if more > 0 else "")


class ImportModelError(ModelError):
    """The model is no valid ONNX graph, or holds a form of an operator that TVM refuses."""


class DataSizeError(ImportModelError):
    """A node cannot have a tensor whose size depends on the data."""


class UnsupportedFormError(Exception):
    """Why a conversion of ours does not take a node."""


class FoldingBudgetError(ModelError):
    """What the model computes of constants alone is too large to be done beforehand."""


class BoardMemoryError(ModelError):
    """The model needs more memory than the board has."""


class CompilerError(ModelError):
    """The compiler fails at the model, for a reason that it has no words for."""


class CompilerCrashError(CompilerError):
    """The compiler's process ended without an answer."""


class CompilerMemoryError(CompilerError):
    """The compiler needs more memory than it may take."""


class CompilerTimeError(TimeLimitError):
    """The compiler needs more CPU time than it may take."""


@contextlib.contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """What fails in the block without words of our own becomes a `CompilerError` of model `path`.

    It names what was worked on; TVM's words and the traceback go to the log. Memory that ran out
    stays MemoryError.
    """
    try:
        yield
    except (EdgepackError, MemoryError):
        raise
    except Exception as error:  # TVM's errors share no base
        if apart.is_no_memory(str(error)):
            raise MemoryError from error
        log.debug("%s: %s", path, error, exc_info=True)
        raise CompilerError(
            f"{path}: the compiler fails at this model; it was {apart.last()}",
            hint="check the model (onnx.checker.check_model); if it is right, please report it "
            "with the output of -vv",
        ) from error


def first_line(error: Exception) -> str:
    """What an exception of TVM or onnxruntime says, without its trace of C++ frames."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
