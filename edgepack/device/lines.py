"""What comes from a device, piece by piece, without more of it in memory than is allowed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from edgepack.device.errors import TooMuchOutputError

MAX_OUTPUT_BYTES = 8 << 20
"""What a command may say on its standard output, and how long a line of a stream may be."""

MAX_FILE_BYTES = 1 << 30
"""What `Device.get` takes: outputs of a model are far below."""

MAX_NOISE_BYTES = 256 << 10
"""What a login script may print first."""

MAX_ERROR_BYTES = 64 << 10
"""Of the standard error the end is kept."""


class Tail:
    """The last bytes of what is added."""

    def __init__(self, limit: int = MAX_ERROR_BYTES) -> None:
        self._data = bytearray()
        self._limit = limit

    def add(self, data: bytes) -> None:
        """Keep `data`, and forget what came long before it."""
        self._data += data
        del self._data[: -self._limit]

    def extend(self, pieces: Iterable[bytes]) -> None:
        """Add them all."""
        for piece in pieces:
            self.add(piece)

    def text(self) -> str:
        """All that is kept, bad bytes replaced."""
        return self._data.decode(errors="replace")


class LineReader:
    """Lines out of the pieces that `receive(timeout_s)` gives; an empty piece is the end.

    With a `mark`, all up to the line that is the mark is dropped: what a login script printed.
    `begun` tells whether the mark was seen. `receive` raises TimeoutError; so do the methods
    here if it takes longer in all. TooMuchOutputError is raised for more than
    `MAX_OUTPUT_BYTES` in a line or in `read_all`, or `MAX_NOISE_BYTES` before the mark.
    """

    def __init__(
        self, receive: Callable[[float | None], bytes], device: str, *, mark: bytes = b""
    ) -> None:
        self._receive = receive
        self._device = device
        self._rest = b""
        self._at = 0
        """Where in `_rest` the next line begins: cutting it off each time would copy it."""
        self._mark = mark
        self.begun = not mark
        self.after_mark = b""
        """What else the line of the mark says."""
        self._before = bytearray()
        """What came instead of the mark."""

    def read_line(self, timeout_s: float | None, *, begun: bool = False) -> bytes:
        """See `Stream.read_line`; `timeout_s` is for the whole line."""
        if begun and self.begun and self._at == len(self._rest):
            self._rest, self._at = self._receive(None), 0
        deadline = deadline_of(timeout_s)
        self._skip_to_mark(deadline)
        return self._line(deadline) if self.begun else b""

    def read_piece(self, timeout_s: float | None) -> bytes:
        """What is left, as much of it as there is by now; empty at the end."""
        deadline = deadline_of(timeout_s)
        self._skip_to_mark(deadline)
        piece, self._rest, self._at = self._rest[self._at :], b"", 0
        return piece or self._receive(count_seconds_left(deadline))

    def read_all(self, timeout_s: float | None = None) -> bytes:
        """All that is left; what came before a mark if that never came."""
        deadline = deadline_of(timeout_s)
        self._skip_to_mark(deadline)
        if not self.begun:
            return bytes(self._before)
        pieces = [self._rest[self._at :]]
        size, self._rest, self._at = len(pieces[0]), b"", 0
        while piece := self._receive(count_seconds_left(deadline)):
            size += len(piece)
            self._limit(size)
            pieces.append(piece)
        return b"".join(pieces)

    def _skip_to_mark(self, deadline: float | None) -> None:
        while not self.begun and (line := self._line(deadline)):
            self.begun = (line.rstrip() + b" ").startswith(self._mark + b" ")
            if self.begun:
                self.after_mark = line.rstrip(b"\r\n")[len(self._mark) + 1 :]
            else:
                self._before += line
                self._limit(len(self._before), MAX_NOISE_BYTES)

    def _line(self, deadline: float | None) -> bytes:
        end = self._rest.find(b"\n", self._at)
        if end < 0:
            self._fill(deadline)
            end = self._rest.find(b"\n")
        start, self._at = self._at, end + 1 if end >= 0 else len(self._rest)
        return self._rest[start : self._at]

    def _fill(self, deadline: float | None) -> None:
        """Receive until there is a whole line, or the end."""
        pieces = [self._rest[self._at :]]
        size = len(pieces[0])
        try:
            while piece := self._receive(count_seconds_left(deadline)):
                pieces.append(piece)
                size += len(piece)
                self._limit(size)
                if b"\n" in piece:
                    break
        finally:
            self._rest, self._at = b"".join(pieces), 0

    def _limit(self, size: int, limit: int = MAX_OUTPUT_BYTES) -> None:
        if size > limit:
            raise TooMuchOutputError(
                f"{self._device}: more than {limit >> 10} KiB where an answer should be",
                hint="log in there and look what answers",
            )


def deadline_of(timeout_s: float | None) -> float | None:
    """When `timeout_s` from now is, on the clock of `count_seconds_left`."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def count_seconds_left(deadline: float | None) -> float | None:
    """Seconds until `deadline`, not below 0."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
