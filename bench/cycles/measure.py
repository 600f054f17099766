"""Measures cycles board by board, and keeps them in bench/results/cycles.json."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import arm, ours
from bench.convert import converted
from bench.cycles import reorder
from bench.fetch import bench_dir
from bench.mca import family
from bench.models import MODELS, WIDE, BenchModel, get_model
from bench.ours import NAME, TOLERANCE
from bench.peers import ARM_WHEELS, TITLES, Emulator, emulator
from bench.results import RESULTS, largest_error
from edgepack.base.errors import EdgepackError
from edgepack.base.paths import locked, write_atomic
from edgepack.base.progress import Progress
from edgepack.boards import Board, get_board
from edgepack.cycles import trace
from edgepack.cycles.estimate import Costs, CycleEstimate, alternatives, estimate, estimate_pairings
from edgepack.cycles.memories import MEMORIES, BoardMemory
from edgepack.flow.reference import run_reference
from edgepack.kernels.pipeline.cores import CORES, PAIRING, Core

log = logging.getLogger(__name__)

BOARDS = tuple(MEMORIES)
_FILE = RESULTS / "cycles.json"
# Kernel families worth a line each.
_LINES = 8

# What is stored of an engine on a model, see _stored.
Stored = dict[str, Any]


def trace_peer(emulated: Emulator, engine: str, model: BenchModel, out: Path) -> trace.Trace:
    """A peer's second inference. Raises CountError or MismatchError."""
    x = model.sample()
    arch = trace.arch_of(emulated.board.debian_arch)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        folder = Path(name)
        np.save(folder / "input.npy", x)
        arguments: list[str | Path] = [converted(model, engine), folder / "input.npy", folder, "1"]
        argv = emulated.peer(engine, _plugin(emulated.board, trace.PARENT[arch], out), arguments)
        arm.run_with_plugin(argv, out, f"{engine} on {model.name}", b"2\n")
        references = run_reference(model.path, {}, [x])
        outputs = [np.load(folder / f"{i}.npy") for i in range(len(references))]
        largest_error(outputs, references, TOLERANCE)
    return trace.read(out, arch)


def trace_ours(
    emulated: Emulator, model: BenchModel, out: Path, progress: Progress
) -> tuple[trace.Trace, Path]:
    """Our second inference, and the kernels' library. Raises CountError, MismatchError, and what
    packaging raises."""
    packaged = ours.package(model, emulated.board.name, progress)
    arch = trace.arch_of(emulated.board.debian_arch)
    app, *arguments = packaged.argv(runs=1, threads=1)
    plugin = _plugin(emulated.board, trace.CLOCK[arch], out)
    argv = [*emulated.argv(Path(app), plugin=plugin, env={}), *arguments]
    printed = arm.run_with_plugin(argv, out, f"edgepack-run on {model.name}", None)
    ours.check(json.loads(printed), model.name)
    return trace.read(out, arch), packaged.folder / "model" / "model.so"


def _plugin(board: Board, marks: Sequence[int], out: Path) -> str:
    plugin = trace.build_plugin(trace.emulator(board.debian_arch))
    return f"{plugin},{trace.options(out, marks, MEMORIES[board.name])}"


def measure(
    boards: Sequence[str], models: Sequence[str], engines: Sequence[str], progress: Progress
) -> None:
    """Traces and stores, one after the other; a failure is stored, too."""
    folder = bench_dir() / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    for board in map(get_board, boards):
        emulated = emulator(board, progress)
        for model in map(get_model, models):
            for engine in (NAME, *ARM_WHEELS[board.debian_arch]):
                if engine not in engines:
                    continue
                progress.step(f"{board.name}: {model.name}: {engine}")
                out = folder / f"{board.name}-{model.name}-{engine}"
                try:
                    if engine == NAME:
                        found, library = trace_ours(emulated, model, out, progress)
                        name = trace.namer(found, library, trace.function_names(library))
                    else:
                        found = trace_peer(emulated, engine, model, out)
                        name = trace.namer(found, None, {})
                    if not found.windows:
                        raise arm.CountError(f"{engine} on {model.name}: no window was sampled")
                    costs, others = _costs(found, board)
                    stored = _stored(
                        estimate(found, costs, name), estimate(found, others, name).cycles
                    )
                except EdgepackError as error:
                    log.warning("%s", error)
                    stored = {"failed": arm.reason(str(error))}
                _store(board.name, model.name, engine, stored)


