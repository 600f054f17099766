"""A project file for a model, from what the model and the files beside it say.

Exporters leave what they know: ultralytics in the model's metadata, Hugging Face in
preprocessor_config.json and config.json, timm in config.json. What nobody says is guessed from
the inputs and outputs, and marked as a guess in the file.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import ConfigError, EdgepackError, ModelError, UsageError
from edgepack.base.page import Tabular
from edgepack.base.paths import OutsideError, inside, is_outside_allowed, outside_allowed
from edgepack.base.schemas import SCHEMA_OF, is_schema, schema_text
from edgepack.base.tables import to_toml
from edgepack.base.text import one_line
from edgepack.flow.class_names import (
    FORMS,
    TEXTS,
    files_beside,
    is_called_so,
    names_in_file,
    try_names_in_file,
)
from edgepack.flow.exporters import Known, read_exporter
from edgepack.flow.golden import file_of
from edgepack.flow.project import (
    PROJECT_FILE,
    class_of_label,
    default_name,
    project_name,
    read_labels,
)
from edgepack.flow.reference import golden_inputs, model_outputs
from edgepack.flow.rows import takes_rows
from edgepack.flow.tried_inputs import Array, find_running_shapes, find_telling_inputs
from edgepack.model import LoadedModel, ModelSpec, TensorInfo, read_model
from edgepack.model.index import GraphIndex
from edgepack.model.some_shapes import some_shapes, told_axes
from edgepack.model.states import alike_states, begin_text, propose_states
from edgepack.postprocess.spec import read_postprocess
from edgepack.preprocess.image import image_kinds
from edgepack.preprocess.presets import PRESETS, fit_size
from edgepack.preprocess.spec import DTYPES, PreprocessSpec

_MADE_LABELS = "labels.txt"
_CONVERTED = {
    "alpha": "has an alpha channel, which is dropped",
    "gray": "is gray: the channel is repeated",
}
_GUESS = "a guess"
_SAMPLE_RATE = 16000
_RATES = {"sr", "fs", "samplerate", "samplingrate", "inputsamplerate"}
# Nodes that change no value of what they are given.
_SAME_VALUES = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Transpose"}
_PROBABILITIES = ("Softmax", "Sigmoid")
_UP_TO = 1e-3  # how far from 1 the sum of rounded probabilities, of halves too, may be


@dataclass(frozen=True)
class Line:
    """One key of the file, and why it has this value; one that is a guess says so."""

    key: str
    value: Any
    why: str = ""

    @property
    def guessed(self) -> bool:
        """Whether nobody has said so."""
        return self.why.startswith(_GUESS)


@dataclass(frozen=True, kw_only=True)
class Draft(Tabular):
    """A project file to be written: `text` into `path`, labels into a file beside it, and so are
    `lists` of photos and `tensors` for the smoke test.

    `open` are the questions that are left to the user. `model` and `preprocess` are those of the
    project, if it takes photos; `tells_classes`: the first output is one score for each.
    `takes` is what the model is shown: "photo", "rows" of a table, or something else ("").
    """

    path: Path
    text: str
    lines: tuple[Line, ...]
    open: tuple[str, ...]
    labels: tuple[Path, str] | None
    lists: tuple[tuple[Path, str], ...] = ()
    tensors: tuple[tuple[Path, Array], ...] = ()
    model: LoadedModel | None = None
    preprocess: PreprocessSpec | None = None
    tells_classes: bool = False
    takes: str = ""

    @property
    def schema(self) -> Path:
        """The file that tells editors which keys there are."""
        return self.path.with_name(SCHEMA_OF[PROJECT_FILE])

    def rows(self) -> list[dict[str, Any]]:
        """The keys, and why each has its value."""
        return [
            {"key": line.key, "value": line.value, "why": line.why, "guess": line.guessed}
            for line in self.lines
        ]

    def outside(self) -> list[str]:
        """The files that it names which are not below its folder."""
        found = []
        for line in self.lines:
            if line.key in ("model", "golden_image", "labels") and isinstance(line.value, str):
                try:
                    with outside_allowed(False):
                        inside(self.path.absolute().parent, line.value)
                except OutsideError:
                    found.append(line.value)
        return found

    def write(self) -> None:
        """Write it, with its schema beside it; what is there was checked by `draft_project`.

        Raises `UsageError` where no file can be written, or for one that names others outside of
        its folder, unless that is allowed.
        """
        if (outside := self.outside()) and not is_outside_allowed():
            raise UsageError(
                f"{', '.join(outside)}: outside of {self.path.absolute().parent}, and what a "
                "project names lies below it",
                hint="copy it here, or run init in a folder above it; or --allow-outside, each "
                "time",
            )
        files = [(self.schema, schema_text(PROJECT_FILE)), *self.lists, (self.path, self.text)]
        files += [self.labels] if self.labels is not None else []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for path, text in files:
                _write(path, text)
            for path, tensor in self.tensors:
                np.save(path, tensor)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written: {error.strerror}",
                hint="name another place: --out",
            ) from None


def draft_project(
    model: Path,
    out: Path,
    *,
    preset: str | None = None,
    labels: Path | None = None,
    image: Path | None = None,
    expected: str | None = None,
    board: str | None = None,
    device: str | None = None,
    overwrite: bool = False,
    classes: Sequence[str] = (),
) -> Draft:
    """The project file `out` for a model. Nothing is written yet.

    `classes` are labels in the order of the output, if nobody says others.

    Raises what `read_model` raises, `UsageError` if `out` is there already, and `ConfigError` for a
    preset that does not fit the model, labels that are not as many as its classes, or a file of
    settings beside it that cannot be read.
    """
    _check_place(out)
    if not overwrite:
        _check_absent(out)
    loaded, rates = _read(model)
    known = read_exporter(loaded)
    lines: list[Line] = [
        _name(model),
        Line("version", 1, "raise it with each release: devices refuse an older one than they had"),
        Line("model", relative_to(model, out)),
    ]
    found, made = _labels(loaded, known, labels, out, classes)
    names: tuple[str, ...] = ()
    if found is not None:
        lines.append(found)
        file = labels or out.parent / str(found.value)
        names = tuple(made[1].splitlines()) if made else read_labels(file)
    lines.append(_scores(loaded))
    states, fed = _states(loaded)
    picture = _picture(fed)
    asked, questions = _asked_states(loaded, states, picture)
    lines += _golden_image(image, loaded, fed, out)
    if expected is not None:
        of_names = labels or (out.parent / str(found.value) if found else out)
        lines.append(Line("expected_class", _expected(expected, names, image, of_names)))
    lines += [Line(key, value) for key, value in (("board", board), ("device", device)) if value]

    table: tuple[Line, ...] = ()
    after: tuple[Line, ...] = ()
    size, whole, spec = None, None, None
    if picture is not None:
        table, size = _preprocess(loaded, picture, known, preset)
        table += _accept(image, table)
        if any(line.guessed for line in table):
            questions.append("is the preprocessing that of the training? (see [preprocess])")
        after = _postprocess(known, preset)
        questions += [known.question] if known and known.question and not after else []
    elif preset is not None:
        raise UsageError(f"--preset: {model} has no input for a photo")
    shapes = _shapes(loaded, picture, size)
    takes = "photo" if picture is not None else _rows_or_else(loaded.inputs, shapes)
    if takes != "rows" and not after and not names and expected is None:
        after = _numbers_only(loaded)
    questions += _asked_numbers(shapes, rates)
    spec_of_all = ModelSpec(
        path=model,
        shapes={line.key: line.value for line in shapes},
        constants={line.key: line.value for line in rates},
        states={line.key: line.value for line in states},
    )
    if picture is not None:
        # What would be found at the first deploy is found before the file is written.
        whole = _read_whole(spec_of_all, is_guess=any(line.guessed for line in shapes))
    if whole is not None:
        values = {line.key: line.value for line in table}
        spec = PreprocessSpec.from_table(values, file=out).for_inputs(whole.given)
        table += _decode(whole, spec, image)
        _check_postprocess(after, whole, spec, names, out)
    made_inputs, tensors = _made_inputs(spec_of_all, is_asked=takes != "photo")
    lines = [*_try_scores(lines, spec_of_all), *made_inputs]
    return Draft(
        path=out,
        text=_text(lines, shapes, rates, (*_known_states(loaded), *states, *asked), table, after),
        lines=(*lines, *shapes, *rates, *states, *table, *after),
        open=(*questions, *_passed_over(loaded, found)),
        labels=made,
        tensors=tuple((out.parent / name, tensor) for name, tensor in tensors.items()),
        model=whole,
        preprocess=spec,
        tells_classes=not after and _classes(loaded) is not None,
        takes=takes,
    )


def _check_place(out: Path) -> None:
    if not out.name or out.is_dir() or (out.exists() and not out.is_file()):
        raise UsageError(
            f"{out} is {'a folder' if out.is_dir() else 'no file'}",
            hint=f"name the file: --out {out / PROJECT_FILE}" if out.is_dir() else None,
        )


def _check_absent(out: Path) -> None:
    for file in (out, out.with_name(SCHEMA_OF[PROJECT_FILE])):
        if file.exists() and not is_schema(file, PROJECT_FILE):
            raise UsageError(
                f"{file} is there already", hint="name another with --out, or add --overwrite"
            )


def _read_whole(spec: ModelSpec, *, is_guess: bool) -> LoadedModel | None:
    """The model with all its shapes; None if it cannot have those that are a guess."""
    try:
        return read_model(spec)
    except ModelError:
        if not is_guess:
            raise
        return None


def _rows_or_else(inputs: Sequence[TensorInfo], shapes: Sequence[Line]) -> str:
    chosen = {line.key: tuple(line.value) for line in shapes}
    known = [dataclasses.replace(info, shape=chosen.get(info.name, info.shape)) for info in inputs]
    # A length that is a guess is a sequence's; a table knows its columns.
    is_guess = any(line.guessed for line in shapes)
    return "rows" if takes_rows(known) and not is_guess else ""


def _name(model: Path) -> Line:
    """The key `name`."""
    name = project_name(model)
    why = "" if name == default_name(model) else f"of the folder: others call theirs {model.name}"
    return Line("name", name, why)


def relative_to(file: Path, out: Path) -> str:
    """`file` as the project file `out` names it."""
    path = Path(os.path.relpath(file.absolute(), out.absolute().parent)).as_posix()
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"not a name in UTF-8: {path}", hint="TOML is UTF-8: rename the file"
        ) from None
    return path


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


# --- what the model itself says ---------------------------------------------------------------


def _read(model: Path) -> tuple[LoadedModel, tuple[Line, ...]]:
    """The model, and the lines of [set]; these inputs are constants in it."""
    loaded = read_model(ModelSpec(path=model))
    rates = _sample_rates(loaded)
    if rates:
        constants = {line.key: line.value for line in rates}
        loaded = read_model(ModelSpec(path=model, constants=constants))
    return loaded, rates


def _asked_numbers(shapes: Sequence[Line], rates: Sequence[Line]) -> list[str]:
    asked = ["at what rate is the sound sampled? (see [set])"] if rates else []
    return asked + [
        f"what shape has '{line.key}'? (see [shapes])" for line in shapes if line.guessed
    ]


def _sample_rates(model: LoadedModel) -> tuple[Line, ...]:
    """The inputs that are one whole number, the sample rate of a sound: what a device never
    changes, and by which models choose the size of their window."""
    return tuple(
        Line(info.name, _SAMPLE_RATE, f"{_GUESS}: speech is mostly sampled at 16 kHz")
        for info in model.inputs
        if info.dtype in ("int32", "int64")
        and all(size == 1 for size in info.shape)
        and re.sub(r"[\W_]", "", info.name.casefold()) in _RATES
        and len(model.inputs) > 1
    )


def _states(model: LoadedModel) -> tuple[tuple[Line, ...], tuple[TensorInfo, ...]]:
    """The lines of [states], which names and shapes suggest, and the inputs that are none."""
    pairs = propose_states(model.inputs, model.outputs, model.states)
    why = f"{_GUESS}: they pair by name and shape"
    lines = tuple(Line(name, output, why) for name, output in pairs.items())
    return lines, tuple(info for info in model.given if info.name not in pairs)


def _asked_states(
    model: LoadedModel, states: Sequence[Line], picture: TensorInfo | None
) -> tuple[list[str], list[str]]:
    """Comments for the lines of [states] that only shapes suggest, and all questions about states.
    A photo is none."""
    known = {**model.states, **{line.key: line.value for line in states}}
    pairs = alike_states(model.inputs, model.outputs, known)
    if picture is not None:
        pairs.pop(picture.name, None)
    why = "if this output is the input's next value: take away the first #"
    lines = [f"# {_written(Line(name, output, why))}" for name, output in pairs.items()]
    questions = ["are these inputs states? (see [states])"] if states else []
    return lines, questions + [f"is '{name}' a state? (see [states])" for name in pairs]


def _known_states(model: LoadedModel) -> tuple[str, ...]:
    """Comments about the states that need no line."""
    return tuple(
        f"# {one_line(name)} keeps {one_line(output)} by itself"
        + (f", and begins with {begin_text(model.starts[name])}" if name in model.starts else "")
        for name, output in model.states.items()
    )


def _layout(info: TensorInfo) -> tuple[str, int] | None:
    """("NCHW" or "NHWC", channels) of an input that can take a photo."""
    if len(info.shape) != 4 or info.dtype not in DTYPES:
        return None
    for layout, at in (("NCHW", 1), ("NHWC", 3)):
        channels = info.shape[at]
        if isinstance(channels, int) and channels in (1, 3):
            return layout, channels
    return None


def _picture(inputs: Sequence[TensorInfo]) -> TensorInfo | None:
    """The input that takes a photo; of several, the first."""
    return next((info for info in inputs if _layout(info) is not None), None)


def _sides(info: TensorInfo) -> tuple[int | None, int | None]:
    layout = _layout(info)
    assert layout is not None
    at = layout[0].index("H")
    height, width = (size if isinstance(size, int) else None for size in info.shape[at : at + 2])
    return height, width


def _classes(model: LoadedModel) -> int | None:
    """Number of classes, if the first output is one score for each."""
    sizes = model.outputs[0].shape if model.outputs else ()
    large = [size for size in sizes[1:] if size != 1]
    if _is_like_an_input(model):
        return None
    return large[0] if len(large) == 1 and isinstance(large[0], int) and large[0] > 1 else None


def _is_like_an_input(model: LoadedModel) -> bool:
    """Whether the first output has a value for each of an input's, as a mask of a sound has; a row
    of a table may have as many columns as there are classes."""
    sizes = model.outputs[0].shape[1:] if model.outputs else ()
    return len(sizes) > 1 and any(info.shape[1:] == sizes for info in model.inputs)


def _last_operator(model: LoadedModel) -> str:
    """What makes the first output's values; "" if an input is passed on."""
    made_by = GraphIndex(model.proto.graph).makers
    name = model.outputs[0].name if model.outputs else ""
    for _ in range(16):
        node = made_by.get(name)
        if node is None or node.op_type not in _SAME_VALUES or not node.input:
            break
        name = node.input[0]
    return node.op_type if node is not None else ""


