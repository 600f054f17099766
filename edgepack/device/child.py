"""A process of this machine as the stream of a command: it runs it, or leads to where it runs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from edgepack.device.base import RemoteResult
from edgepack.device.errors import ConnectionLostError, command_error, make_timeout_error
from edgepack.device.lines import LineReader, Tail, count_seconds_left, deadline_of

_PIECE = 1 << 16


def start(
    words: Sequence[str], *, interactive: bool, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `words` in a process group of its own, without standard input if not `interactive`."""
    return subprocess.Popen(
        words,
        cwd=cwd,
        stdin=subprocess.PIPE if interactive else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


class ChildStream:
    """See `Stream`. What `process` writes is the command's output, its exit code the command's.

    The command of the device `name` may take `timeout_s` seconds in all. A write raises
    ConnectionLostError when nothing was taken for `silence_s` seconds (None: it waits).
    """

    def __init__(
        self,
        name: str,
        command: str,
        process: subprocess.Popen[bytes],
        *,
        timeout_s: float | None,
        silence_s: float | None = None,
    ) -> None:
        self.name, self._command = name, command
        self._timeout_s, self._silence_s = timeout_s, silence_s
        self._process = process
        assert process.stdout and process.stderr  # both are pipes
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        if self._stdin is not None:
            os.set_blocking(self._stdin.fileno(), False)
        self._lines = LineReader(self.receive, name)
        # A command that complains much would stop at a full pipe.
        self._errors = Tail()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def write(self, data: bytes) -> None:
        """See `Stream.write`."""
        assert self._stdin is not None  # it was started with one
        rest = memoryview(data)
        while rest:
            if not select.select([], [self._stdin], [], self._silence_s)[1]:
                raise ConnectionLostError(f"{self.name}: took nothing for {self._silence_s} s")
            rest = rest[os.write(self._stdin.fileno(), rest) :]

    def read_line(self, timeout_s: float | None = None, *, begun: bool = False) -> bytes:
        """See `Stream.read_line`."""
        try:
            return self._lines.read_line(timeout_s, begun=begun)
        except TimeoutError:
            raise ConnectionLostError(f"{self.name}: no answer for {timeout_s} s") from None

    def read_piece(self, timeout_s: float) -> bytes:
        """See `shell_files.ByteStream`."""
        try:
            return self._lines.read_piece(timeout_s)
        except TimeoutError:
            raise ConnectionLostError(f"{self.name}: no answer for {timeout_s} s") from None

    def receive(self, timeout_s: float | None) -> bytes:
        """The next piece of the output, beside `read_line`; empty at its end.

        Raises TimeoutError after `timeout_s` seconds without one.
        """
        if not select.select([self._stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        return os.read(self._stdout.fileno(), _PIECE)

    def finish(self) -> RemoteResult:
        """See `Stream.finish`."""
        deadline = deadline_of(self._timeout_s)
        if self._stdin is not None:
            self._stdin.close()
        try:
            output = self._lines.read_all(count_seconds_left(deadline))
            code = self._process.wait(count_seconds_left(deadline))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise make_timeout_error(self.name, self._command, self._timeout_s) from None
        self._listener.join(count_seconds_left(deadline))
        return RemoteResult(
            command=self._command,
            # A shell would say 128 + n of a program that died of signal n.
            returncode=code if code >= 0 else 128 - code,
            stdout=output.decode(errors="replace"),
            stderr=self._errors.text(),
        )

    def complete(self, *, check: bool) -> RemoteResult:
        """`finish` and `close`, with nothing left running if that fails; `check` as in
        `Device.run`."""
        try:
            result = self.finish()
        except BaseException:
            self.kill()
            raise
        finally:
            self.close()
        if check and result.returncode != 0:
            raise command_error(self.name, result)
        return result

    def close(self) -> None:
        """See `Stream.close`."""
        for pipe in (self._stdin, self._stdout):
            if pipe is not None:
                pipe.close()

    def abort(self) -> None:
        """End what is still running; from any thread."""
        if self._process.poll() is None:
            self.kill()

    def kill(self) -> None:
        """End the process and what it started: they hold the pipes, and the processor."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _listen(self) -> None:
        with self._stderr:
            while data := os.read(self._stderr.fileno(), _PIECE):
                self._errors.add(data)
