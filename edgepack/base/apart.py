"""Work in a process of its own, within limits: `Apart` here, `main` there.

What native code does with a bad file, up to a crash, then ends that process and not this one.
The other process reads what it is to do from stdin, pickled, and writes messages to stdout, pickled
too: what it does ("step", "log"), what it works on ("at"), and at its end what came of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar, cast

from edgepack.base import progress as progress_of
from edgepack.base.errors import EdgepackError
from edgepack.base.paths import cache_dir, set_cache_dir
from edgepack.base.process import kill, last_lines, watched
from edgepack.base.progress import Bar, NoProgress, Progress

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")
_INTERRUPTED = 130
# New objects before the next search for circles of them, for a process that soon ends: Python's 700
# cost a compile 5 % of its time, and the memory it takes at most is the same.
_OBJECTS = 100_000
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# What an allocation that failed leaves behind: C++, LLVM, numpy, onnxruntime, Python.
_NO_MEMORY = ("bad_alloc", "out of memory", "unable to allocate", "failed to allocate")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may take: MB (2^20 bytes) of memory of its own, seconds of CPU time.

    Of each program that it starts, too.
    """

    memory_mb: int
    cpu_s: int

    def scaled(self, *, memory: int = 1, cpu: int = 1) -> Limits:
        """So many times the limits."""
        return Limits(memory_mb=self.memory_mb * memory, cpu_s=self.cpu_s * cpu)


class LimitError(Exception):
    """The other process used up its memory or its time.

    `what` is "memory" or "cpu"; `at` is what it last said that it worked on.
    """

    def __init__(self, what: str, at: str) -> None:
        super().__init__(f"{what} used up at {at or 'the start'}")
        self.what = what
        self.at = at


class CrashError(Exception):
    """The other process ended without an answer: `how` ("SIGSEGV"), `at` as in `LimitError`."""

    def __init__(self, how: str, at: str, said: str) -> None:
        super().__init__(f"ended with {how} at {at or 'the start'}\n{said}".rstrip())
        self.how = how
        self.at = at


_last = ""
_tell: Callable[[tuple[str, int, int]], None] = lambda _: None  # noqa: E731 - replaced there


def at(what: str, done: int = 0, total: int = 0) -> None:
    """Say what is worked on now; cheap.

    For the message about a crash, a limit or a bug, and, with how much of `total` is `done`, for
    who waits.
    """
    global _last  # noqa: PLW0603 - one process, one piece of work
    _last = what
    _tell((what, done, total))


def last() -> str:
    """What `at` was told last in this process."""
    return _last


def is_no_memory(text: str) -> bool:
    """Whether what an exception or a process says is that it got no more memory."""
    return any(words in text.lower() for words in _NO_MEMORY)


@dataclass(frozen=True, kw_only=True)
class Apart:
    """How calls are made in a process of their own: within which limits, and with which variables
    of the `environment` beside those of this process."""

    limits: Limits | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def call(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """`function(*args, **kwargs)` there; all of it, and the result, must be picklable.

        The keyword argument `progress` is the exception: it stays here, and hears of the steps that
        `function` reports there. Raises the `EdgepackError` that `function` raises (of its own
        class, or the nearest whose module is known here), `LimitError`, `CrashError`, and
        RuntimeError with the traceback for any other exception.
        """
        progress = cast("Progress | None", kwargs.get("progress"))
        others = {name: value for name, value in kwargs.items() if name != "progress"}
        reports = progress is not None
        order = pickle.dumps((cache_dir(), self.limits, function, args, others, reports))
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", f"import {__name__} as a; a.sys.exit(a.main())"],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                **self.environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        said: list[bytes] = []
        reader = threading.Thread(target=_collect, args=(child.stderr, said), daemon=True)
        where = ""
        end: tuple[str, Any] = ("", None)
        with child, watched(child):  # and its pipes are closed
            try:
                reader.start()
                assert child.stdin is not None
                with contextlib.suppress(BrokenPipeError), child.stdin:
                    child.stdin.write(order)
                for kind, value in _messages(child.stdout):
                    if kind == "at":
                        where, done, total = value
                        progress_of.now(where, done, total)
                    elif kind == "step":
                        assert progress is not None
                        progress.step(value)
                    elif kind == "log":
                        name, level, text = value
                        logging.getLogger(name).log(level, "%s", text)
                    else:
                        end = kind, value
                child.wait()
            finally:
                kill(child)
                child.wait()
                reader.join()
        stderr = b"".join(said).decode(errors="replace")
        return _outcome(end, child.returncode, where, stderr)  # type: ignore[no-any-return]


def _outcome(end: tuple[str, Any], code: int, where: str, stderr: str) -> Any:
    kind, value = end
    if kind == "result":
        return value
    if kind == "error":
        raise error_of(value)
    if kind == "memory":
        raise LimitError("memory", where)
    if kind == "bug":
        if is_no_memory(value):
            raise LimitError("memory", where)
        raise RuntimeError(f"in a process of its own:\n{value}")
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if code == -signal.SIGXCPU:
        raise LimitError("cpu", where)
    if is_no_memory(stderr):
        raise LimitError("memory", where)
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    raise CrashError(how, where, last_lines(stderr))


def _collect(stream: IO[bytes] | None, into: list[bytes]) -> None:
    """Keep the last of what a process says."""
    assert stream is not None
    for line in stream:
        into.append(line)
        del into[:-200]


def _messages(stream: IO[bytes] | None) -> Iterator[tuple[str, Any]]:
    assert stream is not None
    while True:
        try:
            yield pickle.load(stream)  # noqa: S301 - from the process that we started
        except (EOFError, pickle.UnpicklingError):
            return


# ---------------------------------------------------------------- errors as messages


def describe(error: EdgepackError) -> dict[str, Any]:
    """The error as JSON: its classes by name, nearest first, and what it says."""
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, EdgepackError)]
    return {
        "kinds": [[kind.__module__, kind.__qualname__] for kind in kinds],
        "message": error.message,
        "hint": error.hint,
    }


