"""How long steps take by experience: what is left of one that has been done before."""

from __future__ import annotations

import contextlib
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from edgepack.base.paths import cache_dir, write_atomic

FILE = "steps.json"
_POINTS = 40
"""Of a step that is remembered, at most: what share of it was done after how many seconds."""
_MOST = 100
_LONG_S = 2.0
_ENOUGH = 0.75
_PATIENCE_S = 1.0
_SETTLED_S = 5.0
_MOST_GROWTH = 1.5
"""An end that is so much later than one promised before: nobody knows how long it takes."""
_FASTEST, _SLOWEST = 0.2, 5.0
"""Other load on this machine, against that of the time before."""


Points = tuple[tuple[float, float], ...]


@dataclass
class Course:
    """How far a step has come, by a clock of its own; what is left is a promise, kept or not.

    `before` are the points of the time before, if there was one: the last is its end.
    """

    before: Points = ()
    share: float = 0.0
    _points: list[tuple[float, float]] = field(default_factory=list)
    _end: float | None = None
    _earliest: float = math.inf
    _broken: bool = False

    def reached(self, share: float, passed: float) -> None:
        """That much of it is done after `passed` seconds."""
        self.left(passed)
        self.share = min(share, 1.0)
        if self.share < 1:
            # The last file before the end is always among them: what comes then may take long.
            if len(self._points) > 1 and self.share - self._points[-2][0] < 1 / _POINTS:
                self._points.pop()
            self._points.append((self.share, passed))
            if passed >= _PATIENCE_S and share > 0:
                self._end = passed + self._expected(passed)
                if passed >= _SETTLED_S:
                    self._earliest = min(self._earliest, self._end)
                    self._broken |= self._end > _MOST_GROWTH * self._earliest

    def left(self, passed: float) -> float | None:
        """The seconds that are left; None if nobody knows, or what was said before was wrong."""
        if self._end is not None and passed >= self._end:
            self._broken = True
        return None if self._broken or self._end is None else self._end - passed

    def _expected(self, passed: float) -> float:
        if not self.before:
            return passed * (1 - self.share) / self.share
        then, share = 0.0, 0.0
        for next_share, seconds in self.before:
            if next_share > self.share:
                # Of what takes long after the last file, nothing is done yet.
                if next_share < 1:
                    then += (seconds - then) * (self.share - share) / (next_share - share)
                break
            then, share = seconds, next_share
        load = min(max(passed / then, _FASTEST), _SLOWEST) if then >= _PATIENCE_S else 1.0
        return (self.before[-1][1] - then) * load

    def points(self, passed: float) -> Points | None:
        """What to remember of it, if it took long and was not given up early.

        Who counts says what is begun or what is done, so the last of it may not have been told.
        """
        if self.share < _ENOUGH or passed < _LONG_S:
            return None
        points = [*self._points, (1.0, passed)]
        return tuple((round(share, 4), round(seconds, 1)) for share, seconds in points)


class Durations:
    """The courses of steps, by their texts, in a file of the cache."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._known: dict[str, Points] | None = None

    def course(self, text: str) -> Course:
        """That of a step which begins."""
        return Course(before=self._load().get(_key(text), ()))

    def note(self, text: str, course: Course, passed: float) -> None:
        """A step has ended after `passed` seconds."""
        points = course.points(passed)
        if points is None:
            return
        known = self._load()
        known.pop(_key(text), None)
        known[_key(text)] = points
        for key in list(known)[:-_MOST]:
            del known[key]
        with contextlib.suppress(OSError):  # it is only an estimate
            write_atomic(self._path(), json.dumps(known).encode())

    def _path(self) -> Path:
        return self._file or cache_dir() / FILE

    def _load(self) -> dict[str, Points]:
        if self._known is None:
            self._known = {}
            with contextlib.suppress(OSError, ValueError, RecursionError):
                self._known = _checked(json.loads(self._path().read_text("utf-8")))
        return self._known


def _checked(found: object) -> dict[str, Points]:
    """What of a file is courses: somebody may have edited it."""
    known: dict[str, Points] = {}
    for key, points in found.items() if isinstance(found, dict) else ():
        if isinstance(points, list) and all(map(_is_point, points)):
            pairs = tuple((float(share), float(seconds)) for share, seconds in points)
            shares = [share for share, _ in pairs]
            times = [seconds for _, seconds in pairs]
            rises = shares == sorted(set(shares)) and times == sorted(times)
            if pairs and rises and shares[-1] == 1 and len(pairs) <= 2 * _POINTS:
                known[key] = pairs
    return known


def _is_point(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(one, int | float) and 0 <= one < 1e6 for one in value)
    )


def _key(text: str) -> str:
    """Its text without versions, and with numbers by their size: 100 kernels take longer than 5."""

    def size(number: re.Match[str]) -> str:
        return "#" if "." in number[0] else f"#{int(number[0][:20]).bit_length()}"

    return re.sub(r"\d+(\.\d+)*", size, text)[:200]
