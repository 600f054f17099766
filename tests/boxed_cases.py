"""Random photos with objects and guesses, for pycocotools and for `average_precision`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgepack.flow.average_precision import Guess, Thing


@dataclass(frozen=True, kw_only=True)
class BoxedCase:
    """Objects and boxes of each photo, of classes from 0 on."""

    classes: int
    things: list[list[Thing]]
    guesses: list[list[Guess]]


def boxed_case(seed: int) -> BoxedCase:
    """Some with whole numbers, so that scores and overlaps are equal; some with crowds, empty
    photos, more boxes than count, classes without objects."""
    random = np.random.default_rng(seed)
    classes, scale = int(random.integers(1, 5)), float(random.choice([60, 200, 700]))
    on_grid, many = random.random() < 0.4, random.random() < 0.1
    case = BoxedCase(classes=classes, things=[], guesses=[])
    for _ in range(int(random.integers(1, 7))):
        things: list[Thing] = []
        guesses: list[Guess] = []
        for _ in range(int(random.integers(0, 7))):
            box = np.concatenate([random.uniform(0, 0.7, 2), random.uniform(0.02, 0.6, 2)]) * scale
            left, top, wide, high = map(float, np.round(box / 8) * 8 if on_grid else box)
            things.append(
                Thing(
                    index=int(random.integers(classes)),
                    box=(left, top, wide, high),
                    area=float(wide * high * random.choice([1.0, 0.6])),
                    crowd=bool(random.random() < 0.15),
                )
            )
        for _ in range(int(random.integers(0, 130 if many else 12))):
            index = int(random.integers(classes))
            box = np.concatenate([random.uniform(0, 0.7, 2), random.uniform(0.02, 0.6, 2)]) * scale
            if things and random.random() < 0.8:
                near = things[int(random.integers(len(things)))]
                index = near.index if random.random() < 0.8 else index
                box = near.box + random.normal(0, float(random.choice([0.01, 0.05])) * scale, 4)
            box[2:] = np.maximum(box[2:], 0)
            left, top, wide, high = map(float, np.round(box / 8) * 8 if on_grid else box)
            score = float(random.random())
            score = round(score, 1) if random.random() < 0.5 else score
            guesses.append(Guess(index=index, score=score, box=(left, top, wide, high)))
        case.things.append(things)
        case.guesses.append(guesses)
    return case


def as_coco(case: BoxedCase) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same as COCO's JSON: the data set and the results."""
    annotations: list[dict[str, Any]] = []
    results = []
    for number, (things, guesses) in enumerate(zip(case.things, case.guesses, strict=True), 1):
        for thing in things:
            own: dict[str, Any] = {
                "id": len(annotations) + 1,
                "image_id": number,
                "iscrowd": int(thing.crowd),
            }
            own |= {"category_id": thing.index + 1, "bbox": list(thing.box), "area": thing.area}
            annotations.append(own)
        for guess in guesses:
            row: dict[str, Any] = {
                "image_id": number,
                "category_id": guess.index + 1,
                "score": guess.score,
            }
            results.append(row | {"bbox": list(guess.box)})
    images = [{"id": number} for number in range(1, len(case.things) + 1)]
    categories = [{"id": index + 1, "name": str(index)} for index in range(case.classes)]
    top = {"images": images, "annotations": annotations, "categories": categories}
    return top, results
