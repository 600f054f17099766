"""Ctrl-C, SIGTERM and SIGHUP: the first ends a command in order, the second at once."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

from edgepack.base.process import end_children

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_stopped = False


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end; `code` is its exit code, `word` what to say."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.code = 128 + number
        self.word = _WORDS[signal.Signals(number)]


def hear_signals() -> None:
    """Have each of the signals raise `Stopped`, except those that nohup and the like ignore."""
    for number in _WORDS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _heard)


def _heard(number: int, _frame: FrameType | None) -> NoReturn:
    global _stopped  # noqa: PLW0603 - there is one process to end
    stopped = Stopped(number)
    if not _stopped:
        _stopped = True
        raise stopped
    # Whatever is still being closed or waited for: whoever asks twice does not want to wait.
    end_children()
    os.write(2, f"\nerror: {stopped.word}\n".encode())
    os._exit(stopped.code)
