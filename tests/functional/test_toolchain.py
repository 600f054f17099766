"""Linking with real compilers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.boards import TOOLCHAINS, get_board
from edgepack.native.toolchain import find, link_shared


@pytest.mark.parametrize("kind", TOOLCHAINS)
def test_linking_is_reproducible(
    tmp_path: Path, kind: str, require_tool: Callable[..., str]
) -> None:
    require_tool("arm-linux-gnueabihf-g++")
    toolchain = find(kind, get_board("pynq"))
    flags = get_board("pynq").runtime_flags[kind]
    files = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        source = folder / "k.c"
        source.write_text("#include <math.h>\nfloat k(float x) { return expf(x); }\n")
        toolchain.run(
            [*toolchain.cc, *flags, "-g0", "-O2", "-fPIC", "-c", source, "-o", folder / "k.o"]
        )
        link_shared(toolchain, [folder / "k.o"], folder / "model.so", flags)
        files.append((folder / "model.so").read_bytes())
    assert files[0][:4] == b"\x7fELF"
    assert files[0] == files[1]
