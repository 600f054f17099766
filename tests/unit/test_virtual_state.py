from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from edgepack.base import paths
from edgepack.virtual import state
from edgepack.virtual.state import VirtualBoard


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path)
    return tmp_path


def board(**changes: object) -> VirtualBoard:
    """A record of a board that runs, held by this very process."""
    started = state.start_time(os.getpid())
    assert started is not None
    record = VirtualBoard(
        name="pi",
        board="rasp3b",
        kind="light",
        suite="bullseye",
        host="127.0.0.1",
        port=2222,
        user="pi",
        key_file=Path("/keys/login"),
        host_key="[127.0.0.1]:2222 ssh-ed25519 AAAA",
        pid=os.getpid(),
        started=started,
        disk_mb=1024,
        base=Path("/usr"),
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def test_a_running_board_is_found_again() -> None:
    state.save(board())
    assert state.load("pi") == board()
    assert state.names() == ["pi"]


def test_a_reused_pid_is_not_the_board() -> None:
    state.save(board(started=board().started - 1))
    assert state.load("pi") is None


def test_a_dead_process_is_not_the_board() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    state.save(board(pid=child.pid))
    assert state.load("pi") is None


@pytest.mark.parametrize("text", ["", "{", "{}", '{"name": "pi"}', "[1]", '"pi"'])
def test_a_damaged_record_is_no_board(text: str) -> None:
    state.save(board())
    (state.folder("pi") / "board.json").write_text(text)
    assert state.load("pi") is None


def test_no_boards_at_all() -> None:
    assert state.names() == []
    assert state.load("pi") is None


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert state.start_time(child.pid) is None
    child.wait()


def test_stop_ends_a_process_and_no_other() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    started = state.start_time(child.pid)
    assert started is not None
    state.stop(child.pid, started + 1)
    assert state.start_time(child.pid) == started
    state.stop(child.pid, started)
    assert state.start_time(child.pid) is None
    child.returncode = 0


def test_stop_does_not_take_no_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_STOP_S", 0.5)
    stubborn = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"], stdout=subprocess.PIPE
    )
    assert stubborn.stdout
    assert stubborn.stdout.readline() == b"ready\n"
    started = state.start_time(stubborn.pid)
    assert started is not None
    state.stop(stubborn.pid, started)
    assert state.start_time(stubborn.pid) is None
    stubborn.returncode = 0
    stubborn.stdout.close()
