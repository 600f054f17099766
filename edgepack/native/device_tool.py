"""Building edgepack-device, the tool that installs bundles on a board.

It is static, against musl: it runs on any Linux of its architecture, whatever C library is
there (the one for this machine alone is built by its own compiler and needs its libc). The
libraries it needs come from pinned sdists.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ToolchainError
from edgepack.base.kept import keep, zig_cache
from edgepack.base.paths import cache_dir, data_file
from edgepack.base.process import run
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.version import VERSION
from edgepack.boards import Board
from edgepack.native.opencv import SDIST as OPENCV_SDIST
from edgepack.native.opencv import fetch_source, jobs, tool
from edgepack.native.prebuilt import LICENSES, find_prebuilt, read_licenses, say_why_built
from edgepack.native.sdist import Sdist, fetch_sdist, unpack_sdist
from edgepack.native.sources import source_hashes
from edgepack.native.toolchain import (
    Toolchain,
    for_device_tool,
    need_compiler,
    toolchain_licenses,
)

TOOL = "edgepack-device"
KIND = "device-tool"
"""The folder of the cache, and of a wheel, that holds builds of the tool."""

PYNACL = Sdist(
    package="PyNaCl",
    version="1.6.2",
    sha256="018494d6d696ae03c7e656e5e74cdfd8ea1326962cc401bcf018f1ed8436811c",
)
YYJSON = Sdist(
    package="yyjson",
    version="4.0.6",
    sha256="fcd4dc15c1e39a30bf9fa85d56903029111506860fc3080ab0d81c6c6dacaa8c",
)
ZSTANDARD = Sdist(
    package="zstandard",
    version="0.25.0",
    sha256="7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b",
)
_PARTS = {
    PYNACL: {
        "src/libsodium/src/libsodium/": "libsodium/",
        "src/libsodium/LICENSE": "libsodium/LICENSE",
    },
    YYJSON: {"yyjson/yyjson.c": "yyjson/yyjson.c", "yyjson/yyjson.h": "yyjson/yyjson.h"},
    ZSTANDARD: {"zstd/": "zstd/"},
}
"""Folders (with a slash) and files of each sdist, and where they go."""
_ZSTD_COMPRESSOR = re.compile(
    r"/\*{4} start inlining (?P<path>(?:compress|dictBuilder)/\w+\.c) \*{4}/"
)


@dataclass(frozen=True, kw_only=True)
class DeviceTool:
    """The stripped tool for all boards of an architecture.

    `triple` is its toolchain's; `licenses` are the texts (by name) of all that is linked into it.
    """

    path: Path
    triple: str
    version: str
    sha256: str
    licenses: dict[str, str]


def build_device_tool(board: Board, *, progress: Progress = NO_PROGRESS) -> DeviceTool:
    """edgepack-device for `board`'s architecture: of a wheel, or the cache, or built from source.

    Equal sources and tools give equal bytes, wherever the checkout and the cache are.
    Raises ToolchainError if the sources cannot be had or a compiler fails, MissingCompilerError.
    """
    toolchain = for_device_tool(board)
    name = tool_name(board)
    folder = find_prebuilt(board.triple, KIND, name) or _build(board, name, toolchain, progress)
    path = folder / TOOL
    return DeviceTool(
        path=path,
        triple=toolchain.triple,
        version=VERSION,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        licenses=read_licenses(folder),
    )


def tool_name(board: Board) -> str:
    """The name of the folder with the tool, in the cache or a wheel."""
    toolchain = for_device_tool(board)
    flags = board.runtime_flags[toolchain.kind]
    parts = {"compiler": toolchain.version, "flags": flags, "triple": toolchain.triple}
    return f"{toolchain.triple}-{source_key(parts)}"


def _build(board: Board, name: str, toolchain: Toolchain, progress: Progress) -> Path:
    """The folder of the cache with the tool and its licences."""

    folder = cache_dir() / KIND / name
    if not folder.exists():
        say_why_built(board.triple, TOOL, progress)

    def make(work: Path) -> None:
        need_compiler(toolchain, TOOL)
        sources = fetch_sources(progress=progress)
        progress.step(f"building {TOOL} for {toolchain.triple}")
        compile_tool(work, sources, cmake_arguments(board))
        _write_licenses(sources, toolchain, work / LICENSES)

    return keep(folder, make)


def cmake_arguments(board: Board) -> list[str]:
    """CMake arguments for a program for `board`, by what `for_device_tool` says."""
    toolchain = for_device_tool(board)
    return [
        *toolchain.cmake_args,
        f"-DEDGEPACK_BOARD_FLAGS={';'.join(board.runtime_flags[toolchain.kind])}",
        f"-DEDGEPACK_STATIC={'ON' if toolchain.is_static else 'OFF'}",
    ]


def fetch_sources(*, progress: Progress = NO_PROGRESS) -> Path:
    """The folder with the sources of libsodium, yyjson, zlib and zstd, fetched with pip once.

    zlib is the one in OpenCV's source. Raises ToolchainError if pip fails or a file is not
    the pinned one.
    """

    def make(work: Path) -> None:
        opencv = fetch_source(progress=progress)
        progress.step(f"fetching the sources of {TOOL}'s libraries")
        for sdist, parts in _PARTS.items():
            file = fetch_sdist(sdist, work)
            unpack_sdist(file, work, functools.partial(_target, parts))
            file.unlink()
        shutil.copytree(opencv / "3rdparty" / "zlib", work / "zlib")
        zstd = work / "zstd" / "zstd.c"
        zstd.write_text(without_compressor(zstd.read_text(encoding="utf-8")), "utf-8")

    return keep(cache_dir() / "device-tool" / f"sources-{_sources_key()}", make)


def without_compressor(source: str) -> str:
    """zstd's one-file source without what compresses and makes dictionaries.

    Comments in it say where each file begins and ends; what decompresses stands on its own.
    Most of the time that a compiler takes for it goes away. Raises ToolchainError if the
    source has no such comments.
    """
    kept: list[str] = []
    end = ""
    for line in source.splitlines(keepends=True):
        if not end and (begun := _ZSTD_COMPRESSOR.match(line)):
            end = f"/**** ended inlining {begun['path']} ****/"
        if not end:
            kept.append(line)
        elif line.startswith(end):
            end = ""
    if end or "".join(kept) == source:
        raise ToolchainError(f"zstd.c of zstandard {ZSTANDARD.version} has not the form it had")
    return "".join(kept)


def _target(parts: Mapping[str, str], path: str) -> str | None:
    for part, target in parts.items():
        if path == part or (part.endswith("/") and path.startswith(part)):
            return target + path.removeprefix(part)
    return None


def compile_tool(
    out: Path,
    sources: Path,
    arguments: Sequence[str],
    *,
    targets: Sequence[str] = (TOOL,),
    build: Path | None = None,
) -> None:
    """Configure cpp_runtime/device with `arguments` and build `targets` into the folder `out`.

    The folder `build`, if given, stays for the next time, when only what was changed is
    compiled. Raises ToolchainError if a compiler fails.
    """
    work = build or out / "build"
    configure: list[str | Path] = [
        tool("cmake"),
        *("-S", data_file("cpp_runtime") / "device", "-B", work, "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DEDGEPACK_VERSION={VERSION}",
        f"-DEDGEPACK_THIRD_PARTY={sources}",
        *arguments,
    ]
    compile_: list[str | Path] = [tool("cmake"), "--build", work, "--parallel", str(jobs())]
    with zig_cache() as env:
        run(configure, env=env, what=f"configuring {TOOL}")
        run([*compile_, "--target", *targets], env=env, what=f"building {TOOL}")
    for target in targets:
        shutil.copy(next(work.rglob(target)), out / target)
    if build is None:
        shutil.rmtree(work)


def source_key(parts: Mapping[str, object], *, tests: bool = False, program: str = "device") -> str:
    """Names what the sources of a program in `cpp_runtime` (with `tests`, theirs too) make with
    `parts`, all else that counts."""
    toolchains = data_file("toolchains")
    document = {
        "sources": source_hashes(data_file("cpp_runtime") / program, tests=tests),
        "toolchains": [
            hashlib.sha256((toolchains / name).read_bytes()).hexdigest()
            for name in ("gnu.cmake", "zig.cmake", "zig_musl.cmake")
        ],
        "libraries": _sources_key(),
        "edgepack": VERSION,
        **parts,
    }
    return _digest(document)


def _sources_key() -> str:
    pins = {f"{sdist.package} {sdist.sha256}": parts for sdist, parts in _PARTS.items()}
    return _digest({"pins": pins, "zlib": OPENCV_SDIST.sha256, "zstd": _ZSTD_COMPRESSOR.pattern})


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def yyjson_license(sources: Path) -> str:
    """The comment that its header begins with."""
    header = (sources / "yyjson" / "yyjson.h").read_text(encoding="utf-8")
    return header[: header.index("*/") + 2] + "\n"


def _write_licenses(sources: Path, toolchain: Toolchain, folder: Path) -> None:
    folder.mkdir()
    texts = {
        "libsodium": (sources / "libsodium" / "LICENSE").read_text("utf-8"),
        "yyjson": yyjson_license(sources),
        "zlib": (sources / "zlib" / "LICENSE").read_text("utf-8"),
        "zstd": (sources / "zstd" / "LICENSE").read_text("utf-8"),
        **toolchain_licenses(toolchain),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