def assumptions(board: Board) -> tuple[str, ...]:
    """By which cycles of the board's core are given."""
    return PAIRING if board.cpu in CORES else (reorder.NAME,)


def _costs(found: trace.Trace, board: Board) -> tuple[dict[str, Costs], dict[str, Costs]]:
    """The windows on the board's core by assumption, and with what else may be so."""
    if core := CORES.get(board.cpu):
        return estimate_pairings(found, core), alternatives(found, core)
    llvms = reorder.DESCRIPTIONS[board.cpu]
    others = {name: reorder.window_costs(found, llvms, options) for name, options in llvms.others}
    return {reorder.NAME: reorder.window_costs(found, llvms)}, others


def _stored(made: CycleEstimate, others: Mapping[str, float]) -> Stored:
    kernels: dict[str, dict[str, float]] = {}
    for name, part in made.parts.items():
        row = kernels.setdefault(family(name), {"cycles": 0, "read_bytes": 0, "multiply_adds": 0})
        row["cycles"] += round(part.cycles)
        row["read_bytes"] += part.read_bytes
        row["multiply_adds"] += round(part.fma_per_cycle * part.cycles)
    most = sorted(kernels, key=lambda name: -kernels[name]["cycles"])[:_LINES]
    return {
        "instructions": made.instructions,
        "cycles": {name: round(cycles) for name, cycles in made.cycles.items()},
        "error": round(made.error, 4),
        "l1_misses": made.l1_misses,
        "traffic_bytes": made.traffic_bytes,
        "others": {name: round(cycles) for name, cycles in others.items()},
        "kernels": {name: kernels[name] for name in most},
    }


def _store(board: str, model: str, engine: str, stored: Stored) -> None:
    with locked(bench_dir() / "results"):
        tables = load()
        tables.setdefault(board, {}).setdefault(model, {})[engine] = stored
        write_atomic(_FILE, (json.dumps(tables, indent=1, sort_keys=True) + "\n").encode())


def load() -> dict[str, dict[str, dict[str, Stored]]]:
    """What is stored, by board, model and engine."""
    return json.loads(_FILE.read_text()) if _FILE.exists() else {}


def milliseconds(stored: Stored, memory: BoardMemory, hertz: float) -> tuple[float, float]:
    """An engine's range, from what is stored."""
    made = CycleEstimate(
        instructions=stored["instructions"],
        cycles=stored["cycles"],
        error=stored["error"],
        l1_misses=stored["l1_misses"],
        traffic_bytes=stored["traffic_bytes"],
        parts={},
    )
    return made.milliseconds(memory, hertz)


def ratios(engines: Mapping[str, Stored]) -> dict[str, float]:
    """Ours over the best peer, by assumption and by what is another of the core."""
    mine = engines.get(NAME, {})
    peers = [stored for name, stored in engines.items() if name != NAME and "cycles" in stored]
    if "cycles" not in mine or not peers:
        return {}
    found = {
        name: cycles / min(peer["cycles"][name] for peer in peers)
        for name, cycles in mine["cycles"].items()
    }
    for name in mine["others"]:
        theirs = [peer["others"][name] for peer in peers if name in peer["others"]]
        found[name] = mine["others"][name] / min(theirs)
    return found


