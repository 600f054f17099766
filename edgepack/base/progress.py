"""How long steps say what they do, without knowing where it is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol


class Bar(Protocol):
    """A step with a known length."""

    def update(self, amount: int) -> None:
        """`amount` more of the total is done."""


class Progress(Protocol):
    """What a long step reports to."""

    def step(self, text: str) -> None:
        """A new step begins."""

    def bar(self, text: str, total: int) -> contextlib.AbstractContextManager[Bar]:
        """A step of `total` units (bytes, files) begins."""


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
