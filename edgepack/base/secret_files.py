"""Passwords and tokens, which are read from files that nobody else can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from edgepack.base.errors import UsageError

_MAX_BYTES = 16 << 10
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_secret(path: Path, option: str) -> str:
    """The one line in the file `path`, which `option` named.

    Raises UsageError if it is not there, others may read it, or it is not one printable line. No
    message repeats what is in it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{option}: {path} is not a file")
        if status.st_mode & _OTHERS:
            raise UsageError(
                f"{option}: {path}: others may read or change it "
                f"(mode {stat.S_IMODE(status.st_mode):04o})",
                hint=f"chmod 600 {path}",
            )
        data = os.read(descriptor, _MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    return check_secret(data.decode(errors="replace").removesuffix("\n"), f"{option}: {path}")


def check_secret(text: str, where: str) -> str:
    """`text`, if it is one printable line of ASCII. Raises UsageError, which does not repeat it."""
    if not text or len(text) > _MAX_BYTES or not (text.isascii() and text.isprintable()):
        raise UsageError(f"{where}: not one printable line of 1 to {_MAX_BYTES} letters")
    return text
