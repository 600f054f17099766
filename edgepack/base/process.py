"""Child processes: one way to run them, log them, and say why they failed."""

from __future__ import annotations

import contextlib
import contextvars
import getpass
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, ParamSpec, Self, TypeVar

from edgepack.base import progress
from edgepack.base.errors import EdgepackError, TimeLimitError, ToolchainError

log = logging.getLogger(__name__)

_LAST_LINES = 10
_COUNTED = re.compile(rb"\[(\d+)/(\d+)\] ")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A finished process; `stdout` and `stderr` are text with bad bytes replaced."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def last_lines(text: str, count: int = _LAST_LINES) -> str:
    """The last `count` lines of `text` that are not empty, indented by two spaces."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-count:])


def user_at_host() -> str:
    """Who runs this, and where: what records on devices and in journals name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may be no more than a number
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: bytes | None = None,
    timeout_s: float | None = None,
    check: bool = True,
    error: type[EdgepackError] = ToolchainError,
    what: str | None = None,
) -> Finished:
    """Run `argv` to its end.

    `env` is added to this process's own. `what` names the step in messages.
    Raises `error` if the program is not there or (with `check`) fails, with its
    last ten lines; `TimeLimitError` after `timeout_s` seconds.
    """
    words = tuple(str(word) for word in argv)
    log.debug("run %s", shlex.join(words))
    try:
        # A group of its own, so that a time limit ends what the program started, too.
        child = subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, **env} if env else None,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise error(
            f"program not found: {words[0]}", hint="`edgepack doctor` lists what to install"
        ) from None
    except OSError as reason:
        raise error(f"program cannot be executed: {words[0]}: {reason.strerror}") from None
    with child, watched(child):
        try:
            if "--build" in words and timeout_s is None:  # CMake's word for it
                stdout, stderr = _communicate_counted(child)
            else:
                stdout, stderr = child.communicate(input, timeout_s)
        except BaseException as reason:
            kill(child)
            if not isinstance(reason, subprocess.TimeoutExpired):
                raise
            raise TimeLimitError(
                f"{what or Path(words[0]).name} took longer than {timeout_s} s: {shlex.join(words)}"
            ) from None
    result = Finished(
        argv=words,
        returncode=child.returncode,
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
    )
    if check and result.returncode != 0:
        output = last_lines(result.stdout + "\n" + result.stderr)
        raise error(
            f"{what or Path(words[0]).name} failed with exit code {result.returncode}: "
            f"{shlex.join(words)}\n{output}"
        )
    return result


