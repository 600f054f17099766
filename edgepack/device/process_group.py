"""Commands that the user's configuration names: within limits, since one may start itself again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from edgepack.base.process import processes

MAX_PROCESSES = 100
"""What one command may have running at a time: more is one that starts itself."""

_LOOK_S = 0.2


class LimitedError(Exception):
    """A command was ended: its words say why."""


def run_limited(words: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[bytes]:
    """What `words` print; raises LimitedError where they take longer, or become too many."""
    deadline = time.monotonic() + timeout_s
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        try:
            while True:
                try:
                    stdout, stderr = child.communicate(timeout=_LOOK_S)
                    return subprocess.CompletedProcess(words, child.returncode, stdout, stderr)
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        raise LimitedError(f"takes longer than {timeout_s:.0f} s") from None
                    if count(child.pid) > MAX_PROCESSES:
                        raise LimitedError(f"starts more than {MAX_PROCESSES} processes") from None
        except BaseException:
            kill(child.pid)
            raise


def count(session: int) -> int:
    """Processes of the session that the process `session` leads."""
    return sum(one.session == session for one in processes())


def kill(session: int) -> None:
    """End a process that leads a session, and what it started in its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