def lead() -> str:
    """Markdown of what it comes to: ours beside the best peer, by board and model."""
    lines = [
        f"| core | model | cycles, M: {', '.join(PAIRING)} | best peer's | ours / best "
        "| traffic, MB | best peer's |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    tables = load()
    for name in (name for name in BOARDS if name in tables):
        board = get_board(name)
        bits = 64 if trace.arch_of(board.debian_arch) == "aarch64" else 32
        for model in (model for model in (*MODELS, *WIDE) if model in tables[name]):
            engines = tables[name][model]
            found = ratios(engines)
            if not found:
                continue
            mine = engines[NAME]
            peers = [one for key, one in engines.items() if key != NAME and "cycles" in one]
            least = min(peer["traffic_bytes"] for peer in peers)
            names = assumptions(board)
            ours = [f"{mine['cycles'][name] / 1e6:.0f}" for name in names]
            best = [f"{min(peer['cycles'][name] for peer in peers) / 1e6:.0f}" for name in names]
            parts = [f"{found[name]:.2f}" for name in names]
            lines.append(
                f"| {board.cpu}, {bits} bits | {model} | {' / '.join(ours)} | {' / '.join(best)} "
                f"| {' / '.join(parts)} | {mine['traffic_bytes'] / 1e6:.0f} | {least / 1e6:.0f} |"
            )
    return "\n".join(lines)


def report() -> str:
    """Markdown of all that is stored, a board after the other."""
    tables = load()
    return "\n\n".join(_board(get_board(name), tables[name]) for name in BOARDS if name in tables)


def _board(board: Board, models: Mapping[str, Mapping[str, Stored]]) -> str:
    nine, wide = (
        {name: models[name] for name in names if name in models} for names in (MODELS, WIDE)
    )
    title = f"**{board.cpu}, {board.triple}** (board {board.name})"
    tables = [
        title,
        _engines(board, {**nine, **wide}),
        _sensitivity(board, {**nine, **wide}),
        _kernels(board, nine),
    ]
    return "\n\n".join(table for table in tables if table)


def _engines(board: Board, models: Mapping[str, Mapping[str, Stored]]) -> str:
    memory, hertz = MEMORIES[board.name], board.clusters[0].max_mhz * 1e6
    names = assumptions(board)
    lines = [
        f"| model | engine | instructions, M | cycles, M: {', '.join(names)} "
        "| traffic, MB "
        f"| ms at {hertz / 1e6:.0f} MHz |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for model, engines in models.items():
        for engine in (NAME, *TITLES):
            if (stored := engines.get(engine)) is None:
                continue
            title = TITLES.get(engine, engine)
            if "failed" in stored:
                lines.append(f"| {model} | {title} | {stored['failed']} | | | |")
                continue
            cycles = " / ".join(f"{stored['cycles'][name] / 1e6:.1f}" for name in names)
            best, worst = milliseconds(stored, memory, hertz)
            lines.append(
                f"| {model} | {title} | {stored['instructions'] / 1e6:.1f} | {cycles} "
                f"± {stored['error'] * 100:.1f} % | {stored['traffic_bytes'] / 1e6:.0f} "
                f"| {best:.0f} to {worst:.0f} |"
            )
    return "\n".join(lines)


def _sensitivity(board: Board, models: Mapping[str, Mapping[str, Stored]]) -> str:
    names = assumptions(board)
    lines = [
        "| model | ours / best peer: " + ", ".join(names) + " | lowest, with | highest, with |",
        "| --- | ---: | ---: | ---: |",
    ]
    for model, engines in models.items():
        found = ratios(engines)
        if not found:
            continue
        lowest, highest = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
        pairs = " / ".join(f"{found[name]:.2f}" for name in names)
        ends = " | ".join(f"{found[name]:.2f}, {name}" for name in (lowest, highest))
        lines.append(f"| {model} | {pairs} | {ends} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _kernels(board: Board, models: Mapping[str, Mapping[str, Stored]]) -> str:
    first = assumptions(board)[0]
    lines = [
        "| model | kernels | part of the cycles | multiply-adds / cycle | read from memory, MB |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for model, engines in models.items():
        stored = engines.get(NAME, {})
        for name, row in stored.get("kernels", {}).items():
            part = row["cycles"] / stored["cycles"][first]
            if part >= 0.02:
                lines.append(
                    f"| {model} | {name} | {part * 100:.0f} % "
                    f"| {row['multiply_adds'] / row['cycles']:.2f} "
                    f"| {row['read_bytes'] / 1e6:.1f} |"
                )
    return "\n".join(lines) if len(lines) > 2 else ""


def numbers() -> str:
    """Markdown of the cores' numbers: value, what else it may be, where it is from."""
    return "\n\n".join(f"**{core.name}**\n\n{_numbers(core)}" for core in CORES.values())


def _numbers(core: Core) -> str:
    lines = ["| number | value | or | from |", "| --- | ---: | ---: | --- |"]
    for name, number in core.numbers():
        others = ", ".join(map(str, number.others))
        lines.append(f"| {name} | {number.value} | {others} | {number.source} |")
    return "\n".join(lines)