def _scores(model: LoadedModel) -> Line:
    """Whether the first output needs a softmax."""
    last = _last_operator(model)
    if last in _PROBABILITIES:
        return Line("scores", "raw", f"the model ends in {last}")
    if _classes(model) is None:
        return Line("scores", "raw", "the first output is not one score per class")
    if _is_one_of_several(model):
        return Line("scores", "raw", "one of several outputs: not known to be scores")
    return Line("scores", "softmax", f"the model ends in {last or 'its input'}: logits")


def _try_scores(lines: Sequence[Line], spec: ModelSpec) -> list[Line]:
    """The lines; scores that are taken for logits are not if they are probabilities, whichever
    operators make them: tried on the random input of a smoke test."""
    return [
        (_add_up(spec) or line) if (line.key, line.value) == ("scores", "softmax") else line
        for line in lines
    ]


def _add_up(spec: ModelSpec) -> Line | None:
    """The line for scores that are probabilities; None if they are not."""
    try:
        model = read_model(spec)
        (outputs,) = model_outputs(model.path, model.proto, [golden_inputs(model)])
    except EdgepackError:
        return None  # `edgepack check` says what is wrong
    rows = outputs[0].reshape(len(outputs[0]), -1)
    if rows.min() < 0 or not np.allclose(rows.sum(axis=1), 1, atol=_UP_TO):
        return None
    return Line("scores", "raw", "they add up to 1")


