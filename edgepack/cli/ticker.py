"""Steps and how far they are: a row for each at the end of a terminal, a line now and then
elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TextIO

from edgepack.cli.durations import Course, Durations

REDRAW_S = 0.5
REPEAT_S = 30.0
_PATIENCE_S = 1.0
_ROWS = 6
_BAR_WIDTH = 20
_NARROWEST = 20
"""Columns of a text, beside which there is a bar or an estimate only if there is room."""


@dataclass
class _Step:
    """What one thread works on; `since` and `counted_from` are of the ticker's clock."""

    text: str
    since: float
    detail: str = ""
    total: int = 0
    counted_from: float = 0.0
    course: Course = field(default_factory=Course)


class Ticker:
    """Steps by thread, with how long each takes.

    On a terminal each step has a row, which is redrawn while it lasts and stays when it ends;
    `mark` is what rows begin with. Elsewhere a step is a line, and there is another each `REPEAT_S`
    seconds for those that take long. `tick` does it, called by a thread of the ticker's own from
    the first `begin` on, which ends with the process.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        on_terminal: bool,
        silent: bool = False,
        mark: str = "==>",
        clock: Callable[[], float] = time.monotonic,
        durations: Durations | None = None,
    ) -> None:
        self._out, self._on_terminal, self._silent = out, on_terminal, silent
        self._mark, self._clock = mark, clock
        self._durations = durations or Durations()
        self._lock = threading.RLock()
        self._steps: dict[int, _Step] = {}
        self._thread: threading.Thread | None = None
        self._drawn = 0
        self._said_at = clock()

    def begin(self, text: str) -> None:
        """The calling thread begins with `text`, and has ended what it did before."""
        if self._silent:
            return
        with self._lock:
            self._end(threading.get_ident())
            self._said_at = self._clock()
            self._steps[threading.get_ident()] = _Step(text, self._clock())
            if self._on_terminal:
                self._draw()
            else:
                print(self._mark, text, file=self._out, flush=True)
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
                step.course = self._durations.course(step.text)
            step.detail, step.total = text, total
            if total and done / total != step.course.share:
                step.course.reached(done / total, self._clock() - step.counted_from)

    def ended(self) -> None:
        """The calling thread works on nothing any more."""
        with self._lock:
            self._end(threading.get_ident())

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Something else is printed in this block."""
        with self._lock:
            self._wipe()
            self._said_at = self._clock()
            yield

    def stop(self) -> None:
        """No step is worked on, be it done or not."""
        with self._lock:
            for ident in list(self._steps):
                self._end(ident, done=False)

    def tick(self) -> None:
        """Say what is worked on, if it is time to."""
        with self._lock:
            alive = {thread.ident for thread in threading.enumerate()}
            for ident in self._steps.keys() - alive:
                self._end(ident)
            if self._on_terminal:
                self._draw()
                return
            now = self._clock()
            long = [step for step in self._steps.values() if now - step.since >= _PATIENCE_S]
            if long and now - self._said_at >= REPEAT_S:
                self._said_at = now
                for step in long[:_ROWS]:
                    far = " ".join(part for part in _far(step, now)[0] if not part.startswith("["))
                    print(f"    still: {_what(step)} {far}", file=self._out)
                if len(long) > _ROWS:
                    print(f"    and {len(long) - _ROWS} more", file=self._out)
                self._out.flush()

    def _run(self) -> None:
        while True:
            time.sleep(REDRAW_S)
            with contextlib.suppress(OSError, ValueError):  # whoever reads stderr has gone
                self.tick()

    def _end(self, ident: int, *, done: bool = True) -> None:
        """The step of a thread has ended: on a terminal its row stays."""
        step = self._steps.pop(ident, None)
        if step is None:
            return
        now = self._clock()
        if done:
            self._durations.note(step.text, step.course, now - step.counted_from)
        if self._on_terminal:
            self._wipe()
            took = f" ({_minutes(now - step.since)})" if now - step.since >= _PATIENCE_S else ""
            print(f"{self._mark} {step.text}{took}", file=self._out, flush=True)

    def _draw(self) -> None:
        """A row for each step: of several the oldest first."""
        steps = sorted(self._steps.values(), key=lambda step: step.since)
        # A row that is wrapped could not be wiped.
        columns, lines = shutil.get_terminal_size()
        most = max(min(_ROWS, lines - 2), 1)
        more = f" (and {len(steps) - most} more)" if len(steps) > most else ""
        # The mark is three columns wide, whatever colours it.
        width = columns - 5 - len(more)
        rows = [f"{self._mark} {_row(step, self._clock(), width)}" for step in steps[:most]]
        self._wipe()
        if not rows:
            return
        rows[-1] += more
        print("\n".join(rows), end="", file=self._out, flush=True)
        self._drawn = len(rows)

    def _wipe(self) -> None:
        if self._drawn:
            up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
            print(f"\r{up}\x1b[J", end="", file=self._out, flush=True)
            self._drawn = 0


def _what(step: _Step) -> str:
    return step.text + (f" ({step.detail})" if step.detail else "")


def _far(step: _Step, now: float) -> list[list[str]]:
    """How far a step is, in ever fewer words."""
    passed = [_minutes(now - step.since)] if now - step.since >= _PATIENCE_S else []
    if not step.total:
        return [passed, []]
    share = step.course.share
    bar = f"[{'#' * round(share * _BAR_WIDTH):<{_BAR_WIDTH}}]"
    counted = [f"{share:.0%}", *passed]
    left = step.course.left(now - step.counted_from)
    if left is None:
        return [[bar, *counted], counted, []]
    estimate = f"about {_minutes(left)} left"
    return [[bar, *counted, estimate], [*counted, estimate], counted, []]


def _row(step: _Step, now: float, width: int) -> str:
    """A step's row of at most `width` columns; what does not fit goes by whole words."""
    for words in _far(step, now):
        far = " ".join(words)
        room = width - len(far) - bool(far)
        text = _what(step)
        if len(text) > room:
            text = _shortened(step.text, room)
        if len(text) >= min(len(step.text), _NARROWEST):
            break
    return f"{text} {far}".rstrip()


def _shortened(text: str, room: int) -> str:
    """As many of its words as there is room for."""
    if len(text) <= room:
        return text
    words = text[: max(room - 1, 0)].rpartition(" ")[0]
    return f"{words} …" if words else "…"


def _minutes(seconds: float) -> str:
    """For example "2:05"."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}"
