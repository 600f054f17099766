"""Text, one step after the other: connectionist temporal classification, the best of each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from edgepack.base.tables import Table, read_text
from edgepack.postprocess.base import Array, PostprocessSpec, Shapes, as_numbers
from edgepack.postprocess.results import Results, Text
from edgepack.preprocess.geometry import Geometry

SCORES = ("raw", "softmax")
BLANKS = ("first", "last")
MOST_CHARACTERS = 65_535
MOST_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Ctc(PostprocessSpec):
    """The text in one output (1, steps, classes), or (steps, 1, classes).

    Of each step the best class counts, the first of equals; of equal ones in a row the first, and
    none that is the blank: the `blank`, "first" or "last", of all classes. The others are
    `characters`, in their order. The score is the mean of those that count, 0 without any;
    `scores` says whether the elements are probabilities ("raw") or logits ("softmax").
    """

    kind: ClassVar[str] = "ctc"
    takes_all: ClassVar[bool] = False
    in_pixels: ClassVar[bool] = False

    characters: tuple[str, ...] = ()
    blank: str = "first"
    scores: str = "raw"

    @classmethod
    def read(cls, table: Table) -> Self:
        space = table.take("space", bool, False)
        if table.has("charset"):  # of a project file: one character a line
            path = table.file_inside("charset", table.take("charset", str))
            lines = read_text(path).split("\n")
            characters = tuple(line.removesuffix("\r") for line in lines if line)
            characters += (" ",) * space
        else:
            characters = table.take_list("characters", str)
        if not 1 <= len(characters) <= MOST_CHARACTERS or not all(
            1 <= len(one.encode(errors="surrogatepass")) <= MOST_BYTES for one in characters
        ):
            raise table.fail("characters", "are none, too many, or one is empty or long")
        return cls(
            characters=characters,
            blank=table.take_choice("blank", BLANKS, "first"),
            scores=table.take_choice("scores", SCORES, "raw"),
        )

    def classes(self, shapes: Shapes) -> None:
        (first, *others) = shapes
        if others or len(first) != 3 or 1 not in first[:2]:
            raise ValueError("it takes one output, (1, steps, classes) or (steps, 1, classes)")
        if first[2] != len(self.characters) + 1:
            raise ValueError(
                f"{first[2]} classes, but {len(self.characters)} characters and the blank"
            )

    def run(
        self, tensors: Sequence[Array], geometry: Geometry | None, labels: Sequence[str] = ()
    ) -> Results:
        steps = as_numbers(tensors[0]).reshape(-1, len(self.characters) + 1)
        steps = np.where(np.isnan(steps), -np.inf, steps)
        best = np.argmax(steps, 1)
        blank = 0 if self.blank == "first" else len(self.characters)
        text, total, count, last = "", 0.0, 0, blank
        for step, index in zip(steps, best.tolist(), strict=True):
            if index not in (blank, last):
                text += self.characters[index - (self.blank == "first")]
                score = float(step[index])
                if self.scores == "softmax":
                    with np.errstate(invalid="ignore"):
                        score = 1 / float(np.add.accumulate(np.exp(step - step[index]))[-1])
                total += score
                count += 1
            last = index
        mean = total / count if count else 0.0
        return Results(text=Text(text=text, score=mean if math.isfinite(mean) else 0.0))
