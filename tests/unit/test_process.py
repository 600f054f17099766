from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepack.base import process
from edgepack.base.errors import ToolchainError
from edgepack.base.process import Beside, kill, processes, run
from tests.support import require_tool


def sleeper(started: Path) -> None:
    run(["sh", "-c", f"touch '{started}'; exec sleep 600"])


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_functions_beside_a_block_give_their_results() -> None:
    with Beside() as beside:
        word = beside.start(run, ["echo", "beside"])
        assert run(["echo", "here"]).stdout == "here\n"
    assert word.result().stdout == "beside\n"


def test_what_a_function_raises_comes_with_its_result() -> None:
    with pytest.raises(ToolchainError, match="exit code 3"), Beside() as beside:
        beside.start(run, ["sh", "-c", "exit 3"]).result()


def test_children_end_with_a_block_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Beside() as beside:
        slow = beside.start(sleeper, tmp_path / "started")
        wait_for(tmp_path / "started")
        _ = 1 / 0
    with pytest.raises(ToolchainError, match="exit code -9"):
        slow.result()


def test_a_child_that_starts_after_the_failure_ends_too(tmp_path: Path) -> None:
    def later() -> None:
        wait_for(tmp_path / "failed")
        sleeper(tmp_path / "started")

    beside = Beside()
    slow = beside.start(later)
    (tmp_path / "failed").touch()
    beside.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(ToolchainError, match="exit code -9"):
        slow.result()


def test_processes_that_end_while_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for /proc: the moment between its list and a look at one of them cannot be had on
    command. The kernel then says ESRCH, of the file or of the folder."""
    assert os.getpid() in {one.pid for one in processes()}
    for number in range(1, 5):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{number} (a) b) S 1 {number} {number} 0\n")
    (tmp_path / "5").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "6").write_text("")
    monkeypatch.setattr(process, "_PROC", tmp_path)
    stat = os.stat
    open_file = io.open

    def gone(call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(path: Any, *words: Any, **named: Any) -> Any:
            if str(path).startswith(str(tmp_path / "2")):
                raise ProcessLookupError(errno.ESRCH, "No such process")
            return call(path, *words, **named)

        return ask

    monkeypatch.setattr(os, "stat", gone(stat))
    monkeypatch.setattr(io, "open", gone(open_file))
    assert sorted(processes()) == [(1, 1, 1, 1), (3, 1, 3, 3), (4, 1, 4, 4)]
    monkeypatch.setattr(process, "_PROC", tmp_path / "none")
    assert [*processes()] == []


def compilers(source: Path) -> set[int]:
    """The processes whose command line names `source`, but for Python: what it has forked has its
    words, too, until it is a program of its own."""
    found = set()
    for pid in (row.pid for row in processes()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if str(source).encode() in words and not words.startswith(sys.executable.encode()):
            found.add(pid)
    return found


@pytest.mark.parametrize("by", ["itself", "ninja", "apart"])
def test_a_compiler_ends_with_a_process_that_is_killed(by: str, tmp_path: Path) -> None:
    """The compiler reads a source that nobody writes; ninja gives it a group of its own."""
    source = tmp_path / "source.c"
    os.mkfifo(source)
    words = [require_tool("cc"), "-c", str(source), "-o", str(tmp_path / "out.o")]
    if by == "ninja":
        (tmp_path / "build.ninja").write_text(
            f"rule cc\n  command = {' '.join(words)}\nbuild out: cc\n"
        )
        words = [require_tool("ninja"), "-C", str(tmp_path)]
    call = f"run({words!r})" if by != "apart" else f"Apart().call(run, {words!r})"
    code = f"from edgepack.base.process import run\nfrom edgepack.base.apart import Apart\n{call}"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        try:
            wait_for_compilers(source)
        finally:
            process.kill()
    assert_compilers_end(source)


def wait_for_compilers(source: Path) -> None:
    """Until the driver and the compiler proper run."""
    deadline = time.monotonic() + 60
    while len(compilers(source)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(compilers(source)) >= 2


def assert_compilers_end(source: Path) -> None:
    deadline = time.monotonic() + 60
    while compilers(source) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = compilers(source)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_what_a_look_at_the_processes_missed_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the parent dies while /proc is read: the compiler's parent is init then.

    The look that misses it is a fake; it cannot be had on command.
    """
    source = tmp_path / "source.c"
    os.mkfifo(source)
    words = [require_tool("cc"), "-c", str(source), "-o", str(tmp_path / "out.o")]
    code = f"from edgepack.base.process import run\nrun({words!r})"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        try:
            wait_for_compilers(source)
            family = {row.pid for row in processes() if process.pid in (row.pid, row.parent)}
            seen = family - compilers(source)
            assert len(seen) == 2  # it and its guard
            monkeypatch.setattr("edgepack.base.process._family", lambda _: seen)
            kill(process)
        finally:
            process.kill()
    assert_compilers_end(source)
