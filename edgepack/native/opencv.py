"""A slim static OpenCV for the runtime app, from the source in the Python package's sdist.

Python decodes and resizes reference images with the wheel of the same version, so that
pixels are equal on both sides.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgepack.base.kept import keep
from edgepack.base.paths import cache_dir, data_file
from edgepack.base.process import run
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tools import find_tool, look_for
from edgepack.boards import Board
from edgepack.native.sdist import Sdist, fetch_sdist, unpack_sdist
from edgepack.native.toolchain import Toolchain, need_compiler

log = logging.getLogger(__name__)

SDIST = Sdist(
    package="opencv-python-headless",
    version="4.14.0.94",
    sha256="4afa2ea1214453648be88259f035712454faa9039b686de7753569ba8eec1577",
)

_SOURCE_PARTS = (
    "3rdparty/libjpeg-turbo",
    "3rdparty/libpng",
    "3rdparty/zlib",
    "include",
    "modules/core",
    "modules/imgcodecs",
    "modules/imgproc",
)
"""Parts of the source that the build needs; what lies on the top level is taken too."""

LICENSES = {
    "opencv": ("LICENSE", "COPYRIGHT"),
    "softfloat": ("modules/core/3rdparty/SoftFloat/COPYING.txt",),
    "libjpeg-turbo": (
        "3rdparty/libjpeg-turbo/LICENSE.md",
        "3rdparty/libjpeg-turbo/README.ijg",
    ),
    "libpng": ("3rdparty/libpng/LICENSE",),
    "zlib": ("3rdparty/zlib/LICENSE",),
}
"""Name -> files of the source whose texts together are its licence."""


@dataclass(frozen=True, kw_only=True)
class OpenCvBuild:
    """An installed static OpenCV: `prefix` is its folder, `key` names all that went into it."""

    prefix: Path
    version: str
    key: str

    @property
    def cmake_dir(self) -> Path:
        """What find_package wants as OpenCV_DIR."""
        return self.prefix / "lib" / "cmake" / "opencv4"

    @property
    def archives(self) -> list[Path]:
        """What a program is linked with."""
        return sorted((self.prefix / "lib").glob("*.a"))

    def licenses(self) -> dict[str, str]:
        """Licence texts of OpenCV and of the libraries within."""
        folder = self.prefix / "edgepack-licenses"
        return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}


def tool(name: str) -> Path:
    """cmake or ninja: of this Python environment, else of PATH. Raises ToolMissingError."""
    return find_tool(name)


def jobs() -> int:
    """How many compilers to run at once: one per CPU this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def nasm(toolchain: Toolchain) -> Path | None:
    """What assembles libjpeg-turbo's vector code for x86-64; None for another CPU, or if it is not
    here: then the code is left out, which is slower and gives the same pixels. Programs that zig
    makes have the same name on every machine, for wheels have them; so they do without."""
    wanted = toolchain.kind == "gnu" and toolchain.triple.startswith("x86_64-")
    return look_for("nasm") if wanted else None


def build_opencv(
    board: Board, toolchain: Toolchain, *, progress: Progress = NO_PROGRESS
) -> OpenCvBuild:
    """OpenCV for the runtime app of `board`'s triple, from the cache if it was built before.

    Raises ToolchainError if the source cannot be had or a compiler fails.
    """
    flags = board.runtime_flags[toolchain.kind]
    build = name_opencv(board, toolchain)

    def make(prefix: Path) -> None:
        need_compiler(toolchain, "OpenCV")
        source = fetch_source(progress=progress)
        progress.step(
            f"building OpenCV {SDIST.version} for {toolchain.triple} with {toolchain.kind} (once)"
        )
        _compile(source, prefix, flags, toolchain)
        _write_licenses(source, prefix / "edgepack-licenses")

    keep(build.prefix, make)
    return build


def name_opencv(board: Board, toolchain: Toolchain) -> OpenCvBuild:
    """What `build_opencv` gives, whether it is made or not."""
    key = _key(board.runtime_flags[toolchain.kind], toolchain)
    return OpenCvBuild(prefix=cache_dir() / "opencv" / key, version=SDIST.version, key=key)


def _key(flags: Sequence[str], toolchain: Toolchain) -> str:
    project, assembler = _project(), nasm(toolchain)
    parts = {
        "sdist": SDIST.sha256,
        "flags": list(flags),
        "triple": toolchain.triple,
        "toolchain": toolchain.title,
        "nasm": _version(assembler) if assembler else "",
        "project": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (
                *sorted(project.iterdir()),
                _hardening_file(),
                *_toolchain_files(toolchain),
            )
        },
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"{toolchain.triple}-{toolchain.kind}-{digest[:16]}"


@cache
def _version(program: Path) -> str:
    return run([program, "-v"], what="asking nasm for its version").stdout.strip()


def _project() -> Path:
    return data_file("cpp_runtime") / "libraries" / "opencv"


def _hardening_file() -> Path:
    return data_file("cpp_runtime") / "common" / "cmake" / "hardening.cmake"


def _toolchain_files(toolchain: Toolchain) -> list[Path]:
    names = [toolchain.kind] + (["zig_musl"] if toolchain.is_static else [])
    return [data_file("toolchains") / f"{name}.cmake" for name in names]


def _compile(source: Path, prefix: Path, flags: Sequence[str], toolchain: Toolchain) -> None:
    # The build folder lies within the new prefix and goes away with it when something fails.
    build = prefix / "build"
    toolchain.run(
        [
            tool("cmake"),
            *("-S", _project(), "-B", build, "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            f"-DCMAKE_INSTALL_PREFIX={prefix}",
            f"-DEDGEPACK_OPENCV_SOURCE={source}",
            f"-DEDGEPACK_BOARD_FLAGS={';'.join(flags)}",
            f"-DEDGEPACK_NASM={nasm(toolchain) or ''}",
            *toolchain.cmake_args,
        ],
        what="configuring OpenCV",
    )
    toolchain.run(
        [tool("cmake"), "--build", build, "--target", "install", "--parallel", str(jobs())],
        what="building OpenCV",
    )
    shutil.rmtree(build)


def _write_licenses(source: Path, folder: Path) -> None:
    folder.mkdir()
    for name, files in LICENSES.items():
        text = "\n".join((source / file).read_text(encoding="utf-8") for file in files)
        (folder / name).write_text(text, encoding="utf-8")


def fetch_source(*, progress: Progress = NO_PROGRESS) -> Path:
    """OpenCV's source out of the pinned sdist, fetched with pip once.

    Raises ToolchainError if pip fails or the file is not the pinned one.
    """

    def make(work: Path) -> None:
        progress.step(f"fetching the source of OpenCV {SDIST.version}")
        file = fetch_sdist(SDIST, work)
        unpack_sdist(file, work, _wanted)
        file.unlink()

    return keep(cache_dir() / "opencv" / f"source-{SDIST.version}", make) / "opencv"


def _wanted(path: str) -> str | None:
    parts = tuple(f"{name}/" for name in _SOURCE_PARTS)
    below = path.removeprefix("opencv/")
    needed = "/" not in below or f"{below}/".startswith(parts)
    return path if path.startswith("opencv/") and needed else None
