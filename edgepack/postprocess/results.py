"""What a model sees in a photo, and whether two programs see the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgepack.base.errors import MismatchError
from edgepack.postprocess.box_mask import BoxMask

TOLERANCE = 1e-4
"""What a coordinate may be off, of the photo's longer side, and a score."""


class ResultsMismatchError(MismatchError):
    """The app on the device makes other results of the same outputs than the reference."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A class: its index, its label ("" if there is none), its score."""

    index: int
    label: str
    score: float

    def to_dict(self) -> dict[str, Any]:
        """As edgepack-run writes it."""
        label = {"label": self.label} if self.label else {}
        return {"index": self.index, **label, "score": self.score}


@dataclass(frozen=True, kw_only=True)
class Box(Found):
    """A thing and where it is.

    `box` is (left, top, right, bottom), `points` are (x, y), both in pixels of the photo, from its
    upper left corner. `mask` are the pixels of the thing, if the model tells them. `answers` are
    what later models say of it, by their names: results, or why there are none.
    """

    box: tuple[float, float, float, float]
    points: tuple[tuple[float, float], ...] = ()
    mask: BoxMask | None = None
    answers: Mapping[str, Results | str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As edgepack-run writes it."""
        said = {
            name: {"error": one} if isinstance(one, str) else one.to_dict()
            for name, one in self.answers.items()
        }
        answers = {"answers": said} if said else {}
        points = {"points": [list(point) for point in self.points]} if self.points else {}
        mask = {"mask": self.mask.to_dict()} if self.mask else {}
        return {**super().to_dict(), "box": list(self.box), **points, **mask, **answers}


@dataclass(frozen=True, kw_only=True)
class Mark(Found):
    """A key point: (x, y) in pixels of the photo."""

    point: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """As edgepack-run writes it."""
        return {**super().to_dict(), "point": list(self.point)}


@dataclass(frozen=True, kw_only=True)
class Area:
    """The pixels of one class: `runs` are first pixel and length, first pixel and length ..., in
    the photo's pixels row by row.
    """

    index: int
    label: str
    pixels: int
    runs: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """As edgepack-run writes it."""
        label = {"label": self.label} if self.label else {}
        return {"index": self.index, **label, "pixels": self.pixels, "runs": list(self.runs)}


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Of a photo of `size` (height, width)."""

    size: tuple[int, int]
    areas: tuple[Area, ...]


@dataclass(frozen=True, kw_only=True)
class Text:
    """A line of text, and how sure that is."""

    text: str
    score: float

    def to_dict(self) -> dict[str, Any]:
        """As edgepack-run writes it."""
        return {"text": self.text, "score": self.score}


@dataclass(frozen=True, kw_only=True)
class Values:
    """An output as it is: its elements in order."""

    name: str
    values: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """As edgepack-run writes it."""
        return {"name": self.name, "values": list(self.values)}


@dataclass(frozen=True, kw_only=True)
class StageCount:
    """How many boxes a later model looked at, how many it left out because others were likelier,
    and of how many it could say nothing."""

    stage: str
    boxes: int
    dropped: int
    failed: int

    def to_dict(self) -> dict[str, Any]:
        """As edgepack-run writes it, without times."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Results:
    """What one kind of postprocessing gives; the others are None. `stages` are later models."""

    top: tuple[Found, ...] | None = None
    boxes: tuple[Box, ...] | None = None
    keypoints: tuple[Mark, ...] | None = None
    tensors: tuple[Values, ...] | None = None
    mask: Mask | None = None
    text: Text | None = None
    stages: tuple[StageCount, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The keys of them in edgepack-run's answer."""
        lists = {
            "top": self.top,
            "boxes": self.boxes,
            "keypoints": self.keypoints,
            "tensors": self.tensors,
            "areas": self.mask.areas if self.mask else None,
            "text": (self.text,) if self.text else None,
            "stages": self.stages,
        }
        return {
            key: [one.to_dict() for one in found]
            for key, found in lists.items()
            if found is not None
        }


def check_equal(got: Mapping[str, Any], want: Results, size: tuple[int, int], *, what: str) -> None:
    """Raise `ResultsMismatchError` unless edgepack-run's answer `got` has the results `want`.

    As many, in the same order, of the same classes; coordinates within `TOLERANCE` of the longer
    side of the photo's `size` (height, width), scores within it. `what` gave the answer.
    """
    for key, wanted in want.to_dict().items():
        found = got.get(key) or []  # edgepack-run writes no empty list of classes
        if len(found) != len(wanted):
            raise ResultsMismatchError(
                f"{what}: {len(found)} {key}, the reference has {len(wanted)}"
            )
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            problem = _difference(one, other, max(size))
            if problem:
                raise ResultsMismatchError(f"{what}: {key}[{at}].{problem}")


def _difference(got: Mapping[str, Any], want: Mapping[str, Any], side: int) -> str | None:
    if got.keys() != want.keys():
        return f"keys are {', '.join(got)}, not {', '.join(want)}"
    for key, value in want.items():
        if key in ("index", "label", "name", "text", "pixels", "runs", "mask"):
            if got[key] != value:
                return f"{key} is {got[key]!r}, the reference's is {value!r}"
            continue
        bound = TOLERANCE * (side if key in ("box", "points", "point") else 1)
        numbers, wanted = list(_flat(got[key])), list(_flat(value))
        near = len(numbers) == len(wanted) and all(
            # Not finite is null; of values as they are the bound is relative.
            one == other or (one is not None and abs(one - other) <= bound * max(1, abs(other)))
            if key == "values"
            else one is not None and abs(one - other) <= bound
            for one, other in zip(numbers, wanted, strict=True)
        )
        if not near:
            return f"{key} is {got[key]}, the reference's is {value}"
    return None


def _flat(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        return [value]
    return [one for part in value for one in _flat(part)]
