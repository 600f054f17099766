"""Work on a model in a process of its own: a bad one may end that, and it is said where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from edgepack.base.apart import Apart, CrashError, LimitError, Limits
from edgepack.frontend.errors import (
    CompilerCrashError,
    CompilerMemoryError,
    CompilerTimeError,
    named_failures,
)
from edgepack.model import LoadedModel, walk_nodes

_P = ParamSpec("_P")
_T = TypeVar("_T")
# MobileNetV2 (14 MB, 152 nodes) for rasp3b takes 389 MB resident and 8 s in all, the smallest model
# 200 MB and 3 s.
_MEMORY_MB, _MEMORY_PER_MB = 2048, 16
_CPU_S, _CPU_S_PER_NODE = 60, 2

ENVIRONMENT = {
    # No kernel is for a GPU; TVM reads all that it has for them otherwise.
    "TVM_DEVICE_BACKEND_AUTOLOAD": "0",
    # Threads of numpy's BLAS wait in a loop for products that are small here.
    "OPENBLAS_NUM_THREADS": "1",
}


def limits_for(
    model: LoadedModel, *, memory_mb: int | None = None, cpu_s: int | None = None
) -> Limits:
    """What compiling a model may take: what is given, else by the model's size.

    2048 MB and 16 times the file; 60 s of CPU time and 2 s for each node.
    """
    nodes = sum(1 for _ in walk_nodes(model.proto.graph))
    return Limits(
        memory_mb=memory_mb or _MEMORY_MB + _MEMORY_PER_MB * (model.size_bytes >> 20),
        cpu_s=cpu_s or _CPU_S + _CPU_S_PER_NODE * nodes,
    )


def within(
    path: Path,
    limits: Limits,
    function: Callable[_P, _T],
    /,
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> _T:
    """`function(*args, **kwargs)`, which works on the model `path`, in a process of its own.

    `kwargs` may have a `progress`, which hears of its steps. Raises what `function` raises, the
    `CompilerError` of `named_failures`, and `CompilerMemoryError`, `CompilerTimeError` or
    `CompilerCrashError`; each of these names what it worked on.
    """
    try:
        process = Apart(limits=limits, environment=ENVIRONMENT)
        return process.call(_named, path, function, *args, **kwargs)
    except LimitError as error:
        where = error.at or "reading it"
        if error.what == "cpu":
            raise CompilerTimeError(
                f"{path}: compiling takes more than {limits.cpu_s} s of CPU time; it was {where}",
                hint="if the model is right, give it more: --compile-cpu-s S",
            ) from None
        raise CompilerMemoryError(
            f"{path}: compiling takes more than {limits.memory_mb} MB of memory; it was {where}",
            hint="if the model is right, give it more: --compile-memory-mb MB",
        ) from None
    except CrashError as error:
        raise CompilerCrashError(
            f"{path}: the compiler crashed ({error.how}); it was {error.at or 'reading it'}",
            hint="check the model (onnx.checker.check_model); if it is right, please report it",
        ) from error


def _named(path: Path, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What runs in the other process."""
    with named_failures(path):
        return function(*args, **kwargs)
