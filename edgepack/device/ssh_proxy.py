"""A ProxyCommand: a program of this machine that leads to the SSH server."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

from edgepack.base import text
from edgepack.base.process import last_lines
from edgepack.device import process_group
from edgepack.device.errors import ProxyError
from edgepack.device.lines import Tail

_NOT_THERE, _NOT_EXECUTABLE = 127, 126
_END_S = 2.0
"""For a command to end once its output has."""


class ProxyCommand:
    """A running one; `socket` is what to speak SSH through.

    It runs as ssh(1) runs it: in the user's shell, which is replaced by it. With `passes_socket` it
    opens a connection and hands that over (ProxyUseFdpass).
    """

    def __init__(self, command: str, *, passes_socket: bool, timeout_s: float) -> None:
        self._command = command
        self._errors = Tail()
        self._too_many = False
        ours, theirs = socket.socketpair()
        shell = os.environ.get("SHELL") or "/bin/sh"
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [shell, "-c", f"exec {command}"],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise ProxyError(
                f"the shell {shell} for the ProxyCommand cannot be started: {error.strerror}",
                hint="$SHELL names it",
            ) from None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._begun = threading.Event()
        threading.Thread(target=self._watch, args=(timeout_s,), daemon=True).start()
        self.socket = self._passed(ours, timeout_s) if passes_socket else ours

    def begun(self) -> None:
        """The server at its other end has answered."""
        self._begun.set()

    def close(self) -> None:
        """End it, and all that it started."""
        self._begun.set()
        self.socket.close()
        self._end()

    def failure(self, where: str) -> ProxyError | None:
        """Why it ended, if it has, or was: its name and its last words."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return None
        self._listener.join(_END_S)
        name = text.one_line(_program(self._command), limit=80)
        said = last_lines(text.printable(self._errors.text()), 5)
        if self._too_many:
            return ProxyError(
                f"{where}: its ProxyCommand {name} starts itself again and again",
                hint="a `Host *` that says it applies to the host that it leads through as well: "
                "exclude that one (Host * !name)",
            )
        if code in (_NOT_THERE, _NOT_EXECUTABLE):
            what = "is not there" if code == _NOT_THERE else "cannot be executed"
            return ProxyError(
                f"{where}: its ProxyCommand {name} {what} (exit code {code})\n{said}".rstrip(),
                hint="install it, or mend ProxyCommand in the OpenSSH configuration",
                is_lasting=True,
            )
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ProxyError(
            f"{where}: its ProxyCommand {name} ended ({how}) without an answer\n{said}".rstrip(),
            hint=f"run it by hand: {text.one_line(self._command)}",
        )

    def _listen(self) -> None:
        assert self._process.stderr is not None  # it is a pipe
        with self._process.stderr as stream:
            while data := os.read(stream.fileno(), 1 << 12):
                self._errors.add(data)

    def _watch(self, timeout_s: float) -> None:
        """Until there is an answer: a command that starts itself must not fill the machine."""
        deadline = time.monotonic() + timeout_s
        while not self._begun.wait(0.2) and time.monotonic() < deadline:
            if process_group.count(self._process.pid) > process_group.MAX_PROCESSES:
                self._too_many = True
                self._end()
                return

    def _end(self) -> None:
        process_group.kill(self._process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def _passed(self, ours: socket.socket, timeout_s: float) -> socket.socket:
        with ours:
            ours.settimeout(timeout_s)
            with contextlib.suppress(OSError):
                _, handles, _, _ = socket.recv_fds(ours, 1, 1)
                if handles:
                    return socket.socket(fileno=handles[0])
        ends, other = socket.socketpair()
        other.close()
        return ends


def _program(command: str) -> str:
    """What the command line runs, of a shell's the first word."""
    return next(_words(command), command)


def _words(command: str) -> Iterator[str]:
    try:
        yield from shlex.split(command)
    except ValueError:
        yield from command.split()
