from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgepack.base import paths
from edgepack.base.errors import UsageError
from edgepack.base.paths import data_file
from edgepack.base.process import run
from edgepack.boards import TOOLCHAINS, get_board, load_boards
from edgepack.flow import results
from edgepack.flow.doctor import check_board, find_missing
from edgepack.native.app import need_programs, runtime_name
from edgepack.native.device_tool import tool_name
from edgepack.native.prebuilt import module_of
from edgepack.native.toolchain import (
    BUILTINS,
    BUILTINS_FILE,
    OWN_LINKER,
    ZIG_GLIBC,
    ZIG_VERSION,
    GlibcTooNewError,
    MissingCompilerError,
    builtins_name,
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


def test_no_compiler_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("edgepack.native.toolchain.zig_executable", lambda: None)
    board = get_board("rasp3b")
    chosen = select(board).toolchain
    assert not chosen.has_compiler
    extra = "pip install 'edgepack[build]'"
    with pytest.raises(MissingCompilerError, match="zig is not installed") as caught:
        need_programs(board, chosen)
    assert caught.value.hint == extra
    for force in ("zig", "gnu"):
        with pytest.raises(MissingCompilerError):
            select(board, force)
    with pytest.raises(MissingCompilerError):  # it is linked for each model
        select(board.without_libc())
    lost = find_missing(check_board(board))
    assert [check.install for check in lost] == [extra]


def test_programs_that_are_built_need_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = get_board("rasp3b")
    monkeypatch.setattr(paths, "_cache_dir", tmp_path / "cache")
    with_compiler = select(board).toolchain
    names = runtime_name(board, with_compiler), tool_name(board)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("edgepack.native.toolchain.zig_executable", lambda: None)
    site = tmp_path / module_of(board.triple)
    for path in (
        site / "runtime" / names[0],
        site / "device-tool" / names[1],
        site / BUILTINS / builtins_name(board.triple),
    ):
        path.mkdir(parents=True)
    (site / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    choice = select(board)
    assert choice.reason == "built before: edgepack-runtime-arm-linux-gnueabihf"
    assert choice == select(board, "zig")
    assert choice.toolchain.title == with_compiler.title
    need_programs(board, choice.toolchain)
    assert not find_missing(check_board(board))
    linker = for_kernels(choice.toolchain, board)
    assert linker.builtins == path / BUILTINS_FILE
    assert linker.title != with_compiler.title  # what it makes is kept apart
    (site / "device-tool" / names[1]).rename(site / "other")
    with pytest.raises(MissingCompilerError, match="edgepack-device for arm-"):
        need_programs(board, choice.toolchain)


def test_zig_links_no_kernels_where_a_wheel_has_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would first build them, and stubs of glibc, for 20 CPU s."""
    board = get_board("rasp3b")
    monkeypatch.setattr(paths, "_cache_dir", tmp_path / "cache")
    installed = select(board, "zig").toolchain
    assert for_kernels(installed, board) is installed
    site = tmp_path / module_of(board.triple)
    builtins = site / BUILTINS / builtins_name(board.triple)
    builtins.mkdir(parents=True)
    (site / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    linker = for_kernels(installed, board)
    assert (linker.kind, linker.has_compiler) == (OWN_LINKER, False)
    assert linker.builtins == builtins / BUILTINS_FILE
    # Asked for, GCC links; a program without a C library is linked with its kernels, by zig.
    for other, chosen in (
        (board, find("gnu", board)),
        (bare := board.without_libc(), for_kernels(select(bare).toolchain, bare)),
    ):
        assert for_kernels(chosen, other) is chosen
        assert chosen.has_compiler
    local = get_board("local")
    assert for_kernels(select(local, "zig").toolchain, local).kind == OWN_LINKER


@pytest.mark.parametrize("kind", TOOLCHAINS)
def test_every_toolchain_serves_every_triple(kind: str) -> None:
    assert (data_file("toolchains") / f"{kind}.cmake").is_file()
    for board in load_boards().values():
        assert board.runtime_flags.get(kind), board.triple


def test_a_toolchain_of_the_table_is_known_everywhere(tmp_path: Path) -> None:
    """Its word in `boards.TOOLCHAINS` is all: project files and options take it."""
    (tmp_path / "m.onnx").touch()
    (tmp_path / "edgepack.toml").write_text('[project]\nmodel = "m.onnx"\ntoolchain = "third"\n')
    code = """
import sys
from pathlib import Path
from edgepack import boards
boards.TOOLCHAINS = (*boards.TOOLCHAINS, "third")
from edgepack.cli import make_parser
from edgepack.flow.project import load_project
print(load_project(Path(sys.argv[1])).toolchain)
for words in (["deploy", "--toolchain", "third"], ["sdk", "--board", "rasp3b", "-o", "x"]):
    print(make_parser().parse_args([*words, "--toolchain", "third"]).toolchain)
"""
    said = run([sys.executable, "-c", code, tmp_path / "edgepack.toml"]).stdout
    assert said.split() == ["third"] * 3


def test_unknown_kind() -> None:
    with pytest.raises(UsageError, match="unknown toolchain: clang"):
        select(get_board("rasp3b"), force="clang")


def test_without_a_compiler_no_app_for_this_machine_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("edgepack.native.toolchain.zig_executable", lambda: None)
    bundle = SimpleNamespace(file=lambda name: tmp_path / name)
    assert results._app(bundle, get_board("rasp3b")) is None  # type: ignore[arg-type]
    assert results._app(bundle, get_board("local")) is not None  # type: ignore[arg-type]


def test_the_extra_has_the_version_that_names_say() -> None:
    pyproject = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert f"ziglang=={ZIG_VERSION}" in pyproject["project"]["optional-dependencies"]["build"]


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
