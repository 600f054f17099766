"""Both programs, as they are shipped: what makes a mistake in memory harder to use is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from edgepack.boards import get_board
from edgepack.native.app import build_runtime
from edgepack.native.device_tool import build_device_tool
from edgepack.native.toolchain import find
from tests.cross import gcc

BOARDS = ["local", "rasp3b", "rasp3b-64"]
EXECUTABLE, NOW, PIE = 0x1, 0x1, 0x08000000  # PF_X, DF_1_NOW, DF_1_PIE of elf.h


def app(board: str) -> Path:
    profile = get_board(board)
    return build_runtime(profile, find("gnu" if board == "local" else "zig", profile)).app


def device_tool(board: str) -> Path:
    return build_device_tool(get_board(board)).path


def missing(path: Path) -> set[str]:
    """What a program lacks."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        segments = {segment["p_type"]: segment for segment in elf.iter_segments()}
        tags = {tag["d_tag"]: tag["d_val"] for tag in segments["PT_DYNAMIC"].iter_tags()}
        found = {
            "a position-independent program": elf["e_type"] == "ET_DYN"
            and bool(tags["DT_FLAGS_1"] & PIE),
            "a stack without code": not segments["PT_GNU_STACK"]["p_flags"] & EXECUTABLE,
            "read-only tables": "PT_GNU_RELRO" in segments,
            "all symbols bound at the start": bool(tags["DT_FLAGS_1"] & NOW),
        }
        if "PT_INTERP" in segments:  # musl's headers have no checked functions
            names = {symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}
            found["checked functions of libc"] = any(name.endswith("_chk") for name in names)
    return {name for name, there in found.items() if not there}


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("program", [app, device_tool])
def test_programs_are_hardened(program: Callable[[str], Path], board: str) -> None:
    assert missing(program(board)) == set()


@pytest.mark.parametrize(
    ("flags", "lacks"),
    [
        (["-no-pie"], "a position-independent program"),
        (["-Wl,-z,execstack"], "a stack without code"),
        (["-Wl,-z,norelro"], "read-only tables"),
        (["-Wl,-z,lazy"], "all symbols bound at the start"),
        (["-U_FORTIFY_SOURCE"], "checked functions of libc"),
    ],
)
def test_a_program_without_it_is_told(tmp_path: Path, flags: list[str], lacks: str) -> None:
    hardening = ["-pie", "-fPIE", "-O2", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now"]
    source = "#include <stdio.h>\nint main(int n, char** words) { return printf(words[0], n); }\n"
    assert missing(gcc(tmp_path, source, *hardening, "-w", prefix="")) == set()
    assert missing(gcc(tmp_path, source, *hardening, "-w", *flags, prefix="")) == {lacks}
