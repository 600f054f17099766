"""This machine: one process per engine, interleaved rounds, equal inputs.

One thread is measured in CPU time of the process, which other load on the machine hardly
touches; all threads in wall time, of which the shortest counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bench import avx2, ours
from bench.convert import converted
from bench.models import KINDS, MODELS, WIDE, BenchModel, get_model
from bench.ours import NAME, SETTINGS, TOLERANCE
from bench.peers import HOST_ENGINES, TITLES, WORKER, host_python
from bench.results import (
    Figure,
    Rows,
    geometric_mean,
    largest_error,
    load,
    median,
    ordered,
    ratio,
    store,
    table,
)
from edgepack.base.errors import EdgepackError, RemoteError
from edgepack.base.process import last_lines
from edgepack.base.progress import Progress
from edgepack.boards import get_board
from edgepack.flow.doctor import cost_model_gap
from edgepack.flow.reference import run_reference

log = logging.getLogger(__name__)

AVX2 = "avx2_cpu_ms_1"  # a table
_BATCH_MS = 200.0
_MAX_BATCH = 50


class EngineError(RemoteError):
    """An engine's process ended, or did not start."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Milliseconds per inference: CPU time of the process, and wall time."""

    cpu_ms: tuple[float, ...]
    wall_ms: tuple[float, ...]


# Runs a model so many times.
Runner = Callable[[int], Times]


@dataclass(kw_only=True)
class _Entry:
    """An engine in a measurement: how to run it, and what was found."""

    run: Runner
    error: float
    batch: int = 1
    packaged: ours.Packaged | None = None
    cpu_ms: list[float] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)


def measure(
    models: Sequence[str],
    engines: Sequence[str],
    progress: Progress,
    *,
    rounds: int,
    held: bool = False,
) -> None:
    """Measures and stores figures, with one thread and with all; a failure is a figure too.

    With `held`, all engines are held to AVX2, and have one thread.
    """
    if gap := cost_model_gap(get_board("local")):
        log.warning("%s", gap)
    cores = len(os.sched_getaffinity(0))
    engines = [engine for engine in engines if engine in (*SETTINGS, *HOST_ENGINES)]
    for model in map(get_model, models):
        if held:
            progress.step(f"{model.name}: AVX2")
            cpu, _ = timed(model, engines, 1, progress, rounds=rounds, held=True)
            store("host", {AVX2: {model.name: cpu}})
            continue
        for threads in sorted({1, cores}):
            if threads > 1 and os.getloadavg()[0] > cores:
                progress.step(f"{model.name}: not with {threads} threads, this machine is busy")
                continue
            progress.step(f"{model.name}: {threads} thread{'s' if threads > 1 else ''}")
            cpu, wall = timed(model, engines, threads, progress, rounds=rounds)
            tables = {f"wall_ms_{threads}": {model.name: wall}}
            if threads == 1:
                tables["cpu_ms_1"] = {model.name: cpu}
            store("host", tables)


def timed(
    model: BenchModel,
    engines: Sequence[str],
    threads: int,
    progress: Progress,
    *,
    rounds: int,
    tolerance: float = TOLERANCE,
    files: Mapping[str, Path] = MappingProxyType({}),
    held: bool = False,
) -> tuple[dict[str, Figure], dict[str, Figure]]:
    """Each engine's median CPU time, and its shortest wall time, in milliseconds.

    `files` are those of engines that are not given the model's own. With `held`, all are held to
    AVX2.
    """
    cpu: dict[str, Figure] = {}
    with contextlib.ExitStack() as stack:
        entries = _start(
            stack,
            model,
            engines,
            threads,
            progress,
            failed=cpu,
            tolerance=tolerance,
            files=files,
            held=held,
        )
        _rounds(entries, rounds)
    cpu |= {
        engine: Figure(value=median(entry.cpu_ms), error=entry.error)
        for engine, entry in entries.items()
    }
    wall = {
        engine: Figure(value=min(entry.wall_ms), error=entry.error)
        for engine, entry in entries.items()
    }
    return cpu, wall


def _start(
    stack: contextlib.ExitStack,
    model: BenchModel,
    engines: Sequence[str],
    threads: int,
    progress: Progress,
    *,
    failed: dict[str, Figure],
    tolerance: float,
    files: Mapping[str, Path],
    held: bool,
) -> dict[str, _Entry]:
    """Starts the engines and checks the outputs of each one's first run."""
    references = run_reference(model.path, {}, [model.sample()])
    entries: dict[str, _Entry] = {}
    for engine in (*SETTINGS, *TITLES):
        if engine not in engines:
            continue
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepack-")))
        try:
            if engine in SETTINGS:
                board = avx2.BOARD if held else "local"
                packaged = ours.package(model, board, progress, engine=engine)
                started = entries.get(NAME)
                if started and started.packaged and started.packaged.is_like(packaged):
                    # What both settings make the same of is measured once.
                    entries[engine] = started
                    continue
                entry = _start_ours(model, packaged, threads)
            else:
                np.save(folder / "input.npy", model.sample())
                python: list[str | Path] = [host_python(progress)]
                if held:
                    python = ["env", f"PYTHONPATH={avx2.site(Path(python[0]))}", *python]
                file = files.get(engine) or converted(model, engine)
                arguments = (file, folder / "input.npy", folder, str(threads))
                run = stack.enter_context(worker([*python, WORKER, engine, *arguments]))
                first = run(1)
                outputs = [np.load(folder / f"{i}.npy") for i in range(len(references))]
                entry = _Entry(run=run, error=largest_error(outputs, references, tolerance))
                entry.batch = _batch(first)
        except EdgepackError as error:
            log.warning("%s", error)
            failed[engine] = Figure(failed="fails")
        else:
            entries[engine] = entry
    return entries


