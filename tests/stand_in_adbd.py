"""A stand-in for adbd, Android's daemon at the other end of `adb`: no real one can be had here.

It speaks adbd's protocol (AOSP, packages/modules/adb: protocol.txt, shell_protocol.h) on a loopback
port, so that Debian's real adb talks to it, and runs commands on this machine, with the folder as
their home. As on Android, their shell is mksh and their tools are toybox, and they cannot make hard
links. It takes files from `adb push` (SYNC.TXT). What a real one does beyond that is not here:
pull, forwarding, TLS, USB.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import functools
import os
import platform
import queue
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.support import require_tool

# Messages are 24 bytes and their data: command, two arguments, size and sum of the data, and the
# command with all bits turned.
_HEADER = struct.Struct("<4s5I")
_VERSION = 0x01000001  # sums are left out
_MAX_DATA = 64 << 10
_TOKEN, _SIGNATURE, _PUBLIC_KEY = 1, 2, 3

# The sync protocol: u8[4] id, u32le size or time, and data.
_SYNC = struct.Struct("<4sI")
_STAT = struct.Struct("<4s3I")  # mode, size, time

# The shell protocol: packets of u8 kind, u32le size and data.
_PACKET = struct.Struct("<BI")
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN = range(5)


class StandInAdbd:
    """Listens on 127.0.0.1:`port`. `cut` resets all connections at once."""

    def __init__(
        self, folder: Path, *, features: str = "shell_v2,cmd", authorized: bool = True
    ) -> None:
        self.folder, self.features, self.authorized = folder, features, authorized
        self.tools = android_tools()
        self.connections = 0
        self._socks: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def serial(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> StandInAdbd:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._socks.append(sock)
            connection = _Connection(self, sock)
            threading.Thread(target=connection.serve, daemon=True).start()


class _Connection:
    """One adb server that is connected."""

    def __init__(self, adbd: StandInAdbd, sock: socket.socket) -> None:
        self._adbd, self._sock = adbd, sock
        self._file = sock.makefile("rb")
        self._sending = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._last_id = 0

    def serve(self) -> None:
        _forbid_hard_links()
        with contextlib.suppress(OSError, ValueError), self._sock, self._file:
            while header := self._file.read(_HEADER.size):
                command, first, second, size, _, magic = _HEADER.unpack(header)
                assert int.from_bytes(command, "little") ^ magic == 0xFFFFFFFF
                self._take(command, first, second, self._file.read(size))
        for stream in list(self._streams.values()):
            stream.hang_up()

    def send(self, command: bytes, first: int, second: int, data: bytes = b"") -> None:
        magic = int.from_bytes(command, "little") ^ 0xFFFFFFFF
        with self._sending, contextlib.suppress(OSError):
            self._sock.sendall(_HEADER.pack(command, first, second, len(data), 0, magic) + data)

    def drop(self, number: int) -> None:
        self._streams.pop(number, None)

    def _take(self, command: bytes, first: int, second: int, data: bytes) -> None:
        if command in (b"CNXN", b"AUTH"):
            self._greet(command, first)
        elif command == b"OPEN":
            self._open(first, data.rstrip(b"\0"))
        elif (stream := self._streams.get(second)) is None:
            pass  # it was closed meanwhile
        elif command == b"OKAY":
            stream.may_send.release()
        elif command == b"WRTE":
            stream.incoming.put(data)
        elif command == b"CLSE":
            stream.hang_up()

    def _greet(self, command: bytes, kind: int) -> None:
        if self._adbd.authorized:
            banner = f"device::ro.product.model=stand-in;features={self._adbd.features}"
            self.send(b"CNXN", _VERSION, _MAX_DATA, banner.encode())
        elif command == b"CNXN" or kind == _SIGNATURE:
            self.send(b"AUTH", _TOKEN, 0, os.urandom(20))
        else:
            assert kind == _PUBLIC_KEY  # its user is asked now, and says nothing

    def _open(self, theirs: int, service: bytes) -> None:
        name, _, command = service.partition(b":")
        kind, *options = name.split(b",")
        if kind == b"sync":
            self._last_id += 1
            self._begin(_Sync(self, self._last_id, theirs))
            return
        if kind != b"shell" or b"v2" not in options or b"raw" not in options:
            self.send(b"CLSE", 0, theirs)
            return
        self._last_id += 1
        environment = {"HOME": str(self._adbd.folder), "PATH": str(self._adbd.tools)}
        self._begin(_Shell(self, self._last_id, theirs, command, environment))

    def _begin(self, stream: _Stream) -> None:
        self._streams[stream.ours] = stream
        self.send(b"OKAY", stream.ours, stream.theirs)
        stream.start()


class _Stream:
    """What adb has opened: `incoming` is what it says, None at its end."""

    def __init__(self, connection: _Connection, ours: int, theirs: int) -> None:
        self._connection, self.ours, self.theirs = connection, ours, theirs
        self.may_send = threading.Semaphore(1)
        self.incoming: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._hung_up = threading.Event()
        self._sending = threading.Lock()

    def start(self) -> None:
        raise NotImplementedError

    def hang_up(self) -> None:
        self._connection.drop(self.ours)
        self._hung_up.set()
        self.may_send.release()
        self.incoming.put(None)

    def write(self, data: bytes) -> None:
        with self._sending:
            self.may_send.acquire()
            if not self._hung_up.is_set():
                self._connection.send(b"WRTE", self.ours, self.theirs, data)
            else:
                self.may_send.release()

    def taken(self) -> None:
        self._connection.send(b"OKAY", self.ours, self.theirs)

    def end(self) -> None:
        self._connection.drop(self.ours)
        self.incoming.put(None)
        self._connection.send(b"CLSE", self.ours, self.theirs)


class _Sync(_Stream):
    """Files that come, and questions of what is there."""

    def start(self) -> None:
        self._rest = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        _forbid_hard_links()
        with contextlib.suppress(EOFError):
            while True:
                request, size = _SYNC.unpack(self._read(_SYNC.size))
                if request == b"QUIT":
                    break
                path = self._read(size).decode()
                if request == b"STAT":
                    self._stat(Path(path))
                elif request == b"SEND":
                    self._take_file(path)
                else:
                    text = f"unknown request {request!r}".encode()
                    self.write(_SYNC.pack(b"FAIL", len(text)) + text)
        self.end()

    def _stat(self, path: Path) -> None:
        values = (0, 0, 0)
        with contextlib.suppress(OSError):
            found = path.lstat()
            values = (found.st_mode, found.st_size, int(found.st_mtime))
        self.write(_STAT.pack(b"STAT", *values))

    def _take_file(self, what: str) -> None:
        name, _, mode = what.rpartition(",")
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            while (head := _SYNC.unpack(self._read(_SYNC.size)))[0] == b"DATA":
                file.write(self._read(head[1]))
        assert head[0] == b"DONE"
        path.chmod(int(mode) & 0o777)
        self.write(_SYNC.pack(b"OKAY", 0))

    def _read(self, size: int) -> bytes:
        while len(self._rest) < size:
            data = self.incoming.get()
            if data is None:
                raise EOFError
            self._rest += data
            self.taken()
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


class _Shell(_Stream):
    """A command, its input and its outputs."""

    def __init__(
        self,
        connection: _Connection,
        ours: int,
        theirs: int,
        command: bytes,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(connection, ours, theirs)
        self._process = subprocess.Popen(
            ["sh", "-c", command], cwd="/", bufsize=0, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment,
        )  # fmt: skip
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin = self._process.stdin
        self._outputs = [
            threading.Thread(target=self._pump, args=(kind, pipe), daemon=True)
            for kind, pipe in ((_STDOUT, self._process.stdout), (_STDERR, self._process.stderr))
        ]

    def start(self) -> None:
        for thread in self._outputs:
            thread.start()
        for work in (self._feed, self._finish):
            threading.Thread(target=work, daemon=True).start()

    def hang_up(self) -> None:
        """As adbd does when nobody listens any more: it tells the shell, and closes the pipes."""
        super().hang_up()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGHUP)

    def _feed(self) -> None:
        data = b""
        with self._stdin:
            while (more := self.incoming.get()) is not None:
                data += more
                while len(data) >= _PACKET.size:
                    kind, size = _PACKET.unpack_from(data)
                    if len(data) < _PACKET.size + size:
                        break
                    piece, data = data[_PACKET.size :][:size], data[_PACKET.size + size :]
                    with contextlib.suppress(OSError, ValueError):
                        if kind == _STDIN:
                            self._write(piece)
                        elif kind == _CLOSE_STDIN:
                            self._stdin.close()
                self.taken()

    def _write(self, piece: bytes) -> None:
        while piece:
            piece = piece[self._stdin.write(piece) or 0 :]

    def _pump(self, kind: int, pipe: IO[bytes]) -> None:
        with pipe:
            while not self._hung_up.is_set() and (data := pipe.read(_MAX_DATA - _PACKET.size)):
                self._send(kind, data)

    def _send(self, kind: int, data: bytes) -> None:
        self.write(_PACKET.pack(kind, len(data)) + data)

    def _finish(self) -> None:
        for thread in self._outputs:
            thread.join()
        code = self._process.wait()
        self._send(_EXIT, bytes([code if code >= 0 else 0x80 | -code]))
        self.end()


@functools.cache
def android_tools() -> Path:
    """A folder with what Android has in /system/bin, as far as our commands go."""
    shell, toybox, busybox = map(require_tool, ("mksh", "toybox", "busybox"))
    names = subprocess.run([toybox], capture_output=True, text=True, check=True).stdout.split()
    folder = Path(tempfile.mkdtemp(prefix="edgepack-test-android-"))
    atexit.register(shutil.rmtree, folder)
    for name in names:
        (folder / name).symlink_to(toybox)
    (folder / "sh").symlink_to(shell)
    # Debian's toybox is made without these, Android's is not.
    for name in {"dd", "tr"} - set(names):
        (folder / name).symlink_to(busybox)
    for name, script in {
        "getenforce": "echo Enforcing",
        "getprop": "case $1 in ro.product.model) echo Stand-in;; esac",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def _forbid_hard_links() -> None:
    """For this thread and what it starts: Android's policy says `neverallow shell file_type:file
    link` (AOSP, system/sepolicy, public/shell.te)."""
    link, linkat = {"x86_64": (86, 265)}.get(platform.machine(), (37, 37))
    allow, deny = 0x7FFF0000, 0x00050000 | errno.EACCES
    program = [
        (0x20, 0, 0, 0),  # the number of the system call
        (0x15, 2, 0, linkat),
        (0x15, 1, 0, link),
        (0x06, 0, 0, allow),
        (0x06, 0, 0, deny),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in program))
    filters = struct.pack("HP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    for words in ((no_new_privileges, 1, 0, 0, 0), (set_seccomp, filter_mode, filters)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
