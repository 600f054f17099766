from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from edgepack import virtual
from edgepack.base import paths, tools
from edgepack.base.errors import UsageError
from edgepack.boards import Board, get_board
from edgepack.virtual import errors, launcher, registry, state
from edgepack.virtual.state import VirtualBoard
from tests.support import require_tool


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path)
    return tmp_path


@pytest.fixture
def rasp3b() -> Board:
    return get_board("rasp3b")


@pytest.fixture
def running(cache: Path) -> VirtualBoard:
    """The record of a light rasp3b, as if this process were it."""
    started = state.start_time(os.getpid())
    assert started is not None
    board = VirtualBoard(
        name="rasp3b",
        board="rasp3b",
        kind="light",
        suite="bullseye",
        host="127.0.0.1",
        port=2222,
        user="pi",
        key_file=cache / "a folder" / "login",
        host_key="[127.0.0.1]:2222 ssh-ed25519 AAAA",
        pid=os.getpid(),
        started=started,
        disk_mb=1024,
        base=Path("/usr"),
    )
    board.key_file.parent.mkdir()
    board.key_file.touch()
    state.save(board)
    return board


def test_this_machine_has_no_virtual_board() -> None:
    with pytest.raises(errors.NoVirtualBoardError, match="board local") as caught:
        virtual.up(get_board("local"))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["../evil", "a/b", "A", "-x", "a" * 61, "a b"])
def test_a_name_is_no_path(rasp3b: Board, name: str) -> None:
    with pytest.raises(UsageError, match="not a name"):
        virtual.up(rasp3b, name=name)


def test_unknown_kind(rasp3b: Board) -> None:
    with pytest.raises(UsageError, match="heavy"):
        virtual.up(rasp3b, kind="heavy")


@pytest.mark.parametrize(
    ("kind", "init"), [("light", "systemd"), ("auto", "busybox"), ("system", "x")]
)
def test_only_full_system_boards_have_another_process_1(
    rasp3b: Board, kind: str, init: str
) -> None:
    with pytest.raises(
        UsageError, match=f"of kind {kind} and suite bullseye cannot be started by {init}"
    ):
        virtual.up(rasp3b, kind=kind, init=init)


def test_up_returns_what_runs(rasp3b: Board, running: VirtualBoard) -> None:
    assert virtual.up(rasp3b) == running
    assert virtual.up(rasp3b, kind="light", suite="bullseye", disk_mb=1024) == running
    assert virtual.list_running() == [running]


def test_up_refuses_another_board_of_that_name(rasp3b: Board, running: VirtualBoard) -> None:
    for wish in ({"suite": "trixie"}, {"kind": "system"}, {"disk_mb": 64}):
        with pytest.raises(errors.BoardConflictError) as caught:
            virtual.up(rasp3b, **wish)  # type: ignore[arg-type]
        (key, value) = next(iter(wish.items()))
        assert f"{key} {getattr(running, key)}, not {value}" in str(caught.value)
        assert "edgepack board down rasp3b" in str(caught.value)
    with pytest.raises(errors.BoardConflictError, match="board rasp3b, not pynq"):
        virtual.up(get_board("pynq"), name="rasp3b")


def test_down_of_nothing(running: VirtualBoard) -> None:
    assert virtual.down("pynq") is False
    assert virtual.down("../boards") is False


def test_down_of_a_board_that_died_deletes_its_files(running: VirtualBoard) -> None:
    state.save(replace(running, started=1))
    assert virtual.list_running() == []
    assert virtual.down("rasp3b") is True
    assert not state.folder("rasp3b").exists()


def test_where_a_light_board_cannot_be_a_full_system_board_starts(
    monkeypatch: pytest.MonkeyPatch, rasp3b: Board, caplog: pytest.LogCaptureFixture
) -> None:
    """What makes it impossible, and both kinds in earnest: functional/test_virtual_boards.py."""

    def no_light_board(plan: state.BoardSetup) -> state.Started:
        raise errors.LightBoardError("no namespaces here")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        greeter = threading.Thread(
            target=lambda: listener.accept()[0].sendall(b"SSH-2.0-test\r\n"), daemon=True
        )
        greeter.start()
        pid = os.getpid()
        system_board = state.Started(
            kind="system",
            pid=pid,
            started=state.start_time(pid) or 0,
            port=listener.getsockname()[1],
            disk_mb=256,
        )
        monkeypatch.setattr(registry, "rootfs", lambda *_, **__: Path("/usr"))
        monkeypatch.setattr(registry.light, "start", no_light_board)
        monkeypatch.setattr(registry.system, "start", lambda *_, **__: system_board)
        with pytest.raises(errors.LightBoardError, match="no namespaces"):
            virtual.up(rasp3b, kind="light")
        board = virtual.up(rasp3b)
        greeter.join()
    assert (board.kind, board.disk_mb) == ("system", 256)
    assert "no namespaces here; starting the full-system board instead" in caplog.text
    assert virtual.list_running() == [board]


def test_forbidden_user_namespaces_are_said_in_words(tmp_path: Path) -> None:
    """In a namespace of which the kernel allows no more; it says "No space left on device"."""
    unshare = require_tool("unshare")
    if subprocess.run([unshare, "-Ur", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespace can be made here, as in most containers")
    config = dict.fromkeys(launcher.Config.__dataclass_fields__, "")
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c",
         'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"', "sh",
         sys.executable, "-I", launcher.__file__],
        input=json.dumps(config), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout) == {
        "error": "user namespaces are forbidden here (sysctl user.max_user_namespaces)",
        "forbidden": True,
    }


def test_ssh_command_trusts_one_key_only(running: VirtualBoard) -> None:
    command = virtual.ssh_command(running)
    assert command[-1] == "pi@127.0.0.1"
    assert "StrictHostKeyChecking=yes" in command
    assert f'IdentityFile="{running.key_file}"' in command
    assert virtual.known_hosts(running).read_text() == running.host_key + "\n"


def test_missing_programs_name_their_package(
    monkeypatch: pytest.MonkeyPatch, rasp3b: Board
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(tools.ToolMissingError, match="qemu-arm-static, mmdebstrap") as caught:
        virtual.up(rasp3b)
    # All of it in one line, for who may install it.
    assert caught.value.hint == "sudo apt-get install qemu-user-static mmdebstrap"
    assert caught.value.exit_code == 4
    with pytest.raises(tools.ToolMissingError) as caught:
        virtual.up(rasp3b, kind="system")
    assert caught.value.hint == "sudo apt-get install qemu-system-arm e2fsprogs mmdebstrap"
    for tool, package in (
        ("qemu-arm-static", "qemu-user-static"),
        ("qemu-system-aarch64", "qemu-system-arm"),
        ("mke2fs", "e2fsprogs"),
    ):
        with pytest.raises(tools.ToolMissingError, match=tool) as caught:
            tools.find_tool(tool)
        assert caught.value.hint == f"sudo apt-get install {package}"