def _start_ours(model: BenchModel, packaged: ours.Packaged, threads: int) -> _Entry:
    report, _ = run_timed(packaged.argv(runs=1, threads=threads))
    error = ours.check(report, model.name)

    def run(count: int) -> Times:
        """A process per round; CPU time is the difference of N and 2N runs, over N."""
        _, short = run_timed(packaged.argv(runs=count, threads=threads))
        report, long = run_timed(packaged.argv(runs=2 * count, threads=threads))
        return Times(cpu_ms=((long - short) / count,), wall_ms=tuple(report["bench"]["times_ms"]))

    return _Entry(run=run, error=error, batch=_batch(run(1)), packaged=packaged)


def run_timed(argv: Sequence[str | Path]) -> tuple[dict[str, Any], float]:
    """The JSON a program prints, and the CPU milliseconds it took."""
    words = [str(word) for word in argv]
    log.debug("run %s", shlex.join(words))
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            assert process.stderr is not None
            output = last_lines(process.stderr.read().decode(errors="replace"))
            raise EngineError(f"{shlex.join(words)}\n{output}")
    report: dict[str, Any] = json.loads(text)
    return report, (usage.ru_utime + usage.ru_stime) * 1e3


@contextlib.contextmanager
def worker(argv: Sequence[str | Path]) -> Iterator[Runner]:
    """A worker.py in a process of its own, for as long as the block lasts."""
    words = [str(word) for word in argv]
    log.debug("run %s", shlex.join(words))
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        source, sink = process.stdout, process.stdin

        def run(count: int) -> Times:
            try:
                sink.write(f"{count}\n")
                sink.flush()
            except BrokenPipeError:
                pass  # what it said on its standard error is told below
            # Engines may print lines of their own.
            for line in source:
                if line.startswith("{"):
                    answer = json.loads(line)
                    return Times(cpu_ms=tuple(answer["cpu_ms"]), wall_ms=tuple(answer["wall_ms"]))
            errors.seek(0)
            output = last_lines(errors.read().decode(errors="replace"))
            raise EngineError(f"{shlex.join(words)}\n{output}")

        try:
            yield run
        finally:
            with contextlib.suppress(BrokenPipeError):
                sink.close()


def _batch(first: Times) -> int:
    """How many runs fill a round."""
    return max(1, min(_MAX_BATCH, round(_BATCH_MS / max(min(first.wall_ms), 0.1))))


def _rounds(entries: dict[str, _Entry], rounds: int) -> None:
    """Every engine in turn, again and again: what disturbs the machine disturbs them all."""
    different = {id(entry): entry for entry in entries.values()}.values()
    for _ in range(rounds):
        for entry in different:
            times = entry.run(entry.batch)
            entry.cpu_ms.extend(times.cpu_ms)
            entry.wall_ms.extend(times.wall_ms)


def report() -> str:
    """Markdown of the nine's figures so far, in milliseconds."""
    return _tables(MODELS)


def wide_report() -> str:
    """The same of networks of every kind, and what all of both come to; then all with AVX2."""
    parts = [_tables(WIDE)]
    tables = load("host")
    mean = _mean(tables.get("cpu_ms_1", {}))
    if mean:
        parts.append(f"With the nine, one thread: {mean}.")
    if held := ordered(tables.get(AVX2, {}), (*MODELS, *WIDE)):
        found = table(held, HOST_ENGINES, TITLES, scale=1, digits=2)
        parts.append(f"**1 thread, every engine held to AVX2, median CPU time, ms**\n\n{found}")
    return "\n\n".join(parts)


def kinds_report() -> str:
    """The same of small networks of other kinds."""
    return _tables(KINDS)


def _mean(rows: Rows) -> str:
    ratios = [
        found for figures in ordered(rows, (*MODELS, *WIDE)).values() if (found := ratio(figures))
    ]
    mean = geometric_mean(ratios)
    return "" if mean is None else f"geometric mean of {len(ratios)} {mean:.2f}"


def _tables(models: Iterable[str]) -> str:
    tables = load("host")
    parts = []
    for key, every in sorted(tables.items()):
        rows = ordered(every, models)
        if key in ("wall_ms_1", AVX2) or not rows:
            continue  # the former is CPU time on an idle machine; kept for the speed-up
        kind, threads = key.rsplit("_", 1)
        what = "median CPU time" if kind == "cpu_ms" else "shortest wall time"
        title = f"**{threads} thread{'s' if threads != '1' else ''}, {what}, ms**"
        parts.append(f"{title}\n\n{table(rows, HOST_ENGINES, TITLES, scale=1, digits=2)}")
        if kind == "wall_ms":
            parts += _speed_up(tables["wall_ms_1"], rows, threads)
    return "\n\n".join(parts)


def _speed_up(one: Rows, many: Rows, threads: str) -> list[str]:
    """Our own wall time with one thread over that with `threads`."""
    found = {}
    for model, figures in many.items():
        before = one.get(model, {}).get(NAME, Figure()).value
        after = figures.get(NAME, Figure()).value
        if before and after:
            found[model] = before / after
    mean = geometric_mean(found.values())
    if mean is None:
        return []
    each = ", ".join(f"{model} {value:.2f}" for model, value in found.items())
    return [f"{NAME} with {threads} threads over one: {each}; geometric mean {mean:.2f}."]