def _communicate_counted(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """`child.communicate`; `progress.now` is told of ninja's lines such as "[12/345] ..."."""
    assert child.stdout is not None
    assert child.stderr is not None
    errors: list[bytes] = []
    reader = threading.Thread(target=errors.extend, args=(child.stderr,), daemon=True)
    reader.start()
    lines: list[bytes] = []
    # In this thread: who watches shows the step that it is in.
    for line in child.stdout:
        lines.append(line)
        if match := _COUNTED.match(line):
            progress.now("", int(match[1]), int(match[2]))
    reader.join()
    child.wait()
    return b"".join(lines), b"".join(errors)


_P = ParamSpec("_P")
_T = TypeVar("_T")
_thread = threading.local()


class Beside:
    """A block beside which functions run that wait for child processes, each in a thread.

    When the block fails, or is interrupted, the children are killed; it ends when all have.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor()
        self._lock = threading.Lock()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def start(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """`function` begins; its result, or what it raises, is the future's."""

        def body() -> _T:
            _thread.beside = self
            try:
                return function(*args, **kwargs)
            finally:
                progress.end_step()

        return self._pool.submit(contextvars.copy_context().run, body)

    @contextlib.contextmanager
    def watched(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        """`child` is killed if the block fails before it ends."""
        with self._lock:
            self._children.add(child)
            if self._stopped:
                kill(child)
        try:
            yield
        finally:
            with self._lock:
                self._children.discard(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            with self._lock:
                self._stopped = True
                for child in self._children:
                    kill(child)
        self._pool.shutdown(cancel_futures=kind is not None)


_children: set[subprocess.Popen[bytes]] = set()


@contextlib.contextmanager
def watched(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """`end_children` ends the child while the block runs, and if this process is killed, the guard.

    If this thread runs beside another block, `Beside.watched` by that, too.
    """
    beside: Beside | None = getattr(_thread, "beside", None)
    _children.add(child)
    _guard.tell(f"+{child.pid}")
    try:
        with beside.watched(child) if beside else contextlib.nullcontext():
            yield
    finally:
        _children.discard(child)
        _guard.tell(f"-{child.pid}")


def end_children() -> None:
    """Kill the programs that any thread of this process waits for; it must end itself then."""
    for child in tuple(_children):
        kill(child)


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child that leads a group of its own, and all that it started, if it has not ended.

    Ninja gives each compiler a group of its own, and what runs apart its programs a session.
    """
    if child.returncode is None:
        _kill_family(child.pid)


def _kill_family(pid: int) -> None:
    killed: set[int] = set()
    # Again, for what was being started meanwhile.
    while family := _family({pid, *killed}) - killed:
        for one in family:
            # The guard of one that is killed ends by itself, after what this look at /proc may
            # have missed: processes whose parent died while it was read.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if not _is_guard(one):
                    os.kill(one, signal.SIGKILL)
        killed |= family
    if not killed:  # no /proc here
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


_PROC = Path("/proc")
_GUARD = f"import {__name__} as p; p.guard()"


def _is_guard(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().endswith(f"\0{_GUARD}\0".encode())
    except OSError:  # it has ended
        return False


class _ChildGuard:
    """A process that ends the children of this one if this one is killed, which cannot do so then.

    It is told of each, and that this process has ended by the end of what it is told.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: int | None = None
        self._owner = 0

    def tell(self, line: str) -> None:
        """That a child has begun, "+PID", or ended, "-PID"."""
        with self._lock, contextlib.suppress(OSError):  # without a guard all else works
            if self._owner != os.getpid():
                self._owner, self._pipe = os.getpid(), None
                self._pipe = self._start()
            if self._pipe is not None:
                os.write(self._pipe, f"{line}\n".encode())

    @staticmethod
    def _start() -> int:
        reading, writing = os.pipe()
        try:
            # Not by subprocess: it ends after this process, which does not wait for it.
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-c", _GUARD],
                {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reading, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                # What ends this process' group, as Ctrl-C does, is not for it.
                setsid=True,
            )
        except (OSError, NotImplementedError):
            os.close(writing)
            raise OSError("no guard") from None
        finally:
            os.close(reading)
        return writing


_guard = _ChildGuard()


def guard() -> None:
    """What the guard does: wait for the end of stdin, and kill who is left."""
    left: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        (left.add if line[0] == "+" else left.discard)(pid)
    for pid in left:
        _kill_family(pid)


def _family(roots: set[int]) -> set[int]:
    """The processes `roots`, those below them, and those of their groups and sessions."""
    found: set[int] = set()
    wanted = set(roots)
    rows = list(processes())
    while True:
        more = {row.pid for row in rows if not wanted.isdisjoint(row)} - found
        if not more:
            return found
        found |= more
        wanted |= more


class Process(NamedTuple):
    """Numbers of a process of this machine."""

    pid: int
    parent: int
    group: int
    session: int


def processes() -> Iterator[Process]:
    """Those that run, by Linux's /proc: none where there is none."""
    try:
        # Not by a pattern: one that ends meanwhile is an error to Path.glob.
        folders = [*_PROC.iterdir()]
    except OSError:
        return
    for folder in folders:
        with contextlib.suppress(OSError, IndexError, ValueError):
            pid = int(folder.name)
            # The name in parentheses may hold anything.
            status, *numbers = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:4]
            if status not in (b"Z", b"X"):
                yield Process(pid, *map(int, numbers))
