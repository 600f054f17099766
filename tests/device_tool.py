"""edgepack-device built by this machine's g++, for tests."""

from __future__ import annotations

import functools
from pathlib import Path

from edgepack.boards import Board
from edgepack.device_tool import TOOL, compile_tool, fetch_sources, source_key, zig_arguments
from edgepack.paths import atomic_dir, cache_dir, locked

PROBE = "device-probe"


def host_tool(*, faults: bool = False, sanitize: bool = False) -> Path:
    """The tool with or without the steps that tests can kill it at, and with sanitizers."""
    return _build(TOOL, f"-DEDGEPACK_FAULTS={_on(faults)}", f"-DEDGEPACK_SANITIZE={_on(sanitize)}")


def host_probe() -> Path:
    """The program that asks one of the tool's readers about a file, with sanitizers."""
    return _build(PROBE, "-DEDGEPACK_SANITIZE=ON", "-DEDGEPACK_TESTS=ON")


def board_tool(board: Board) -> Path:
    """The tool for a board, with the steps that tests can kill it at."""
    return _build(TOOL, "-DEDGEPACK_FAULTS=ON", *zig_arguments(board))


@functools.cache
def _build(target: str, *options: str) -> Path:
    arguments = ["-DEDGEPACK_WERROR=ON", *options]
    folder = (
        cache_dir()
        / "device-tool"
        / f"host-{source_key({target: arguments}, tests=target != TOOL)}"
    )
    with locked(folder):
        if not folder.exists():
            sources = fetch_sources()
            with atomic_dir(folder) as work:
                compile_tool(work, sources, arguments, targets=[target])
    return folder / target


def _on(value: bool) -> str:
    return "ON" if value else "OFF"
