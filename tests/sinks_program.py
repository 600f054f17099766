"""Programs of cpp_runtime/sinks that only tests need."""

from __future__ import annotations

import functools
from pathlib import Path

from edgepack.base.kept import keep
from edgepack.base.paths import cache_dir
from edgepack.base.process import run
from edgepack.flow.sinks import fetch_mosquitto
from edgepack.native.device_tool import source_key
from edgepack.native.sinks import compile_sinks, fetch_sinks_sources
from tests.support import require_tool


@functools.cache
def fuzzers(*arguments: str) -> dict[str, Path]:
    """The libFuzzer targets by name, built by clang with `arguments`."""
    clang = require_tool("clang++", "clang++-14")
    options = [
        f"-DCMAKE_C_COMPILER={clang.replace('clang++', 'clang')}",
        f"-DCMAKE_CXX_COMPILER={clang}",
        "-DEDGEPACK_FUZZ=ON",
        "-DEDGEPACK_WERROR=ON",
        *(arguments or ("-DCMAKE_BUILD_TYPE=Debug",)),
    ]
    key = source_key({"options": options}, tests=True, program="sinks")
    folder = cache_dir() / "sinks" / f"fuzz-{key}"

    def make(work: Path) -> None:
        compile_sinks(work, fetch_sinks_sources(fetch_mosquitto), options, targets=("fuzz-sinks",))

    keep(folder, make)
    return {"fuzz-sinks": folder / "fuzz-sinks"}


@functools.cache
def counted() -> tuple[Path, Path]:
    """The program, linked with libc, and a library for LD_PRELOAD that counts in the file COUNT
    how often memory is asked for."""
    gcc = require_tool("gcc")
    options = [
        f"-DCMAKE_C_COMPILER={gcc}",
        f"-DCMAKE_CXX_COMPILER={require_tool('g++')}",
        "-DEDGEPACK_STATIC=OFF",
    ]
    source = Path(__file__).parent / "counting_malloc.c"
    parts = {"options": options, "malloc": source.read_text()}
    folder = cache_dir() / "sinks" / f"counted-{source_key(parts, tests=True, program='sinks')}"

    def make(work: Path) -> None:
        compile_sinks(work, fetch_sinks_sources(fetch_mosquitto), options)
        words = [gcc, "-shared", "-fPIC", "-O1", source, "-o", work / "count.so"]
        run(words, what="building the counting malloc")

    keep(folder, make)
    return folder / "edgepack-sinks", folder / "count.so"
