"""The process that makes one bundle: `python -m edgepack.fleet.builder`.

It reads an `Order`, pickled, from stdin, and writes messages to stdout, each a line of JSON: what
it does ("step", "log"), and at its end where the bundle is ("bundle") or why there is none
("error").
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from edgepack.base.errors import EdgepackError
from edgepack.base.paths import set_cache_dir
from edgepack.base.progress import Bar, NoProgress
from edgepack.flow.project import Project

INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be made (of `project`, with its board), where, and whose key signs it."""

    project: Project
    out: Path
    key: Path | None
    cache: Path


def describe(error: EdgepackError) -> dict[str, Any]:
    """The error as JSON: its classes by name, nearest first, and what it says."""
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, EdgepackError)]
    return {
        "kinds": [[kind.__module__, kind.__qualname__] for kind in kinds],
        "message": error.message,
        "hint": error.hint,
    }


def error_of(described: dict[str, Any], before: str) -> EdgepackError:
    """The error that `describe` had, its message after `before`.

    Of the nearest class whose module is there: that of a compiler's error would bring the
    compiler along. The classes of `edgepack.base.errors`, one per exit code, always are.
    """
    known = (getattr(sys.modules.get(module), name, None) for module, name in described["kinds"])
    kind: type[EdgepackError] = next(kind for kind in known if kind is not None)
    error = kind.__new__(kind)
    EdgepackError.__init__(error, before + described["message"], hint=described["hint"])
    return error


class _Sender(NoProgress, logging.Handler):
    """Sends steps and log records as messages."""

    def __init__(self, out: TextIO) -> None:
        logging.Handler.__init__(self, logging.WARNING)
        self._out = out

    def send(self, **message: Any) -> None:
        print(json.dumps(message), file=self._out, flush=True)

    def step(self, text: str) -> None:
        self.send(step=text)

    @contextlib.contextmanager
    def bar(self, text: str, total: int) -> Iterator[Bar]:
        self.step(text)
        with super().bar(text, total) as bar:
            yield bar

    def emit(self, record: logging.LogRecord) -> None:
        self.send(log=[record.name, record.levelno, record.getMessage()])


def main() -> int:
    """Make what stdin orders."""
    # What a library prints is no message.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sender = _Sender(out)
    logging.getLogger("edgepack").addHandler(sender)
    try:
        order: Order = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started us
        set_cache_dir(order.cache)
        from edgepack.bundle.signing import sign_folder
        from edgepack.flow.job import make_job, package_job

        bundle = package_job(make_job(order.project), order.out, progress=sender)
        if order.key is not None:
            sign_folder(bundle, order.key)
    except EdgepackError as error:
        sender.send(error=describe(error))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    sender.send(bundle=str(bundle.path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
