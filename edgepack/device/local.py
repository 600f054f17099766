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
from edgepack.device.base import RemoteResult, Stream
from edgepack.device.errors import ConnectionLostError, command_error, disk_full, timed_out
from edgepack.device.lines import LineReader, Tail, deadline_of, left
from edgepack.device.options import COMMAND_TIMEOUT_S

log = logging.getLogger(__name__)

_CHUNK = 1 << 20
_PIECE = 1 << 16


class LocalDevice:
    """Commands through `sh`; relative paths start at `home`, by default the user's.

    A command may take `timeout_s` seconds, unless it has a limit of its own.
    """

    def __init__(
        self, home: Path | None = None, *, timeout_s: float | None = COMMAND_TIMEOUT_S
    ) -> None:
        self.name = "local"
        self._home = home or Path.home()
        self._timeout_s = timeout_s

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        """See `Device.run`."""
        log.debug("%s: run %s", self.name, command)
        limit = self._timeout_s if timeout_s is None else timeout_s
        process = self._start(command, stdin=subprocess.DEVNULL)
        stream = _LocalStream(self.name, command, process, timeout_s=limit)
        try:
            result = stream.finish()
        except BaseException:
            # What the shell started must go too: it holds the pipes, and the processor.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            stream.close()
        if check and result.returncode != 0:
            raise command_error(self.name, result)
        return result

    def open(self, command: str) -> Stream:
        """See `Device.open`."""
        log.debug("%s: open %s", self.name, command)
        process = self._start(command, stdin=subprocess.PIPE)
        return _LocalStream(self.name, command, process, timeout_s=self._timeout_s)

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

    def __init__(
        self,
        name: str,
        command: str,
        process: subprocess.Popen[bytes],
        *,
        timeout_s: float | None,
    ) -> None:
        self._name, self._command, self._timeout_s = name, command, timeout_s
        self._process = process
        assert process.stdout and process.stderr  # both are pipes
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._lines = LineReader(self._receive, name)
        # A command that complains much would stop at a full pipe.
        self._errors = Tail()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def write(self, data: bytes) -> None:
        """See `Stream.write`."""
        assert self._stdin is not None  # `open` gave it one
        self._stdin.write(data)
        self._stdin.flush()

    def read_line(self, timeout_s: float | None = None) -> bytes:
        """See `Stream.read_line`."""
        try:
            return self._lines.read_line(timeout_s)
        except TimeoutError:
            raise ConnectionLostError(f"{self._name}: no answer for {timeout_s} s") from None

    def finish(self) -> RemoteResult:
        """See `Stream.finish`."""
        deadline = deadline_of(self._timeout_s)
        with contextlib.suppress(BrokenPipeError):
            if self._stdin is not None:
                self._stdin.close()
        try:
            output = self._lines.read_all(left(deadline))
            code = self._process.wait(left(deadline))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise timed_out(self._name, self._command, self._timeout_s) from None
        self._listener.join(left(deadline))
        return RemoteResult(
            command=self._command,
            # A shell would say 128 + n of a program that died of signal n.
            returncode=code if code >= 0 else 128 - code,
            stdout=output.decode(errors="replace"),
            stderr=self._errors.text(),
        )

    def close(self) -> None:
        """See `Stream.close`."""
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _receive(self, timeout_s: float | None) -> bytes:
        if not select.select([self._stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        return os.read(self._stdout.fileno(), _PIECE)

    def _listen(self) -> None:
        with self._stderr:
            while data := os.read(self._stderr.fileno(), _PIECE):
                self._errors.add(data)
