"""A phone, or any other device that runs adbd: through Android's own `adb` program.

`adb shell -T` is a stream of bytes each way since Android 7 (the shell protocol, version 2).
What is said there ends with a line of ours that has the exit code: adb's own is 0 or 255,
depending on its version, for a device that is gone, and 1 for what went wrong on the way.
"""

from __future__ import annotations

import logging
import re
import secrets
import shlex
import subprocess
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edgepack.base import text
from edgepack.base.errors import ConnectError, UsageError
from edgepack.base.process import last_lines
from edgepack.base.tools import find_tool
from edgepack.device import child, shell_files
from edgepack.device.base import RemoteResult, Stream
from edgepack.device.child import ChildStream
from edgepack.device.errors import (
    AuthError,
    ConnectionLostError,
    UnreachableError,
)
from edgepack.device.limit import UPLOAD_S, limited
from edgepack.device.options import COMMAND_TIMEOUT_S
from edgepack.device.safe_names import is_safe

log = logging.getLogger(__name__)

PREFIX = "adb:"
FOLDER = "/data/local/tmp"
"""Where adb's shell may write and run programs on Android: it has no home folder there."""

_SHELL_PROTOCOL = "shell_v2"
_SILENCE_S = 120.0
"""As long as nothing may move on a link."""

_NETWORK = re.compile(r"\S+:[0-9]{1,5}")
_END_WAIT_S = 10.0
"""For adb to end once its output has."""

_HINTS = {
    "unauthorized": "unlock its screen and accept this computer's key there; if nothing is asked: "
    "`adb kill-server`, and plug it in again",
    "permission": "its USB device may not be opened here: udev rules for it are in Debian's "
    "android-sdk-platform-tools-common, for members of the group plugdev",
    "offline": "plug it in again, or `adb reconnect offline`",
    "not found": "`adb devices -l` lists those that adb sees; over the network: "
    "adb:ADDRESS:PORT, after `adb pair` where Android asks for it",
}
"""What to do, by a word of adb's message."""


def serial_of(spec: str) -> str | None:
    """The serial number in `adb:SERIAL`, or None if `spec` names a device of another kind.

    Raises UsageError for what can be none.
    """
    if not spec.startswith(PREFIX):
        return None
    serial = spec.removeprefix(PREFIX)
    if serial and not (serial.isascii() and is_safe(serial)):
        raise UsageError(
            f"--device {PREFIX}: not a serial number: {text.one_line(repr(serial))}",
            hint="`adb devices` lists them",
        )
    return serial