def error_of(described: dict[str, Any]) -> EdgepackError:
    """The error that `describe` had.

    Of the nearest class whose module is there: that of a compiler's error would bring the
    compiler along. The classes of `edgepack.base.errors`, one per exit code, always are.
    """
    known = (getattr(sys.modules.get(module), name, None) for module, name in described["kinds"])
    kind: type[EdgepackError] = next(kind for kind in known if kind is not None)
    error = kind.__new__(kind)
    EdgepackError.__init__(error, described["message"], hint=described["hint"])
    return error


def prefix_error(error: EdgepackError, before: str) -> EdgepackError:
    """The error with its message after `before`."""
    return error_of({**describe(error), "message": before + error.message})


# ---------------------------------------------------------------- the other process


class _Sender(NoProgress, logging.Handler):
    """Sends steps, log records and all else as messages."""

    def __init__(self, out: IO[bytes]) -> None:
        logging.Handler.__init__(self, logging.WARNING)
        self._out = out

    def send(self, kind: str, value: Any = None) -> None:
        pickle.dump((kind, value), self._out)
        self._out.flush()

    def step(self, text: str) -> None:
        self.send("step", text)

    @contextlib.contextmanager
    def bar(self, text: str, total: int) -> Iterator[Bar]:
        self.step(text)
        with super().bar(text, total) as bar:
            yield bar

    def emit(self, record: logging.LogRecord) -> None:
        self.send("log", [record.name, record.levelno, record.getMessage()])


def main() -> int:
    """Do what stdin asks for."""
    global _tell  # noqa: PLW0603 - one process, one caller
    gc.set_threshold(_OBJECTS)
    # What a library prints is no message.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # If the process that waits for this one is killed, so is this.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sender = _Sender(out)
    _tell = partial(sender.send, "at")
    logging.getLogger("edgepack").addHandler(sender)
    try:
        cache: Path
        cache, limits, function, args, kwargs, reports = pickle.load(sys.stdin.buffer)  # noqa: S301
        if reports:
            kwargs["progress"] = sender
        set_cache_dir(cache)
        _limit(limits)
        sender.send("result", function(*args, **kwargs))
    except EdgepackError as error:
        sender.send("error", describe(error))
        return error.exit_code
    except MemoryError:
        sender.send("memory")
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception:
        sender.send("bug", traceback.format_exc())
    return 0


def _limit(limits: Limits | None) -> None:
    # A crash is told in words; a file of all this memory would help nobody.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits is None:
        return
    for kind, most, more in (
        (resource.RLIMIT_DATA, limits.memory_mb << 20, 0),
        # After the soft limit comes SIGXCPU, after the hard one SIGKILL.
        (resource.RLIMIT_CPU, limits.cpu_s, 5),
    ):
        _, hard = resource.getrlimit(kind)
        at_most = most + more if hard == resource.RLIM_INFINITY else min(most + more, hard)
        resource.setrlimit(kind, (min(most, at_most), at_most))
