"""`python -m edgepack` is the `edgepack` command."""

from __future__ import annotations

import sys
from typing import NoReturn


def entry_point() -> NoReturn:
    """The `edgepack` program."""
    try:
        # Here and not above: an interrupt while modules are being read is no bug either.
        from edgepack.cli import main

        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    entry_point()
