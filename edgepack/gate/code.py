"""What the scanners of both instruction sets share."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
# Mapping symbols (ELF for the Arm Architecture, 5.5.5, and for the Arm 64-bit Architecture, 5.4).
_MODES = {"$a": "arm", "$t": "thumb", "$x": "a64", "$d": ""}


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One forbidden instruction: where it is, and its name without operands."""

    address: int
    mnemonic: str
    family: str
    function: str = ""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Code of one mode, "arm", "thumb" or "a64", at addresses `start` to `end`."""

    start: int
    end: int
    mode: str


def mapped_spans(
    symbols: Sequence[tuple[int, str]], start: int, end: int, *, first: str = "arm"
) -> list[Span]:
    """The code in a section at `start` to `end`, by its mapping symbols (address, name).

    Before the first of them it is of the mode `first`.
    """
    marks = [(start, first), *sorted((address, _MODES[name[:2]]) for address, name in symbols)]
    ends = [address for address, _ in marks[1:]] + [end]
    return [
        Span(start=address, end=stop, mode=mode)
        for (address, mode), stop in zip(marks, ends, strict=True)
        if mode and stop > address
    ]


def without(constants: Sequence[tuple[int, int]], start: int, stop: int, mode: str) -> list[Span]:
    """The span `start` to `stop` without `constants` and gaps of up to 8 bytes between them."""
    spans: list[Span] = []
    position = start
    near = 8
    for address, size in sorted(constants):
        if address < start or address >= stop:
            continue
        if address > position and (position == start or address - position > near):
            spans.append(Span(start=position, end=address, mode=mode))
        position = max(position, address + size)
    if position < stop:
        spans.append(Span(start=position, end=stop, mode=mode))
    return spans


def function_at(functions: Sequence[tuple[int, int, str]], address: int) -> str:
    """Name of the function (start, size, name; sorted) that holds `address`.

    Behind its end, the name with the distance: some code has no symbol, as that of
    parallel loops. Empty if nothing precedes.
    """
    index = bisect.bisect_right(functions, (address, 1 << 63, "")) - 1
    if index < 0:
        return ""
    start, size, name = functions[index]
    return name if address < start + size else f"{name}+{address - start:#x}"
