from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.base.errors import UsageError
from edgepack.base.paths import data_file
from edgepack.boards import TOOLCHAINS, get_board, load_boards
from edgepack.flow.doctor import check_board, missing
from edgepack.native.toolchain import (
    ZIG_GLIBC,
    GlibcTooNewError,
    MissingCompilerError,
    find,
    for_kernels,
    select,
)


def test_zig_is_taken_for_an_old_glibc_floor() -> None:
    choice = select(get_board("rasp3b"))
    assert choice.toolchain.kind == "zig"
    assert "2.31" in choice.reason
    assert "Raspberry Pi OS bullseye" in choice.reason


def test_a_forced_compiler_that_cannot_meet_the_floor_is_refused(
    require_tool: Callable[..., str],
) -> None:
    require_tool("arm-linux-gnueabihf-g++")
    with pytest.raises(GlibcTooNewError, match=r"board has 2\.31") as caught:
        select(get_board("rasp3b"), force="gnu")
    assert "--toolchain zig" in (caught.value.hint or "")


def test_gnu_is_taken_where_it_meets_the_floor(
    tmp_path: Path, require_tool: Callable[..., str]
) -> None:
    require_tool("arm-linux-gnueabihf-g++")
    file = tmp_path / "b.toml"
    file.write_text('[boards.new]\nbase = "rasp3b"\nglibc = "2.99"\ntoolchain = "gnu"\n')
    board = get_board("new", [file])
    assert select(board).toolchain.kind == "gnu"
    assert select(board, force="gnu").reason == "asked for with --toolchain"


def test_a_missing_compiler_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingCompilerError, match="aarch64-linux-gnu-g") as caught:
        find("gnu", get_board("rk3399"))
    assert caught.value.hint == "sudo apt-get install g++-aarch64-linux-gnu"
    assert any(check.version is None for check in check_board(get_board("rk3399")))


def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("edgepack.native.toolchain.zig_executable", lambda: None)
    with pytest.raises(MissingCompilerError, match="zig"):
        select(get_board("rasp3b"))
    lost = missing(check_board(get_board("rasp3b")))
    assert [check.install for check in lost] == ["pip install ziglang==0.17.0"]


@pytest.mark.parametrize("kind", TOOLCHAINS)
def test_every_toolchain_serves_every_triple(kind: str) -> None:
    assert (data_file("toolchains") / f"{kind}.cmake").is_file()
    for board in load_boards().values():
        assert board.runtime_flags.get(kind), board.triple


def test_unknown_kind() -> None:
    with pytest.raises(UsageError, match="unknown toolchain: clang"):
        select(get_board("rasp3b"), force="clang")


def test_doctor_finds_what_this_test_runs_on() -> None:
    for board in load_boards().values():
        found = {check.tool: check.version for check in check_board(board)}
        assert found["cmake"]
        assert found[f"zig for {board.triple}"]


@pytest.mark.parametrize("name", ["pixel2", "alpine-armv7", "rasp3b", "local"])
def test_a_board_without_a_c_library_takes_zig_and_musl(name: str) -> None:
    board = get_board(name).without_libc()
    chosen = select(board).toolchain
    assert chosen.is_static
    assert "-linux-musl" in chosen.triple
    assert chosen.title.endswith("(static, musl)")
    with pytest.raises(UsageError, match="--toolchain gnu cannot build"):
        select(board, force="gnu")
    # The kernels are linked as for a board with glibc, so that one compiled model serves both.
    kernels = for_kernels(chosen, board)
    assert (kernels.triple, kernels.glibc) == (board.triple, ZIG_GLIBC)
    assert for_kernels(kernels, board) is kernels
