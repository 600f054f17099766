"""A loopback TCP proxy that is a bad link: slow, cut, stalling, refusing, on command."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from types import TracebackType

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_BUFFER = 64 << 10


class CuttingProxy:
    """Forwards to 127.0.0.1:`target`; each connection is reset after `cut_after` bytes up.

    `target` may be set anew, for the next connection. `bytes_s` limits the way up. The first
    connection stalls for `stall_s` seconds after `stall_after` bytes. `refuse` is the share of
    connections that are reset at once (after the first), chosen by `seed`. `up_bytes` have been
    forwarded to the target, of `connections` connections `refused` were refused and `cuts` were
    cut.
    """

    def __init__(
        self,
        target: int,
        *,
        cut_after: int | None = None,
        bytes_s: float | None = None,
        stall_after: int | None = None,
        stall_s: float = 0.0,
        refuse: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.target = target
        self._cut_after = cut_after
        self._bytes_s = bytes_s
        self._stall_after, self._stall_s = stall_after, stall_s
        self._refuse = refuse
        self._random = random.Random(seed)
        self._listener = socket.socket()
        # Small, so that what was written here has nearly arrived there: accepted ones inherit it.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._end = threading.Event()
        self.connections = self.refused = self.cuts = self.up_bytes = 0

    def __enter__(self) -> CuttingProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Unlike close, shutdown wakes the thread that is waiting in accept.
        self._end.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.connections > 1 and self._random.random() < self._refuse:
                self.refused += 1
                _reset(client)
                continue
            server = socket.create_connection(("127.0.0.1", self.target))
            for pump in (self._up, self._down):
                thread = threading.Thread(target=pump, args=(client, server), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        sent, stalls = 0, self.connections == 1
        with contextlib.suppress(OSError):
            while data := client.recv(16 << 10):
                if self._cut_after is not None:
                    data = data[: self._cut_after - sent]
                server.sendall(data)
                sent += len(data)
                self.up_bytes += len(data)
                if self._bytes_s is not None:
                    self._end.wait(len(data) / self._bytes_s)
                if stalls and self._stall_after is not None and sent >= self._stall_after:
                    stalls = False
                    self._end.wait(self._stall_s)
                if sent == self._cut_after:
                    self.cuts += 1
                    _reset(client)
                    break
        # The server still gets what was sent so far.
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)
        client.close()

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(64 << 10):
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    # Another thread may be waiting in recv, which keeps a socket open that is only closed.
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RD)
    sock.close()
