"""Labelled photos through the reference, and through what is deployed: how often each is right.

Photos lie in a folder for each class, or are listed in a CSV file. What was seen is written down
photo by photo, so that what is interrupted goes on where it was.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import ConfigError, MismatchError, UsageError
from edgepack.base.page import Tabular
from edgepack.base.paths import cache_dir, locked
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tables import read_text
from edgepack.base.text import format_count, text_lines
from edgepack.deploy import remote_tool
from edgepack.deploy.remote_app import RunRequest, ask_app
from edgepack.device.base import Device
from edgepack.device.limit import SLOWEST_BYTES_S, UPLOAD_S, limited
from edgepack.flow.job import check_labels, spec_of
from edgepack.flow.project import Project, class_of_label, labels_of
from edgepack.flow.reference import Array, Reference, top_k
from edgepack.frontend.float16 import widen
from edgepack.frontend.load import load_model
from edgepack.model import LoadedModel
from edgepack.model.meanings import as_meant
from edgepack.preprocess.photos import SUFFIXES, folders_in, photos_in, read_photo

TOP = 5
_RUN_S = 120.0
"""For one run of the model, and the commands around it, on the slowest board."""


@dataclass(frozen=True, kw_only=True)
class Photo:
    """A photo, by a `name` below what was given, and the class that it shows."""

    path: Path
    name: str
    expected: int


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A photo with its `TOP` classes, best first, of the reference and of the device, if any."""

    photo: Photo
    reference: tuple[int, ...]
    device: tuple[int, ...] | None

    @property
    def differs(self) -> bool:
        """Whether the device's first class is another than the reference's."""
        return self.device is not None and self.device[:1] != self.reference[:1]


