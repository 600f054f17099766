"""What a device can do, whatever it is behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class RemoteResult:
    """A finished command; `stdout` and `stderr` are text with bad bytes replaced.

    Of a long `stderr` only the end is kept.
    """

    command: str
    returncode: int
    stdout: str
    stderr: str


def is_emulated(device: object) -> bool:
    """Whether times and memory on a device are those of an emulator: it is a virtual board."""
    return bool(getattr(device, "is_emulated", False))


class Stream(Protocol):
    """The standard input and output of a command that is running on a device.

    Raises ConnectionLostError if the connection goes away, or nothing moves for too long;
    TooMuchOutputError for output beyond all reason (`edgepack.device.lines`); NotStartedError
    if the login's shell did not get as far as the command.
    """

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises BrokenPipeError if the command reads no more."""

    def read_line(self, timeout_s: float | None = None, *, begun: bool = False) -> bytes:
        """The next line of the output with its end; empty when there is no more.

        Raises ConnectionLostError if it is not whole after `timeout_s` seconds, which count from
        its first byte if `begun`.
        """

    def finish(self) -> RemoteResult:
        """Close the input and wait for the end, no longer than the device's limit of time.

        `stdout` is what was not read, `stderr` the end of it. Raises RemoteTimeout.
        """

    def close(self) -> None:
        """Close both, whatever the command does; it may go on."""


class Device(Protocol):
    """A machine with a POSIX shell.

    Relative paths start at the login's home folder, even if the shell's start files change the
    folder (on Android, which has no home, at /data/local/tmp). Commands run under `sh` with the
    C locale and without standard input.
    """

    name: str

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        """Run `command` to its end, for `timeout_s` seconds at most (None: the device's limit).

        Raises:
            RemoteCommandError: it failed and `check` is set.
            DiskFullError: it failed with "No space left on device" and `check` is set.
            NotStartedError: the login's shell did not get as far as the command.
            TooMuchOutputError: it says more than `edgepack.device.lines` allows.
            RemoteTimeout: it took longer.
            ConnectionLostError: the connection went away meanwhile.
        """

    def open(self, command: str) -> Stream:
        """Start `command`, to talk to it.

        Raises:
            ConnectionLostError: the connection went away.
        """

    def put(
        self,
        local: Path,
        remote: str,
        *,
        offset: int = 0,
        sent: Callable[[int], None] | None = None,
    ) -> None:
        """Write the bytes of `local` from `offset` on to the same position of the file `remote`.

        The folder must exist. With offset 0 the file is replaced. `sent` is called with the size
        of each chunk. The caller has to verify and flush the file.

        Raises:
            DiskFullError, ConnectionLostError, RemoteError.
        """

    def get(self, remote: str, local: Path) -> None:
        """Copy the file `remote` to `local`.

        Raises:
            ConnectionLostError, RemoteError.
        """

    def rename(self, old: str, new: str) -> None:
        """Rename atomically; a file or symbolic link at `new` is replaced.

        Raises:
            ConnectionLostError, RemoteError.
        """

    def mkdir(self, path: str) -> None:
        """Make the folder `path` and its parents; an existing folder is no error."""

    def reconnect(self) -> None:
        """Connect again, after ConnectionLostError. Raises the errors of connecting."""

    def close(self) -> None:
        """Let go of the connection."""

    def abort(self) -> None:
        """Close the connection at once, from any thread; a thread that waits for it gets
        ConnectionLostError."""
