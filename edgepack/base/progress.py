"""How long steps say what they do, without knowing where it is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable


class Bar(Protocol):
    """A step with a known length."""

    def update(self, amount: int) -> None:
        """`amount` more of the total is done."""


@runtime_checkable
class Progress(Protocol):
    """The receiver of progress reports of long steps.

    Several threads may report at once. Any object with these two methods will do.
    """

    def step(self, text: str) -> None:
        """Report the start of a step."""

    def bar(self, text: str, total: int) -> contextlib.AbstractContextManager[Bar]:
        """Report the start of a step of `total` units (bytes, files)."""


class Listener(Protocol):
    """Hears what is worked on within a step, and how far that is: see `now`."""

    def now(self, text: str, done: int, total: int) -> None:
        """`text` in the calling thread; `done` of `total`, which is 0 if that is not known."""

    def ended(self) -> None:
        """The step of the calling thread has ended, and nothing else was begun."""


_listeners: list[Listener] = []


@contextlib.contextmanager
def attach_listener(listener: Listener) -> Iterator[None]:
    """`listener` hears in this block what `now` is told anywhere in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def now(text: str, done: int = 0, total: int = 0) -> None:
    """Say what is worked on, for who waits and wonders; cheap, may be called often."""
    for listener in _listeners:
        listener.now(text, done, total)


def end_step() -> None:
    """Say that the calling thread has done its step: it waits, or something else is shown."""
    for listener in _listeners:
        listener.ended()


class _NoBar:
    def update(self, amount: int) -> None:
        pass


class NoProgress:
    """Reports to nobody."""

    def step(self, text: str) -> None:
        pass

    @contextlib.contextmanager
    def bar(self, text: str, total: int) -> Iterator[Bar]:
        yield _NoBar()


NO_PROGRESS: Progress = NoProgress()


class _Told(NoProgress):
    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def step(self, text: str) -> None:
        self._say(text)

    @contextlib.contextmanager
    def bar(self, text: str, total: int) -> Iterator[Bar]:
        self._say(text)
        yield _NoBar()


def make_progress(progress: Progress | Callable[[str], object]) -> Progress:
    """A `Progress`, or one that calls a function with the text of each step."""
    if isinstance(progress, Progress):
        return progress
    return _Told(progress)
