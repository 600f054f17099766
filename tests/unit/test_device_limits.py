"""Devices that never stop talking, never answer, or say other things first."""

from __future__ import annotations

import subprocess
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgepack.base.errors import RemoteError, TimeLimitError
from edgepack.cli import options
from edgepack.deploy import remote_tool
from edgepack.device import (
    ConnectionLostError,
    LocalDevice,
    NotStartedError,
    RemoteTimeout,
    SshOptions,
    TooMuchOutputError,
)
from edgepack.device.base import RemoteResult
from edgepack.device.errors import command_error, not_started
from edgepack.device.lines import (
    MAX_ERROR_BYTES,
    MAX_NOISE_BYTES,
    MAX_OUTPUT_BYTES,
    LineReader,
    Tail,
)
from edgepack.device.ssh import _watch, shell_line
from edgepack.fleet import Outcome, Settings, Share, make_plan, roll_out
from edgepack.fleet.work import AskStatus
from tests.scripted_fleet import Log, devices
from tests.scripted_tool import ScriptedDevice, well
from tests.support import require_tool


class Pieces:
    """Gives them one by one, then nothing."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def __call__(self, _timeout_s: float | None) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_however_they_are_cut(size: int) -> None:
    text = b"noise\n\nmark\none\n\nthree\nrest"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    lines = LineReader(Pieces(*pieces), "board", mark=b"mark")
    assert [lines.read_line(1) for _ in range(3)] == [b"one\n", b"\n", b"three\n"]
    assert lines.begun
    assert lines.read_all() == b"rest"
    assert lines.read_line(1) == b""


def test_a_mark_that_never_comes() -> None:
    lines = LineReader(Pieces(b"This account ", b"is closed.\n"), "board", mark=b"mark")
    assert lines.read_line(1) == b""
    assert not lines.begun
    assert lines.read_all() == b"This account is closed.\n"


@pytest.mark.parametrize("piece", [b"x" * 65536, b"x\n" * 32768], ids=["line", "lines"])
@pytest.mark.parametrize("mark", [b"", b"mark"])
def test_output_without_an_end(piece: bytes, mark: bytes) -> None:
    """Neither memory nor time: each piece is there a million times."""
    limit = MAX_NOISE_BYTES if mark and piece.count(b"\n") else MAX_OUTPUT_BYTES
    tracemalloc.start()
    try:
        with pytest.raises(TooMuchOutputError, match=f"board: more than {limit >> 10} KiB"):
            LineReader(lambda _: piece, "board", mark=mark).read_all()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_OUTPUT_BYTES


def test_of_errors_the_end_is_kept() -> None:
    tail = Tail()
    tail.extend([b"x" * 50_000] * 10 + [b"the end"])
    assert tail.text().endswith("xthe end")
    assert len(tail.text()) == MAX_ERROR_BYTES


def test_a_local_command_without_an_end(tmp_path: Path) -> None:
    device = LocalDevice(tmp_path, timeout_s=0.2)
    with pytest.raises(TooMuchOutputError):
        device.run("exec yes", timeout_s=600)
    with pytest.raises(RemoteTimeout, match=r"longer than 0\.2 s") as late:
        device.run("sleep 1000")
    assert late.value.hint == "--device-timeout S gives it longer"
    stream = device.open("read -r word; sleep 1000")
    stream.write(b"x\n")
    with pytest.raises(ConnectionLostError):
        stream.read_line(0.1)
    with pytest.raises(RemoteTimeout):
        stream.finish()
    stream.close()
    # Of its own, a command may have longer.
    assert device.run("sleep 0.4; echo done", timeout_s=600).stdout == "done\n"


def test_one_that_hangs_does_not_hold_the_rest() -> None:
    rest = threading.Event()

    class Rest(Log):
        def devices_end(self, outcomes: Sequence[Outcome]) -> None:
            super().devices_end(outcomes)
            if len(self.outcomes) == 19:
                rest.set()

    def connect(device: object) -> object:
        name = device.name  # type: ignore[attr-defined]
        hanging = LocalDevice(timeout_s=0.3)
        return _Hanging(hanging, rest) if name == "d00001" else ScriptedDevice(name, well)

    everything = Share(value=100, percent=True)
    settings = Settings(
        canary=Share(value=0), waves=(everything,), parallel=2, max_failures=everything,
        max_failures_total=everything,
    )  # fmt: skip
    log = Rest()
    work = AskStatus(connect=connect, root="r")  # type: ignore[arg-type]
    result = roll_out(make_plan(devices(20), settings), settings, work, log)
    assert result.outcomes == {"ok": 19, "failed": 1}
    (failed,) = (outcome for outcome in log.outcomes if not outcome.ok)
    assert (failed.device, failed.exit_code) == ("d00001", TimeLimitError.exit_code)
    assert log.outcomes[-1] is failed


class _Hanging:
    """A real shell that never gets to the device tool, and is given up after `rest`."""

    name = "d00001"

    def __init__(self, device: LocalDevice, rest: threading.Event) -> None:
        self._device, self._rest = device, rest
        self.close, self.abort = device.close, device.abort

    def run(self, command: str, *, check: bool = True) -> RemoteResult:
        assert self._rest.wait(60)
        return self._device.run(f"sleep 1000; {command}", check=check)


COMMAND = """printf '%s|' "it's" 'a!b' '\\n\\' %d "$1" `echo 'b !'`
set -- one two; echo "$2"; cat
for i in 1 2; do
  echo "i $i!"; done
exit 3"""


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox", "tcsh"])
def test_any_login_shell(shell: str) -> None:
    words = [require_tool(shell), *(["ash"] if shell == "busybox" else [])]
    done = subprocess.run(
        [*words, "-c", shell_line(f"set -- 1st\n{COMMAND}")],
        input="in\n", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout == "it's|a!b|\\n\\|%d|1st|b|!|two\nin\ni 1!\ni 2!\n"
    assert done.returncode == 3


def test_what_a_shell_could_not_start() -> None:
    result = RemoteResult(command="x", returncode=126, stdout="", stderr="x: Permission denied\n")
    error = command_error("board", result)
    assert "exit code 126: x\n  x: Permission denied" in error.message
    assert "noexec" in str(error.hint)
    closed = RemoteResult(command="x", returncode=1, stdout="closed\x1b[2J\n", stderr="")
    assert isinstance(not_started("board", closed), NotStartedError)
    assert not_started("board", closed).message.endswith("(exit code 1)\n  closed\\x1b[2J")


def test_a_device_without_a_tool() -> None:
    silent = ScriptedDevice("board", lambda _: "", returncode=127)
    with pytest.raises(RemoteError, match="board: there is no device tool in r"):
        remote_tool.status(silent, "r")  # type: ignore[arg-type]


def test_the_default_that_the_command_line_shows() -> None:
    assert SshOptions().command_timeout_s == options.COMMAND_S


def test_a_watch_that_closes_what_has_gone_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """paramiko raises EOFError where the server went first; a thread of ours must not."""
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    closing: list[threading.Thread] = []
    closed = threading.Event()

    class Gone:
        def close(self) -> None:
            closing.append(threading.current_thread())
            closed.set()
            raise EOFError

    with _watch(Gone(), 0.01):  # type: ignore[arg-type]
        assert closed.wait(60)
    closing[0].join()
    assert raised == []
