"""What the model sees in its makers' photos, by the reference: `monitor.json` of a bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgepack.base.errors import ConfigError
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.text import format_count
from edgepack.bundle.monitor import (
    BRIGHTNESS_BINS,
    CLASS_BINS,
    LEAST_PHOTOS,
    MOST_CLASSES,
    SCORE_BINS,
    ClassCounts,
    Monitoring,
    MonitorSpec,
)
from edgepack.flow.reference import Array, Reference, top_k
from edgepack.frontend.float16 import widen
from edgepack.model import batch_of
from edgepack.model.meanings import as_meant
from edgepack.postprocess.results import Results
from edgepack.preprocess.image import MOST_PIXELS, Pixels, decode_image
from edgepack.preprocess.photos import SUFFIXES, photos_below

if TYPE_CHECKING:
    from edgepack.flow.job import Job
    from edgepack.flow.project import Project

_GRID = 32


@dataclass(frozen=True, kw_only=True)
class PhotoSeen:
    """What a photo is and shows: brightness from 0 to 1, the best score and class, if there are."""

    brightness: float
    score: float | None = None
    index: int | None = None


def make_monitor(job: Job, *, progress: Progress = NO_PROGRESS) -> MonitorSpec | None:
    """The counts for the job's `[monitor]`; None if the project has no such table.

    Raises ConfigError for a model that takes no photos, or too few photos, and what reading
    photos and running the reference raise.
    """
    wanted = job.project.monitor
    if wanted is None:
        return None
    origin = f"{job.project.origins['monitor']}: [monitor]"
    if job.preprocess is None or len(job.model.given) != 1 or batch_of(job.model.inputs) != 1:
        raise ConfigError(
            f"{origin}: needs preprocessing, and a model of one input, which is one photo",
            hint="add a [preprocess] table: `edgepack init` writes one",
        )
    photos = photos_to_compare_with(job.project)
    reference = Reference(widen(as_meant(job.model.proto)))
    seen = []
    with progress.bar(f"looking at {format_count(len(photos), 'photo')}", len(photos)) as bar:
        for photo in photos:
            seen.append(_look(job, reference, photo))
            bar.update(1)
    return count_seen(seen, wanted)


def count_seen(seen: Sequence[PhotoSeen], wanted: Monitoring) -> MonitorSpec:
    """The counts of what was seen, in the app's bins."""
    scores = [one.score for one in seen if one.score is not None]
    # Of other numbers than probabilities nobody knows the bins.
    usable = bool(scores) and all(0 <= score <= 1 for score in scores)
    return MonitorSpec(
        photos=len(seen),
        window=wanted.window,
        interval_s=wanted.interval_s,
        notice=wanted.notice,
        alarm=wanted.alarm,
        brightness=_bins([one.brightness for one in seen], BRIGHTNESS_BINS),
        scores=_bins(scores, SCORE_BINS) if usable else None,
        classes=_classes([one.index for one in seen]),
    )


def brightness_of(pixels: Pixels) -> float:
    """The mean luma (BT.601) of 32 x 32 pixels spread evenly over a picture, from 0 to 1.

    `pixels` is BGR HWC uint8. cpp_runtime/app/edgepack-run/sight.cc has the same sum.
    """
    height, width = pixels.shape[:2]
    steps = 2 * np.arange(_GRID, dtype=np.int64) + 1
    grid = pixels[steps * height // (2 * _GRID)][:, steps * width // (2 * _GRID)]
    total = (grid.astype(np.int64) @ np.array([114, 587, 299])).sum()
    return float(total) / (1000.0 * 255 * _GRID * _GRID)


def best_of(results: Results) -> tuple[float | None, int | None]:
    """The best score and its class, as the app takes them."""
    found = [*(results.top or ())[:1], *(results.boxes or ()), *(results.keypoints or ())]
    score = index = None
    if found:
        best = max(found, key=lambda one: one.score)  # the first of equal ones
        score, index = best.score, best.index
    if results.mask is not None and results.mask.areas:
        index = max(results.mask.areas, key=lambda area: area.pixels).index
    if results.text is not None and results.text.text:
        score = results.text.score
    return score, index


def photos_to_compare_with(project: Project) -> list[Path]:
    """Those of `[monitor]`; none without that table. Raises ConfigError for too few."""
    wanted = project.monitor
    if wanted is None:
        return []
    origin = f"{project.origins['monitor']}: [monitor]"
    quantizing = project.quantize
    images = wanted.images or (quantizing.images if quantizing else None)
    if images is None:
        raise ConfigError(
            f"{origin}: images: no folder of photos",
            hint='photos like those that the camera will see: images = "photos"',
        )
    photos = list(photos_below(images, option="[monitor] images"))
    if len(photos) < LEAST_PHOTOS:
        raise ConfigError(
            f"{origin}: {format_count(len(photos), 'photo')} in {images}, at least {LEAST_PHOTOS} "
            "are needed",
            hint=f"some hundreds tell more; their names end in {', '.join(SUFFIXES)}",
        )
    # Spread evenly: a folder is often in the order of time.
    count = min(wanted.most, len(photos))
    return [photos[at * len(photos) // count] for at in range(count)]


def _look(job: Job, reference: Reference, photo: Path) -> PhotoSeen:
    preprocess = job.preprocess
    assert preprocess is not None
    pixels, (height, width) = decode_image(
        photo,
        accept=preprocess.accepted,
        max_pixels=preprocess.max_pixels or MOST_PIXELS,
        reduction=preprocess.reduction,
    )
    brightness = brightness_of(pixels)
    outputs = reference.run([preprocess.tensor(preprocess.resized(pixels, (height, width)))])
    score, index = _best(job, outputs, height, width)
    return PhotoSeen(brightness=brightness, score=score, index=index)


def _best(
    job: Job, outputs: Sequence[Array], height: int, width: int
) -> tuple[float | None, int | None]:
    preprocess, postprocess = job.preprocess, job.postprocess
    assert preprocess is not None
    if postprocess is not None:
        by_name = dict(zip((info.name for info in job.model.outputs), outputs, strict=True))
        tensors = [by_name[name] for name in postprocess.outputs]
        results = postprocess.run(tensors, preprocess.geometry(height, width), job.labels or ())
        return best_of(results)
    first = outputs[0]
    if first.size != max(first.shape, default=1):  # the app finds nothing in it either
        return None, None
    (best,) = top_k(first, k=1, scores=job.project.scores)
    return best.score, best.index


def _bins(values: Sequence[float], count: int) -> tuple[int, ...]:
    counts = [0] * count
    for value in values:
        counts[min(int(value * count), count - 1)] += 1
    return tuple(counts)


def _classes(indices: Sequence[int | None]) -> ClassCounts | None:
    counts = Counter(index for index in indices if index is not None)
    if not counts:
        return None
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_CLASSES]
    known = [count for _, count in common]
    bins = [*known, *[0] * (MOST_CLASSES - len(known))]
    bins += [counts.total() - sum(known), len(indices) - counts.total()]
    assert len(bins) == CLASS_BINS
    return ClassCounts(index=tuple(index for index, _ in common), count=tuple(bins))