def _golden_image(
    image: Path | None, model: LoadedModel, fed: Sequence[TensorInfo], out: Path
) -> list[Line]:
    """The key `golden_image`. Raises `UsageError` if the model takes no photo."""
    if image is None:
        return []
    if _picture(fed) is None:
        raise UsageError(
            f"--image: {model.path} has no input for a photo",
            hint="its inputs are " + ", ".join(info.name for info in fed),
        )
    return [Line("golden_image", relative_to(image, out))]


def _made_inputs(spec: ModelSpec, *, is_asked: bool) -> tuple[list[Line], dict[str, Array]]:
    """The line that names inputs made for the smoke test, and these by their files' names, where
    random ones tell nothing and they are asked for."""
    try:
        model = read_model(spec)
        found = find_telling_inputs(model) if is_asked else None
    except EdgepackError:
        return [], {}  # `edgepack check` says what is wrong
    if found is None:
        return [], {}
    what, values = found
    files = {f"golden-{file_of(info)}": values[info.name] for info in model.given}
    why = f"generated ({what}), since random values tell nothing: a real input tells more"
    return [Line("golden_input", list(files), why)], files


def _is_one_of_several(model: LoadedModel) -> bool:
    """Whether the first output is one of several vectors, as of landmarks and whether there is a
    face: it may be anything, if no softmax or sigmoid makes it."""
    return len(model.outputs) > 1 and _last_operator(model) not in _PROBABILITIES


