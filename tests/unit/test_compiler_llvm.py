from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from edgepack.boards import get_board, load_boards
from edgepack.compiler.backend import llvm

CPUINFO = "processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2 fma f16c avx512f avx512_vnni\n"


def test_names_are_llvms_own() -> None:
    cpus = llvm.cpu_names("armv7l-linux-gnueabihf")
    assert {"cortex-a9", "cortex-a53", "generic"} <= cpus
    assert "cortex-a99" not in cpus
    assert "znver4" in llvm.cpu_names("x86_64-linux-gnu")
    features = llvm.cpu_features("armv7l-linux-gnueabihf", "cortex-a53")
    assert {"neon", "vfp4"} <= features
    assert "avx2" not in features
    assert "avx2" in llvm.cpu_features("x86_64-linux-gnu", "znver4")


def test_every_board_has_a_target() -> None:
    for board in load_boards().values():
        target = json.loads(str(llvm.tvm_target(board)))
        assert target["kind"] == "llvm"
        assert target["mtriple"].count("-") == 3
        assert target["num-cores"] == board.cores
        assert target.get("mfloat-abi", "") == board.float_abi
        assert target["mcpu"] != "native"


def test_vector_extensions_that_are_hidden_are_not_used(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(CPUINFO)
    hidden = llvm._hidden_features("x86_64-linux-gnu", "znver4", cpuinfo)
    assert "-avx512bw" in hidden
    assert not {"-avx512f", "-avx512vnni", "-avx2", "-fma", "-f16c"} & set(hidden)
    cpuinfo.write_text("Features\t: fp asimd\n")
    assert llvm._hidden_features("aarch64-linux-gnu", "cortex-a72", cpuinfo) == []


@pytest.mark.parametrize("name", ["rasp3b", "pynq", "rk3399"])
def test_features_of_the_board_reach_the_target(name: str) -> None:
    board = dataclasses.replace(get_board(name), features=("+neon", "+crc"))
    assert json.loads(str(llvm.tvm_target(board)))["mattr"] == ["+neon", "+crc"]
