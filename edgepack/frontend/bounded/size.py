"""Sizes that depend on the data: sums of counts, known when the model has run, and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Size:
    """`constant` and, by the name of a scalar of the model, factors of counts."""

    constant: int
    terms: tuple[tuple[str, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _sum([(self, 1), (other, 1)])

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _sum([(self, 1), (other, -1)])

    def __rsub__(self, other: Dim) -> Dim:
        return _sum([(other, 1), (self, -1)])

    def __mul__(self, factor: Dim) -> Dim:
        """By a number; a product of two counts is a TypeError."""
        if isinstance(factor, Size):
            raise TypeError("a product of counts")
        return _sum([(self, factor)])

    __rmul__ = __mul__

    def divided(self, by: int) -> Dim | None:
        """The quotient, None if there is a rest."""
        numbers = [self.constant, *(factor for _, factor in self.terms)]
        if not by or any(number % by for number in numbers):
            return None
        return Size(self.constant // by, tuple((name, n // by) for name, n in self.terms))


# One dimension of a shape, or one element of a tensor that shapes are computed with.
Dim: TypeAlias = int | Size


def count(name: str) -> Size:
    """The number that a scalar of the model holds."""
    return Size(0, ((name, 1),))


def _sum(parts: Iterable[tuple[Dim, int]]) -> Dim:
    constant, terms = 0, dict[str, int]()
    for size, factor in parts:
        if not isinstance(size, Size):
            constant += int(size) * factor
            continue
        constant += size.constant * factor
        for name, times in size.terms:
            terms[name] = terms.get(name, 0) + times * factor
    kept = tuple(sorted((name, times) for name, times in terms.items() if times))
    return Size(constant, kept) if kept else constant
