"""Ranges in device names: `shop[01:50]` stands for fifty devices, as in Ansible's inventories."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterator, Sequence

from edgepack.fleet.bounds import MAX_MEMBERS

_RANGE = re.compile(r"\[([^\[\]:]*):([^\[\]:]*)(?::([^\[\]:]*))?\]")
MAX_NAMES = MAX_MEMBERS
_LONGEST = 1000  # letters of what stands for one name or many


class RangeError(ValueError):
    """A range that cannot be read; the message says why."""


def expand(pattern: str) -> Iterator[str]:
    """The names that `pattern` stands for, in order; itself if it has no range.

    `[1:9]` counts, `[01:50]` keeps the width, `[a:f]` takes letters, `[0:100:10]` has a
    step; both ends are included, and several ranges multiply. Raises RangeError.
    """
    if len(pattern) > _LONGEST:
        raise RangeError(f"has {len(pattern)} letters, more than {_LONGEST}")
    parts: list[Sequence[str]] = []
    end, count = 0, 1
    for match in _RANGE.finditer(pattern):
        parts += [(pattern[end : match.start()],), _values(match)]
        end = match.end()
        count *= len(parts[-1])
        if count > MAX_NAMES:
            raise RangeError(f"stands for {count} names or more, more than {MAX_NAMES}")
    parts.append((pattern[end:],))
    if any(bracket in text for part in parts[::2] for text in part for bracket in "[]"):
        raise RangeError("a bracket that belongs to no range [first:last]")
    return map("".join, itertools.product(*parts))


def _values(match: re.Match[str]) -> Sequence[str]:
    first, last, step_text = match.group(1) or "0", match[2], match[3] or "1"
    if not (step_text.isdecimal() and int(step_text) > 0):
        raise RangeError(f"the step of {match[0]} is not a whole number of 1 or more")
    step = int(step_text)
    if first.isdecimal() and last.isdecimal():
        width = len(first) if first.startswith("0") and len(first) > 1 else 0
        if width and width != len(last):
            raise RangeError(f"the ends of {match[0]} have different widths")
        numbers = range(int(first), int(last) + 1, step)
        if len(numbers) > MAX_NAMES:
            raise RangeError(f"{match[0]} has more than {MAX_NAMES} numbers")
        values = [f"{number:0{width}}" for number in numbers]
    elif len(first) == len(last) == 1 and (first + last).isalpha() and (first + last).isascii():
        letters = string.ascii_letters
        values = list(letters[letters.index(first) : letters.index(last) + 1 : step])
    else:
        raise RangeError(f"{match[0]} is not a range of numbers or letters")
    if not values:
        raise RangeError(f"{match[0]} is empty: its end comes before its start")
    return values
