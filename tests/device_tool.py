"""edgepack-device built by this machine's g++, for tests."""

from __future__ import annotations

import functools
from pathlib import Path

from edgepack.device_tool import TOOL, compile_tool, fetch_sources, source_key
from edgepack.paths import atomic_dir, cache_dir, locked


@functools.cache
def host_tool(*, faults: bool = False, sanitize: bool = False) -> Path:
    """The tool with or without the steps that tests can kill it at, and with sanitizers."""
    arguments = [
        "-DEDGEPACK_WERROR=ON",
        f"-DEDGEPACK_FAULTS={'ON' if faults else 'OFF'}",
        f"-DEDGEPACK_SANITIZE={'ON' if sanitize else 'OFF'}",
    ]
    folder = cache_dir() / "device-tool" / f"host-{source_key({'arguments': arguments})}"
    with locked(folder):
        if not folder.exists():
            sources = fetch_sources()
            with atomic_dir(folder) as work:
                compile_tool(work, sources, arguments)
    return folder / TOOL
