"""A device over SSH, by paramiko; the way there is `edgepack.device.ssh_route`'s."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko

from edgepack.base.errors import RemoteError
from edgepack.device import shell_files
from edgepack.device.base import RemoteResult, Stream
from edgepack.device.errors import (
    ConnectionLostError,
    RemoteTimeout,
    command_error,
    disk_full,
    make_timeout_error,
    not_started,
)
from edgepack.device.facts import parse_df
from edgepack.device.limit import SLOWEST_BYTES_S, UPLOAD_S, Limit, limited
from edgepack.device.lines import LineReader, Tail, count_seconds_left, deadline_of
from edgepack.device.options import Address, SshOptions
from edgepack.device.ssh_route import BROKEN, SILENCE_S, Route

log = logging.getLogger(__name__)

# An SFTP write of this size and its header fill one SSH packet. Above 32,675 bytes
# paramiko splits it in two, which costs up to 100 times the speed (paramiko #2438).
_CHUNK = 32_000
_NO_EXIT_STATUS = -1
_SESSION_TRIES = 4
_MAX_PATH = 4096  # Linux's PATH_MAX


class SshDevice:
    """A machine with an SSH server.

    Files go over SFTP; where the server has none, as dropbear, through shell commands. Connects
    at once; raises a subclass of ConnectError if that fails.
    """

    def __init__(self, address: Address, *, options: SshOptions, name: str | None = None) -> None:
        self.name = name or str(address)
        self.is_emulated = False
        self._address, self._options = address, options
        self._has_sftp = True
        self._home: str | None = None
        self._host_key = ""
        self._connect()

    def _connect(self) -> None:
        self._sftp: paramiko.SFTPClient | None = None
        self._connection = Route(self._options).connection(self._address)
        self._connection.expected = self._host_key
        try:
            self._connection.open()
        except BaseException:
            self.close()
            raise
        self._host_key = self._connection.host_key

    @property
    def host_key(self) -> str:
        """The kind and the fingerprint of the host key that it was let in with."""
        return self._connection.host_key

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        """See `Device.run`. After a time-out the command may go on there until it next writes."""
        log.debug("%s: run %s", self.name, command)
        stream = self._start(command, timeout_s)
        try:
            result = stream.finish()
        finally:
            stream.close()
        if check and result.returncode != 0:
            raise command_error(self.name, result)
        return result

    def open(self, command: str) -> Stream:
        """See `Device.open`."""
        log.debug("%s: open %s", self.name, command)
        return self._start(command, None)

    def _start(self, command: str, timeout_s: float | None) -> _SshStream:
        limit = self._options.command_timeout_s if timeout_s is None else timeout_s
        # Not Connection.run: it connects anew by itself, and gives status -1 for a lost link.
        if not self._connection.is_connected:
            raise self._lost("the connection is closed")
        mark = f"edgepack-{secrets.token_hex(8)}"
        line = shell_line(f'set --; {self._enter_home()}; echo; echo {mark} "$PWD"\n{command}')
        # paramiko would wait for the answer to it for ever.
        patience_s = SILENCE_S if limit is None else min(limit, SILENCE_S)
        deadline = deadline_of(patience_s)
        for more in reversed(range(_SESSION_TRIES)):
            try:
                channel: paramiko.Channel = self._connection.open_session()
                with _watch(channel, patience_s):
                    channel.exec_command(line)
                break
            except BROKEN as error:
                # dropbear closes a session that has just been opened if the program of another one
                # ends at that moment: nothing was started in it.
                if not (more and self._connection.is_connected and count_seconds_left(deadline)):
                    raise self._lost(error) from None
                log.debug("%s: a session was closed at once: %s", self.name, error)
        return _SshStream(self, command, channel, mark=mark, timeout_s=limit, lost=self._lost)

    def _enter_home(self) -> str:
        """A command that goes where relative paths begin, wherever a start file has gone: a login
        without a home begins at the top."""
        where = '"$HOME"' if self._home is None else shlex.quote(self._home)
        return f"cd {where} 2>/dev/null && cd -P . || cd /"

    def note_home(self, folder: bytes) -> None:
        """Where the first command began: all others begin there, whatever $HOME is by then."""
        if self._home is None and folder.startswith(b"/") and len(folder) <= _MAX_PATH:
            self._home = os.fsdecode(folder)

    def _absolute(self, path: str) -> str:
        """`path` for SFTP, which begins elsewhere if its server does."""
        if path.startswith("/"):
            return path
        if self._home is None:
            self.run(":")
        return f"{self._home or ''}/{path}"

    def put(
        self,
        local: Path,
        remote: str,
        *,
        offset: int = 0,
        sent: Callable[[int], None] | None = None,
    ) -> None:
        """See `Device.put`. Many writes are under way at any time."""
        log.debug("%s: put %s to %s from byte %d", self.name, local, remote, offset)
        with limited(self, UPLOAD_S, f"the upload of {remote}") as limit:
            self._put(local, remote, offset, limit.told_of(sent))

    def _put(self, local: Path, remote: str, offset: int, sent: Callable[[int], None]) -> None:
        size = local.stat().st_size
        try:
            files = self._files()
            if files is None:
                start = functools.partial(self._start, timeout_s=None)
                shell_files.put(self.name, start, local, remote, offset=offset, sent=sent)
                return
            with (
                local.open("rb") as source,
                files.open(self._absolute(remote), "r+b" if offset else "wb") as file,
            ):
                source.seek(offset)
                file.seek(offset)
                file.set_pipelined(True)
                while chunk := source.read(_CHUNK):
                    # paramiko drops the answers that are still due when a file is closed,
                    # "disk full" among them; a write that is not pipelined waits for all.
                    if source.tell() >= size:
                        file.set_pipelined(False)
                    file.write(chunk)
                    sent(len(chunk))
        except BROKEN as error:
            raise self._file_error(error, remote, needed=size) from None

    def get(self, remote: str, local: Path) -> None:
        """See `Device.get`."""
        log.debug("%s: get %s to %s", self.name, remote, local)
        with limited(self, UPLOAD_S, f"the download of {remote}") as limit:
            self._get(remote, local, limit.moved)

    def _get(self, remote: str, local: Path, moved: Callable[[int], None]) -> None:
        try:
            files = self._files()
            if files is None:
                start = functools.partial(self._start, timeout_s=None)
                shell_files.get(self.name, start, remote, local, moved=moved)
                return
            # Not SFTPClient.get, which takes whatever size the other side says.
            with files.open(self._absolute(remote), "rb") as file, local.open("wb") as target:
                size = file.stat().st_size or 0
                shell_files.check_size(self.name, remote, size)
                file.prefetch(size, 64)
                while size > 0 and (piece := file.read(min(size, _CHUNK))):
                    target.write(piece)
                    moved(len(piece))
                    size -= len(piece)
        except BROKEN as error:
            raise self._file_error(error, remote) from None

    def rename(self, old: str, new: str) -> None:
        """See `Device.rename`."""
        log.debug("%s: rename %s to %s", self.name, old, new)
        try:
            files = self._files()
            if files is None:
                done = self.run(shell_files.rename_command(old, new), check=False)
                shell_files.check(self.name, done, new)
            else:
                files.posix_rename(self._absolute(old), self._absolute(new))
        except BROKEN as error:
            raise self._file_error(error, new) from None

    def mkdir(self, path: str) -> None:
        """See `Device.mkdir`."""
        self.run(f"mkdir -p -- {shlex.quote(path)}")

    def reconnect(self) -> None:
        """See `Device.reconnect`."""
        self.close()
        self._connect()

    def close(self) -> None:
        """See `Device.close`."""
        self._connection.close()

    def abort(self) -> None:
        """See `Device.abort`: no word of good-bye could make it wait."""
        self._connection.close()

    def _files(self) -> paramiko.SFTPClient | None:
        """What talks SFTP; None if the server there does not."""
        if self._sftp is None and self._has_sftp:
            if not self._connection.is_connected:
                raise self._lost("the connection is closed")
            try:
                with _watch(self._connection.transport, SILENCE_S):
                    self._sftp = self._connection.open_sftp()
            except (*BROKEN, paramiko.SFTPError) as error:
                if not self._connection.is_connected:
                    raise self._lost(error) from None
                log.debug("%s: its SSH server has no SFTP: %s", self.name, error)
                self._has_sftp = False
                return None
            channel = self._sftp.get_channel()
            assert channel is not None
            channel.settimeout(SILENCE_S)
        return self._sftp

    def _file_error(
        self, error: Exception, path: str, *, needed: int = 0
    ) -> RemoteError | ConnectionLostError:
        channel = self._sftp.get_channel() if self._sftp else None
        gone = channel is None or channel.closed or not self._connection.is_connected
        if gone or isinstance(error, TimeoutError | EOFError | paramiko.SSHException):
            return self._lost(error)
        if isinstance(error, OSError) and error.errno is None and self._is_full(path, needed):
            # SFTP has no code for ENOSPC: its server says "Failure".
            return disk_full(self.name, f"  {path}: {error}")
        return RemoteError(f"{path} on {self.name}: {error}")

    def _is_full(self, path: str, needed: int) -> bool:
        folder = shlex.quote(path.rpartition("/")[0] or ".")
        done = self.run(f"df -Pk {folder}", check=False)
        try:
            return parse_df(done.stdout) < needed
        except ValueError:
            return False

    def _lost(self, reason: object) -> ConnectionLostError:
        return ConnectionLostError(
            f"connection to {self.name} lost: {str(reason) or type(reason).__name__}",
            hint="run the command again; an upload goes on where it stopped",
        )


class _SshStream:
    """See `Stream`."""

    def __init__(
        self,
        device: SshDevice,
        command: str,
        channel: paramiko.Channel,
        *,
        mark: str,
        timeout_s: float | None,
        lost: Callable[[object], ConnectionLostError],
    ) -> None:
        self._name, self._command, self._timeout_s = device.name, command, timeout_s
        self._channel = channel
        self._lost = lost
        transport = channel.get_transport()
        assert transport is not None  # the channel was opened through it
        self._transport = transport
        self._device = device
        self._lines = LineReader(self._receive, device.name, mark=mark.encode())
        # Errors that nobody reads would fill the window, and stop the command.
        self._errors = Tail()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def write(self, data: bytes) -> None:
        """See `Stream.write`."""
        # A window that opens byte by byte is never silent. To close the channel alone would wait
        # for the same socket.
        limit = Limit(self._transport.close, UPLOAD_S + len(data) / SLOWEST_BYTES_S)
        try:
            for start in range(0, len(data), _CHUNK):
                self._channel.settimeout(SILENCE_S)
                self._channel.sendall(data[start : start + _CHUNK])
        except BROKEN as error:
            if self._channel.closed and self._channel.exit_status != _NO_EXIT_STATUS:
                raise BrokenPipeError from None
            raise self._lost(error) from None
        finally:
            limit.end()

    def read_line(self, timeout_s: float | None = None, *, begun: bool = False) -> bytes:
        """See `Stream.read_line`."""
        try:
            line = self._lines.read_line(timeout_s, begun=begun)
            self._device.note_home(self._lines.after_mark)
            return line
        except TimeoutError as error:
            raise self._lost(error) from None

    def read_piece(self, timeout_s: float) -> bytes:
        """What comes next, as it comes; empty at the end. Raises ConnectionLostError."""
        try:
            piece = self._lines.read_piece(timeout_s)
            self._device.note_home(self._lines.after_mark)
            return piece
        except TimeoutError as error:
            raise self._lost(error) from None

    def finish(self) -> RemoteResult:
        """See `Stream.finish`."""
        deadline = deadline_of(self._timeout_s)
        with contextlib.suppress(*BROKEN):
            self._channel.shutdown_write()
        try:
            output = self._lines.read_all(count_seconds_left(deadline))
            self._device.note_home(self._lines.after_mark)
        except TimeoutError:
            raise self._late() from None
        self._listener.join(count_seconds_left(deadline))
        if not self._channel.status_event.wait(count_seconds_left(deadline)):
            raise self._late()
        status = self._channel.recv_exit_status()
        self.close()
        if status == _NO_EXIT_STATUS:
            raise self._lost("no exit status came")
        result = RemoteResult(
            command=self._command,
            returncode=status,
            stdout=output.decode(errors="replace"),
            stderr=self._errors.text(),
        )
        if not self._lines.begun:
            raise not_started(self._name, result)
        return result

    def close(self) -> None:
        """See `Stream.close`."""
        with contextlib.suppress(*BROKEN):
            self._channel.close()

    def _late(self) -> RemoteTimeout:
        return make_timeout_error(self._name, self._command, self._timeout_s)

    def _listen(self) -> None:
        # The time-out is that of whoever else waits for the channel.
        while True:
            with contextlib.suppress(TimeoutError):
                data = self._channel.recv_stderr(1 << 16)
                if not data:
                    return
                self._errors.add(data)

    def _receive(self, timeout_s: float | None) -> bytes:
        try:
            self._channel.settimeout(timeout_s)
            data: bytes = self._channel.recv(1 << 16)
        except TimeoutError:
            raise
        except BROKEN as error:
            raise self._lost(error) from None
        if not data and not self._transport.is_active():
            raise self._lost("it was cut")
        return data


def shell_line(command: str) -> str:
    """What a login shell of any kind makes `sh` run `command` of: csh, fish and all.

    csh takes no newline in quotes, and `!` for history even there; fish takes a backslash in
    quotes for its own: those go over as octal numbers, which printf makes characters of.
    """
    octal = {ord(letter): f"\\0{ord(letter):03o}" for letter in "\n'!\\"}
    return f"exec env LC_ALL=C sh -c 'eval \"$(printf %b \"$1\")\"' sh '{command.translate(octal)}'"


@contextlib.contextmanager
def _watch(it: paramiko.Channel | paramiko.Transport, timeout_s: float) -> Iterator[None]:
    """Close `it` if what is done with it takes longer: for waits of paramiko without an end."""

    def close() -> None:
        # The connection may have gone before, or go at this moment: then there is nothing to close.
        with contextlib.suppress(EOFError, OSError, paramiko.SSHException):
            it.close()

    timer = threading.Timer(timeout_s, close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
