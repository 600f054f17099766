"""What compiling a model takes, and the memory its tensors share at run time.

In a process of its own per model, so that nothing is warm. CPU time of it and of the linker: an
idle machine takes no longer than that.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.models import MODELS, get_model
from bench.results import Figure, load, ordered, store
from edgepack.base.progress import Progress
from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select

BOARD = "local"
_COLUMNS = {"cpu_s": "CPU, s", "arena_mb": "arena, MB", "params_mb": "parameters, MB"}


def measure(models: Sequence[str], progress: Progress) -> None:
    """Compiles and stores figures."""
    for model in map(get_model, models):
        progress.step(f"compiling {model.name}")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "bench.compiling", model.path],
            check=True,
            capture_output=True,
            text=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        arena, params = map(int, done.stdout.split()[-2:])
        figures = {
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "arena_mb": arena / 1e6,
            "params_mb": params / 1e6,
        }
        rows = {name: Figure(value=value) for name, value in figures.items()}
        store("compile", {BOARD: {model.name: rows}})


def report() -> str:
    """Markdown of all figures so far."""
    lines = [
        f"| model | {' | '.join(_COLUMNS.values())} |",
        f"| --- |{' ---: |' * len(_COLUMNS)}",
    ]
    for model, figures in ordered(load("compile").get(BOARD, {}), MODELS).items():
        values = (figures[name].value or 0.0 for name in _COLUMNS)
        lines.append(f"| {model} | {' | '.join(f'{value:.2f}' for value in values)} |")
    return "\n".join(lines)


def main() -> None:
    """Compiles the model that is the only argument, and prints the arena's and weights' bytes."""
    board = get_board(BOARD)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        compiled = compile_model(
            ModelSpec(path=Path(sys.argv[1])),
            board,
            select(board).toolchain,
            Path(folder) / "out",
        )
    print(compiled.arena_bytes, compiled.params_bytes)


if __name__ == "__main__":
    main()
