"""A table with the right answers, row by row through the reference and through what is deployed.

An answer is a class, which is right or wrong, or a value, whose error is measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.page import Tabular
from edgepack.base.paths import locked
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.text import format_count
from edgepack.deploy.remote_rows import ask_app_of_rows, rows_at_once
from edgepack.device.base import Device
from edgepack.device.limit import limited
from edgepack.flow.evaluate import SeenJournal, budget_s, check_outputs, current_release
from edgepack.flow.job import spec_of
from edgepack.flow.project import Project, read_labels
from edgepack.flow.reference import Reference
from edgepack.flow.rows import Array, RowsError, answer_of, read_rows
from edgepack.frontend.float16 import widen
from edgepack.frontend.load import load_model
from edgepack.model import LoadedModel
from edgepack.model.meanings import as_meant

Number = int | float


@dataclass(frozen=True, kw_only=True)
class Answering:
    """The output that answers a row, number `at`, and how.

    Without `is_value` it is a class: the output's one whole number, or, of `classes` scores, which
    is the greatest.
    """

    name: str
    at: int
    is_value: bool
    classes: int | None
    labels: tuple[str, ...]

    @classmethod
    def of(cls, model: LoadedModel, target: str, labels: Sequence[str]) -> Answering:
        """The output called as the column of answers, else the first."""
        names = [info.name for info in model.outputs]
        at = names.index(target) if target in names else 0
        output = model.outputs[at]
        sizes = [size for size in output.shape if isinstance(size, int)]
        size = math.prod(sizes)
        if len(sizes) < len(output.shape) or size != max(sizes, default=1) or size == 0:
            raise RowsError(
                f"{model.path}: output '{output.name}' {tuple(output.shape)} is neither a number "
                "nor a score for each class",
                hint="a column called as an output is compared with that one",
            )
        is_value = size == 1 and np.dtype(output.dtype).kind == "f"
        if is_value and labels:
            raise RowsError(
                f"{model.path}: output '{output.name}' is one number, and the project has "
                f"{len(labels)} labels",
                hint="without labels in [project] it is a value, whose error is measured; classes "
                "need their whole number, or a score each",
            )
        return cls(
            name=output.name,
            at=at,
            is_value=is_value,
            classes=size if size > 1 else None,
            labels=tuple(labels),
        )

    def due(self, text: str, where: str) -> Number:
        """The right answer, from its cell. Raises `RowsError`."""
        if not text:
            raise RowsError(f"{where}: it is empty", hint="leave rows without an answer out")
        answer = answer_of(text, self.labels, where)
        if not math.isfinite(answer):
            raise RowsError(f"{where}: '{text}' is no answer")
        if self.is_value:
            return answer
        if answer != int(answer):
            raise RowsError(f"{where}: '{text}' is no class, and '{self.name}' gives classes")
        if self.classes is not None and not 0 <= answer < self.classes:
            raise RowsError(f"{where}: class {int(answer)}, but '{self.name}' has {self.classes}")
        return int(answer)

    def read(self, outputs: Sequence[Array]) -> Number:
        """The answer in a run's outputs."""
        output = outputs[self.at]
        if self.classes is not None:
            return int(np.argmax(output))
        return float(output.item()) if self.is_value else int(output.item())


