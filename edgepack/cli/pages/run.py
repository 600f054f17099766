"""The page of `run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.page import Html
from edgepack.base.text import format_count
from edgepack.cli.pages.photos import mark_photo
from edgepack.cli.pages.times import run_times

if TYPE_CHECKING:
    from edgepack.deploy.app_answers import AppAnswer


def run_page(answer: AppAnswer, title: str, photo: Path | None) -> Html:
    """A photo with its boxes, points or classes, and what the run took."""
    shown = answered_photo(answer, photo) if photo else Html()
    classes = page.shares(
        (score.label or f"class {score.index}", max(score.score, 0.0), f"{score.score:.4f}")
        for score in answer.top
    )
    return page.page(
        title,
        page.verdict(said) if (said := describe_answer(answer)) else Html(),
        page.section("Result", shown, classes),
        page.section("Run", run_times(answer)),
        kind="run",
    )


def describe_answer(answer: AppAnswer) -> str:
    """What the model sees, in a few words; "" if its outputs are only numbers."""
    if answer.top:
        best = answer.top[0]
        return f"{best.label or f'class {best.index}'} {best.score:.4f}"
    if answer.boxes is not None:
        return format_count(len(answer.boxes), "thing")
    if answer.areas is not None:
        return format_count(len(answer.areas), "area")
    return ""


def answered_photo(answer: AppAnswer, photo: Path) -> Html:
    """A photo as it is, or with what lies in it, turned as those coordinates are."""
    points = _points(answer.document)
    if answer.boxes is None and not points:
        return page.picture(photo.read_bytes(), alt=photo.name)
    from edgepack.preprocess.image import KINDS, load_image

    image = load_image(photo, accept=KINDS)
    return mark_photo(image, answer.boxes or (), points, alt=photo.name)


def _points(found: object) -> list[tuple[float, float]]:
    """Each "point" and those of "points" in an answer, which may hold anything."""
    if isinstance(found, list):
        return [point for one in found for point in _points(one)]
    if not isinstance(found, dict):
        return []
    points = []
    for key, value in found.items():
        given = [value] if key == "point" else value if key == "points" else None
        if given is None:
            points += _points(value)
            continue
        for one in given if isinstance(given, list) else ():
            if isinstance(one, list) and [type(side) for side in one] == [float, float]:
                points.append((one[0], one[1]))
    return points
