"""Programs of cpp_runtime/app beside the app itself, built for this machine, for tests."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from pathlib import Path

from edgepack.base.paths import atomic_dir, cache_dir, data_file, locked
from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.native.app import cmake_arguments
from edgepack.native.opencv import OpenCvBuild, build_opencv, jobs, tool
from edgepack.native.sources import source_hashes
from edgepack.native.toolchain import find

SOURCE = data_file("cpp_runtime") / "app"


def app_probe() -> Path:
    """The program that prints what the reader of preprocess.json reads, with sanitizers."""
    name = "app-probe"
    return build_targets((name,), "-DEDGEPACK_SANITIZE=ON", "-DEDGEPACK_TESTS=ON")[name]


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