@dataclass(frozen=True, kw_only=True)
class JudgedRow:
    """The line of a row, its right answer, and those of the reference and the device, if any."""

    line: int
    expected: Number
    reference: Number
    device: Number | None


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The mean of absolute errors, and the root of the mean of their squares.

    None if the model gave a value that is not finite.
    """

    mae: float | None
    rmse: float | None

    @classmethod
    def of(cls, pairs: Sequence[tuple[Number, Number]]) -> Errors:
        """Those between the two values of each pair."""
        errors = np.array([float(one) - float(other) for one, other in pairs])
        if not np.isfinite(errors).all():
            return cls(mae=None, rmse=None)
        return cls(mae=float(np.abs(errors).mean()), rmse=math.sqrt(float((errors**2).mean())))


@dataclass(frozen=True, kw_only=True)
class RowEvaluation(Tabular):
    """All rows, judged by the output `answering`; `device` is its name."""

    judged: tuple[JudgedRow, ...]
    answering: Answering
    target: str
    device: str | None

    def label(self, answer: Number) -> str:
        """A class in words, or its number; a value in six digits."""
        if self.answering.is_value:
            return f"{answer:.6g}"
        labels = self.answering.labels
        return labels[int(answer)] if 0 <= answer < len(labels) else str(answer)

    def right(self, seen: Callable[[JudgedRow], Number | None]) -> int:
        """In how many rows the class that `seen` gives is the right one."""
        return sum(seen(one) == one.expected for one in self.judged)

    def errors(self, seen: Callable[[JudgedRow], Number | None]) -> Errors:
        """Of the values that `seen` gives."""
        values = [(seen(one), one.expected) for one in self.judged]
        return Errors.of([(value, due) for value, due in values if value is not None])

    @property
    def differing(self) -> tuple[JudgedRow, ...]:
        """The rows for which the device has another answer than the reference, bit by bit."""
        return tuple(
            one
            for one in self.judged
            if one.device is not None
            and one.device != one.reference
            and not (math.isnan(one.device) and math.isnan(one.reference))
        )

    @property
    def largest_difference(self) -> float | None:
        """Between the device's values and the reference's; None if one alone is not finite."""
        pairs = [(float(one.device or 0), float(one.reference)) for one in self.differing]
        largest = max((abs(one - other) for one, other in pairs), default=0.0)
        return largest if all(math.isfinite(one - other) for one, other in pairs) else None

    def confusion(self) -> list[tuple[Number, Number, int]]:
        """(class, class that was seen, how often), of the device if there is one, the most
        frequent first; what was right is there, too."""
        counts = Counter(
            (one.expected, one.reference if one.device is None else one.device)
            for one in self.judged
        )
        return [
            (expected, seen, count)
            for (expected, seen), count in sorted(
                counts.items(), key=lambda item: (-item[1], item[0])
            )
        ]

    def rows(self) -> list[dict[str, Any]]:
        """The rows: what is right, and what each side answers."""
        return [
            {
                "line": one.line,
                "expected": self._said(one.expected),
                "reference": self._said(one.reference),
                "device": None if one.device is None else self._said(one.device),
            }
            for one in self.judged
        ]

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        is_value = self.answering.is_value
        there = self.device is not None
        return {
            "rows": len(self.judged),
            "target": self.target,
            "output": self.answering.name,
            "kind": "values" if is_value else "classes",
            "reference": self._figures(lambda one: one.reference),
            "device": self._figures(lambda one: one.device) if there else None,
            "device_name": self.device,
            "largest_difference": self.largest_difference if there and is_value else None,
            "confusion": []
            if is_value
            else [
                {"expected": expected, "seen": seen, "count": count}
                for expected, seen, count in self.confusion()
            ],
            "differ": [
                {
                    "line": one.line,
                    "expected": one.expected,
                    "reference": _finite(one.reference),
                    "device": _finite(one.device),
                }
                for one in self.differing
            ],
            "labels": list(self.answering.labels),
        }

    def _figures(self, seen: Callable[[JudgedRow], Number | None]) -> dict[str, float | None]:
        if not self.answering.is_value:
            return {"accuracy": self.right(seen) / len(self.judged)}
        errors = self.errors(seen)
        return {"mae": errors.mae, "rmse": errors.rmse}

    def _said(self, answer: Number) -> Number | str:
        return answer if self.answering.is_value else self.label(answer)


def _finite(value: Number | None) -> Number | None:
    """JSON has no other numbers."""
    return value if value is None or math.isfinite(value) else None


def evaluate_rows(
    project: Project,
    rows: Path,
    target: str,
    *,
    device: Device | None = None,
    root: str = "",
    progress: Progress = NO_PROGRESS,
) -> RowEvaluation:
    """Judge the rows of a CSV file (`read_rows`), whose column `target` has the right answers, by
    the reference, and by `device` if given.

    What was judged before, of the same values, model and release, is not again. Raises `RowsError`,
    UsageError if the release that is current below `root` is of another model, and what
    `load_model` and `ask_app` raise.
    """
    model = load_model(spec_of(project))
    labels = read_labels(project.labels) if project.labels else ()
    answering = Answering.of(model, target, labels)
    # All of it before a device is asked for anything: a mistake may be in the last line.
    table = [
        (line, inputs, answering.due(text, f"{rows}: line {line}: {target}"))
        for line, inputs, text in read_rows(model, rows, target)
    ]
    release = None if device is None else current_release(device, root, model.sha256)
    journal = SeenJournal(
        [model.sha256, answering.name, device.name if device else None, root, release]
    )
    reference: Reference | None = None
    count = format_count(len(table), "row")
    limit = limited(device, budget_s(len(table)), count) if device else contextlib.nullcontext()
    arrays = [[inputs[info.name] for info in model.inputs] for _, inputs, _ in table]
    digests = [hashlib.sha256(b"".join(one.tobytes() for one in row)).hexdigest() for row in arrays]
    # A device is asked for many rows at once: a command there costs more than a run.
    at_once = rows_at_once(sum(one.nbytes for one in arrays[0])) if device is not None else 1
    with limit, locked(journal.path), progress.bar(count, len(table)) as bar:
        for begin in range(0, len(table), at_once):
            batch = range(begin, min(begin + at_once, len(table)))
            new = list(
                {digests[at]: at for at in batch if digests[at] not in journal.known}.values()
            )
            there: list[list[Array]] | None = None
            if new and device is not None:
                columns = [
                    np.stack(values) for values in zip(*(arrays[at] for at in new), strict=True)
                ]
                there, error = ask_app_of_rows(device, root, columns, len(model.outputs))
            for number, at in enumerate(new):
                if there is not None and device is not None:
                    if number == len(there):
                        assert error is not None
                        where = f"{rows}: line {table[at][0]}"
                        raise type(error)(f"{where}: {error.message}", hint=error.hint)
                    check_outputs(model, there[number], device.name)
                reference = reference or Reference(widen(as_meant(model.proto)))
                here = answering.read(reference.run(arrays[at]))
                journal.add(
                    digests[at],
                    (here,),
                    None if there is None else (answering.read(there[number]),),
                )
            bar.update(len(batch))
    judged = []
    for (line, _, due), digest in zip(table, digests, strict=True):
        (here,), found = journal.known[digest]
        judged.append(
            JudgedRow(
                line=line,
                expected=due,
                reference=here,
                device=None if found is None else found[0],
            )
        )
    name = device.name if device else None
    return RowEvaluation(judged=tuple(judged), answering=answering, target=target, device=name)
