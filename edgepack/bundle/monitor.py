"""`[monitor]`: what the model saw in photos of its makers, for the app to compare live input with.

`monitor.json` in a bundle holds counts in fixed bins; cpp_runtime/app/edgepack-run/drift.h has the
same bins, and says what the app does with them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.tables import Table

FORMAT, VERSION = "edgepack-monitor", 1
BRIGHTNESS_BINS = 16
SCORE_BINS = 20
MOST_CLASSES = 20
CLASS_BINS = MOST_CLASSES + 2
"""After the classes all others, and nothing found."""
LEAST_PHOTOS, MOST_PHOTOS = 50, 1_000_000
_MOST_WINDOW = 1_000_000
_MOST_INTERVAL_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """The table: `images` is a folder of photos like those that the model will see (None: those of
    `[quantize]`), of which at most `most` are taken.

    A verdict is on a `window` of so many pictures, of which one is taken in `interval_s`. Beyond
    noise, a population stability index above `notice` says that they differ, above `alarm` that
    they differ much: 0.1 and 0.25 are what credit scoring, where the index is from, takes (N.
    Siddiqi, "Credit Risk Scorecards", 2006). No sample has these bounds for a reason of its own.
    """

    images: Path | None = None
    most: int = 1000
    window: int = 1000
    interval_s: float = 1.0
    notice: float = 0.1
    alarm: float = 0.25


def take_monitoring(table: Table) -> Monitoring:
    """What the table `[monitor]` says. Raises its error."""
    name = table.take("images", str, None)
    images = None if name is None else table.file_inside("images", name)
    if images is not None and not images.is_dir():
        raise table.fail("images", f"no such folder: {images}")
    value = Monitoring(
        images=images,
        most=_bounded(table, "most", Monitoring.most, LEAST_PHOTOS, MOST_PHOTOS),
        window=_bounded(table, "window", Monitoring.window, LEAST_PHOTOS, _MOST_WINDOW),
        interval_s=table.take("interval_s", float, Monitoring.interval_s),
        notice=table.take("notice", float, Monitoring.notice),
        alarm=table.take("alarm", float, Monitoring.alarm),
    )
    if not 0 <= value.interval_s <= _MOST_INTERVAL_S:
        raise table.fail("interval_s", f"{value.interval_s} is not between 0 and a day")
    if not 0 < value.notice <= 100:
        raise table.fail("notice", f"{value.notice} is not between 0 and 100")
    if not value.notice <= value.alarm <= 100:
        raise table.fail("alarm", f"{value.alarm} is not between notice, {value.notice}, and 100")
    table.finish()
    return value


def _bounded(table: Table, key: str, default: int, least: int, most: int) -> int:
    value = table.take(key, int, default)
    if not least <= value <= most:
        raise table.fail(key, f"{value} is not between {least} and {most}")
    return value


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """How many photos show each class best: those of `index`, the others, and nothing."""

    index: tuple[int, ...]
    count: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MonitorSpec:
    """`monitor.json`: the counts of `photos`, and how live input is compared with them.

    `scores` is None for a model whose best scores are not between 0 and 1, `classes` for one that
    gives none.
    """

    photos: int
    window: int
    interval_s: float
    notice: float
    alarm: float
    brightness: tuple[int, ...]
    scores: tuple[int, ...] | None
    classes: ClassCounts | None

    def to_json(self) -> str:
        """What the app reads."""
        classes = self.classes and {
            "index": list(self.classes.index),
            "count": list(self.classes.count),
        }
        document = {
            "format": FORMAT,
            "version": VERSION,
            "photos": self.photos,
            "window": self.window,
            "interval_s": self.interval_s,
            "notice": self.notice,
            "alarm": self.alarm,
            "brightness": list(self.brightness),
            "scores": None if self.scores is None else list(self.scores),
            "classes": classes,
        }
        return json.dumps(document, indent=2) + "\n"
