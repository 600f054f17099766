"""Limits of conversations as a whole, beside those of each step.

A device that says something each second keeps to every limit of a step, and never comes to an
end. So does one that takes a byte each minute.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from edgepack.base import progress
from edgepack.device.base import Device
from edgepack.device.errors import TooSlowError

SLOWEST_BYTES_S = 2000.0
"""What a link has to bring on average: a modem of 16 kbit/s does."""

UPLOAD_S = 300.0
"""On top of what its bytes may take: for a window of megabytes that an honest link fills first."""

_SAID_S = 10.0


class Limit:
    """Calls `expire`, in a thread of its own, when `seconds` have passed; `add` gives more.

    `end` it, or leave its block, before that.
    """

    def __init__(self, expire: Callable[[], object], seconds: float) -> None:
        self._expire = expire
        self.seconds = seconds
        self._start = time.monotonic()
        self._ended = threading.Event()
        self.expired = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def add(self, seconds: float) -> None:
        """Let it take so much longer."""
        self.seconds += seconds

    def moved(self, size_bytes: int, slowest_bytes_s: float = SLOWEST_BYTES_S) -> None:
        """Let it take as much longer as bytes that went over may take."""
        self.add(size_bytes / slowest_bytes_s)

    def told_of(self, sent: Callable[[int], None] | None) -> Callable[[int], None]:
        """What tells of bytes that went over: this limit, and `sent`."""

        def tell(size_bytes: int) -> None:
            self.moved(size_bytes)
            if sent:
                sent(size_bytes)

        return tell

    def end(self) -> None:
        """It was in time."""
        self._ended.set()
        self._thread.join(_SAID_S)

    def _watch(self) -> None:
        while (left := self._start + self.seconds - time.monotonic()) > 0:
            # One that is given more meanwhile is looked at again.
            if self._ended.wait(left):
                return
        self.expired = True
        with contextlib.suppress(Exception):  # it may have gone at this moment
            self._expire()


@contextlib.contextmanager
def limited(device: Device, seconds: float, what: str) -> Iterator[Limit]:
    """What is done with `device` in this block, `what`, may take `seconds` in all, then it is
    let go of. Raises TooSlowError instead of what comes of that.
    """
    limit = Limit(device.abort, seconds)
    if seconds >= _SAID_S:
        progress.now(f"{duration(seconds)} at most")
    try:
        yield limit
    except Exception:
        if not limit.expired:
            raise
        raise TooSlowError(
            f"{device.name}: {what} takes longer than {duration(limit.seconds)}",
            hint="it answers, but too slowly or without end: look what happens there; "
            "--device-timeout S gives it longer",
        ) from None
    finally:
        limit.end()


def slowest_rate(limit_bytes_s: float | None) -> float:
    """Bytes per second that an upload has to bring on average, if no more than `limit_bytes_s`
    are sent.
    """
    return SLOWEST_BYTES_S if limit_bytes_s is None else min(SLOWEST_BYTES_S, limit_bytes_s / 2)


def duration(seconds: float) -> str:
    """For people: "90 s", "25 min"."""
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:.0f} min"
