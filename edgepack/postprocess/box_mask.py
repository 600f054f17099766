"""A mask of a box in COCO's form: run lengths.

The form is run lengths: the photo's pixels column by column, first how many are outside, then how
many inside, and so on; as text by pycocotools' rule (common/maskApi.c, rleToString): each length
from the fourth on less the one two before it, in groups of 5 bits, the lowest first, bit 5 for
"more follows", plus 48.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

_FIRST_PLAIN = 3
# Bits of a length that a photo can have, in groups of 5.
_MOST_GROUPS = 8


@dataclass(frozen=True, kw_only=True)
class BoxMask:
    """Pixels of a photo of `size` (height, width), as `counts` in COCO's compressed form: what
    pycocotools.mask.decode takes."""

    size: tuple[int, int]
    counts: str

    def to_dict(self) -> dict[str, Any]:
        """As edgepack-run writes it."""
        return {"size": list(self.size), "counts": self.counts}

    def runs(self) -> Ints:
        """(N, 2): where each run of pixels begins and ends, column by column.

        Raises `ValueError` if the counts are not those of such a photo.
        """
        return runs_of(read_counts(self.counts), self.size)


def write_counts(lengths: Iterable[int]) -> str:
    """Run lengths as text."""
    lengths = list(lengths)
    letters = bytearray()
    for at, length in enumerate(lengths):
        value = length - lengths[at - 2] if at >= _FIRST_PLAIN else length
        while True:
            group, value = value & 31, value >> 5
            more = value != (-1 if group & 16 else 0)
            letters.append(48 + group + 32 * more)
            if not more:
                break
    return letters.decode("ascii")


def read_counts(text: str) -> list[int]:
    """The run lengths in a text. Raises `ValueError`."""
    lengths: list[int] = []
    value = groups = 0
    for letter in text:
        code = ord(letter) - 48
        if not 0 <= code < 64 or groups == _MOST_GROUPS:
            raise ValueError(f"{letter!r} is no part of a mask's counts")
        value |= (code & 31) << (5 * groups)
        groups += 1
        if code & 32:
            continue
        if code & 16:
            value -= 1 << (5 * groups)
        if len(lengths) >= _FIRST_PLAIN:
            value += lengths[-2]
        if value < 0:
            raise ValueError(f"a length of {value} in a mask's counts")
        lengths.append(value)
        value = groups = 0
    if groups:
        raise ValueError("a mask's counts end within a length")
    return lengths


def runs_of(lengths: Iterable[int], size: tuple[int, int]) -> Ints:
    """(N, 2): begin and end of each run of pixels inside, column by column.

    Raises `ValueError` unless the lengths are those of a photo of `size`.
    """
    import numpy as np  # not for those who only pass masks on

    lengths = list(lengths)
    if not lengths or min(lengths) < 0 or sum(lengths) != size[0] * size[1]:
        raise ValueError(f"counts of {sum(lengths)} pixels, not of {size[0]} x {size[1]}")
    counts = np.array(lengths, np.int64)
    ends = np.cumsum(counts)
    inside = np.stack([ends[1::2] - counts[1::2], ends[1::2]], 1)
    return inside[inside[:, 0] < inside[:, 1]]
