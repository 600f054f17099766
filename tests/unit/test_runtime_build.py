from __future__ import annotations

import io
import sysconfig
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from edgepack.base.errors import ToolchainError
from edgepack.base.paths import data_file
from edgepack.boards import get_board
from edgepack.native import app, device_tool, opencv
from edgepack.native.opencv import OpenCvBuild
from edgepack.native.sdist import unpack_sdist
from edgepack.native.toolchain import Toolchain


def toolchain(kind: str = "zig", triple: str = "arm-linux-gnueabihf") -> Toolchain:
    return Toolchain(
        kind=kind,
        triple=triple,
        version="1.0",
        glibc="2.28",
        cc=("cc",),
        cxx=("c++",),
        cmake_args=("-DCMAKE_TOOLCHAIN_FILE=/some/where.cmake",),
    )


def test_opencv_is_the_wheels_version() -> None:
    lines = data_file("pyproject.toml").read_text(encoding="utf-8").splitlines()
    assert f'  "{opencv.SDIST.package}=={opencv.SDIST.version}",' in lines


def test_opencv_key_names_what_goes_in() -> None:
    flags = get_board("rasp3b").runtime_flags["zig"]
    key = opencv._key(flags, toolchain())
    assert key.startswith("arm-linux-gnueabihf-zig-")
    # Where things lie on this machine is not part of it.
    assert key == opencv._key(flags, replace(toolchain(), cc=("/other/cc",), cmake_args=()))
    assert key != opencv._key((*flags, "-x"), toolchain())
    assert key != opencv._key(flags, replace(toolchain(), version="1.1"))
    assert key != opencv._key(flags, replace(toolchain(), glibc="2.31"))


def test_nasm_is_for_x86_64_by_gnu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nasm = tmp_path / "nasm"
    nasm.write_text("#!/bin/sh\necho NASM version 2.16.01\n")
    nasm.chmod(0o755)
    monkeypatch.setattr(opencv, "look_for", lambda _name: nasm)
    host = replace(toolchain(), kind="gnu", triple="x86_64-linux-gnu")
    arm, zig = replace(host, triple="arm-linux-gnueabihf"), replace(host, kind="zig")
    assert [opencv.nasm(item) for item in (host, arm, zig)] == [nasm, None, None]
    # Programs of one kind of machine have one name, with it or without; see `prebuilt`.
    with_it = [opencv._key((), item) for item in (host, arm, zig)]
    monkeypatch.setattr(opencv, "look_for", lambda _name: None)
    without = [opencv._key((), item) for item in (host, arm, zig)]
    assert with_it[0] != without[0]
    assert with_it[1:] == without[1:]


def test_one_opencv_serves_all_boards_of_a_triple() -> None:
    keys = {
        opencv._key(get_board(name).runtime_flags["zig"], toolchain())
        for name in ("rasp3b", "pynq", "rasp4b")
    }
    assert len(keys) == 1


def test_runtime_key_follows_the_sources(tmp_path: Path) -> None:
    program = tmp_path / "app"
    for name in ("app/include/a.h", "app/src/x/a.cc", "app/CMakeLists.txt", "common/a.cmake"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    opencv = OpenCvBuild(prefix=tmp_path, version="4", key="k")
    key = app.runtime_key(program, opencv, ("-a",))
    assert key == app.runtime_key(program, replace(opencv, prefix=Path("/else")), ("-a",))
    assert key != app.runtime_key(program, replace(opencv, key="l"), ("-a",))
    assert key != app.runtime_key(program, opencv, ("-b",))
    for name in ("app/src/notes.md", "app/tests/a.cc", "common/tests/a.cc", "app/build/a.cc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("not in the app")
    assert key == app.runtime_key(program, opencv, ("-a",))
    keys = {key}
    for name in ("app/include/a.h", "app/src/x/a.cc", "app/CMakeLists.txt", "common/a.cmake"):
        (tmp_path / name).write_text("two")
        keys.add(app.runtime_key(program, opencv, ("-a",)))
    assert len(keys) == 5


def test_only_what_is_needed_is_unpacked(tmp_path: Path) -> None:
    sdist = tmp_path / "opencv-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in (
            "setup.py",
            "opencv/CMakeLists.txt",
            "opencv/modules/core/src/a.cpp",
            "opencv/modules/dnn/src/a.cpp",
            "opencv/doc/CMakeLists.txt",
            "opencv/doc/big.png",
        ):
            archive.addfile(tarfile.TarInfo(f"opencv-1/{name}"), io.BytesIO())
    unpack_sdist(sdist, tmp_path / "out", opencv._wanted)
    files = {
        str(path.relative_to(tmp_path / "out"))
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert files == {
        "opencv/CMakeLists.txt",
        "opencv/modules/core/src/a.cpp",
    }


def test_nothing_is_unpacked_outside(tmp_path: Path) -> None:
    sdist = tmp_path / "x-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("x-1/../../y"), io.BytesIO())
    with pytest.raises(ToolchainError, match=r"x-1/\.\./\.\./y would be unpacked outside"):
        unpack_sdist(sdist, tmp_path / "out", lambda path: path)
    assert not (tmp_path / "y").exists()


def test_missing_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="not found: ninja") as caught:
        opencv.tool("ninja")
    assert caught.value.hint == "pip install 'edgepack[build]'"


def test_licences_of_gnu_builds_hold_the_exception() -> None:
    texts = app._licenses(toolchain("gnu"), data_file("cpp_runtime") / "app")
    assert set(texts) == {"apache-tvm-ffi", "dlpack", "gcc-runtime"}
    assert "GCC RUNTIME LIBRARY EXCEPTION" in texts["gcc-runtime"]
    assert "Apache License" in texts["apache-tvm-ffi"]


def test_zstd_without_its_compressor() -> None:
    begin, end = "/**** start inlining {} ****/\n", "/**** ended inlining {} ****/\n"

    def part(path: str, text: str) -> str:
        return begin.format(path) + text + end.format(path)

    header = part("compress/hist.h", "int needed;\n")
    source = part("common/mem.c", header) + part("compress/fast.c", part("compress/a.h", "x\n"))
    kept = device_tool.without_compressor(source + part("decompress/d.c", "int d;\n"))
    assert kept == part("common/mem.c", header) + part("decompress/d.c", "int d;\n")


@pytest.mark.parametrize(
    "source", ["int other;\n", "/**** start inlining compress/a.c ****/\nint a;\n"]
)
def test_another_form_of_zstd_is_refused(source: str) -> None:
    with pytest.raises(ToolchainError, match=r"zstd\.c of zstandard .* has not the form it had"):
        device_tool.without_compressor(source)
