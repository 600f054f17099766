"""Says now and then what is being worked on: a line that is redrawn, or one every half minute."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

REDRAW_S = 0.5
REPEAT_S = 30.0
_PATIENCE_S = 1.0
_SAID = 4
_BAR_WIDTH = 20
_CLEAR = "\r\x1b[K"


@dataclass
class _Step:
    """What one thread works on; `since` and `counted_from` are of the ticker's clock."""

    text: str
    since: float
    detail: str = ""
    done: int = 0
    total: int = 0
    counted_from: float = 0.0


class Ticker:
    """Steps by thread, with how long each takes.

    Only steps that take long are said again. On a terminal the last line is redrawn, elsewhere
    there is a line each `REPEAT_S` seconds. `tick` does it, called by a thread of the ticker's own
    from the first `begin` on, which ends with the process.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        on_terminal: bool,
        silent: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out, self._on_terminal, self._silent = out, on_terminal, silent
        self._clock = clock
        self._lock = threading.RLock()
        self._steps: dict[int, _Step] = {}
        self._thread: threading.Thread | None = None
        self._drawn = False
        self._said_at = clock()

    def begin(self, text: str) -> None:
        """The calling thread begins with `text`, and has ended what it did before."""
        if self._silent:
            return
        with self._lock:
            self._said_at = self._clock()
            self._steps[threading.get_ident()] = _Step(text, self._clock())
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def now(self, text: str, done: int, total: int) -> None:
        """Within its step, the calling thread works on `text`, and `done` of `total` is done."""
        with self._lock:
            step = self._steps.get(threading.get_ident())
            if step is None:
                return
            if total != step.total:
                step.counted_from = self._clock()
            step.detail, step.done, step.total = text, done, total

    def ended(self) -> None:
        """The calling thread works on nothing any more."""
        with self._lock:
            self._wipe()
            self._steps.pop(threading.get_ident(), None)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Something else is printed in this block."""
        with self._lock:
            self._wipe()
            self._said_at = self._clock()
            yield

    def stop(self) -> None:
        """No step is worked on."""
        with self._lock:
            self._wipe()
            self._steps.clear()

    def tick(self) -> None:
        """Say what is worked on, if it is time to."""
        with self._lock:
            alive = {thread.ident for thread in threading.enumerate()}
            for ident in self._steps.keys() - alive:
                del self._steps[ident]
            now = self._clock()
            long = [step for step in self._steps.values() if now - step.since >= _PATIENCE_S]
            if not long:
                self._wipe()
            elif self._on_terminal:
                # A terminal's last line has room for one: the step that takes longest.
                first = min(long, key=lambda step: step.since)
                more = f" (and {len(long) - 1} more)" if len(long) > 1 else ""
                what, far = _line(first, now, bar=True)
                self._wipe()
                # One that is wrapped could not be wiped.
                room = max(shutil.get_terminal_size().columns - 6 - len(far + more), 10)
                print(f"    {what[:room]} {far}{more}", end="", file=self._out, flush=True)
                self._drawn = True
            elif now - self._said_at >= REPEAT_S:
                self._said_at = now
                for step in long[:_SAID]:
                    print(f"    still: {' '.join(_line(step, now, bar=False))}", file=self._out)
                if len(long) > _SAID:
                    print(f"    and {len(long) - _SAID} more", file=self._out)
                self._out.flush()

    def _run(self) -> None:
        while True:
            time.sleep(REDRAW_S)
            with contextlib.suppress(OSError, ValueError):  # whoever reads stderr has gone
                self.tick()

    def _wipe(self) -> None:
        if self._drawn:
            print(_CLEAR, end="", file=self._out, flush=True)
            self._drawn = False


def _line(step: _Step, now: float, *, bar: bool) -> tuple[str, str]:
    """What is worked on, and how far that is."""
    words = []
    if step.total:
        share = min(step.done / step.total, 1.0)
        if bar:
            words.append(f"[{'#' * round(share * _BAR_WIDTH):<{_BAR_WIDTH}}]")
        words.append(f"{share:.0%}")
    words.append(_minutes(now - step.since))
    passed = now - step.counted_from
    if 0 < step.done < step.total and passed >= _PATIENCE_S:
        left = passed * (step.total - step.done) / step.done
        words.append(f"about {_minutes(left)} left")
    return step.text + (f" ({step.detail})" if step.detail else ""), " ".join(words)


def _minutes(seconds: float) -> str:
    """For example "2:05"."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}"
