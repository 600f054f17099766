"""A model that reads, on photos with the text that is in them: error rates of letters and words.

Of a project whose own model reads one line, that line counts; of one whose stage reads what a
detector finds, the lines of all boxes, in the order of the boxes. Each photo has its text beside
it, in a file of its name that ends in .txt.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.base.errors import ConfigError, UsageError
from edgepack.base.page import Tabular
from edgepack.base.paths import locked
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tables import read_text
from edgepack.base.text import format_count
from edgepack.deploy.app_answers import AppAnswer
from edgepack.deploy.remote_app import RunRequest, ask_app
from edgepack.device.base import Device
from edgepack.device.limit import limited
from edgepack.flow.check import check_project
from edgepack.flow.evaluate import SeenJournal, current_release, photos_budget_s
from edgepack.flow.job import spec_of
from edgepack.flow.project import Project
from edgepack.frontend.load import load_model
from edgepack.postprocess.boxes import Boxes
from edgepack.postprocess.ctc import Ctc
from edgepack.postprocess.results import Results
from edgepack.preprocess.photos import photos_in, read_photo

_MOST_LETTERS = 20_000


@dataclass(frozen=True, kw_only=True)
class ReadPhoto:
    """A photo, the text in it, and what the reference and the device, if any, read there; words are
    parted by single spaces."""

    name: str
    expected: str
    reference: str
    device: str | None


@dataclass(frozen=True, kw_only=True)
class ErrorRates:
    """Letters, or words, that have to be changed, left out or put in to get what is right, over
    how many are right; that may be more than 1."""

    letters: float
    words: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]]) -> ErrorRates:
        """Of texts that are right, which are not all empty, and those that were read."""
        letters = sum(edit_distance(right, read) for right, read in pairs)
        words = sum(edit_distance(right.split(), read.split()) for right, read in pairs)
        return cls(
            letters=letters / sum(len(right) for right, _ in pairs),
            words=words / sum(len(right.split()) for right, _ in pairs),
        )

    def to_dict(self) -> dict[str, float]:
        """For --json."""
        return {"letters": self.letters, "words": self.words}


@dataclass(frozen=True, kw_only=True)
class TextEvaluation(Tabular):
    """What was read in all photos; `device` is its name."""

    photos: tuple[ReadPhoto, ...]
    device: str | None

    @property
    def reference(self) -> ErrorRates:
        """How wrong the reference is."""
        return ErrorRates.of([(one.expected, one.reference) for one in self.photos])

    @property
    def on_device(self) -> ErrorRates | None:
        """How wrong the device is, if there is one."""
        if self.device is None:
            return None
        return ErrorRates.of([(one.expected, one.device or "") for one in self.photos])

    @property
    def differing(self) -> tuple[ReadPhoto, ...]:
        """The photos in which the device reads something else than the reference."""
        return tuple(one for one in self.photos if one.device not in (None, one.reference))

    def rows(self) -> list[dict[str, Any]]:
        """The photos: what is right, and what each side reads."""
        return [
            {
                "photo": one.name,
                "expected": one.expected,
                "reference": one.reference,
                "device": one.device,
            }
            for one in self.photos
        ]

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        there = self.on_device
        return {
            "photos": len(self.photos),
            "reference": self.reference.to_dict(),
            "device": there.to_dict() if there else None,
            "device_name": self.device,
            "read": self.rows(),
        }


def edit_distance(right: Sequence[str], read: Sequence[str]) -> int:
    """How many changes, omissions and insertions make one sequence of the other (Levenshtein's
    distance)."""
    before = list(range(len(read) + 1))
    for at, wanted in enumerate(right, start=1):
        now = [at]
        for place, seen in enumerate(read, start=1):
            now.append(min(before[place] + 1, now[-1] + 1, before[place - 1] + (wanted != seen)))
        before = now
    return before[-1]


def reading_stage(project: Project) -> str | None:
    """The stage that reads, the last of several; "" if the project's own model does; None if
    nothing reads."""
    names = [one.name for one in project.stages if isinstance(one.postprocess, Ctc)]
    if names:
        return names[-1]
    return "" if isinstance(project.postprocess, Ctc) else None


def reads_text(project: Project, *, asked: bool) -> bool:
    """Whether what the project reads is judged: if that is `asked` for, or nothing else can be.

    Raises `UsageError` if it is asked for and nothing reads."""
    reads = reading_stage(project) is not None
    if asked and not reads:
        raise UsageError(
            "--text: neither the project's model nor a stage reads text",
            hint='a [postprocess] of kind "ctc" does',
        )
    return reads and (asked or not isinstance(project.postprocess, Boxes))


def evaluate_text(
    project: Project,
    images: Path,
    *,
    device: Device | None = None,
    root: str = "",
    progress: Progress = NO_PROGRESS,
) -> TextEvaluation:
    """Read the photos of the folder `images` by the reference, and by `device` if given.

    What was read before, of the same content, project and release, is not again. Raises UsageError
    for photos without text and if the release that is current below `root` is of another model, and
    what `check_project` and `ask_app` raise.
    """
    stage = reading_stage(project)
    if stage is None:
        raise ConfigError(f"{project.model}: nothing of the project reads text")
    photos = _find(images)
    model = load_model(spec_of(project))
    release = None if device is None else current_release(device, root, model.sha256)
    journal = SeenJournal([model.sha256, _key(project), device and device.name, root, release])
    read = []
    count = format_count(len(photos), "photo")
    budget = photos_budget_s([path for path, _ in photos])
    limit = limited(device, budget, count) if device else contextlib.nullcontext()
    with limit, locked(journal.path), progress.bar(count, len(photos)) as bar:
        for path, expected in photos:
            digest = hashlib.sha256(read_photo(path)).hexdigest()
            found = journal.known.get(digest)
            if found is None:
                (seen,) = check_project(project, [path]).seen
                assert seen.results is not None
                there = None
                if device is not None:
                    there = _lines_there(ask_app(device, root, RunRequest(image=path)), stage)
                found = journal.add(digest, _lines_here(seen.results, stage), there)
            here, away = found
            read.append(
                ReadPhoto(
                    name=path.name,
                    expected=expected,
                    reference=_one_text(here),
                    device=None if away is None else _one_text(away),
                )
            )
            bar.update(1)
    return TextEvaluation(photos=tuple(read), device=device.name if device else None)


def _find(images: Path) -> list[tuple[Path, str]]:
    """The photos of a folder, and the text of each."""
    if not images.is_dir():
        raise UsageError(
            f"--images: no folder: {images}", hint="one with photos, and the text of each in a .txt"
        )
    found = []
    for photo in photos_in(images):
        file = photo.with_suffix(".txt")
        if not file.is_file():
            raise UsageError(
                f"--images: {photo} has no text beside it",
                hint=f"write what is to be read there into {file.name}",
            )
        text = _one_text([read_text(file, error=UsageError)])
        if len(text) > _MOST_LETTERS:
            raise UsageError(f"{file}: {len(text)} letters; at most {_MOST_LETTERS} are compared")
        found.append((photo, text))
    if not any(text for _, text in found):
        raise UsageError(
            f"--images: {images} has no photos, or no text in any",
            hint="photos, and a .txt of the same name for each",
        )
    return found


def _key(project: Project) -> str:
    """What answers depend on, beside the first model."""
    parts = [
        repr((one.name, one.align, one.tall, one.turned_by, one.most, one.padding, one.classes))
        + repr((one.preprocess, one.postprocess, one.scores, one.shapes))
        + "".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in one.files)
        for one in project.stages
    ]
    return repr((project.preprocess, project.postprocess, project.shapes, project.constants, parts))


def _lines_here(results: Results, stage: str) -> tuple[str, ...]:
    if not stage:
        return (results.text.text,) if results.text else ()
    answers = [box.answers.get(stage) for box in results.boxes or ()]
    return tuple(one.text.text for one in answers if isinstance(one, Results) and one.text)


def _lines_there(answer: AppAnswer, stage: str) -> tuple[str, ...]:
    if not stage:
        return answer.text
    answers = (box.answers[stage] for box in answer.boxes or () if stage in box.answers)
    return tuple(line for one in answers for line in one.text)


def _one_text(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())
