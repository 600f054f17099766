"""Classifiers: the best classes of a vector of scores; and tensors as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from edgepack.base.tables import Table
from edgepack.postprocess.base import (
    Array,
    PostprocessSpec,
    Shapes,
    as_numbers,
    label_of,
    sigmoid,
    take_count,
)
from edgepack.postprocess.results import Found, Results, Values
from edgepack.preprocess.geometry import Geometry

SCORES = ("softmax", "sigmoid", "raw")
MOST = 1_000_000
"""Classes, or elements of a tensor, that are given at most."""


@dataclass(frozen=True, kw_only=True)
class Classes(PostprocessSpec):
    """The `top` best classes of one vector, best first, equal ones by index.

    `scores` says what makes scores of the elements: "softmax", "sigmoid" of each (several classes
    may be there at once), or nothing ("raw"). Those below `score` are left out.
    """

    kind: ClassVar[str] = "classes"
    takes_all: ClassVar[bool] = False
    in_pixels: ClassVar[bool] = False

    scores: str = "softmax"
    top: int = 5
    score: float | None = None

    @classmethod
    def read(cls, table: Table) -> Self:
        score = table.take("score", float, None)
        if score is not None and not math.isfinite(score):
            raise table.fail("score", f"{score} is not a finite number")
        return cls(
            scores=table.take_choice("scores", SCORES, "softmax"),
            top=take_count(table, "top", 5, 1, MOST),
            score=score,
        )

    def classes(self, shapes: Shapes) -> int:
        (first, *others) = shapes
        if others or not first or math.prod(first) != max(first):
            raise ValueError("it takes one output, a vector of scores")
        return max(first)

    def run(
        self, tensors: Sequence[Array], geometry: Geometry | None, labels: Sequence[str] = ()
    ) -> Results:
        values = as_numbers(tensors[0]).ravel()
        largest = np.max(values[~np.isnan(values)], initial=-np.inf)
        with np.errstate(invalid="ignore"):
            if self.scores == "softmax":
                values = np.exp(values - largest)
                values = values / np.add.accumulate(values)[-1]  # one after the other, as in C++
            elif self.scores == "sigmoid":
                values = sigmoid(values)
        order = np.argsort(-values, kind="stable")  # NaN last
        least = -np.inf if self.score is None else self.score
        return Results(
            top=tuple(
                Found(index=int(i), label=label_of(i, labels), score=float(values[i]))
                for i in order[: self.top]
                if not values[i] < least
            )
        )


@dataclass(frozen=True, kw_only=True)
class Tensors(PostprocessSpec):
    """The elements of each output as they are, at most `count` of each."""

    kind: ClassVar[str] = "tensors"
    dtypes: ClassVar[Sequence[str]] = ()
    in_pixels: ClassVar[bool] = False

    count: int = 1000

    @classmethod
    def read(cls, table: Table) -> Self:
        return cls(count=take_count(table, "count", 1000, 1, MOST))

    def classes(self, shapes: Shapes) -> None:
        return None

    def run(
        self, tensors: Sequence[Array], geometry: Geometry | None, labels: Sequence[str] = ()
    ) -> Results:
        return Results(
            tensors=tuple(
                Values(name=name, values=tuple(as_numbers(tensor).ravel()[: self.count].tolist()))
                for name, tensor in zip(self.outputs, tensors, strict=True)
            )
        )
