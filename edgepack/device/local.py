"""This machine as a device."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from edgepack.base.errors import RemoteError
from edgepack.device.base import LineReader, RemoteResult, Stream
from edgepack.device.errors import (
    ConnectionLostError,
    RemoteTimeout,
    command_error,
    disk_full,
    shorten,
)

log = logging.getLogger(__name__)

_CHUNK = 1 << 20


class LocalDevice:
    """Commands through `sh`; relative paths start at `home`, by default the user's."""

    def __init__(self, home: Path | None = None) -> None:
        self.name = "local"
        self._home = home or Path.home()

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        """See `Device.run`."""
        log.debug("%s: run %s", self.name, command)
        process = self._start(command, stdin=subprocess.DEVNULL)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException as error:
            # What the shell started must go too: it holds the pipes, and the processor.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RemoteTimeout(
                    f"command took longer than {timeout_s} s on {self.name}: {shorten(command)}"
                ) from None
            raise
        result = _result(command, process.returncode, output, errors)
        if check and result.returncode != 0:
            raise command_error(self.name, result)
        return result

    def open(self, command: str) -> Stream:
        """See `Device.open`."""
        log.debug("%s: open %s", self.name, command)
        return _LocalStream(self.name, command, self._start(command, stdin=subprocess.PIPE))

    def _start(self, command: str, *, stdin: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["env", "LC_ALL=C", f"HOME={self._home}", "sh", "-c", command],
            cwd=self._home,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def put(
        self,
        local: Path,
        remote: str,
        *,
        offset: int = 0,
        sent: Callable[[int], None] | None = None,
    ) -> None:
        """See `Device.put`."""
        target = self._home / remote
        try:
            with local.open("rb") as source, target.open("r+b" if offset else "wb") as file:
                source.seek(offset)
                file.seek(offset)
                while chunk := source.read(_CHUNK):
                    file.write(chunk)
                    if sent:
                        sent(len(chunk))
        except OSError as error:
            raise self._error(error, remote) from None

    def get(self, remote: str, local: Path) -> None:
        """See `Device.get`."""
        try:
            shutil.copyfile(self._home / remote, local)
        except OSError as error:
            raise self._error(error, remote) from None

    def rename(self, old: str, new: str) -> None:
        """See `Device.rename`."""
        try:
            os.rename(self._home / old, self._home / new)  # noqa: PTH104 - rename(2) as it is
        except OSError as error:
            raise self._error(error, new) from None

    def mkdir(self, path: str) -> None:
        """See `Device.mkdir`."""
        try:
            (self._home / path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._error(error, path) from None

    def reconnect(self) -> None:
        """See `Device.reconnect`."""

    def close(self) -> None:
        """See `Device.close`."""

    def _error(self, error: OSError, path: str) -> RemoteError:
        if error.errno == errno.ENOSPC:
            return disk_full(self.name, str(error))
        return RemoteError(f"{path} on {self.name}: {error.strerror}")


class _LocalStream:
    """See `Stream`."""

    def __init__(self, name: str, command: str, process: subprocess.Popen[bytes]) -> None:
        self._name, self._command = name, command
        self._process = process
        assert process.stdin and process.stdout and process.stderr  # all are pipes
        self._stdin, self._stdout = process.stdin, process.stdout
        self._lines = LineReader(self._receive)
        # A command that complains much would stop at a full pipe.
        self._errors: list[bytes] = []
        self._listener = threading.Thread(
            target=self._errors.extend, args=(process.stderr,), daemon=True
        )
        self._listener.start()

    def write(self, data: bytes) -> None:
        """See `Stream.write`."""
        self._stdin.write(data)
        self._stdin.flush()

    def read_line(self, timeout_s: float | None = None) -> bytes:
        """See `Stream.read_line`."""
        return self._lines.read_line(timeout_s)

    def finish(self) -> RemoteResult:
        """See `Stream.finish`."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        output = self._lines.read_all()
        code = self._process.wait()
        self._listener.join()
        return _result(self._command, code, output, b"".join(self._errors))

    def close(self) -> None:
        """See `Stream.close`."""
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _receive(self, timeout_s: float | None) -> bytes:
        if not select.select([self._stdout], [], [], timeout_s)[0]:
            raise ConnectionLostError(f"{self._name}: no answer for {timeout_s} s")
        return os.read(self._stdout.fileno(), _CHUNK)


def _result(command: str, code: int, output: bytes, errors: bytes) -> RemoteResult:
    return RemoteResult(
        command=command,
        # A shell would say 128 + n of a program that died of signal n.
        returncode=code if code >= 0 else 128 - code,
        stdout=output.decode(errors="replace"),
        stderr=errors.decode(errors="replace"),
    )
