"""The runtime's own tests (ctest) on this machine, with sanitizers, and under qemu on both ARMs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from edgepack.base.paths import atomic_dir, cache_dir, locked
from edgepack.base.process import run
from edgepack.boards import Board, get_board
from edgepack.native import app
from edgepack.native.opencv import OpenCvBuild, build_opencv, tool
from edgepack.native.toolchain import Toolchain, find
from tests import clang_tidy
from tests.app_targets import PRESETS, SOURCE, build_preset, configure
from tests.archives import unguarded
from tests.support import ctest_build, require_tool

# Slow, for others run the same tests: g++, each file by itself (the sanitized build runs them), and
# 64-bit ARM (that build has its words, 32-bit ARM its plain char).
SLOW = ("host", "aarch64")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PRESETS]


@pytest.mark.parametrize("name", NAMES)
def test_ctest(name: str) -> None:
    with locked(ctest_build(name)):
        folder = build_preset(name)
        assert unguarded(folder) == []
        # The test presets say the same, but write their logs into the checkout.
        tests = run(
            [tool("ctest"), "--test-dir", folder, "--output-on-failure", "--no-tests=error"],
            what=f"ctest of preset {name}",
            check=False,
        )
        assert tests.returncode == 0, tests.stdout + tests.stderr


def own_sources(*suffixes: str) -> list[Path]:
    return sorted(
        path
        for folder in ("app", "common", "device", "sdk", "sinks")
        for path in (SOURCE.parent / folder).rglob("*")
        if path.suffix in suffixes
    )


def test_clang_format() -> None:
    run(
        [require_tool("clang-format-14", "clang-format"), "--dry-run", "--Werror"]
        + [str(path) for path in own_sources(".cc", ".h", ".c")],
        what="clang-format",
    )


@pytest.mark.parametrize("flags", [clang_tidy.QUICK, pytest.param((), marks=pytest.mark.slow)])
def test_clang_tidy(flags: tuple[str, ...]) -> None:
    program = require_tool("clang-tidy-14", "clang-tidy")
    folders = [SOURCE / "src", SOURCE / "edgepack-run", SOURCE.parent / "sdk"]
    with locked(ctest_build("host")):
        build, _ = configure("host")
        clang_tidy.check(program, build, SOURCE.parent, folders, flags)


@pytest.mark.parametrize(
    ("board", "kind", "limit_bytes"), [("rasp3b", "zig", 3_500_000), ("rasp3b-64", "zig", None)]
)
def test_app_needs_little_of_a_board(board: str, kind: str, limit_bytes: int | None) -> None:
    profile = get_board(board)
    build = app.build_runtime(profile, find(kind, profile))
    if limit_bytes is not None:
        assert build.app.stat().st_size <= limit_bytes
    with build.app.open("rb") as file:
        elf = ELFFile(file)
        needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
        versions = {
            name.name
            for _, names in elf.get_section_by_name(".gnu.version_r").iter_versions()
            for name in names
        }
        assert elf.get_section_by_name(".symtab") is None
    libraries = {name.split(".so")[0] for name in needed}
    assert libraries <= {
        "libc",
        "libm",
        "libdl",
        "libpthread",
        profile.target.loader[5:].split(".so")[0],
    }
    newest = max(tuple(map(int, name[6:].split("."))) for name in versions if name[:6] == "GLIBC_")
    assert newest <= (2, 28)
    assert unguarded(build_opencv(profile, find(kind, profile)).prefix) == []
    content = build.app.read_bytes()
    for folder in (Path.home(), SOURCE, app.tvm_ffi_folder()):
        assert os.fsencode(folder) not in content


# Slow: it compiles the whole app once more. That no path gets into it is shown above each time.
@pytest.mark.slow
def test_equal_bytes_from_another_checkout_and_cache(tmp_path: Path) -> None:
    board = get_board("rasp3b")
    toolchain = find("zig", board)
    build = app.build_runtime(board, toolchain)
    # The folder's name is a hash of all that goes into it: as long as that is the same, so is this.
    other = cache_dir() / "tests" / f"elsewhere-{build.app.parent.name}"
    with locked(other):
        if not other.exists():
            with atomic_dir(other) as out:
                _build_elsewhere(tmp_path, out, board, toolchain)
    assert (other / "edgepack-run").read_bytes() == build.app.read_bytes()


def _build_elsewhere(folder: Path, out: Path, board: Board, toolchain: Toolchain) -> None:
    opencv = build_opencv(board, toolchain)
    prefix = folder / "somewhere" / "else" / "opencv"
    shutil.copytree(opencv.prefix, prefix)
    source = folder / "checkout" / "cpp_runtime" / "app"
    shutil.copytree(SOURCE.parent, source.parent, ignore=shutil.ignore_patterns("build"))
    app._compile(
        source,
        out,
        OpenCvBuild(prefix=prefix, version=opencv.version, key=opencv.key),
        toolchain,
        board.runtime_flags["zig"],
    )
