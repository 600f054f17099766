"""Random photos with objects and guesses, for pycocotools and for `average_precision`.

Boxes are made as numbers. Outlines are made as COCO writes them, polygons and run lengths of both
kinds, and read by the reader of data sets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.flow.average_precision import Guess, MaskFit, Thing
from edgepack.flow.data_sets import read_coco
from edgepack.flow.outlines import count_of, mask_overlap
from edgepack.postprocess.box_mask import BoxMask, read_counts
from edgepack.postprocess.instances import encode_mask


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


@dataclass(frozen=True, kw_only=True)
class MaskedCase:
    """The same with masks: as COCO's JSON, the data set and the results, and as it was read."""

    case: BoxedCase
    top: dict[str, Any]
    results: list[dict[str, Any]]


def masked_case(seed: int, folder: Path) -> MaskedCase:
    """Objects near which some guesses lie: with gaps, holes, parts, beyond the photo's edge, empty;
    some are crowds. `folder` is for the data set."""
    random = np.random.default_rng(seed)
    classes, count = int(random.integers(1, 4)), int(random.integers(1, 5))
    sizes = [(int(random.integers(4, 160)), int(random.integers(4, 160))) for _ in range(count)]
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for photo, (height, width) in enumerate(sizes, 1):
        seen = [_spot(random, height, width) for _ in range(int(random.integers(0, 6)))]
        for inside in seen:
            own = _segmentation(random, inside)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": photo,
                    "category_id": int(random.integers(classes)) + 1,
                    "iscrowd": int(random.random() < 0.15),
                    "bbox": [0.0, 0.0, 1.0, 1.0],
                    "area": float(inside.sum() * random.choice([1.0, 1.0, 9.0])),
                    "segmentation": own,
                }
            )
        for _ in range(int(random.integers(0, 9))):
            inside = _spot(random, height, width)
            index = int(random.integers(classes)) + 1
            if seen and random.random() < 0.8:
                at = int(random.integers(len(seen)))
                inside = seen[at] ^ (random.random((height, width)) < random.choice([0.0, 0.02]))
                index = annotations[at - len(seen)]["category_id"]
            results.append(
                {
                    "image_id": photo,
                    "category_id": index,
                    "score": round(float(random.random()), int(random.choice([1, 9]))),
                    "segmentation": encode_mask(inside).to_dict(),
                }
            )
    top = {
        "images": [
            {"id": photo, "file_name": f"{photo}.jpg", "height": height, "width": width}
            for photo, (height, width) in enumerate(sizes, 1)
        ],
        "annotations": annotations,
        "categories": [{"id": index + 1, "name": str(index)} for index in range(classes)],
    }
    return MaskedCase(case=_read(top, results, folder), top=top, results=results)


def _spot(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Pixels of an ellipse, of which some are left out."""
    y, x = np.mgrid[:height, :width]
    far = sum(
        ((own - random.uniform(0, side)) / (side * random.uniform(0.02, 0.5))) ** 2
        for own, side in ((y, height), (x, width))
    )
    left_out = random.random((height, width)) < random.choice([0.0, 0.0, 0.3])
    return np.asarray((far < 1) & ~left_out)


def _segmentation(random: np.random.Generator, inside: np.ndarray) -> Any:
    """An object of about these pixels, in one of COCO's forms."""
    form = int(random.integers(3))
    height, width = inside.shape
    mask = encode_mask(inside).to_dict()
    if form == 0:
        return mask
    if form == 1:
        return {"size": mask["size"], "counts": read_counts(mask["counts"])}
    rows, columns = np.nonzero(inside)
    polygons = []
    for _ in range(int(random.integers(1, 4))):
        corners = random.uniform(-0.2, 1.2, (int(random.integers(3, 14)), 2)) * (width, height)
        if len(rows):
            picked = random.integers(len(rows), size=len(corners))
            corners = np.stack([columns[picked], rows[picked]], 1) + random.random((1, 2))
        if random.random() < 0.3:
            corners = np.round(corners)
        if random.random() < 0.3:
            corners = np.concatenate([corners, corners[:1]])
        polygons.append(corners.ravel().tolist())
    return polygons


def _read(top: dict[str, Any], results: list[dict[str, Any]], folder: Path) -> BoxedCase:
    for image in top["images"]:
        (folder / image["file_name"]).write_bytes(b"")
    file = folder / "boxes.json"
    file.write_text(json.dumps(top))
    data = read_coco(file, outlines=True)
    case = BoxedCase(classes=len(top["categories"]), things=[], guesses=[])
    for photo, image in zip(data.photos, top["images"], strict=True):
        things = [
            replace(one, index=one.index - 1)
            for one in photo.things_in(image["height"], image["width"])
        ]
        case.things.append(things)
        case.guesses.append(
            [_guess(one, things, image) for one in results if one["image_id"] == image["id"]]
        )
    return case


def _guess(result: dict[str, Any], things: list[Thing], image: dict[str, Any]) -> Guess:
    """With its mask's overlaps, as `evaluate_boxes` measures them."""
    size = (image["height"], image["width"])
    runs = BoxMask(size=size, counts=result["segmentation"]["counts"]).runs()
    overlaps = [
        (at, mask_overlap(runs, thing.outline.runs(size), crowd=thing.crowd))
        for at, thing in enumerate(things)
        if thing.index == result["category_id"] - 1 and thing.outline is not None
    ]
    return Guess(
        index=result["category_id"] - 1,
        score=result["score"],
        box=(0.0, 0.0, 1.0, 1.0),
        mask=MaskFit(area=count_of(runs), overlaps=tuple(overlaps)),
    )
