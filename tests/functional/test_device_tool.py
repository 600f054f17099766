"""edgepack-device: its own tests (ctest) on this machine and under qemu, its size, its style."""

from __future__ import annotations

import pytest
from elftools.elf.elffile import ELFFile

from edgepack.base.paths import locked
from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.native import device_tool
from edgepack.native.opencv import tool
from tests import clang_tidy
from tests.archives import unguarded
from tests.device_tool import PRESETS, SOURCE, build_preset, configure, preset_folder
from tests.support import require_tool

# Slow, for others run the same tests: g++, each file by itself (the sanitized build runs them), and
# 64-bit ARM (that build has its words, 32-bit ARM its plain char).
SLOW = ("host", "aarch64")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PRESETS]


@pytest.mark.parametrize("name", NAMES)
def test_ctest(name: str) -> None:
    with locked(preset_folder(name)):
        folder = build_preset(name)
        assert unguarded(folder) == []
        tests = run(
            [tool("ctest"), "--test-dir", folder, "--output-on-failure", "--no-tests=error"],
            what=f"ctest of preset {name}",
            check=False,
        )
        assert tests.returncode == 0, tests.stdout + tests.stderr


@pytest.mark.parametrize("flags", [clang_tidy.QUICK, pytest.param((), marks=pytest.mark.slow)])
def test_clang_tidy(flags: tuple[str, ...]) -> None:
    program = require_tool("clang-tidy-14", "clang-tidy")
    root = SOURCE.parent
    with locked(preset_folder("host")):
        clang_tidy.check(program, configure("host"), root, [SOURCE / "src", root / "common"], flags)


@pytest.mark.parametrize(("board", "limit_bytes"), [("rasp3b", 1_070_000), ("rasp3b-64", None)])
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
