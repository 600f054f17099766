"""What runs: one file per virtual board, and how to tell a board from a stale number."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edgepack.base.paths import cache_dir, write_atomic
from edgepack.boards import Board, VirtualProfile
from edgepack.virtual.errors import BoardStartError
from edgepack.virtual.files import BoardFile
from edgepack.virtual.sshd import Sshd

_STOP_S = 10.0


@dataclass(frozen=True, kw_only=True)
class VirtualBoard:
    """A running virtual board, reached as `user`@`host`:`port` with `key_file`.

    `board` is the profile's name, `kind` "light" or "system", `host_key` the
    known_hosts line of its sshd, `base` the root file system it runs on. `pid` is the
    process that ends with the board and `started` that process's start time in clock
    ticks since boot: together they name it for good. `disk_mb` is the size of its disk,
    `init` what its process 1 is, `opencl` whether it has a driver of OpenCL.
    """

    name: str
    board: str
    kind: str
    suite: str
    host: str
    port: int
    user: str
    key_file: Path
    host_key: str
    pid: int
    started: int
    disk_mb: int
    base: Path
    init: str = "script"
    opencl: bool = False

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "key_file": str(self.key_file), "base": str(self.base)}

    @property
    def is_usable(self) -> bool:
        """Whether its files are still there: someone may have cleaned the cache under it."""
        return self.base.exists() and self.key_file.exists()


@dataclass(frozen=True, kw_only=True)
class BoardSetup:
    """A board about to be started.

    `base` is its root file system, never written to; `folder` takes its log and disk;
    `files` are written over the root file system; `disk_mb` None stands for the kind's
    own default. `sshd` is the server in it, `init` one of `rootfs.INITS`.
    """

    board: Board
    virtual: VirtualProfile
    suite: str
    base: Path
    folder: Path
    hostname: str
    files: tuple[BoardFile, ...]
    disk_mb: int | None
    sshd: Sshd
    init: str = "script"


@dataclass(frozen=True, kw_only=True)
class Started:
    """A process that holds a board, and the loopback port of its sshd."""

    kind: str
    pid: int
    started: int
    port: int
    disk_mb: int


def folder(name: str) -> Path:
    """Where the board called `name` keeps its state, log and disk."""
    return cache_dir() / "virtual" / "boards" / name


def save(board: VirtualBoard) -> None:
    """Remember a running board."""
    data = json.dumps(board.to_dict(), indent=1) + "\n"
    write_atomic(folder(board.name) / "board.json", data.encode())


def load(name: str) -> VirtualBoard | None:
    """The board called `name` if it runs. A file left by one that died does not count."""
    try:
        values = json.loads((folder(name) / "board.json").read_text())
        files = {key: Path(values[key]) for key in ("key_file", "base")}
        board = VirtualBoard(**{**values, **files})
    except (FileNotFoundError, json.JSONDecodeError, TypeError, KeyError):
        # Nothing there, or written by another version of edgepack.
        return None
    return board if start_time(board.pid) == board.started else None


def names() -> list[str]:
    """Names of all boards with state, running or not."""
    top = cache_dir() / "virtual" / "boards"
    return sorted(path.name for path in top.iterdir() if path.is_dir()) if top.exists() else []


def start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Field 2 is the name in parentheses and may hold anything; state is 3, start time 22.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def stop(
    pid: int,
    started: int,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL),
) -> None:
    """End the process named by `pid` and `started` and wait for it: politely, then for good.

    Raises BoardStartError if it will not die.
    """
    for number in signals:
        if start_time(pid) != started:
            break
        os.kill(pid, number)
        deadline = time.monotonic() + _STOP_S
        while start_time(pid) == started and time.monotonic() < deadline:
            time.sleep(0.02)
    if start_time(pid) == started:
        raise BoardStartError(f"process {pid} of a virtual board does not end")
    # Ours to collect if this very process started it.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
