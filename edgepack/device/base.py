"""What a device can do, whatever it is behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class RemoteResult:
    """A finished command; `stdout` and `stderr` are text with bad bytes replaced."""

    command: str
    returncode: int
    stdout: str
    stderr: str


class Stream(Protocol):
    """The standard input and output of a command that is running on a device.

    Raises ConnectionLostError if the connection goes away, or nothing moves for too long.
    """

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises BrokenPipeError if the command reads no more."""

    def read_line(self, timeout_s: float | None = None) -> bytes:
        """The next line of the output with its end; empty when there is no more."""

    def finish(self) -> RemoteResult:
        """Close the input and wait for the end; `stdout` is what was not read, `stderr` all."""

    def close(self) -> None:
        """Close both, whatever the command does; it may go on."""


class LineReader:
    """Lines out of the pieces that `receive(timeout_s)` gives; an empty piece is the end."""

    def __init__(self, receive: Callable[[float | None], bytes]) -> None:
        self._receive = receive
        self._rest = b""

    def read_line(self, timeout_s: float | None) -> bytes:
        """See `Stream.read_line`."""
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            pieces.append(self._receive(timeout_s))
            if not pieces[-1]:
                break
        line, end, self._rest = b"".join(pieces).partition(b"\n")
        return line + end

    def read_all(self) -> bytes:
        """All that is left."""
        pieces = [self._rest]
        while piece := self._receive(None):
            pieces.append(piece)
        return b"".join(pieces)


class Device(Protocol):
    """A machine with a POSIX shell.

    Relative paths start at the login's home folder. Commands run under `sh` with the
    C locale and without standard input.
    """

    name: str

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        """Run `command` to its end.

        Raises:
            RemoteCommandError: it failed and `check` is set.
            DiskFullError: it failed with "No space left on device" and `check` is set.
            RemoteTimeout: it took longer than `timeout_s` seconds.
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
        """Write the bytes of `local` from `offset` on to the file `remote`, at the same place.

        The folder must exist. With offset 0 the file is made anew. `sent` is called with
        the size of each chunk. Nothing is verified or flushed here: the caller does.

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
        """Make the folder `path` and those above it; no error if it is there."""

    def reconnect(self) -> None:
        """Connect anew, after ConnectionLostError. Raises what connecting raises."""

    def close(self) -> None:
        """Let go of the connection."""
