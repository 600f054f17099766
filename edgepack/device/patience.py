"""Links that are bad, or shared: trying again, and keeping to a rate."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from edgepack.base.errors import ConnectError
from edgepack.base.progress import Progress
from edgepack.device.errors import ConnectionLostError, ProxyError, UnreachableError

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_SLICE = 32_000


def parse_rate(text: str) -> float | None:
    """Bytes per second of "200k" or "1.5M" (10^3 and 10^6), None if it is no such thing."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kM]?)", text)
    value = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]] if match else 0.0
    return value if value > 0 else None


class Patience:
    """Tries again after a lost link: `retries` times in a row without progress."""

    def __init__(self, retries: int, progress: Progress) -> None:
        self._retries = retries
        self._progress = progress
        self._in_vain = 0

    def after(self, error: ConnectError, *, moved: bool) -> None:
        """Wait for the next try, longer each time; raise `error` when there is none."""
        self._in_vain = 0 if moved else self._in_vain + 1
        if self._in_vain > self._retries or not _may_pass(error):
            raise error
        pause = min(_FIRST_PAUSE_S * 2 ** max(0, self._in_vain - 1), _LONGEST_PAUSE_S)
        self._progress.step(f"{error.message}; trying again in {pause:.0f} s")
        time.sleep(pause)


def _may_pass(error: ConnectError) -> bool:
    """Whether another try may go well."""
    if isinstance(error, ProxyError):
        return not error.is_lasting
    return isinstance(error, ConnectionLostError | UnreachableError)


class Pace:
    """Keeps to so many bytes per second; a pause is not made up for."""

    def __init__(self, limit_bytes_s: float | None) -> None:
        self._limit = limit_bytes_s
        self._free_at = 0.0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """`data` in pieces, each when it is time to send it."""
        if self._limit is None:
            yield data
            return
        for start in range(0, len(data), _SLICE):
            piece = data[start : start + _SLICE]
            now = time.monotonic()
            time.sleep(max(0.0, self._free_at - now))
            self._free_at = max(self._free_at, now) + len(piece) / self._limit
            yield piece