class AdbDevice:
    """The device with this serial number, or the only one there is.

    `serial` is as `serial_of` has it; an address and a port is connected to first. Relative paths
    start at `FOLDER`, or, where there is no such folder, at the home folder. A command may take
    `timeout_s` seconds, unless it has a limit of its own; connecting, `connect_timeout_s`.

    Raises:
        UnreachableError: there is no such device, or it does not answer.
        AuthError: its user has not accepted this computer's key.
        UsageError: there are several, and none is named.
        ConnectError: its adbd is too old.
        ToolMissingError: adb is not installed.
    """

    def __init__(
        self,
        serial: str = "",
        *,
        timeout_s: float | None = COMMAND_TIMEOUT_S,
        connect_timeout_s: float = 10,
    ) -> None:
        self.name = f"{PREFIX}{serial}"
        self._serial = serial
        self._timeout_s, self._connect_timeout_s = timeout_s, connect_timeout_s
        self._program = str(find_tool("adb"))
        self._streams: weakref.WeakSet[_AdbStream] = weakref.WeakSet()
        self._aborted = False
        self._connect()

    def _connect(self) -> None:
        # Else the first command would start it, and the server would hold that one's pipes.
        started = self._ask("start-server")
        if started.returncode != 0:
            raise UnreachableError(
                f"{self.name}: adb's server does not start\n{last_lines(started.stderr)}",
                hint="`adb start-server` shows the same",
            )
        failure = ""
        if _NETWORK.fullmatch(self._serial):
            said = self._ask("connect", self._serial).stdout
            failure = said if said.startswith(("failed", "unable", "cannot")) else ""
        if not self._serial:
            done = self._ask("get-serialno")
            if done.returncode != 0:
                raise self._refused(done.stderr)
            self._serial = done.stdout.strip()
            self.name = f"{PREFIX}{self._serial}"
        done = self._ask("features")
        if done.returncode != 0:
            raise self._refused(failure or done.stderr)
        if _SHELL_PROTOCOL not in done.stdout.split():
            raise ConnectError(
                f"{self.name}: its adbd does not speak {_SHELL_PROTOCOL}: it mixes up what a "
                "command says, and does not tell how it ended",
                hint="Android 7 and newer do; before that, reach it by SSH (Termux has a server)",
            )

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What adb itself answers; a time-out is an answer as well."""
        command = [self._program, *(["-s", self._serial] if self._serial else []), *words]
        log.debug("%s: %s", self.name, shlex.join(command))
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=self._connect_timeout_s,
            )
        except subprocess.TimeoutExpired:
            said = f"error: no answer in {self._connect_timeout_s} s to `adb {shlex.join(words)}`"
            return subprocess.CompletedProcess(command, 1, stdout="", stderr=said)

    def _refused(self, said: str) -> ConnectError | UsageError:
        """The error for what adb says of a device that it cannot use."""
        # Lines that begin with a star tell of adb's server.
        told = [line for line in said.splitlines() if line.strip() and line[0] != "*"]
        reason = text.one_line(told[0] if told else "no answer").removeprefix("error: ")
        there = self._devices()
        if "more than one" in reason:
            return UsageError(
                f"--device {PREFIX}: there are several: {', '.join(there)}",
                hint=f"name one: --device {PREFIX}{next(iter(there), 'SERIAL')}",
            )
        state = f"{reason} {there.get(self._serial, '')}"
        kind = AuthError if "unauthorized" in state else UnreachableError
        seen = ", ".join(f"{serial} ({state})" for serial, state in there.items()) or "none"
        return kind(
            f"{self.name}: {reason.rstrip('.')}; devices that adb sees: {seen}",
            hint=next((_HINTS[word] for word in _HINTS if word in state), _HINTS["not found"]),
        )

    def _devices(self) -> dict[str, str]:
        """Serial number and state of each."""
        done = self._ask("devices")
        rows = (line.split("\t", 1) for line in done.stdout.splitlines()[1:] if "\t" in line)
        return {text.one_line(serial): text.one_line(state) for serial, state in rows}

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        """See `Device.run`. After a time-out the command may go on there until it next writes."""
        log.debug("%s: run %s", self.name, command)
        limit = self._timeout_s if timeout_s is None else timeout_s
        return self._start(command, limit, interactive=False).complete(check=check)

    def open(self, command: str) -> Stream:
        """See `Device.open`."""
        return self._open(command)

    def _open(self, command: str) -> _AdbStream:
        log.debug("%s: open %s", self.name, command)
        return self._start(command, self._timeout_s, interactive=True)

    def _start(self, command: str, timeout_s: float | None, *, interactive: bool) -> _AdbStream:
        if self._aborted:
            raise ConnectionLostError(f"connection to {self.name} lost: it was let go of")
        mark = f"edgepack-{secrets.token_hex(8)}"
        script = shell_script(command, mark)
        words = [self._program, "-s", self._serial, "shell", "-T", script]
        process = child.start(words, interactive=interactive)
        stream = _AdbStream(self.name, command, process, mark=mark, timeout_s=timeout_s)
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
        """See `Device.put`. adb's own `push` cannot go on where an upload stopped."""
        with limited(self, UPLOAD_S, f"the upload of {remote}") as limit:
            told = limit.told_of(sent)
            shell_files.put(self.name, self._open, local, remote, offset=offset, sent=told)

    def get(self, remote: str, local: Path) -> None:
        """See `Device.get`."""
        with limited(self, UPLOAD_S, f"the download of {remote}") as limit:
            shell_files.get(self.name, self._open, remote, local, moved=limit.moved)

    def rename(self, old: str, new: str) -> None:
        """See `Device.rename`."""
        done = self.run(shell_files.rename_command(old, new), check=False)
        shell_files.check(self.name, done, new)

    def mkdir(self, path: str) -> None:
        """See `Device.mkdir`."""
        self.run(f"mkdir -p -- {shlex.quote(path)}")

    def reconnect(self) -> None:
        """See `Device.reconnect`. A phone that was plugged in again takes a moment to be there."""
        self._aborted = False
        network = _NETWORK.fullmatch(self._serial)
        self._ask(*(("disconnect", self._serial) if network else ("wait-for-device",)))
        self._connect()

    def close(self) -> None:
        """See `Device.close`. adb's server stays: it is everybody's."""

    def abort(self) -> None:
        """See `Device.abort`."""
        self._aborted = True
        for stream in list(self._streams):
            stream.abort()


