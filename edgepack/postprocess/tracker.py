"""Which box of a frame is what was seen in the frames before.

cpp_runtime/app/src/tracker.cc does the same on the device, where `--track` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgepack.postprocess.results import Box

LEAST_OVERLAP = 0.3
"""Boxes that overlap by less are not of one thing: intersection over union."""
MOST_TRACKS = 100
_NEWEST = 0.5

Sides = tuple[float, ...]


@dataclass
class _Track:
    number: int
    index: int
    box: Sides
    seen: Sides
    velocity: Sides = (0.0, 0.0, 0.0, 0.0)
    missed: int = 0
    moves: bool = False

    def follow(self, seen: Sides) -> None:
        steps = [(now - was) / (self.missed + 1) for now, was in zip(seen, self.seen, strict=True)]
        if self.moves:
            pairs = zip(self.velocity, steps, strict=True)
            steps = [(1 - _NEWEST) * old + _NEWEST * new for old, new in pairs]
        self.velocity = tuple(steps)
        self.box = self.seen = seen
        self.missed, self.moves = 0, True


@dataclass
class Tracker:
    """Numbers for boxes, from 1 on, that stay with what is seen.

    Each track is expected to move as it has moved in a frame: half of its velocity is the last
    step, the other half what it was before. A box belongs to the track of its class with whose
    expected box it overlaps most, by `LEAST_OVERLAP` at least; of all pairs those that overlap more
    go first, of equal ones the older track, then the earlier box. A box without a track begins one,
    while there are fewer than `MOST_TRACKS`; a track that was missed in more than `most_missed`
    frames in a row ends. A number is not used again.
    """

    most_missed: int
    _tracks: list[_Track] = field(default_factory=list)
    _last: int = 0

    def see(self, boxes: Sequence[Box]) -> list[int]:
        """The numbers of the boxes of the next frame, 0 for one that is too many, or not finite."""
        for track in self._tracks:
            track.box = tuple(at + by for at, by in zip(track.box, track.velocity, strict=True))
        numbers = self._match(boxes)
        for track in self._tracks:
            track.missed += track.number not in numbers
        self._tracks = [one for one in self._tracks if one.missed <= self.most_missed]
        for at, box in enumerate(boxes):
            if (
                numbers[at]
                or len(self._tracks) == MOST_TRACKS
                or not all(map(math.isfinite, box.box))
            ):
                continue
            self._last += 1
            numbers[at] = self._last
            self._tracks.append(
                _Track(number=self._last, index=box.index, box=box.box, seen=box.box)
            )
        return numbers

    def reset(self) -> None:
        """The next frame is of another source: it continues no track."""
        self._tracks.clear()

    def _match(self, boxes: Sequence[Box]) -> list[int]:
        pairs = [
            (-by, at, other)
            for at, track in enumerate(self._tracks)
            for other, box in enumerate(boxes)
            if box.index == track.index and (by := overlap(track.box, box.box)) >= LEAST_OVERLAP
        ]
        numbers = [0] * len(boxes)
        found: set[int] = set()
        for _, at, other in sorted(pairs):
            if at not in found and not numbers[other]:
                found.add(at)
                self._tracks[at].follow(boxes[other].box)
                numbers[other] = self._tracks[at].number
        return numbers


def overlap(a: Sides, b: Sides) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""

    def area(left: float, top: float, right: float, bottom: float) -> float:
        return max(right - left, 0.0) * max(bottom - top, 0.0)

    both = area(max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3]))
    union = area(*a) + area(*b) - both
    return both / union if union > 0 else 0.0
