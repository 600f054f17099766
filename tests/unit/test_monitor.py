"""`[monitor]`: what is refused, the counts, and how often chance alone would look like a change."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from edgepack.base.errors import ConfigError
from edgepack.base.tables import Table
from edgepack.bundle.monitor import MOST_CLASSES, Monitoring, take_monitoring
from edgepack.flow.monitor import PhotoSeen, best_of, brightness_of, count_seen
from edgepack.postprocess.results import Area, Box, Found, Mask, Results, Text


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("images", "none", "no such folder"),
        ("images", 3, "is not a string"),
        ("most", 49, "is not between 50 and"),
        ("window", 10, "is not between 50 and"),
        ("window", 2_000_000, "is not between 50 and"),
        ("interval_s", -1.0, "is not between 0 and a day"),
        ("interval_s", math.nan, "is not between 0 and a day"),
        ("notice", 0.0, "is not between 0 and 100"),
        ("alarm", 0.05, "is not between notice, 0.1, and 100"),
        ("windows", 100, "windows"),
    ],
)
def test_what_is_wrong_is_named(key: str, value: object, problem: str, tmp_path: Path) -> None:
    table = Table({key: value}, file=tmp_path / "edgepack.toml", path="monitor")
    with pytest.raises(ConfigError, match=problem) as refusal:
        take_monitoring(table)
    assert key in str(refusal.value)


def test_brightness_is_that_of_the_whole_picture() -> None:
    random = np.random.default_rng(1)
    large = random.integers(0, 256, (640, 960, 3), dtype=np.uint8)
    blue, green, red = large.reshape(-1, 3).mean(0)
    luma = (0.114 * blue + 0.587 * green + 0.299 * red) / 255
    # 1024 of its pixels: of a deviation of 0.19 or so a thirtieth is left.
    assert abs(brightness_of(large) - luma) < 4 * 0.2 / 32
    for shape in ((1, 1, 3), (3, 5000, 3)):
        assert brightness_of(np.full(shape, 255, np.uint8)) == pytest.approx(1)
        assert brightness_of(np.zeros(shape, np.uint8)) == 0


def found(index: int, score: float) -> Found:
    return Found(index=index, label="", score=score)


def box(index: int, score: float) -> Box:
    return Box(index=index, label="", score=score, box=(0, 0, 1, 1))


def test_what_is_best() -> None:
    assert best_of(Results(top=(found(3, 0.9), found(1, 0.1)))) == (0.9, 3)
    assert best_of(Results(boxes=(box(1, 0.5), box(2, 0.8), box(3, 0.8)))) == (0.8, 2)
    assert best_of(Results(boxes=())) == (None, None)
    areas = tuple(Area(index=i, label="", pixels=10 * i, runs=()) for i in (1, 7, 2))
    assert best_of(Results(mask=Mask(size=(9, 9), areas=areas))) == (None, 7)
    assert best_of(Results(text=Text(text="", score=0.3))) == (None, None)
    assert best_of(Results(text=Text(text="x", score=0.3))) == (0.3, None)


def test_counts() -> None:
    seen = [PhotoSeen(brightness=0.5, score=1.0, index=n % 30) for n in range(300)]
    seen += [PhotoSeen(brightness=1.0)] * 5
    spec = count_seen(seen, Monitoring())
    assert spec.photos == 305
    assert spec.brightness[8] == 300 and spec.brightness[15] == 5
    assert spec.scores is not None and spec.scores[-1] == 300
    assert spec.classes is not None
    assert spec.classes.index == tuple(range(MOST_CLASSES))
    assert spec.classes.count == (*[10] * MOST_CLASSES, 100, 5)
    raw = count_seen([PhotoSeen(brightness=0.1, score=7.5, index=0)] * 50, Monitoring())
    assert raw.scores is None and raw.classes is not None
    assert count_seen([PhotoSeen(brightness=0.1)] * 50, Monitoring()).classes is None


def index_and_noise(
    photos: np.ndarray[tuple[int], np.dtype[np.int64]],
    window: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> tuple[float, float]:
    """As drift.h says it."""
    used = (photos > 0) | (window > 0)
    p = (photos[used] + 0.5) / (photos.sum() + 0.5 * used.sum())
    q = (window[used] + 0.5) / (window.sum() + 0.5 * used.sum())
    degrees = int(used.sum()) - 1
    if degrees < 1:
        return 0.0, 0.0
    spread = 2 / (9 * degrees)
    chi_squared = degrees * (1 - spread + 3.0902323 * math.sqrt(spread)) ** 3
    return float(((q - p) * np.log(q / p)).sum()), chi_squared * (
        1 / photos.sum() + 1 / window.sum()
    )


@pytest.mark.parametrize("photos", [50, 200, 1000])
@pytest.mark.parametrize("kind", ["even", "few bins", "one bin and a tail"])
def test_chance_is_no_change(photos: int, kind: str) -> None:
    """Of 1000 pairs of samples of one kind, none is above noise and the first threshold."""
    random = np.random.default_rng(photos)
    shares = {
        "even": np.full(20, 1 / 20),
        "few bins": np.array([0.5, 0.3, 0.2]),
        "one bin and a tail": np.array([0.9, *[0.1 / 21] * 21]),
    }[kind]
    above = 0
    for _ in range(1000):
        index, noise = index_and_noise(
            random.multinomial(photos, shares), random.multinomial(1000, shares)
        )
        above += index - noise > Monitoring.notice
    assert above == 0
