"""A board's own machine code on this machine: a compiled model's plan under qemu."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import ToolchainError
from edgepack.base.kept import keep, zig_cache
from edgepack.base.paths import cache_dir
from edgepack.base.process import run
from edgepack.base.tools import explain_missing, look_for
from edgepack.boards import Board
from edgepack.model.counts import ends_of, in_use
from edgepack.native.prebuilt import find_prebuilt
from edgepack.native.toolchain import ZIG_VERSION, musl_triple, zig_executable, zig_version

Array = npt.NDArray[Any]

_SOURCE = Path(__file__).with_name("plan_runner.c")
_PROGRAM = "plan_runner"
KIND = "plan-runner"
"""The folder of the cache, and of a wheel, that holds builds of it."""
# dlpack.h, DLDataTypeCode
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_QEMU = {"armhf": "qemu-arm", "arm64": "qemu-aarch64"}
# Parallel loops are cut in as many parts, which run one after the other.
_TASKS = 2


class EmulationError(ToolchainError):
    """The emulated program ended otherwise than well."""


def emulator(board: Board) -> tuple[str, ...] | None:
    """The start of a command line that runs a program of `board`; None if there is no emulator.

    The CPU is the one that the board's profile gives its virtual board, else all that qemu knows.
    """
    name = _QEMU.get(board.debian_arch)
    program = look_for(f"{name}-static", name) if name is not None else None
    if program is None:
        return None
    return (str(program), *_cpu(board))


def run_emulated(
    folder: Path,
    board: Board,
    cases: Sequence[Sequence[Array]],
    *,
    states: Mapping[int, int] | None = None,
    timeout_s: float | None = None,
) -> list[list[Array]]:
    """The outputs of the compiled model in `folder` for each of `cases`, by `board`'s emulator.

    `states` are inputs, by index, with the output that holds what they are in the next case: only
    their values in the first case count. Raises `EmulationError` if the program fails,
    `ToolchainError` if it cannot be built, and `TimeLimitError`.
    """
    command = emulator(board)
    if command is None:
        raise ToolchainError(f"no emulator for {board.name}")
    return _run(command, folder, board, cases, states or {}, tasks=_TASKS, timeout_s=timeout_s)[0]


def run_traced(
    folder: Path, board: Board, inputs: Sequence[Array], qemu: Path, plugin: str
) -> tuple[list[Array], int]:
    """The outputs of the second of two runs on `inputs`, by one core, and the address that the
    kernel library lies at.

    `plugin` is given to `qemu` with its options; its marks are calls of getppid, see plan_runner.c.
    Raises as `run_emulated` does.
    """
    command = (str(qemu), *_cpu(board), "-plugin", plugin)
    (_, outputs), said = _run(command, folder, board, [inputs] * 2, {}, tasks=1)
    return outputs, int(said.split()[0], 16)


def _cpu(board: Board) -> tuple[str, str]:
    return ("-cpu", board.virtual.qemu_cpu if board.virtual else "max")


def _run(
    command: Sequence[str],
    folder: Path,
    board: Board,
    cases: Sequence[Sequence[Array]],
    states: Mapping[int, int],
    *,
    tasks: int,
    timeout_s: float | None = None,
) -> tuple[list[list[Array]], str]:
    """The outputs of each case, and what the program printed."""
    graph = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    tensors = graph["tensors"]
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        work = Path(name)
        (work / "plan.txt").write_text(_numbers(graph))
        for number, inputs in enumerate(cases):
            for index, array in enumerate(inputs):
                file = work / f"in{number}.{index}"
                if number and index in states:
                    file.symlink_to(f"out{number - 1}.{states[index]}")
                else:
                    np.ascontiguousarray(array).tofile(file)
        library, params = ((folder / name).absolute() for name in ("model.so", "params.bin"))
        done = run(
            [
                *command,
                plan_runner(board),
                library,
                params,
                "plan.txt",
                str(tasks),
                str(len(cases)),
            ],
            cwd=work,
            timeout_s=timeout_s,
            error=EmulationError,
            what=f"the kernels for {board.cpu} under {Path(command[0]).name}",
        )
        outputs = [
            in_use(
                graph,
                [
                    np.fromfile(work / f"out{number}.{index}", tensors[at]["dtype"]).reshape(
                        tensors[at]["shape"]
                    )
                    for index, at in enumerate(ends_of(graph))
                ],
            )
            for number in range(len(cases))
        ]
    return outputs, done.stdout


def _numbers(graph: dict[str, Any]) -> str:
    """graph.json for plan_runner.c: counts, then what they count."""
    tensors, calls = graph["tensors"], graph["calls"]
    lines: list[list[object]] = [[graph["arena_bytes"], len(tensors)]]
    for tensor in tensors:
        dtype, shape = np.dtype(tensor["dtype"]), tensor["shape"]
        place = [int(tensor["storage"] == "params"), tensor["offset"], tensor["bytes"]]
        lines.append([*place, _CODES[dtype.kind], dtype.itemsize * 8, len(shape), *shape])
    lines += [[len(side), *side] for side in (graph["inputs"], ends_of(graph))]
    lines.append([len(calls)])
    lines += [[call["kernel"], len(call["args"]), *call["args"]] for call in calls]
    blocks = graph.get("blocks", ())
    lines.append([len(blocks)])
    lines += [[block[key] for key in ("first", "end", "condition", "most")] for block in blocks]
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def plan_runner(board: Board) -> Path:
    """plan_runner for `board`'s architecture, static against musl: of a wheel, or built once."""
    zig = zig_executable()
    triple, flags = musl_triple(board), board.runtime_flags["zig"]
    parts = (zig_version(zig) if zig else ZIG_VERSION, triple, *flags)
    key = hashlib.sha256("\0".join(parts).encode() + _SOURCE.read_bytes()).hexdigest()[:12]
    if made := find_prebuilt(board.triple, KIND, f"{triple}-{key}"):
        return made / _PROGRAM

    def make(work: Path) -> None:
        if zig is None:
            raise explain_missing("zig")
        # As the device tool is built: zig makes one musl for both.
        options = ("-target", triple, *flags, "-pie", "-fPIE", "-O2", "-g0", "-s", "-o")
        with zig_cache() as env:
            run(
                [zig, "cc", *options, work / _PROGRAM, _SOURCE],
                env=env,
                what="building what runs under the emulator",
            )

    return keep(cache_dir() / KIND / f"{triple}-{key}", make) / _PROGRAM