def _labels(
    model: LoadedModel, known: Known | None, given: Path | None, out: Path, named: Sequence[str]
) -> tuple[Line | None, tuple[Path, str] | None]:
    """The key `labels`, and the file to be made for it; `named` if nobody says others."""
    classes = _classes(model)
    if given is not None:
        listed = names_in_file(given)
        if listed is None and given.suffix.lower() in FORMS:
            raise ConfigError(
                f"{given}: no list of classes found in it",
                hint="a name on each line, in the order of the output, or in JSON a list of names",
            )
        count = len(listed or read_labels(given))
        if classes is not None and count != classes:
            raise ConfigError(
                f"{given}: {count} labels, but the model has {classes} classes",
                hint="one line for each class, in the order of the output",
            )
        if listed:
            return _made_labels(model, listed, f"from {given.name}", out)
        return Line("labels", relative_to(given, out)), None
    if known is not None and known.labels and classes in (None, len(known.labels)):
        return _made_labels(model, known.labels, f"from {known.labels_source or known.source}", out)
    if classes is None:
        return None, None
    found = _labels_beside(model, classes, out)
    if found is None and classes == len(named):
        why = f"{_GUESS}: the folders of --photos, in alphabetical order"
        return _made_labels(model, named, why, out)
    return found or (None, None)


