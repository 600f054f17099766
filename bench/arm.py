"""Guest instructions of one inference, one thread, under qemu-user.

Counted for N and for 2N inferences by a plugin (insn_count.c): the difference, over N, is
that of an inference alone, without loading, packing and Python's start. N inferences have 100 M
instructions or more, for the first ones of an engine may do other work than those that follow. The
same machine code gives the same count to within some thousands, on whatever machine and however
loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench import ours
from bench.convert import converted
from bench.fetch import bench_dir
from bench.models import MODELS, WIDE, BenchModel, get_model
from bench.ours import NAME, TOLERANCE
from bench.peers import ARM_WHEELS, TITLES, Emulator, emulator
from bench.results import Figure, Rows, largest_error, load, ordered, store, table
from edgepack.base.errors import EdgepackError, RemoteError
from edgepack.base.paths import locked, write_atomic
from edgepack.base.process import run
from edgepack.base.progress import Progress
from edgepack.boards import Board, get_board
from edgepack.flow.reference import run_reference
from edgepack.frontend.precision import FULL

log = logging.getLogger(__name__)

PLUGIN_SOURCE = Path(__file__).with_name("insn_count.c")
# One board per kind of core; boards.toml says which.
BOARDS = ("rasp3b", "pynq", "rasp4b", "rasp4b-64", "rasp3b-64")
_TIMEOUT_S = 1800.0
# Instructions that are counted at least: onnxruntime's second inference of an LSTM of 96 steps has
# 4.4 M of them, the 20 from the 21st on 9.8 M each.
_LEAST = 100_000_000


class CountError(RemoteError):
    """A program failed under qemu."""


def build_plugin(source: Path = PLUGIN_SOURCE) -> Path:
    """A qemu plugin of one C file, from the cache if it was built before."""
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    out = bench_dir() / f"{source.stem}-{key}.so"
    with locked(out):
        if not out.exists():
            with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
                library = Path(folder) / "plugin.so"
                flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
                run(["cc", *flags, source, "-o", library])
                write_atomic(out, library.read_bytes())
    return out


def difference(count: Callable[[int], int], least: int = _LEAST) -> int:
    """Instructions of one inference, `count(n)` being those of a process with n of them.

    They are counted over as many inferences as have `least` instructions.
    """
    runs, before, after = 1, count(1), count(2)
    while (found := after - before) < least:
        # The estimate so far may be off, by a bit (hence a tenth more) or by far.
        runs = min(runs * least * 11 // (10 * max(found, 1)) + 1, 32 * runs)
        before, after = count(runs), count(2 * runs)
    return found // runs


def count_peer(
    emulator: Emulator,
    engine: str,
    model: BenchModel,
    *,
    tolerance: float = TOLERANCE,
) -> Figure:
    """A peer's figure for a model. Raises CountError or MismatchError."""
    x = model.sample()
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        folder = Path(name)
        np.save(folder / "input.npy", x)
        arguments: list[str | Path] = [converted(model, engine), folder / "input.npy", folder, "1"]

        def count(inferences: int) -> int:
            return _count(
                lambda plugin: emulator.peer(engine, plugin, arguments),
                folder / "count",
                f"{engine} on {model.name}",
                f"{inferences}\n".encode(),
            )

        instructions = difference(count)
        references = run_reference(model.path, {}, [x])
        outputs = [np.load(folder / f"{i}.npy") for i in range(len(references))]
    return Figure(value=instructions, error=largest_error(outputs, references, tolerance))


def count_ours(
    emulator: Emulator,
    model: BenchModel,
    progress: Progress,
    *,
    precision: str = FULL.name,
) -> Figure:
    """Our figure for a model. Raises CountError, MismatchError, and what packaging raises."""
    packaged = ours.package(model, emulator.board.name, progress, precision=precision)
    error = 0.0
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:

        def count(inferences: int) -> int:
            nonlocal error
            app, *arguments = packaged.argv(runs=inferences, threads=1)
            reports: list[str] = []
            instructions = _count(
                lambda plugin: [*emulator.argv(Path(app), plugin=plugin, env={}), *arguments],
                Path(name) / "count",
                f"edgepack-run on {model.name}",
                None,
                reports,
            )
            error = ours.check(json.loads(reports[0]), model.name)
            return instructions

        return Figure(value=difference(count), error=error)


def _count(
    argv: Callable[[str], list[str | Path]],
    out: Path,
    what: str,
    stdin: bytes | None,
    stdout: list[str] | None = None,
) -> int:
    printed = run_with_plugin(argv(f"{build_plugin()},out={out}"), out, what, stdin)
    if stdout is not None:
        stdout.append(printed)
    return int(out.read_text())


def run_with_plugin(argv: list[str | Path], out: Path, what: str, stdin: bytes | None) -> str:
    """What a program prints under qemu with a plugin that writes `out`. Raises CountError."""
    done = run(argv, input=stdin, timeout_s=_TIMEOUT_S, check=False, error=CountError)
    if done.returncode != 0 or not out.exists():
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CountError(f"{what}: {lines[-1]}")
    return done.stdout


def measure(
    boards: Sequence[str], models: Sequence[str], engines: Sequence[str], progress: Progress
) -> None:
    """Counts and stores figures, one after the other; a failure is a figure too."""
    for board in map(get_board, boards):
        emulated = emulator(board, progress)
        for model in map(get_model, models):
            for engine in (NAME, *ARM_WHEELS[board.debian_arch]):
                if engine not in engines:
                    continue
                progress.step(f"{board.name}: {model.name}: {engine}")
                try:
                    if engine == NAME:
                        figure = count_ours(emulated, model, progress)
                    else:
                        figure = count_peer(emulated, engine, model)
                except EdgepackError as error:
                    log.warning("%s", error)
                    figure = Figure(failed=reason(str(error)))
                store("arm", {board.name: {model.name: {engine: figure}}})


def reason(message: str) -> str:
    """A word for a table's cell."""
    return "illegal instruction" if "Illegal instruction" in message else "fails"


def report() -> str:
    """Markdown of all figures so far, in millions of instructions."""
    tables = load("arm")
    parts = []
    for board in (get_board(name) for name in BOARDS if name in tables):
        parts += [_title(board), _table(board, ordered(tables[board.name], MODELS))]
        if others := ordered(tables[board.name], WIDE):
            parts += ["Networks of every kind:", _table(board, others)]
    return "\n\n".join(parts)


def _title(board: Board) -> str:
    title = f"**{board.triple}, {board.cpu}** (board {board.name})"
    if board.name == "rasp3b-64":
        # 128 bits in one load take two cycles with nothing beside them on that core.
        title += "; the peers choose longer code for this core on purpose, of narrow loads"
    return title


def _table(board: Board, rows: Rows) -> str:
    engines = list(ARM_WHEELS[board.debian_arch])
    return table(rows, engines, TITLES, scale=1e6, digits=1)