class _AdbStream(ChildStream):
    """`adb shell`; after all that the command says on its standard error comes `mark`."""

    def __init__(
        self,
        name: str,
        command: str,
        process: subprocess.Popen[bytes],
        *,
        mark: str,
        timeout_s: float | None,
    ) -> None:
        self._mark = mark
        super().__init__(name, command, process, timeout_s=timeout_s, silence_s=_SILENCE_S)

    def write(self, data: bytes) -> None:
        """See `Stream.write`."""
        try:
            super().write(data)
        except BrokenPipeError:
            self._check_end()
            raise

    def receive(self, timeout_s: float | None) -> bytes:
        """See `ChildStream.receive`; raises ConnectionLostError instead of an end that is none."""
        piece = super().receive(timeout_s)
        if not piece:
            self._check_end()
        return piece

    def finish(self) -> RemoteResult:
        """See `Stream.finish`."""
        result = super().finish()
        said, code = self._split(result.stderr)
        if code is None:
            raise self._lost(said)
        return replace(result, returncode=code, stderr=said)

    def close(self) -> None:
        """See `Stream.close`. adb waits for what it has not been told to be over."""
        super().close()
        if self._process.poll() is None:
            self.kill()

    def _check_end(self) -> None:
        """Raise ConnectionLostError if the command has not come to its end, as adb has."""
        try:
            self._process.wait(_END_WAIT_S)
            self._listener.join(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            raise self._lost("adb does not end") from None
        said, code = self._split(self._errors.text())
        if code is None:
            raise self._lost(said)

    def _split(self, stderr: str) -> tuple[str, int | None]:
        """What the command said, and its exit code; None if adb ended before it."""
        said, _, code = stderr.rpartition(f"\n{self._mark} ")
        end = re.match(r"[0-9]{1,3}\n", code) if _ else None
        return (said + code[end.end() :], int(end[0])) if end else (stderr, None)

    def _lost(self, said: str) -> ConnectionLostError:
        reason = text.printable(last_lines(said, 1).strip()).removeprefix("error: ")
        return ConnectionLostError(
            f"connection to {self.name} lost: {reason or 'it was cut'}",
            hint="run the command again; an upload goes on where it stopped",
        )


def shell_script(command: str, mark: str) -> str:
    """What the device's shell makes of `command`: in the right folder, and `mark` at the end."""
    return (
        f"cd {FOLDER} 2>/dev/null && export HOME=$PWD TMPDIR=$PWD || cd\n"
        f"LC_ALL=C sh -c {shlex.quote(command)}\n"
        f'code=$?; printf "\\n%s %d\\n" {mark} $code >&2; exit $code'
    )