def _labels_beside(
    model: LoadedModel, classes: int, out: Path
) -> tuple[Line, tuple[Path, str] | None] | None:
    """Those of a file in the model's folder that lists as many as there are classes."""
    for file in files_beside(model.path):
        listed = try_names_in_file(file)
        if listed and len(listed) == classes:
            return _made_labels(model, listed, f"from {file.name}, as many as classes", out)
        if listed is None and file.suffix in TEXTS and _lines_of(file) == classes:
            why = f"{classes} lines, as many as classes"
            return Line("labels", relative_to(file, out), why), None
    return None


def _passed_over(model: LoadedModel, labels: Line | None) -> list[str]:
    """A question for a file that is called as one of labels, but is not taken for the model's."""
    classes = _classes(model)
    if labels is not None or classes is None:
        return []
    file = next(filter(is_called_so, files_beside(model.path)), None)
    if file is None:
        return []
    listed = try_names_in_file(file)
    count = len(listed) if listed else _lines_of(file) if file.suffix in TEXTS else 0
    what = f"lists {count}" if count else "lists none in a form that is known"
    return [f"what are the {classes} classes called? {file.name} {what} (see --labels)"]


def _lines_of(file: Path) -> int:
    """How many labels a file lists one on each line. One of another name than `labels.txt` may be
    anything."""
    try:
        return len(read_labels(file))
    except ConfigError:
        if file.name.casefold() == _MADE_LABELS:
            raise
        return 0


