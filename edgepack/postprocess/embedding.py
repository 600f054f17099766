"""Embeddings: whose vector in a gallery lies nearest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from edgepack.base.tables import Table
from edgepack.postprocess.base import Array, PostprocessSpec, Shapes, as_numbers, label_of
from edgepack.postprocess.gallery import Gallery, read_gallery
from edgepack.postprocess.results import Found, Results
from edgepack.preprocess.geometry import Geometry

UNKNOWN = "unknown"
"""The label of what is like nobody in the gallery."""


@dataclass(frozen=True, kw_only=True)
class Embedding(PostprocessSpec):
    """Who of `people` an embedding, one output that is a vector, is of.

    The similarity of two vectors is the cosine of the angle between them. The person of the nearest
    of `vectors` is found, the first of equals, if that is at least `score` near; else the class
    after the last person, which is called `UNKNOWN`. The score is the similarity to the nearest
    vector either way. It is 0, and the class `UNKNOWN`, if nobody is in the gallery, or if the
    output is all zeros or not finite: that has no direction.

    `vectors` are of length 1, one after the other; `owners` has the number of the person of each.
    `made_by` says with what they were made, as `edgepack.flow.gallery` does.
    """

    kind: ClassVar[str] = "embedding"
    takes_all: ClassVar[bool] = False
    in_pixels: ClassVar[bool] = False

    score: float = 0.5
    made_by: str = ""
    people: tuple[str, ...] = ()
    owners: tuple[int, ...] = ()
    vectors: tuple[float, ...] = ()

    @classmethod
    def read(cls, table: Table) -> Self:
        score = table.take("score", float, 0.5)
        if not 0 < score <= 1:
            raise table.fail("score", f"{score} is not above 0 and at most 1")
        if table.has("gallery"):  # of a project file
            gallery = read_gallery(table.file_inside("gallery", table.take("gallery", str)))
        else:
            gallery = Gallery.take(table)
        return cls(
            score=score,
            made_by=gallery.made_by,
            people=gallery.people,
            owners=gallery.owners,
            vectors=gallery.vectors,
        )

    @property
    def own_labels(self) -> tuple[str, ...]:
        return (*self.people, UNKNOWN)

    def classes(self, shapes: Shapes) -> int:
        (first, *others) = shapes
        if others or not first or math.prod(first) != max(first):
            raise ValueError("it takes one output, a vector")
        if self.owners and len(self.vectors) != max(first) * len(self.owners):
            length = len(self.vectors) // len(self.owners)
            raise ValueError(f"the gallery's vectors have {length} elements: it is another model's")
        return len(self.people) + 1

    def run(
        self, tensors: Sequence[Array], geometry: Geometry | None, labels: Sequence[str] = ()
    ) -> Results:
        vector = as_numbers(tensors[0]).ravel()
        index, score = len(self.people), 0.0
        # Sums one after the other, as in C++.
        with np.errstate(over="ignore", invalid="ignore"):
            length = math.sqrt(float(np.add.accumulate(vector * vector)[-1]))
        if math.isfinite(length) and length > 0 and self.owners:
            known = np.reshape(self.vectors, (len(self.owners), -1))
            near = np.add.accumulate(known * vector, axis=1)[:, -1] / length
            best = int(np.argmax(near))
            score = float(near[best])
            if score >= self.score:
                index = self.owners[best]
        found = Found(index=index, label=label_of(index, labels or self.own_labels), score=score)
        return Results(top=(found,))
