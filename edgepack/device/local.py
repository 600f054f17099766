"""This machine as a device."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from edgepack.device.base import RemoteResult
from edgepack.device.errors import RemoteTimeout, command_error, disk_full, shorten
from edgepack.errors import RemoteError

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
        process = subprocess.Popen(
            ["env", "LC_ALL=C", f"HOME={self._home}", "sh", "-c", command],
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
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
        # A shell would say 128 + n of a program that died of signal n.
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        result = RemoteResult(
            command=command,
            returncode=code,
            stdout=output.decode(errors="replace"),
            stderr=errors.decode(errors="replace"),
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

    def close(self) -> None:
        """See `Device.close`."""

    def _error(self, error: OSError, path: str) -> RemoteError:
        if error.errno == errno.ENOSPC:
            return disk_full(self.name, str(error))
        return RemoteError(f"{path} on {self.name}: {error.strerror}")
