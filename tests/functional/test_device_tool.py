"""edgepack-device: its own tests (ctest) on this machine and under qemu, its size, its style."""

from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from edgepack.base.paths import cache_dir, data_file, locked
from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.native import device_tool
from edgepack.native.opencv import jobs, tool
from edgepack.native.toolchain import zig_executable
from tests import clang_tidy
from tests.archives import unguarded
from tests.support import ctest_build, require_tool

SOURCE = data_file("cpp_runtime") / "device"
PRESETS = {
    "host": "g++",
    "host-sanitize": "g++",
    "armhf": "qemu-arm-static",
    "aarch64": "qemu-aarch64-static",
}
"""The presets of cpp_runtime/device/CMakePresets.json, and what each needs on this machine."""


def configure(name: str) -> Path:
    """Configure a preset; returns its build folder, kept in the cache."""
    require_tool(PRESETS[name])
    build = ctest_build(f"device-{name}")
    run(
        [
            tool("cmake"),
            f"--preset={name}",
            f"-B{build}",
            # The cache may have been filled from another checkout.
            "--fresh",
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            f"-DEDGEPACK_THIRD_PARTY={device_tool.fetch_sources()}",
            f"-DEDGEPACK_ZIG={zig_executable()}",
        ],
        cwd=SOURCE,
        env=ENVIRONMENT,
        what=f"configuring preset {name}",
    )
    return build


ENVIRONMENT = {"ZIG_GLOBAL_CACHE_DIR": str(cache_dir() / "zig")}


@pytest.mark.parametrize("name", PRESETS)
def test_ctest(name: str) -> None:
    with locked(ctest_build(f"device-{name}")):
        build = configure(name)
        run(
            [tool("cmake"), "--build", build, "--parallel", str(jobs())],
            env=ENVIRONMENT,
            what=f"building preset {name}",
        )
        assert unguarded(build) == []
        run(
            [tool("ctest"), "--test-dir", build, "--output-on-failure", "--no-tests=error"],
            what=f"ctest of preset {name}",
        )


@pytest.mark.parametrize("flags", [clang_tidy.QUICK, pytest.param((), marks=pytest.mark.slow)])
def test_clang_tidy(flags: tuple[str, ...]) -> None:
    program = require_tool("clang-tidy-14", "clang-tidy")
    root = SOURCE.parent
    with locked(ctest_build("device-host")):
        build = configure("host")
        clang_tidy.check(program, build, root, [SOURCE / "src", root / "common"], flags)


@pytest.mark.parametrize(("board", "limit_bytes"), [("rasp3b", 1_000_000), ("rasp3b-64", None)])
def test_it_is_small_and_needs_nothing(board: str, limit_bytes: int | None) -> None:
    built = device_tool.build_device_tool(get_board(board))
    if limit_bytes is not None:
        assert built.path.stat().st_size <= limit_bytes
    with built.path.open("rb") as file:
        elf = ELFFile(file)
        segments = {segment["p_type"]: segment for segment in elf.iter_segments()}
        # A position-independent program has them, for its own relocations.
        tags = {tag["d_tag"] for tag in segments["PT_DYNAMIC"].iter_tags()}
        assert elf.get_section_by_name(".symtab") is None
    assert "PT_INTERP" not in segments
    assert "DT_NEEDED" not in tags
