"""A loopback TCP proxy that resets the connection after so many bytes to the server."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Forwards to 127.0.0.1:`target`; each connection is reset after `cut_after` bytes."""

    def __init__(self, target: int, *, cut_after: int) -> None:
        self._target = target
        self._cut_after = cut_after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

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
            server = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, limit in (
                (client, server, self._cut_after),
                (server, client, None),
            ):
                thread = threading.Thread(
                    target=self._pump, args=(source, sink, limit), daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        left = limit
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data[:left])
                if left is not None:
                    left -= len(data)
                    if left <= 0:
                        source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                        break
        # The server still gets what was sent so far.
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        if limit is not None:
            source.close()
