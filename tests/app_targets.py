"""Programs of cpp_runtime/app beside the app itself, built for tests."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.paths import atomic_dir, cache_dir, data_file, locked
from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.native.app import cmake_arguments
from edgepack.native.opencv import OpenCvBuild, build_opencv, jobs, tool
from edgepack.native.sources import source_hashes
from edgepack.native.toolchain import Toolchain, find
from tests.support import configure_preset, ctest_build, require_tool

SOURCE = data_file("cpp_runtime") / "app"
PROBE = "app-probe"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A preset of cpp_runtime/app/CMakePresets.json and what it needs on this machine."""

    board: str
    toolchain: str
    tools: tuple[str, ...] = ()
    target: str = "all"


PRESETS = {
    "host": Preset(board="local", toolchain="gnu", tools=("g++",)),
    "host-sanitize": Preset(board="local", toolchain="gnu", tools=("clang++",)),
    "host-thread": Preset(board="local", toolchain="gnu", tools=("g++",), target="thread-tests"),
    "armhf": Preset(board="pynq", toolchain="zig", tools=("qemu-arm-static",)),
    "aarch64": Preset(board="rasp3b-64", toolchain="zig", tools=("qemu-aarch64-static",)),
}


def build_preset(name: str, *targets: str) -> Path:
    """Configure a preset and build `targets` of it (its own unless named); returns its folder.

    The folder, `ctest_build(name)`, is `locked` by whoever works in it.
    """
    folder, toolchain = configure(name)
    words = [tool("cmake"), "--build", folder, "--parallel", str(jobs()), "--target"]
    toolchain.run([*words, *(targets or (PRESETS[name].target,))], what=f"building preset {name}")
    return folder


def configure(name: str) -> tuple[Path, Toolchain]:
    """Configure a preset; returns its folder, kept in the cache, and its toolchain."""
    preset = PRESETS[name]
    for program in preset.tools:
        require_tool(program)
    board = get_board(preset.board)
    toolchain = find(preset.toolchain, board)
    opencv = build_opencv(board, toolchain)
    folder = ctest_build(name)
    arguments = cmake_arguments(opencv, toolchain, board.runtime_flags[preset.toolchain])
    configure_preset(name, SOURCE, folder, arguments, toolchain.run)
    return folder, toolchain


def app_probe() -> Path:
    """The program that prints what the reader of preprocess.json reads, with sanitizers."""
    return sanitized(PROBE)[PROBE]


@functools.cache
def sanitized(*targets: str) -> dict[str, Path]:
    """Programs of the preset with sanitizers, by name."""
    key = _digest(source_hashes(SOURCE, tests=True))
    out = cache_dir() / "app-targets" / f"sanitized-{targets[0]}-{key}"
    with locked(out):
        if not out.exists():
            with locked(ctest_build("host-sanitize")), atomic_dir(out) as work:
                folder = build_preset("host-sanitize", *targets)
                for target in targets:
                    shutil.copy(next(folder.rglob(target)), work / target)
    return {target: out / target for target in targets}


@functools.cache
def build_targets(
    targets: tuple[str, ...], *arguments: str, opencv: OpenCvBuild | None = None
) -> dict[str, Path]:
    """Files that CMake's `targets` make, by name, configured with `arguments` as well.

    `opencv` is the board's unless given.
    """
    board = get_board("local")
    toolchain = find("gnu", board)
    opencv = opencv or build_opencv(board, toolchain)
    words = [*cmake_arguments(opencv, toolchain, ()), *arguments]
    key = _digest([source_hashes(SOURCE, tests=True), opencv.key, arguments])
    out = cache_dir() / "app-targets" / f"{targets[0]}-{key}"
    # CMake's folder is that of one checkout; it stays, so that only what was changed is compiled.
    build = cache_dir() / "app-targets" / f"build-{_digest(words)}"
    with locked(out):
        if not out.exists():
            with locked(build), atomic_dir(out) as work:
                run(
                    [tool("cmake"), "-S", SOURCE, "-B", build, "-G", "Ninja", *words],
                    what=f"configuring {targets[0]}",
                )
                build_words = [tool("cmake"), "--build", build, "--parallel", str(jobs())]
                run(
                    [*build_words, "--target", *targets],
                    what=f"building {targets[0]}",
                )
                for target in targets:
                    shutil.copy(next(build.rglob(target)), work / target)
    return {target: out / target for target in targets}


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
