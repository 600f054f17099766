"""edgepack-device built for tests: by the presets of its ctest, or with steps to be killed at."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.kept import zig_cache
from edgepack.base.paths import atomic_dir, cache_dir, data_file, locked
from edgepack.base.process import run
from edgepack.boards import Board, get_board
from edgepack.native.device_tool import (
    TOOL,
    build_device_tool,
    cmake_arguments,
    compile_tool,
    fetch_sources,
    source_key,
)
from edgepack.native.opencv import jobs, tool
from edgepack.native.toolchain import zig_executable
from tests.support import configure_preset, ctest_build, require_tool

SOURCE = data_file("cpp_runtime") / "device"
PROBE = "device-probe"
PRESETS = {
    "host": "g++",
    "host-sanitize": "clang++",
    "armhf": "qemu-arm-static",
    "aarch64": "qemu-aarch64-static",
}
"""The presets of cpp_runtime/device/CMakePresets.json, and what each needs on this machine."""


def preset_folder(name: str) -> Path:
    """CMake's folder of a preset; it is `locked` by whoever works in it."""
    return ctest_build(f"device-{name}")


def build_preset(name: str, *targets: str) -> Path:
    """Configure a preset and build `targets` of it (all unless named); returns its folder."""
    folder = configure(name)
    words = [tool("cmake"), "--build", folder, "--parallel", str(jobs())]
    _run([*words, "--target", *targets] if targets else words, what=f"building preset {name}")
    return folder


def configure(name: str) -> Path:
    """Configure a preset; returns its folder, kept in the cache."""
    require_tool(PRESETS[name])
    folder = preset_folder(name)
    arguments = [
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DEDGEPACK_THIRD_PARTY={fetch_sources()}",
        f"-DEDGEPACK_ZIG={zig_executable()}",
    ]
    configure_preset(name, SOURCE, folder, arguments, _run)
    return folder


def _run(argv: Sequence[str | Path], *, what: str, cwd: Path | None = None) -> None:
    with zig_cache() as env:
        run(argv, env=env, what=what, cwd=cwd)


@functools.cache
def host_tool(*, faults: bool = False) -> Path:
    """The tool that this machine's bundles bring, or one with the steps that tests can kill it at.

    With the steps `tests.faults.preload` can stand between it and libc.
    """
    if not faults:
        return build_device_tool(get_board("local")).path
    return _build(TOOL, "-DEDGEPACK_FAULTS=ON", "-DEDGEPACK_STATIC=OFF")


@functools.cache
def static_host_tool() -> Path:
    """One that needs no library and runs on this machine, for what stands in for a phone.

    This machine's compiler makes it: zig's musl and libc++ would be built for it alone.
    """
    return _build(TOOL)


def host_probe() -> Path:
    """The program that asks one of the tool's readers about a file, with sanitizers."""
    return sanitized(PROBE)[PROBE]


@functools.cache
def sanitized(*targets: str) -> dict[str, Path]:
    """Programs of the preset with sanitizers, by name."""
    key = source_key({}, tests=True)
    out = cache_dir() / "device-tool" / f"sanitized-{targets[0]}-{key}"
    with locked(out):
        if not out.exists():
            with locked(preset_folder("host-sanitize")), atomic_dir(out) as work:
                folder = build_preset("host-sanitize", *targets)
                for target in targets:
                    shutil.copy(next(folder.rglob(target)), work / target)
    return {target: out / target for target in targets}


def board_tool(board: Board) -> Path:
    """The tool for a board, with the steps that tests can kill it at."""
    return _build(TOOL, "-DEDGEPACK_FAULTS=ON", *cmake_arguments(board))


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
