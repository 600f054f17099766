"""What a project's model sees in photos, by the reference on this machine: no board is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import ConfigError
from edgepack.base.page import Tabular
from edgepack.bundle.bundle import Golden
from edgepack.flow.evaluate_rows import Answering, Errors, Number
from edgepack.flow.golden import SenselessGoldenError
from edgepack.flow.job import (
    bound_postprocess,
    check_classes,
    check_labels,
    class_output,
    golden_words,
    outputs_hint,
    spec_of,
)
from edgepack.flow.preprocess_diagnosis import Mending, find_mending
from edgepack.flow.project import Project, labels_of
from edgepack.flow.reference import (
    Array,
    ExpectedClassError,
    Reference,
    Score,
    make_golden,
    of_first,
    top_k,
)
from edgepack.flow.results import golden_results
from edgepack.flow.rows import read_rows
from edgepack.flow.sinks import prove_sinks
from edgepack.flow.stages import StageReferences, gives_boxes, labels_of_all, open_stages
from edgepack.flow.verify import check_tells
from edgepack.frontend.load import load_model
from edgepack.model import LoadedModel, TensorInfo, batch_of
from edgepack.model.meanings import as_meant
from edgepack.postprocess.results import Results
from edgepack.preprocess.image import load_image
from edgepack.preprocess.spec import PreprocessSpec

# Values of an output that are shown one by one.
_FEW = 16


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the model sees in one photo; `image` None: in `golden_input`, a row, or random inputs.

    `top` are the classes of the first output, best first; empty if the project says what becomes of
    the outputs: then it is in `results`; or if there are none. `ranges` has each other output.
    `line` and `target` are those of a row (see `read_rows`).
    """

    image: Path | None
    top: tuple[Score, ...]
    results: Results | None = None
    ranges: tuple[OutputRange, ...] = ()
    line: int | None = None
    target: str = ""


@dataclass(frozen=True, kw_only=True)
class OutputRange:
    """An output that is no score per class: its smallest and largest value and their mean.

    None if none of its values is finite. `values` are all of them, if they are few; None is one
    that is not finite.
    """

    name: str
    shape: tuple[int, ...]
    least: float | None
    most: float | None
    mean: float | None
    values: tuple[float | None, ...] = ()

    @classmethod
    def of(cls, name: str, output: Array) -> OutputRange:
        """Those of an array."""
        listed = output.ravel().tolist() if output.size <= _FEW else []
        few = tuple(value if np.isfinite(value) else None for value in listed)
        values = output.astype(np.float64).ravel()
        values = values[np.isfinite(values)]
        least, most, mean = (
            (float(values.min()), float(values.max()), float(values.mean()))
            if values.size
            else (None, None, None)
        )
        return cls(name=name, shape=output.shape, least=least, most=most, mean=mean, values=few)


@dataclass(frozen=True, kw_only=True)
class RowsAgreement:
    """How an output agrees with the answers in a table.

    `right` rows of `total` have the very answer: as the output's one whole number, or as the
    greatest of its scores. Of an output of one fraction there is the mean of |difference| instead,
    None if one is not finite.
    """

    output: str
    total: int
    right: int | None = None
    mean_error: float | None = None


