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

    def close(self) -> None:
        """Let go of the connection."""
