"""Fuzzing of all that the device's programs read, with libFuzzer and the corpus beside this file.

    python -m tests.fuzz [--seconds N] [--keep] [TARGET ...]

builds the targets of cpp_runtime/{app,device,sinks}/fuzz with clang and the sanitizers, replays the
corpus and goes on from it, for N seconds in all (default 600). With `--keep`, inputs that reach new
code are added to the corpus; an input that fails is always left in the working folder. OpenCV's
decoders are built for it as well, so that the fuzzer sees their branches and their memory; the
short form in the tests takes OpenCV as it is, and readers that are not optimised.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgepack.boards import get_board
from edgepack.native.opencv import OpenCvBuild, build_opencv
from edgepack.native.toolchain import find
from tests import app_targets, device_tool, sinks_program
from tests.support import require_tool

DEVICE_TARGETS = ("manifest", "archive", "signature", "receive")
APP_TARGETS = (
    "plan",
    "model",
    "preprocess",
    "postprocess",
    "stages",
    "candidate",
    "npy",
    "image",
    "frames",
    "camera",
    "http",
    "service",
)
SINKS_TARGETS = ("sinks",)
TARGETS = DEVICE_TARGETS + APP_TARGETS + SINKS_TARGETS
CORPUS = Path(__file__).parent
MEMORY_MB = 1024
"""More than this is a find."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run: `failed` is libFuzzer's report of an input that failed, or ""."""

    target: str
    inputs: int
    executions: int
    failed: str


def build(*, decoders: bool = False) -> dict[str, Path]:
    """The targets' programs by name; for a long run with `decoders`: optimised, OpenCV, too."""
    app = (*_programs(APP_TARGETS), "fuzz-kernels")
    if decoders:
        programs = _optimised(app)
    else:
        # Optimising takes a compiler longer than the short form runs: as the sanitized tests are.
        programs = {
            **device_tool.sanitized(*_programs(DEVICE_TARGETS)),
            **app_targets.sanitized(*app),
            **sinks_program.fuzzers(),
        }
    return {target: programs[f"fuzz-{target}"] for target in TARGETS}


def _optimised(app: tuple[str, ...]) -> dict[str, Path]:
    clang = require_tool("clang++", "clang++-14")
    compilers = (
        f"-DCMAKE_C_COMPILER={clang.replace('clang++', 'clang')}",
        f"-DCMAKE_CXX_COMPILER={clang}",
    )
    arguments = (*compilers, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DEDGEPACK_FUZZ=ON")
    # What nobody calls, and would lead to parts of OpenCV that the slim one leaves out: the
    # sanitizer keeps it, where the linker drops it otherwise.
    more = "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--unresolved-symbols=ignore-all"
    opencv = _instrumented_opencv(compilers)
    return {
        **device_tool.build_targets(_programs(DEVICE_TARGETS), *arguments),
        **app_targets.build_targets(app, *arguments, more, opencv=opencv),
        **sinks_program.fuzzers("-DCMAKE_BUILD_TYPE=RelWithDebInfo"),
    }


def _instrumented_opencv(compilers: tuple[str, ...]) -> OpenCvBuild:
    """OpenCV with the address sanitizer and counters of edges. (Its arithmetic is full of what the
    sanitizer of undefined behaviour reports.)"""
    board = get_board("local")
    toolchain = find("gnu", board)
    flags = (*board.runtime_flags["gnu"], "-fsanitize=address,fuzzer-no-link", "-g1")
    more = ("-DEDGEPACK_SANITIZE=ON", "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY")
    return build_opencv(
        replace(board, target=replace(board.target, runtime_flags={"gnu": flags})),
        replace(
            toolchain,
            cmake_args=(*toolchain.cmake_args, *compilers, *more),
            version="of clang, for fuzzing",
        ),
    )


def _programs(targets: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"fuzz-{target}" for target in targets)


def unpack(target: str, folder: Path) -> int:
    """The corpus of `target`, as files in `folder`; how many there are."""
    with zipfile.ZipFile(CORPUS / f"{target}.zip") as archive:
        archive.extractall(folder)
        return len(archive.namelist())


def pack(target: str, folder: Path) -> None:
    """The opposite: equal files give equal bytes."""
    inputs = {
        hashlib.sha256(path.read_bytes()).hexdigest()[:16]: path.read_bytes()
        for path in folder.iterdir()
    }
    with zipfile.ZipFile(CORPUS / f"{target}.zip", "w") as archive:
        for name, data in sorted(inputs.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def run(target: str, program: Path, *, seconds: int, keep: bool = False) -> Outcome:
    """Replay the corpus of `target`, then look for new inputs for `seconds`."""
    with tempfile.TemporaryDirectory() as name:
        corpus, found = Path(name) / "corpus", Path(name) / "found"
        found.mkdir()
        inputs = unpack(target, corpus)
        limits = (
            # The peak that libFuzzer would limit, ru_maxrss, includes that of whoever
            # started the program: of a pytest that may have held a gigabyte before.
            "-rss_limit_mb=0",
            f"-malloc_limit_mb={MEMORY_MB}",
            "-timeout=100",
            "-report_slow_units=100",
            "-print_final_stats=1",
        )
        replay = _fuzz(program, *limits, "-runs=0", corpus)
        if replay.returncode != 0:
            return Outcome(target=target, inputs=inputs, executions=0, failed=replay.stderr)
        # Longer inputs are slower and find no more: a header and a half of each kind fit.
        # A seed, so that a short run is the same each time, as far as a clock allows.
        search = ("-max_len=6000", "-seed=4", f"-max_total_time={seconds}")
        done = _fuzz(program, *limits, *search, found, corpus)
        count = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        if done.returncode == 0 and keep:
            merged = Path(name) / "merged"
            merged.mkdir()
            merge = ("-set_cover_merge=1", "-use_counters=0")
            if _fuzz(program, *limits, *merge, merged, corpus, found).returncode == 0:
                pack(target, merged)
        return Outcome(
            target=target,
            inputs=inputs,
            executions=int(count[1]) if count else 0,
            failed=done.stderr if done.returncode != 0 else "",
        )


def _fuzz(program: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    arguments: Sequence[str] = [str(word) for word in words]
    return subprocess.run(
        [program, *arguments],
        env={**os.environ, "ASAN_OPTIONS": f"hard_rss_limit_mb={MEMORY_MB}"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