@dataclass(frozen=True, kw_only=True)
class Checked(Tabular):
    """A project that would be compiled, and what its model sees. `preprocess` is for its input.

    `mending` is a change of it with which the first photo is seen as expected, if it is not.
    `hint` is how to say what the outputs hold, if nobody has and they are no scores of classes.
    `senseless` is why the project's own photo or input would test nothing on a board, if so.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    preprocess: PreprocessSpec | None
    seen: tuple[Seen, ...]
    expected: int | None
    mending: Mending | None = None
    hint: str = ""
    agreement: RowsAgreement | None = None
    senseless: SenselessGoldenError | None = None

    def rows(self) -> list[dict[str, Any]]:
        """The classes, things and outputs that are seen in each photo, best first."""
        found: list[dict[str, Any]] = []
        for one in self.seen:
            image: dict[str, Any] = {"image": str(one.image) if one.image else None}
            if one.line is not None:
                image = {"line": one.line, "target": one.target}
            results = one.results
            found += [
                image | {"index": item.index, "label": item.label, "score": item.score}
                for item in (one.top if results is None else results.top or ())
            ]
            found += [
                image
                | {"index": item.index, "label": item.label, "score": item.score}
                | {"box": tuple(item.box)}
                for item in (results.boxes or () if results else ())
            ]
            found += [image | dataclasses.asdict(item) for item in one.ranges]
        keys = dict.fromkeys(key for row in found for key in row)
        return [{key: row.get(key) for key in keys} for row in found]

    def check_expected(self) -> None:
        """Raise `ExpectedClassError` if the first photo is not seen as the expected class, and
        `SenselessGoldenError` if a deploy would refuse it, since it tests nothing."""
        if self.senseless is not None:
            raise self.senseless
        first = self.seen[0]
        top = first.top or (first.results and first.results.top) or ()
        if self.expected is None or first.image is None or not top:
            return
        best = top[0]
        if best.index == self.expected:
            return
        raise ExpectedClassError(
            f"{first.image}: the reference sees class {best.index} ({best.label}), expected "
            f"{self.expected}",
            hint=str(self.mending or "check [preprocess], the labels, or expected_class"),
        )


def check_rows(project: Project, rows: Path, target: str | None = None) -> Checked:
    """Read, check and run the model on each row of a CSV file: see `read_rows`, whose errors it
    raises beside those of `check_project`."""
    model = load_model(spec_of(project))
    labels = labels_of(project) or ()
    reference = Reference(as_meant(model.proto))
    names = [info.name for info in model.outputs]
    seen = []
    answering = None if target is None else Answering.of(model, target, labels)
    judged: list[tuple[Number, Number]] = []
    for line, inputs, answer in read_rows(model, rows, target):
        outputs = reference.run([inputs[info.name] for info in model.inputs])
        ranges = tuple(map(OutputRange.of, names, outputs))
        seen.append(Seen(image=None, top=(), ranges=ranges, line=line, target=answer))
        if answering is not None:
            due = answering.due(answer, f"{rows}: line {line}: {target}")
            judged.append((answering.read(outputs), due))
    return Checked(
        inputs=tuple(model.inputs),
        outputs=tuple(model.outputs),
        preprocess=None,
        seen=tuple(seen),
        expected=None,
        agreement=_agreement(answering, judged) if answering else None,
    )


def _agreement(answering: Answering, judged: Sequence[tuple[Number, Number]]) -> RowsAgreement:
    output, total = answering.name, len(judged)
    if answering.is_value:
        return RowsAgreement(output=output, total=total, mean_error=Errors.of(judged).mae)
    right = sum(answer == due for answer, due in judged)
    return RowsAgreement(output=output, total=total, right=right)


def check_project(project: Project, images: Sequence[Path] = (), *, top: int = 5) -> Checked:
    """Read, check and run the model on photos: those given, else the golden one, else on noise.

    Raises what `load_model`, the labels, the preprocessing, the photos and the reference raise.
    """
    model = load_model(spec_of(project))
    labels = labels_of(project)
    if labels is not None and project.postprocess is None:
        check_labels(project, labels, model.outputs[0])
    if not images:
        check_classes(project, model)
    preprocess = project.preprocess.for_inputs(model.given) if project.preprocess else None
    postprocess = bound_postprocess(project, model, labels)
    stages = open_stages(project, model, postprocess, labels)
    prove_sinks(
        project.sinks,
        project.service,
        labels_of_all(labels, stages),
        boxes=gives_boxes(postprocess),
    )
    references = StageReferences(stages)
    photos: Sequence[Path | None] = [*images] or [project.golden_image]
    if images and preprocess is None:
        raise ConfigError(
            f"{images[0]}: a photo needs preprocessing",
            hint="add a [preprocess] table: `edgepack init` writes one",
        )
    seen = []
    output = class_output(model, postprocess)
    senseless = None
    for photo in photos:
        files = () if images else project.golden_input
        golden = make_golden(model, preprocess=preprocess, image=photo, files=files)
        if not images and project.verify:
            senseless = _why_senseless(project, model, golden)
        if postprocess is not None:
            names = [info.name for info in model.outputs]
            results, _ = golden_results(golden, names, postprocess, preprocess, labels or ())
            if stages and photo is not None and preprocess is not None:
                pixels = load_image(photo, accept=preprocess.accepted)
                results = references.look(pixels, results)
            seen.append(Seen(image=photo, top=(), results=results))
            continue
        if output is None:
            ranges = map(OutputRange.of, (info.name for info in model.outputs), golden.outputs)
            seen.append(Seen(image=photo, top=(), ranges=tuple(ranges)))
            continue
        vector = of_first(golden.outputs[0], batch_of(model.inputs))
        scores = top_k(vector, labels, k=top, scores=project.scores) if vector.size > 1 else []
        named = zip(model.outputs, golden.outputs, strict=True)
        others = tuple(OutputRange.of(info.name, values) for info, values in named)
        others = others[1 if scores else 0 :]
        seen.append(Seen(image=photo, top=tuple(scores), ranges=others))
    checked = Checked(
        inputs=tuple(model.inputs),
        outputs=tuple(model.outputs),
        preprocess=preprocess,
        seen=tuple(seen),
        expected=None if images else project.expected_class,
        hint=outputs_hint(model) if postprocess is None and output is None else "",
        senseless=senseless,
    )
    photo = photos[0]
    if preprocess is None or photo is None or checked.expected is None or output is None:
        return checked
    if senseless is not None:
        return checked
    try:
        checked.check_expected()
    except ExpectedClassError:
        mending = find_mending(model, preprocess, photo, checked.expected, output)
        return dataclasses.replace(checked, mending=mending)
    return checked


def _why_senseless(
    project: Project, model: LoadedModel, golden: Golden
) -> SenselessGoldenError | None:
    try:
        check_tells(model, golden.inputs, golden.outputs, given=golden_words(project))
    except SenselessGoldenError as error:
        return error
    return None
