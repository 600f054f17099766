"""A fake device that dies at a given moment: its files are real, its link and power are not."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from edgepack.device import LocalDevice
from edgepack.device.base import RemoteResult
from edgepack.device.errors import ConnectionLostError, command_error

# Counts each simple command of a script, and kills the whole script at the fatal one.
# Subshells are not looked into: what only reads is done in them.
# Nothing is flushed, so that a test of hundreds of deaths takes seconds.
_UNFLUSHED_SHELL = "sync() { :; }\n"
_COUNTING_SHELL = """
trap 'printf x >>"$COUNT"; n=$(<"$COUNT"); [ ${#n} -ne "$FATAL" ] || kill -KILL 0' DEBUG
"""


class FakeDyingDevice(LocalDevice):
    """This machine, until operation `fatal`; 0 is never.

    An operation is a simple command of a script, the beginning and the middle of a
    `put`, and either side of a rename. The first command, which asks for facts, is none.
    """

    _facts: ClassVar[dict[str, RemoteResult]] = {}

    def __init__(self, home: Path, *, fatal: int = 0) -> None:
        super().__init__(home)
        self.name = "fake device"
        self._fatal = fatal
        self._count = home.parent / f"{home.name}.count"
        self._count.write_bytes(b"")
        self._dead = False
        self.commands: list[str] = []
        self.sent: dict[str, int] = {}

    @property
    def operations(self) -> int:
        return self._count.stat().st_size

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        self._alive()
        self.commands.append(command)
        if len(self.commands) == 1:
            # What this machine is stays the same for hundreds of deploys.
            if command not in self._facts:
                self._facts[command] = super().run(command, timeout_s=timeout_s, check=check)
            return self._facts[command]
        counting = _COUNTING_SHELL if self._fatal else ""
        process = subprocess.Popen(
            ["bash", "-c", f"{_UNFLUSHED_SHELL}{counting}\n{command}"],
            cwd=self._home,
            env={
                **os.environ,
                "LC_ALL": "C",
                "HOME": str(self._home),
                "COUNT": str(self._count),
                "FATAL": str(self._fatal),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        out, err = process.communicate(timeout=timeout_s)
        if process.returncode == -signal.SIGKILL:
            self._die()
        result = RemoteResult(
            command=command, returncode=process.returncode, stdout=out, stderr=err
        )
        if check and result.returncode != 0:
            raise command_error(self.name, result)
        return result

    def put(
        self,
        local: Path,
        remote: str,
        *,
        offset: int = 0,
        sent: Callable[[int], None] | None = None,
    ) -> None:
        data = local.read_bytes()
        half = offset + (len(data) - offset) // 2
        with (self._home / remote).open("r+b" if offset else "wb") as file:
            self._operation()
            file.seek(offset)
            file.write(data[offset:half])
            file.flush()
            self._operation()
            file.write(data[half:])
        self.sent[remote.partition(".part/")[2]] = len(data) - offset

    def rename(self, old: str, new: str) -> None:
        self._operation()
        super().rename(old, new)
        self._operation()

    def _operation(self) -> None:
        self._alive()
        with self._count.open("ab") as file:
            file.write(b"x")
        if self.operations == self._fatal:
            self._die()

    def _alive(self) -> None:
        if self._dead:
            self._die()

    def _die(self) -> None:
        self._dead = True
        raise ConnectionLostError("the fake device died")