def _made_labels(
    model: LoadedModel, labels: Sequence[str], why: str, out: Path
) -> tuple[Line, tuple[Path, str]]:
    """A file of labels beside the project file; another one is not replaced."""
    file = out.parent / _MADE_LABELS
    text = "\n".join(labels) + "\n"
    if file.exists() and file.read_bytes() != text.encode():
        file = out.parent / f"{default_name(model.path)}-{_MADE_LABELS}"
    return Line("labels", file.name, why), (file, text)


def _expected(text: str, labels: Sequence[str], image: Path | None, file: Path) -> int | str:
    """The class that --expected means: a number, or a label as it is written."""
    if image is None:
        raise UsageError("--expected needs --image", hint="name the photo that shows it")
    if re.fullmatch(r"\d+", text):
        return int(text)
    if not labels:
        raise UsageError(
            f"--expected: {text!r} is a label, but there are none", hint="--labels FILE"
        )
    return labels[class_of_label(text, labels, origin="--expected", file=file)]


def preset_for(
    model: LoadedModel, preset: str
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The table of [preprocess] and the shapes that `init` writes for a preset of this name.

    Raises ModelError if the model has no input for a photo.
    """
    _, fed = _states(model)
    picture = _picture(fed)
    if picture is None:
        raise ModelError(
            f"{model.path}: no input for a photo",
            hint="its inputs are " + ", ".join(info.name for info in fed),
        )
    table, size = _preprocess(model, picture, None, preset)
    shapes = _shapes(model, picture, size)
    return (
        {line.key: line.value for line in table},
        {line.key: tuple(line.value) for line in shapes},
    )


def _preprocess(
    model: LoadedModel, picture: TensorInfo, known: Known | None, preset: str | None
) -> tuple[tuple[Line, ...], tuple[int, int]]:
    """The lines of [preprocess], and the height and width that they make."""
    layout = _layout(picture)
    assert layout is not None
    height, width = _sides(picture)
    if preset is not None:
        values: dict[str, Any] = {"preset": preset}
        why = "--preset"
    elif known is not None and known.preprocess and not known.partly:
        values, why = dict(known.preprocess), f"from {known.source}"
    else:
        values, why = (
            {"preset": _guess(model, layout)},
            f"{_GUESS}: nothing says how it was trained",
        )
    base = PRESETS[values["preset"]].table if "preset" in values else values
    said, pct = None, None
    if known is not None and preset is None:
        said, pct = known.size, known.crop_pct
    usual = _made(base)
    size = (
        height or (said or usual or (224, 224))[0],
        width or (said or usual or (224, 224))[1],
    )
    if changed := fit_size(base, *size, crop_pct=pct):
        values.pop("crop", None)
        values |= changed
    own = _pixels(known, layout[1]) if known is not None and known.partly and not preset else {}
    values |= own
    if picture.dtype == "uint8":
        values = {k: v for k, v in values.items() if k not in ("scale", "mean", "std")}
        values["dtype"] = "uint8"
    if layout[1] == 1:
        values = {k: v for k, v in values.items() if k not in ("mean", "std") or k in own}
        values["color"] = "gray"
    if layout[0] != "NCHW":
        values["layout"] = layout[0]
    if len(model.inputs) > 1:
        values["input"] = picture.name
    reasons = {next(iter(values)): why}
    reasons |= {next(iter(own)): f"from {known.source}"} if own and known is not None else {}
    return tuple(Line(key, value, reasons.get(key, "")) for key, value in values.items()), size


def _accept(image: Path | None, table: Sequence[Line]) -> tuple[Line, ...]:
    """`accept` for a photo that is gray or has an alpha channel: more like it will come."""
    values = {line.key: line.value for line in table}
    preset = PRESETS[values["preset"]].table if "preset" in values else {}
    if image is None or "accept" in {**preset, **values}:
        return ()
    taken = {"gray"} if {**preset, **values}.get("color") == "gray" else set()
    kinds = image_kinds(image) - taken
    done = [text for kind, text in _CONVERTED.items() if kind in kinds]
    if not done or "16bit" in kinds:
        return ()  # `edgepack check` says what is wrong
    found = [kind for kind in _CONVERTED if kind in kinds]
    return (Line("accept", found, f"{image.name} {' and '.join(done)}"),)


def _pixels(known: Known, channels: int) -> dict[str, Any]:
    """Scale, mean and std, if they are of as many channels, or one for all."""
    table = dict(known.preprocess)
    for key in ("mean", "std"):
        if key in table and len(table[key]) == 1:
            table[key] = list(table[key]) * channels
    lengths = {len(table[key]) for key in ("mean", "std") if key in table}
    return table if lengths == {channels} else {}


def _postprocess(known: Known | None, preset: str | None) -> tuple[Line, ...]:
    """The lines of [postprocess], where somebody says what the outputs hold."""
    if preset is None and known is not None and known.postprocess:
        values, why = known.postprocess, f"from {known.source}, and the outputs' shapes"
        return tuple(
            Line(key, value, "" if number else why)
            for number, (key, value) in enumerate(values.items())
        )
    return ()


def _numbers_only(model: LoadedModel) -> tuple[Line, ...]:
    """The line that says so, where numbers that nobody called classes would be shown as such."""
    sizes = model.outputs[0].shape[1:] if model.outputs else ()
    is_known = not _is_one_of_several(model) and not _is_like_an_input(model)
    if len([size for size in sizes if size != 1]) != 1 or is_known:
        return ()
    why = f"{_GUESS}: nothing says that an output is scores of classes"
    return (Line("kind", "tensors", why),)


def _check_postprocess(
    after: Sequence[Line],
    model: LoadedModel,
    preprocess: PreprocessSpec,
    names: Sequence[str],
    out: Path,
) -> None:
    """Raise `ConfigError` if [postprocess] does not fit the model, or the labels."""
    if after:
        values = {line.key: line.value for line in after}
        read_postprocess(values, file=out).for_model(
            model.inputs, model.outputs, size=preprocess.size, labels=names or None
        )


def _decode(model: LoadedModel, preprocess: PreprocessSpec, image: Path | None) -> tuple[Line, ...]:
    """`decode = "scaled"` if the model sees the photo as before, with fewer of its pixels."""
    if image is None or preprocess.resize is None or _classes(model) is None:
        return ()
    ways = (preprocess, dataclasses.replace(preprocess, decode="scaled"))
    try:
        cases = [golden_inputs(model, preprocess=way, image=image) for way in ways]
        if all(map(np.array_equal, *cases)):
            return ()
        full, scaled = (outputs[0] for outputs in model_outputs(model.path, model.proto, cases))
    except EdgepackError:
        return ()  # `edgepack check` says what is wrong
    if np.argmax(full) != np.argmax(scaled):
        return ()
    why = f"{image.name} is seen as the same class ({np.argmax(full)}), and decoded in less time"
    return (Line("decode", "scaled", why),)


def _made(table: Mapping[str, Any]) -> tuple[int, int] | None:
    """(height, width) of the tensors that a table makes."""
    box = table.get("crop") or table.get("resize") or {}
    return (box["height"], box["width"]) if "height" in box else None


def _guess(model: LoadedModel, layout: tuple[str, int]) -> str:
    """What most models of such inputs and outputs want."""
    if _classes(model) is None:
        return "zero-one"
    return "tf-imagenet" if layout[0] == "NHWC" else "torchvision-imagenet"


def _shapes(
    model: LoadedModel, picture: TensorInfo | None, size: tuple[int, int] | None
) -> tuple[Line, ...]:
    """[shapes] of the inputs with dynamic dimensions: a batch of one, the photo's sides, and a
    guess for what nothing tells."""
    chosen: dict[str, Sequence[int | str | None]] = {}
    sizes: dict[str, int] = {}
    usual = some_shapes(model.proto.graph, {info.name: info.shape for info in model.inputs})
    for info in model.inputs:
        shape = list(info.shape)
        if shape and not isinstance(shape[0], int) and usual[info.name][0] == 1:
            shape[0] = 1
        if picture is not None and size is not None and info.name == picture.name:
            layout = _layout(info)
            assert layout is not None
            at = layout[0].index("H")
            shape[at : at + 2] = size
        chosen[info.name] = shape
        for name, value in zip(info.shape, shape, strict=True):
            if isinstance(name, str) and isinstance(value, int):
                sizes.setdefault(name, value)
    # Axes of one name have one size.
    chosen = {
        name: [sizes.get(one, one) if isinstance(one, str) else one for one in shape]
        for name, shape in chosen.items()
    }
    usual = some_shapes(model.proto.graph, chosen)
    guesses: dict[str, list[int]] = {}
    for name in usual:
        told = told_axes(model.proto.graph, name, len(usual[name]))
        open_axes = [at for at, one in enumerate(chosen[name]) if not isinstance(one, int)]
        guesses[name] = [at for at in open_axes if at not in told]
    complete = {
        name: tuple(one for one in shape if isinstance(one, int)) for name, shape in chosen.items()
    } | usual
    running = find_running_shapes(model, complete, guesses) if picture is None else usual
    found = running or usual
    lines = []
    for info in model.inputs:
        if all(isinstance(one, int) for one in info.shape):
            continue
        shape = list(found.get(info.name, chosen[info.name]))
        why = "a batch of one" if shape else ""
        if info.name in usual:
            tried = zip(found[info.name], usual[info.name], strict=True)
            changed = [at for at, (one, other) in enumerate(tried) if one != other]
            axes = sorted({*guesses[info.name], *changed})
            which = f"{'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"
            why = f"{_GUESS}: nothing tells {which}" if axes else "as many as the weights take"
            if changed:
                why = f"{_GUESS}: nothing tells {which}, and of the sizes that were tried this runs"
        lines.append(Line(info.name, shape, why))
    return tuple(lines)


# --- the file -----------------------------------------------------------------------------------


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else to_toml(name)


def _text(
    lines: Sequence[Line],
    shapes: Sequence[Line],
    constants: Sequence[Line],
    states: Sequence[Line | str],
    table: Sequence[Line],
    after: Sequence[Line],
) -> str:
    text = [f"#:schema ./{SCHEMA_OF[PROJECT_FILE]}"]
    text += ["# What `edgepack deploy` needs to know; flags of the command line override it."]
    text += ["# Paths are relative to this file.", "[project]", *map(_written, lines)]
    if shapes:
        text += ["", "[shapes]", *map(_written, shapes)]
    if constants:
        text += ["", "[set]", *map(_written, constants)]
    if states:
        text += ["", "[states]"]
        text += [line if isinstance(line, str) else _written(line) for line in states]
    if table:
        text += ["", "[preprocess]", *map(_written, table)]
    if after:
        text += ["", "[postprocess]", *map(_written, after)]
    return "\n".join(text) + "\n"


def _written(line: Line) -> str:
    comment = f"  # {one_line(line.why)}" if line.why else ""
    return f"{_key(line.key)} = {to_toml(line.value)}{comment}"
