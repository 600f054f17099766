"""edgepack-device built by this machine's g++, for tests."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from edgepack.base.paths import atomic_dir, cache_dir, data_file, locked
from edgepack.boards import Board
from edgepack.native.device_tool import TOOL, compile_tool, fetch_sources, source_key, zig_arguments

PROBE = "device-probe"


def host_tool(*, faults: bool = False, sanitize: bool = False) -> Path:
    """The tool with or without the steps that tests can kill it at, and with sanitizers.

    With the steps it is not static: `tests.faults.preload` can stand between it and libc.
    """
    options = [f"-DEDGEPACK_FAULTS={_on(faults)}", f"-DEDGEPACK_SANITIZE={_on(sanitize)}"]
    return _build(TOOL, *options, f"-DEDGEPACK_STATIC={_on(not faults)}")


def host_probe() -> Path:
    """The program that asks one of the tool's readers about a file, with sanitizers."""
    return _build(PROBE, "-DEDGEPACK_SANITIZE=ON", "-DEDGEPACK_TESTS=ON")


def board_tool(board: Board) -> Path:
    """The tool for a board, with the steps that tests can kill it at."""
    return _build(TOOL, "-DEDGEPACK_FAULTS=ON", *zig_arguments(board))


def _build(target: str, *options: str) -> Path:
    return build_targets((target,), "-DEDGEPACK_WERROR=ON", *options)[target]


@functools.cache
def build_targets(targets: tuple[str, ...], *arguments: str) -> dict[str, Path]:
    """Programs of cpp_runtime/device by name; libraries are compiled for the first only."""
    options = {"arguments": arguments}
    tests = targets != (TOOL,)
    out = cache_dir() / "device-tool" / f"{targets[0]}-{source_key(options, tests=tests)}"
    # CMake's folder is that of one checkout.
    where = [str(data_file("cpp_runtime")), *arguments]
    digest = hashlib.sha256(json.dumps(where).encode()).hexdigest()[:16]
    build = cache_dir() / "device-tool" / f"build-{digest}"
    with locked(out):
        if not out.exists():
            sources = fetch_sources()
            with locked(build), atomic_dir(out) as work:
                compile_tool(work, sources, arguments, targets=targets, build=build)
    return {target: out / target for target in targets}


def _on(value: bool) -> str:
    return "ON" if value else "OFF"
