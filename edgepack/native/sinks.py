"""Building edgepack-sinks, which takes results to brokers, webhooks and actions on a board.

It is static, as the device tool is, and in a bundle only if the project has a sink or an action.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ToolchainError
from edgepack.base.kept import keep, zig_cache
from edgepack.base.paths import cache_dir, data_file
from edgepack.base.process import run
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.version import VERSION
from edgepack.boards import Board
from edgepack.native.device_tool import (
    cmake_arguments,
    fetch_sources,
    source_key,
    yyjson_license,
)
from edgepack.native.opencv import jobs, tool
from edgepack.native.prebuilt import LICENSES, read_licenses
from edgepack.native.toolchain import for_device_tool, need_compiler, toolchain_licenses

PROGRAM = "edgepack-sinks"
KIND = "sinks"
"""The folder of the cache that holds builds of it."""

VERSION_OF_MOSQUITTO = "2.0.21"
SUITE = "trixie"
SOURCE = f"pool/main/m/mosquitto/mosquitto_{VERSION_OF_MOSQUITTO}.orig.tar.gz"
"""libmosquitto's source at a mirror of Debian's, whose own patches change tests and pages only."""
SHA256 = "551daff96cd0675faf888f8881536177934424ecc45924fecf94cffe207f6e81"
_WANTED = ("lib/", "include/", "deps/", "config.h", "edl-v10")
_MOST_BYTES = 4 << 20

Fetch = Callable[[Path], None]
"""Brings the file `SOURCE` of `SUITE` to a path."""


@dataclass(frozen=True, kw_only=True)
class SinksProgram:
    """The stripped program for all boards of an architecture, and the licences (by name) of all
    that is linked into it."""

    path: Path
    licenses: dict[str, str]


def build_sinks(board: Board, fetch: Fetch, *, progress: Progress = NO_PROGRESS) -> SinksProgram:
    """edgepack-sinks for `board`'s architecture: of the cache, or built from source.

    Raises ToolchainError if a compiler fails, `MissingCompilerError`, and what `fetch` raises.
    """
    toolchain = for_device_tool(board)
    arguments = cmake_arguments(board)
    name = f"{toolchain.triple}-{_key(board)}"
    folder = cache_dir() / KIND / name

    def make(work: Path) -> None:
        need_compiler(toolchain, PROGRAM)
        sources = fetch_sinks_sources(fetch, progress=progress)
        progress.step(f"building {PROGRAM} for {toolchain.triple}")
        compile_sinks(work, sources, arguments)
        texts = {
            "mosquitto": (sources / "mosquitto" / "edl-v10").read_text("utf-8"),
            "yyjson": yyjson_license(sources),
            **toolchain_licenses(toolchain),
        }
        (work / LICENSES).mkdir()
        for title, text in texts.items():
            (work / LICENSES / title).write_text(text, encoding="utf-8")

    keep(folder, make)
    return SinksProgram(path=folder / PROGRAM, licenses=read_licenses(folder))


def fetch_sinks_sources(fetch: Fetch, *, progress: Progress = NO_PROGRESS) -> Path:
    """The folder with `mosquitto/` and `yyjson/`, fetched once. Raises what `fetch` and
    `device_tool.fetch_sources` raise, and ToolchainError if the file is not the pinned one."""

    def make(work: Path) -> None:
        progress.step("fetching the source of libmosquitto")
        file = work / "mosquitto.tar.gz"
        fetch(file)
        unpack_mosquitto(file, work / "mosquitto")
        file.unlink()
        shutil.copytree(fetch_sources(progress=progress) / "yyjson", work / "yyjson")

    return keep(cache_dir() / KIND / f"sources-{SHA256[:16]}", make)


def unpack_mosquitto(file: Path, folder: Path) -> None:
    """What the client library needs of the pinned tarball. Raises ToolchainError for another."""
    with file.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    if digest != SHA256:
        raise ToolchainError(
            f"the source of libmosquitto: sha256 is {digest}, expected {SHA256}",
            hint="the mirror serves another file than Debian's",
        )
    with tarfile.open(file) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if not member.isfile() or not path.startswith(_WANTED) or ".." in path.split("/"):
                continue
            if member.size > _MOST_BYTES:
                raise ToolchainError(f"{file.name}: {member.name} has {member.size} bytes")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None  # a regular file
            with source, target.open("wb") as out:
                shutil.copyfileobj(source, out)


def compile_sinks(
    out: Path, sources: Path, arguments: list[str], *, targets: tuple[str, ...] = (PROGRAM,)
) -> None:
    """Configure cpp_runtime/sinks and build `targets` into the folder `out`. Raises
    ToolchainError."""
    work = out / "build"
    configure: list[str | Path] = [
        tool("cmake"),
        *("-S", data_file("cpp_runtime") / "sinks", "-B", work, "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DEDGEPACK_VERSION={VERSION}",
        f"-DEDGEPACK_THIRD_PARTY={sources}",
        *arguments,
    ]
    build: list[str | Path] = [tool("cmake"), "--build", work, "--parallel", str(jobs())]
    with zig_cache() as env:
        run(configure, env=env, what=f"configuring {PROGRAM}")
        run([*build, "--target", *targets], env=env, what=f"building {PROGRAM}")
    for target in targets:
        shutil.copy(next(work.rglob(target)), out / target)
    shutil.rmtree(work)


def _key(board: Board) -> str:
    toolchain = for_device_tool(board)
    parts = {
        "compiler": toolchain.version,
        "flags": board.runtime_flags[toolchain.kind],
        "mosquitto": SHA256,
        "triple": toolchain.triple,
    }
    return source_key(parts, program="sinks")
