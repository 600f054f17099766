"""Text of others before it is shown: a device's words must not steer the operator's terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_SHOWN = 4000
"""Characters of one message."""

MAX_NAME = 300
"""Characters of what stands within a line: a name, a time, a release."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN = re.compile(r"[\x20-\x7e\n]*")


def printable(text: str) -> str:
    r"""`text` with all that is not printable as \x1b, \u202e and the like; lines stay lines.

    That are control characters, format characters (bidi overrides, joiners), lone surrogates
    and what is not assigned, as `str.isprintable` has it.
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(
        character
        if character.isprintable() or character == "\n"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def message(text: str, *, limit: int = MAX_SHOWN) -> str:
    """What a device said, at most `limit` characters; its further lines are indented."""
    shown = shorten(printable(text.strip()), limit)
    return "\n  ".join(line.strip() for line in shown.splitlines() if line.strip())


def text_lines(text: str) -> list[str]:
    r"""The lines of `text`, which end with "\n", "\r\n" or "\r", as editors count them.

    `str.splitlines` ends one at a form feed or U+2028 as well: of a list of classes all that
    follow would be others.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def unicode_only(value: Any) -> Any:
    """`value`, of JSON's types, with U+FFFD for each byte of a file's name that is no UTF-8.

    Python keeps such a byte as half a surrogate pair, which is in no text that others can read.
    """
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {unicode_only(key): unicode_only(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [unicode_only(item) for item in value]
    return value


def megabytes(size_bytes: int) -> str:
    """For example "14.1 MB" (10^6 bytes), of what is small "0.012 MB", or "312 bytes"."""
    if 0 < size_bytes < 500:
        return format_count(size_bytes, "byte")
    digits = 1 if size_bytes >= 50_000 or size_bytes == 0 else 3
    return f"{size_bytes / 1e6:.{digits}f} MB"


def milliseconds(time_ms: float) -> str:
    """For example "4.25 ms", "132.5 ms" or "13140 ms"."""
    digits = 2 if time_ms < 100 else 1 if time_ms < 1000 else 0
    return f"{time_ms:.{digits}f} ms"


def format_count(count: int, word: str) -> str:
    """For example "1 photo" or "2 photos"."""
    return f"{count} {word}" + "s" * (count != 1)


def one_line(text: object, *, limit: int = MAX_NAME) -> str:
    """`text` on one line, at most `limit` characters."""
    return shorten(printable(" ".join(str(text).split())), limit)


def shorten(text: str, limit: int) -> str:
    """The first `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]} …"