@dataclass(frozen=True, kw_only=True)
class Evaluation(Tabular):
    """All photos, judged; `labels` are empty if the project has none, `device` is its name."""

    judged: tuple[Judged, ...]
    labels: tuple[str, ...]
    device: str | None

    def label(self, index: int) -> str:
        """A class in words, or its number."""
        return self.labels[index] if index < len(self.labels) else str(index)

    def hits(self, seen: Callable[[Judged], Sequence[int]], k: int) -> int:
        """How many photos have their class among the first `k` that `seen` gives."""
        return sum(one.photo.expected in seen(one)[:k] for one in self.judged)

    @property
    def differing(self) -> tuple[Judged, ...]:
        """The photos that the device sees as another class than the reference."""
        return tuple(one for one in self.judged if one.differs)

    def confusion(self) -> list[tuple[int, int, int]]:
        """(class, class that was seen, how often), of the device if there is one.

        The most frequent first; what was right is there, too.
        """
        counts = Counter(
            (one.photo.expected, (one.device or one.reference)[0]) for one in self.judged
        )
        return [
            (expected, seen, count)
            for (expected, seen), count in sorted(
                counts.items(), key=lambda item: (-item[1], item[0])
            )
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The photos: what each side sees in them."""
        return [
            {
                "photo": one.photo.name,
                "expected": self.label(one.photo.expected),
                "reference": self.label(one.reference[0]),
                "device": self.label(one.device[0]) if one.device else None,
            }
            for one in self.judged
        ]

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "photos": len(self.judged),
            "reference": self._shares(lambda one: one.reference),
            "device": self._shares(lambda one: one.device or ()) if self.device else None,
            "device_name": self.device,
            "confusion": [
                {"expected": expected, "seen": seen, "count": count}
                for expected, seen, count in self.confusion()
            ],
            "differ": [
                {
                    "image": one.photo.name,
                    "expected": one.photo.expected,
                    "reference": list(one.reference),
                    "device": list(one.device or ()),
                }
                for one in self.differing
            ],
            "labels": list(self.labels),
        }

    def _shares(self, seen: Callable[[Judged], Sequence[int]]) -> dict[str, float]:
        count = len(self.judged)
        return {"top1": self.hits(seen, 1) / count, "top5": self.hits(seen, TOP) / count}


def find_photos(images: Path, labels: Sequence[str]) -> list[Photo]:
    """The photos in the folders of `images`, each called by a class, or of a CSV file.

    A class is one of `labels`, in whatever case, or a number. A row of the file has a photo's path
    (from the file's folder on) and its class; a first row "image,class" is its heading. Raises
    UsageError and ConfigError.
    """
    if images.is_dir():
        found = [
            Photo(path=path, name=f"{folder.name}/{path.name}", expected=_class(folder, labels))
            for folder in folders_in(images)
            for path in photos_in(folder)
        ]
    elif images.is_file():
        if images.suffix.lower() in SUFFIXES:
            raise UsageError(
                f"--images: a photo, of which nobody says the class: {images}",
                hint="a folder for each class, or a CSV file; `edgepack check` takes a photo",
            )
        found = _listed(images, labels)
    else:
        raise UsageError(f"--images: no such folder or file: {images}")
    if not found:
        raise UsageError(
            f"--images: no photos in {images}",
            hint=f"a folder for each class, with {', '.join(SUFFIXES)} in it; or a CSV file",
        )
    return found


def photos_budget_s(photos: Sequence[Path]) -> float:
    """How long a device may take for all of them."""
    size_bytes = sum(path.stat().st_size for path in photos if path.is_file())
    return budget_s(len(photos), size_bytes)


def budget_s(runs: int, size_bytes: int = 0) -> float:
    """How long a device may take for so many runs, and so many bytes that go there."""
    return UPLOAD_S + size_bytes / SLOWEST_BYTES_S + runs * _RUN_S


def _listed(file: Path, labels: Sequence[str]) -> list[Photo]:
    try:
        rows = list(csv.reader(text_lines(read_text(file, error=UsageError))))
    except csv.Error as error:
        raise UsageError(f"{file}: not a CSV file: {error}") from None
    found = []
    for number, row in enumerate(rows, start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and cells[:1] == ["image"]):
            continue
        path = file.parent / cells[0]
        if len(cells) != 2 or not path.is_file():
            raise UsageError(
                f"{file}: line {number}: "
                + (f"no such photo: {cells[0]}" if len(cells) == 2 else f"{len(cells)} values"),
                hint="each line is a photo's path and its class: roses/1.jpg,rose",
            )
        expected = _class_of(cells[1], labels, f"{file}: line {number}", file)
        found.append(Photo(path=path, name=cells[0], expected=expected))
    return found


def _class(folder: Path, labels: Sequence[str]) -> int:
    return _class_of(folder.name, labels, f"--images: the folder {folder}", folder)


def _class_of(text: str, labels: Sequence[str], origin: str, file: Path) -> int:
    if text.isdecimal() and text not in labels:
        if labels and int(text) >= len(labels):
            raise UsageError(f"{origin}: class {text}, but there are {len(labels)}")
        return int(text)
    if not labels:
        raise UsageError(
            f"{origin}: {text!r} is not the number of a class, and the project has no labels",
            hint="name the file of labels: labels in [project]",
        )
    return class_of_label(text, labels, origin=origin, file=file)


def evaluate(
    project: Project,
    images: Path,
    *,
    device: Device | None = None,
    root: str = "",
    progress: Progress = NO_PROGRESS,
) -> Evaluation:
    """Judge the photos in `images` (`find_photos`) by the reference, and by `device` if given.

    What was judged before, of the same content, model, preprocessing and release, is not again.
    Raises UsageError if the release that is current below `root` is of another model, what
    `load_model`, the preprocessing and the photos raise, and what `ask_app` raises.
    """
    model = load_model(spec_of(project))
    labels = labels_of(project) or ()
    if labels:
        check_labels(project, labels, model.outputs[0])
    if project.preprocess is None or len(model.inputs) != 1:
        raise ConfigError(
            f"{project.model}: photos need preprocessing, and a model of one input",
            hint="add a [preprocess] table: `edgepack init` writes one",
        )
    preprocess = project.preprocess.for_inputs(model.given)
    photos = find_photos(images, labels)
    release = None if device is None else current_release(device, root, model.sha256)
    journal = SeenJournal(
        [model.sha256, preprocess.to_json(), device.name if device else None, root, release]
    )
    reference: Reference | None = None
    judged = []
    count = format_count(len(photos), "photo")
    limit = (
        limited(device, photos_budget_s([photo.path for photo in photos]), count)
        if device
        else contextlib.nullcontext()
    )
    with limit, locked(journal.path), progress.bar(count, len(photos)) as bar:
        for photo in photos:
            digest = hashlib.sha256(read_photo(photo.path)).hexdigest()
            found = journal.known.get(digest)
            if found is None:
                reference = reference or Reference(widen(as_meant(model.proto)))
                (first, *_) = reference.run([preprocess.load(photo.path)])
                seen = tuple(one.index for one in top_k(first, k=TOP, scores="raw"))
                there = None if device is None else _ask(device, root, photo.path)
                found = journal.add(digest, seen, there)
            judged.append(Judged(photo=photo, reference=found[0], device=found[1]))
            bar.update(1)
    name = device.name if device else None
    return Evaluation(judged=tuple(judged), labels=tuple(labels), device=name)


def current_release(device: Device, root: str, model_sha256: str) -> str:
    """The release that is current below `root`. Raises `UsageError` if it is of another model."""
    current = remote_tool.status(device, root).current
    if current is None or current.model_sha256 != model_sha256:
        what = f"is of another model, {current.model}" if current else "is not there"
        raise UsageError(
            f"{device.name}: the release that is current in {root} {what}",
            hint="`edgepack deploy` first",
        )
    return current.release


def outputs_there(
    model: LoadedModel,
    device: Device,
    root: str,
    *,
    image: Path,
) -> list[Array]:
    """The outputs of what is current below `root`, for a photo.

    Raises `MismatchError` if they are not of the model's shapes, and what `ask_app` raises.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        files = tuple(Path(folder) / f"{at}.npy" for at, _ in enumerate(model.outputs))
        ask_app(device, root, RunRequest(image=image, outputs=files))
        try:
            outputs = [np.load(file, allow_pickle=False) for file in files]
        except (OSError, ValueError, EOFError) as error:
            raise MismatchError(f"{device.name}: its outputs cannot be read: {error}") from None
    check_outputs(model, outputs, device.name)
    return outputs


def check_outputs(model: LoadedModel, outputs: Sequence[Array], device: str) -> None:
    """Raise `MismatchError` if what a device gave is not of the model's shapes."""
    for info, output in zip(model.outputs, outputs, strict=True):
        if tuple(output.shape) != tuple(info.shape):
            raise MismatchError(
                f"{device}: output '{info.name}' is {output.shape}, not {info.shape}"
            )


def _ask(device: Device, root: str, photo: Path) -> tuple[int, ...]:
    answer = ask_app(device, root, RunRequest(image=photo, options=("--top", str(TOP))))
    return tuple(one.index for one in answer.top)


_Seen = tuple[tuple[Any, ...], tuple[Any, ...] | None]


def _check(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class SeenJournal:
    """What was seen in photos, by their SHA-256: a line of JSON each after its own hash, in the
    cache."""

    def __init__(self, key: Sequence[object]) -> None:
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
        self.path = cache_dir() / "evaluated" / f"{name}.jsonl"
        self.known: dict[str, _Seen] = {}
        self._size = 0
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        for line in lines:
            if not line.endswith(b"\n"):
                break  # cut off; what follows is written over it
            check, _, text = line.decode(errors="replace").strip().partition(" ")
            if check != _check(text):
                break  # damaged: it, and what follows, is asked for again
            entry: Mapping[str, Any] = json.loads(text)
            there = entry["device"]
            self.known[entry["sha256"]] = (
                tuple(entry["reference"]),
                None if there is None else tuple(there),
            )
            self._size += len(line)

    def add(self, digest: str, seen: tuple[Any, ...], there: tuple[Any, ...] | None) -> _Seen:
        """Write a photo down."""
        entry = {"sha256": digest, "reference": seen, "device": there}
        text = json.dumps(entry)
        data = f"{_check(text)} {text}\n".encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.truncate(self._size)  # what was cut off
            file.write(data)
        self._size += len(data)
        self.known[digest] = (seen, there)
        return seen, there
