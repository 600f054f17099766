"""`python -m edgepack` is the `edgepack` command."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def entry_point() -> NoReturn:
    """The `edgepack` program."""
    try:
        # Here and not above: an interrupt while modules are being read is no bug either.
        from edgepack.cli import main
        from edgepack.cli.signals import hear_signals

        hear_signals()
        code = main(sys.argv[1:])
    except KeyboardInterrupt as stopped:
        print(f"error: {getattr(stopped, 'word', 'interrupted')}", file=sys.stderr)
        code = getattr(stopped, "code", 130)
    if code > 128:
        # Python would wait for threads, and a signal meanwhile would kill it without a word.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    entry_point()
