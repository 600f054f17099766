"""This machine as a device."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path

from edgepack.base.errors import RemoteError
from edgepack.device import child
from edgepack.device.base import RemoteResult, Stream
from edgepack.device.child import ChildStream
from edgepack.device.errors import ConnectionLostError, disk_full
from edgepack.device.options import COMMAND_TIMEOUT_S

log = logging.getLogger(__name__)

_CHUNK = 1 << 20


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
        self._streams: weakref.WeakSet[ChildStream] = weakref.WeakSet()
        self._aborted = False

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        """See `Device.run`."""
        log.debug("%s: run %s", self.name, command)
        limit = self._timeout_s if timeout_s is None else timeout_s
        return self._start(command, limit, interactive=False).complete(check=check)

    def open(self, command: str) -> Stream:
        """See `Device.open`."""
        log.debug("%s: open %s", self.name, command)
        return self._start(command, self._timeout_s, interactive=True)

    def _start(self, command: str, timeout_s: float | None, *, interactive: bool) -> ChildStream:
        if self._aborted:
            raise ConnectionLostError(f"{self.name}: it was let go of")
        words = ["env", "LC_ALL=C", f"HOME={self._home}", "sh", "-c", command]
        process = child.start(words, interactive=interactive, cwd=self._home)
        stream = ChildStream(self.name, command, process, timeout_s=timeout_s)
        self._streams.add(stream)
        return stream

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
        self._aborted = False

    def close(self) -> None:
        """See `Device.close`."""

    def abort(self) -> None:
        """See `Device.abort`."""
        self._aborted = True
        for stream in list(self._streams):
            stream.abort()

    def _error(self, error: OSError, path: str) -> RemoteError:
        if error.errno == errno.ENOSPC:
            return disk_full(self.name, str(error))
        return RemoteError(f"{path} on {self.name}: {error.strerror}")
