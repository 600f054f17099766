"""edgepack.toml: what is deployed and where, so that no command needs ten flags.

    [project]       model, labels, golden image, board, device ...
    [shapes]        input = [1, 3, 224, 224], for inputs with dynamic dimensions
    [set]           input = 3, true, or a list: an input that becomes a constant
    [states]        input = "output": an input that keeps an output until the next inference
    [preprocess]    see `edgepack.preprocess`
    [postprocess]   see `edgepack.postprocess`
    [[stage]]       models that look at the boxes of this one: see `flow.stage_tables`
    [quantize]      images, judge: folders of photos; snr_db, budget: see `flow.quantize`
    [compile]       memory_mb, cpu_s: what compiling may take on this machine; exact: layers
                    without Winograd's algorithm; bounded: inputs of which nothing is broken
    [tune]          records: files of what was tuned on devices (default: tuning.jsonl, if there)
    [health]        timeout_s, max_latency_ms, max_memory_mb of the test on the device
    [monitor]       images, window ...: photos that live input is compared with, see
                    `edgepack.bundle.monitor`
    [service]       args, restart, watchdog_s, memory_mb, user: see `edgepack.service`

Each value is the flag's, else the file's, else a default; `Project.origins` remembers.
Paths in the file are relative to the file. They name nothing outside of its folder, unless
within `edgepack.base.paths.outside_allowed`: what they name may travel in a bundle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from edgepack.base.errors import ConfigError, UsageError, perhaps
from edgepack.base.paths import is_outside_allowed
from edgepack.base.tables import Table, read_text, read_toml
from edgepack.base.text import one_line, text_lines
from edgepack.boards import TOOLCHAINS
from edgepack.bundle.manifest import (
    DEFAULT_HEALTH,
    TIME_FORMAT,
    Health,
    ManifestError,
    check_name,
    parse_health,
    parse_time,
)
from edgepack.bundle.monitor import Monitoring, take_monitoring
from edgepack.bundle.service import Service, take_service
from edgepack.bundle.sinks import SinkTables, take_sinks
from edgepack.bundle.verified import DEFAULT_TOLERANCE
from edgepack.flow.optimize import DEFAULT_OPTIMIZE, OPTIMIZE
from edgepack.flow.records import RECORDS_FILE
from edgepack.flow.reference import SCORES
from edgepack.flow.stage_tables import Stage, take_stages
from edgepack.frontend.precision import COMPUTE, PRECISIONS, QUANTIZED
from edgepack.model.constants import Constant
from edgepack.model.sources import source_of
from edgepack.postprocess.base import PostprocessSpec
from edgepack.postprocess.spec import read_postprocess
from edgepack.preprocess.spec import PreprocessSpec

PROJECT_FILE = "edgepack.toml"
# Not all that is unprintable: words of some languages hold joiners.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_PATHS = ("model", "labels", "golden_image")
_OF_A_PHOTO = ("golden_image", "expected_class")
_FLAG_NAMES = {
    "model": "command line",
    "shapes": "--shape",
    "constants": "--set",
    "states": "--state",
    "version": "--release-version",
}
_DEFAULTS: Mapping[str, Any] = {
    "version": 0,
    "product": None,
    "valid_until": None,
    "labels": None,
    "scores": "softmax",
    "tolerance": DEFAULT_TOLERANCE,
    "verify": True,
    "golden_image": None,
    "golden_input": (),
    "expected_class": None,
    "board": None,
    "boards": (),
    "device": None,
    "root": None,
    "toolchain": None,
    "static": None,
    "optimize": DEFAULT_OPTIMIZE,
    "precision": "float32",
    "quantized": QUANTIZED[0],
    "compute": COMPUTE[0],
    "exact": False,
    "bounded": (),
    "compile_memory_mb": None,
    "compile_cpu_s": None,
    "records": (),
    "shapes": {},
    "constants": {},
    "states": {},
    "preprocess": None,
    "postprocess": None,
    "health": DEFAULT_HEALTH,
    "service": None,
    "stages": (),
    "sinks": SinkTables(),
    "quantize": None,
    "monitor": None,
}


@dataclass(frozen=True, kw_only=True)
class Quantizing:
    """What `edgepack quantize` takes: folders of photos to calibrate on and to judge by, how far
    outputs are to be above their error, and what share of work that may cost."""

    images: Path | None = None
    judge: Path | None = None
    snr_db: float | None = None
    budget: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Project:
    """A model, and the settings of its deploy.

    `name` is the name of the bundle and of the folder on the device. `version` is the release's
    number; a device with pinned signers refuses lower numbers than before. `product` is the
    product's name; a device refuses bundles of another product. After `valid_until`
    ("2027-01-31T12:00:00Z"), no device installs the release. `labels` is a file with one class
    name per line. `scores` says whether the outputs need a softmax ("softmax") or are used
    unchanged ("raw"). `tolerance` limits max |error| / max |reference|. If `verify` is set, the
    compiled model is compared with the reference before it is packed. `golden_image` is the
    photo of the smoke test, and `expected_class` the class that the model must give to it;
    `golden_input` are .npy files of inputs instead. `boards` are files with the user's board
    profiles. `root` is the folder on the device. With `static`, the programs need no C library;
    None: as in the board's profile. `optimize` is one of `OPTIMIZE`: how large the stored
    weights may become for speed. `precision` is one of `frontend.precision.PRECISIONS`,
    `quantized` one of `QUANTIZED` there, `compute` one of `COMPUTE`: the processor that runs the
    model. `compile_memory_mb` and `compile_cpu_s` limit compiling; None: as `limits_for`
    computes for the model. `exact` layers, all or those of some nodes, are computed without
    Winograd's algorithm; `bounded` inputs never exceed the range of the training. `records` are
    files of `flow.records` with tuned kernels. `stages` are models that run on the boxes of this
    one. `health` limits the smoke test, `service` describes the background service, and `sinks`
    describes where results go and which actions they start. `quantize` has settings for
    quantising a float model, and `monitor` the photos that live input is compared with.
    `origins` has the source of each field: "default", the project file, or a flag.
    """

    name: str
    version: int
    product: str | None
    valid_until: str | None
    model: Path
    labels: Path | None
    scores: str
    tolerance: float
    verify: bool
    golden_image: Path | None
    golden_input: tuple[Path, ...]
    expected_class: int | None
    board: str | None
    boards: tuple[Path, ...]
    device: str | None
    root: str | None
    toolchain: str | None
    static: bool | None
    optimize: str
    precision: str
    quantized: str
    compute: str
    exact: bool | tuple[str, ...]
    bounded: tuple[str, ...]
    compile_memory_mb: int | None
    compile_cpu_s: int | None
    records: tuple[Path, ...]
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Constant]
    states: Mapping[str, str]
    preprocess: PreprocessSpec | None
    postprocess: PostprocessSpec | None
    health: Health
    service: Service | None
    stages: tuple[Stage, ...]
    sinks: SinkTables
    quantize: Quantizing | None
    monitor: Monitoring | None
    origins: Mapping[str, str] = field(default_factory=dict)

    def need_board(self) -> str:
        """Return the board's name. Raises `UsageError` without one."""
        if self.board is None:
            raise UsageError(
                "no board given", hint="add --board NAME (`edgepack boards` lists them)"
            )
        return self.board

    def need_device(self) -> str:
        """Return the device's address. Raises `UsageError` without one."""
        if self.device is None:
            raise UsageError(
                "no device given", hint="add --device user@address, or --device virtual"
            )
        return self.device


def load_project(path: str | Path | None, flags: Mapping[str, Any] | None = None) -> Project:
    """Return the project in the file `path` (or of no file), overridden by `flags`.

    `flags` has names of `Project`'s fields; None means not given. Shapes, constants and states
    are merged with the file's by input name. Raises `ConfigError` if the file is missing or has
    a wrong key or value, if a file that it names is missing, or if such a file is outside of its
    folder and not within `outside_allowed`; `UsageError` if there is no model.
    """
    path = None if path is None else Path(path)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    if unknown := given.keys() - _DEFAULTS.keys() - {"name", "model"}:
        raise ValueError(f"no such fields of a project: {sorted(unknown)}")
    from_file = _read_file(path) if path is not None else {}
    if "golden_input" in given:
        # Instead of the file's photo, and what must be seen in that.
        from_file = {k: v for k, v in from_file.items() if k not in _OF_A_PHOTO}

    values = {**_DEFAULTS, **from_file, **given}
    for key in ("shapes", "constants", "states"):
        values[key] = {**from_file.get(key, {}), **given.get(key, {})}
    if "model" not in values:
        raise UsageError(
            "no model given",
            hint=f"name an ONNX file; `edgepack init MODEL` makes a project file ({PROJECT_FILE})",
        )
    if "name" not in values:
        model = values["model"]
        # What was fetched lies in a folder of its name.
        values["name"] = project_name(model) if source_of(model) else default_name(model)

    _check_local_root(values, from_file, path)
    origins = dict.fromkeys(values, "default")
    origins |= dict.fromkeys(from_file, str(path))
    origins |= {key: _FLAG_NAMES.get(key, f"--{key.replace('_', '-')}") for key in given}
    try:
        check_name(values["name"], "name")
    except ManifestError as error:
        raise ConfigError(
            f"{origins['name']}: not a name for a bundle: {values['name']!r}", hint=error.hint
        ) from None
    if values["product"] is not None:
        try:
            check_name(values["product"], "product")
        except ManifestError as error:
            raise ConfigError(f"{origins['product']}: {error.message}", hint=error.hint) from None
    _check_files(values, origins)
    if isinstance(expected := values["expected_class"], str):
        origin, labels = origins["expected_class"], values["labels"]
        if labels is None:
            raise ConfigError(
                f"{origin}: expected_class: {expected!r} is a label, but no labels are given",
                hint="name the file of labels: labels in [project]; or give the class's number",
            )
        values["expected_class"] = class_of_label(
            expected, read_labels(labels), origin=f"{origin}: expected_class", file=labels
        )
    own = values["postprocess"] and values["postprocess"].own_labels
    if own is not None and values["labels"] is not None:
        raise ConfigError(
            f"{origins['labels']}: labels: {values['labels']}: the labels are the gallery's",
            hint="leave it out",
        )
    _check_golden(values, origins, path or PROJECT_FILE)
    return Project(**values, origins=origins)


def _check_golden(values: Mapping[str, Any], origins: Mapping[str, str], file: Path | str) -> None:
    """Raise `ConfigError` for fields of the golden input that do not go together."""
    if values["golden_image"] is not None and values["preprocess"] is None:
        raise ConfigError(
            f"{origins['golden_image']}: golden_image needs preprocessing",
            hint=f"add a [preprocess] table to {file}",
        )
    if values["golden_image"] is not None and values["golden_input"]:
        raise ConfigError(
            f"{origins['golden_input']}: golden_input and golden_image exclude each other",
            hint="a photo fills one input; tensors are all inputs of the model",
        )
    if values["expected_class"] is not None and values["golden_image"] is None:
        raise ConfigError(
            f"{origins['expected_class']}: expected_class needs a golden_image",
            hint="name the photo that shows it",
        )


def _check_local_root(
    values: Mapping[str, Any], from_file: Mapping[str, Any], path: Path | None
) -> None:
    """On this machine, the folder of the releases is none that a project file chose anywhere."""
    root = values["root"]
    is_local = values["device"] == "local" or values["board"] == "local"
    if not is_local or root is None or root != from_file.get("root") or is_outside_allowed():
        return
    if root.startswith(("/", "~")) or ".." in root.split("/"):
        raise ConfigError(
            f"{path}: project.root: {root!r} is anywhere on this machine",
            hint="a folder below your home folder; or --allow-outside, if you trust the file",
        )


def end_of_validity(text: str, *, now: datetime | None = None) -> str:
    """The time of a manifest that a date, a time in UTC, or a number of days from `now` ("90d")
    stands for. Raises ValueError that says how it is written, or that it is over."""
    now = now or datetime.now(UTC)
    if match := re.fullmatch(r"([1-9][0-9]{0,4})d", text):
        return (now + timedelta(days=int(match[1]))).strftime(TIME_FORMAT)
    time = parse_time(text) or parse_time(f"{text}T00:00:00Z")
    if time is None:
        raise ValueError("not 2027-01-31, 2027-01-31T12:00:00Z or 90d")
    if time <= now:
        raise ValueError("that is over")
    return time.strftime(TIME_FORMAT)


def default_name(model: Path) -> str:
    """A bundle's name made from the model file's: letters, digits, `.`, `_`, `+`, `-`."""
    return _as_name(model.stem)


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text)[:64].strip("-.+") or "model"


_SAID_BY_ALL = {"best", "last", "model"}
_FOLDERS_OF_ALL = {"weights", "onnx", "model", "models", "export", "exports", "checkpoints"}


def project_name(model: Path) -> str:
    """The name of a new project: the model file's, or that of its folder, if the file is called as
    every training calls it: `train3` of runs/detect/train3/weights/best.onnx."""
    if model.stem.casefold() not in _SAID_BY_ALL:
        return default_name(model)
    folders = (one.name for one in model.absolute().parents)
    name = next((one for one in folders if one.casefold() not in _FOLDERS_OF_ALL), "")
    return _as_name(name or model.stem)


def labels_of(project: Project) -> tuple[str, ...] | None:
    """The labels of a project's classes; None if nothing names them. Raises what `read_labels`
    does."""
    if project.labels is not None:
        return read_labels(project.labels)
    return project.postprocess.own_labels if project.postprocess else None


def read_labels(path: Path) -> tuple[str, ...]:
    """Class names, one per line; line n is class n. Empty lines at the end are none.

    Raises `ConfigError` if the file is not there, is not UTF-8, has another empty line, or one with
    what steers a terminal: control characters but tabs, or overrides of the direction of text.
    """
    lines = [line.strip() for line in text_lines(read_text(path))]
    while len(lines) > 1 and not lines[-1]:
        lines.pop()
    labels = tuple(lines)
    for number, label in enumerate(labels, start=1):
        if not label:
            raise ConfigError(
                f"{path}: line {number} is empty", hint="each line must name a class, from class 0"
            )
        if _CONTROL.search(label):
            raise ConfigError(
                f"{path}: line {number}: a control character in {one_line(ascii(label))}",
                hint="devices and terminals show labels as they are; is it a file of text?",
            )
    if not labels:
        raise ConfigError(f"{path}: no labels in it")
    return labels


def _check_files(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    files = [(key, values[key]) for key in _PATHS]
    files += [(key, path) for key in ("boards", "golden_input", "records") for path in values[key]]
    for key, file in files:
        try:
            is_there = file is None or file.is_file()
        except OSError as error:  # no file system has such a name
            problem = f"{error.strerror}: {str(file)[:200]}"
            raise ConfigError(f"{origins[key]}: {key}: {problem}") from None
        if not is_there:
            raise ConfigError(
                f"{origins[key]}: {key}: {'not a file' if file.exists() else 'no such file'}: "
                f"{file}"
            )


def _read_file(path: Path) -> dict[str, Any]:
    """The fields that the project file sets."""
    top = Table(read_toml(path), file=path)
    table = top.take_table("project")
    shapes: dict[str, Any] = top.take("shapes", dict, {})
    constants: dict[str, Any] = top.take("set", dict, {})
    states: dict[str, Any] = top.take("states", dict, {})
    preprocess: dict[str, Any] | None = top.take("preprocess", dict, None)
    postprocess: dict[str, Any] | None = top.take("postprocess", dict, None)
    compiling = top.take_table("compile", required=False)
    tuning = top.take_table("tune", required=False)
    health = top.take_table("health", required=False)
    service = take_service(top)
    stages = take_stages(top)
    sinks = take_sinks(top)
    quantize = top.take_table("quantize", required=False)
    monitor = top.take_table("monitor", required=False)
    top.finish()
    assert table is not None

    values = _read_project(table)
    if compiling is not None:
        values |= _read_compiling(compiling)
    values["records"] = _take_records(path, tuning)
    values |= {"service": service, "sinks": sinks or None, "stages": stages}
    values |= {"health": parse_health(health) if health is not None else None}
    values["quantize"] = _read_quantize(quantize) if quantize is not None else None
    values["monitor"] = _read_monitor(monitor) if monitor is not None else None
    values["shapes"] = _read_shapes(Table(shapes, file=path, path="shapes"), shapes)
    values["constants"] = _read_constants(Table(constants, file=path, path="set"), constants)
    values["states"] = _read_states(Table(states, file=path, path="states"), states)
    if preprocess is not None:
        values["preprocess"] = PreprocessSpec.from_table(preprocess, file=path)
    if postprocess is not None:
        values["postprocess"] = read_postprocess(postprocess, file=path)
    return {key: value for key, value in values.items() if value not in (None, (), {})}


def _read_project(table: Table) -> dict[str, Any]:
    """What [project] sets; None for what it does not."""
    values: dict[str, Any] = {}
    for key in ("name", "board", "device", "root"):
        values[key] = table.take(key, str, None)
        if values[key] == "":
            raise table.fail(key, "is empty")
    for key in _PATHS:
        name = table.take(key, str, None)
        values[key] = table.file_inside(key, name) if name is not None else None
    for key in ("boards", "golden_input"):
        names = table.take_list(key, str, ())
        values[key] = tuple(table.file_inside(key, name) for name in names)
    for key, choices in (
        ("scores", SCORES),
        ("toolchain", TOOLCHAINS),
        ("optimize", OPTIMIZE),
        ("precision", PRECISIONS),
        ("quantized", QUANTIZED),
        ("compute", COMPUTE),
    ):
        values[key] = table.take_choice(key, choices, None)
    values["tolerance"] = table.take("tolerance", float, None)
    if values["tolerance"] is not None and not 0 < values["tolerance"] < 1:
        raise table.fail("tolerance", f"{values['tolerance']} is not between 0 and 1")
    values["verify"] = table.take("verify", bool, None)
    values["static"] = table.take("static", bool, None)
    values["expected_class"] = _read_expected(table)
    values |= _read_release(table)
    table.finish()
    return values


def _read_release(table: Table) -> dict[str, Any]:
    """What [project] says of the release itself."""
    version = table.take("version", int, None)
    if version is not None and not 0 <= version < 2**63:
        raise table.fail("version", f"{version} is not a whole number of 0 or more")
    until = table.take("valid_until", str, None)
    if until is not None:
        try:
            until = end_of_validity(until)
        except ValueError as error:
            raise table.fail("valid_until", f"{until!r}: {error}") from None
    return {
        "version": version,
        "product": table.take("product", str, None),
        "valid_until": until,
    }


def files_of(path: Path) -> tuple[Path, ...]:
    """A project file and all that it needs to be deployed: model, weights in other files, labels,
    photos of the smoke test and of `[monitor]`, own profiles of boards, records. All lie in its
    folder.

    Raises `UsageError` for one that lies elsewhere, and what `load_project` and the model raise.
    """
    from edgepack.flow.monitor import photos_to_compare_with
    from edgepack.model.sources import weights_of

    project = load_project(path)
    model = project.model
    weights = weights_of(model, model.name, str(model))
    named = [
        *(path, model, *(model.parent / name for name in weights)),
        *(project.labels, project.golden_image),
        *(*project.golden_input, *project.boards, *project.records),
        *(file for stage in project.stages for file in stage.files),
        *(
            stage.model.parent / name
            for stage in project.stages
            for name in weights_of(stage.model, stage.model.name, str(stage.model))
        ),
        *photos_to_compare_with(project),
    ]
    folder = path.absolute().parent.resolve()
    found = dict.fromkeys(file.absolute() for file in named if file is not None)
    for file in found:
        if not file.resolve().is_relative_to(folder):
            raise UsageError(
                f"{path}: {file} is not in its folder", hint="copy it there, and name the copy"
            )
    return tuple(found)


def model_named_in(path: Path) -> Path | None:
    """The model that a project file names; None if it names none, or cannot be read."""
    try:
        name = read_toml(path).get("project", {}).get("model")
    except (ConfigError, AttributeError):
        return None
    return path.parent / name if isinstance(name, str) else None


def read_record_files(path: Path) -> tuple[Path, ...]:
    """The files of records that a project file names, be they there or not."""
    table = Table(read_toml(path), file=path).take_table("tune", required=False)
    return _take_records(path, table)


def _take_records(path: Path, table: Table | None) -> tuple[Path, ...]:
    """The files of records that `[tune]` names, else the one beside the project file."""
    is_named = table is not None and table.has("records")
    names = table.take_list("records", str, ()) if table is not None else ()
    if table is not None:
        table.finish()
    if table is None or not is_named:
        if not (path.parent / RECORDS_FILE).is_file():
            return ()
        return (Table({}, file=path, path="tune").file_inside("records", RECORDS_FILE),)
    return tuple(table.file_inside("records", name) for name in names)


def _read_compiling(table: Table) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key in ("memory_mb", "cpu_s"):
        values[f"compile_{key}"] = limit = table.take(key, int, None)
        if limit is not None and limit < 1:
            raise table.fail(key, f"{limit} is below 1")
    values["exact"] = _read_exact(table)
    values["bounded"] = table.take_list("bounded", str, ())
    table.finish()
    return values


def _read_exact(table: Table) -> bool | tuple[str, ...] | None:
    """Whether all layers are to be exact, or the names of those that are."""
    if table.has_list("exact"):
        return table.take_list("exact", str)
    return table.take("exact", bool, None)


def _read_quantize(table: Table) -> Quantizing:
    folders = {}
    for key in ("images", "judge"):
        name = table.take(key, str, None)
        folders[key] = folder = None if name is None else table.file_inside(key, name)
        # It may be elsewhere: who deploys a published project does not quantise again.
        if folder is not None:
            _check_links(table, key, folder)
    budget = table.take("budget", float, Quantizing.budget)
    if not 0 <= budget <= 1:
        raise table.fail("budget", f"{budget} is not between 0 and 1")
    value = Quantizing(snr_db=table.take("snr_db", float, None), budget=budget, **folders)
    table.finish()
    return value


def _read_monitor(table: Table) -> Monitoring:
    value = take_monitoring(table)
    if value.images is not None:
        _check_links(table, "images", value.images)
    return value


def _check_links(table: Table, key: str, folder: Path) -> None:
    """Photos below the project's folder are there themselves, too."""
    top = Path(table.file).parent
    for at, folders, files in os.walk(folder):
        for path in (Path(at, name) for name in (*folders, *files)):
            if path.is_symlink():
                table.file_inside(key, os.path.relpath(path, top))


def _read_expected(table: Table) -> int | str | None:
    """A class's number, or its label's text, of which `load_project` makes the number."""
    kind: Any = int | str
    value: int | str | None = table.take("expected_class", kind, None)
    if isinstance(value, int) and value < 0:
        raise table.fail("expected_class", f"{value} is below 0")
    return value


def class_of_label(label: str, labels: Sequence[str], *, origin: str, file: Path) -> int:
    """The number of the class that is called `label`, in whatever case.

    Raises `ConfigError`, which names `origin`, if none or several of `file` are called so.
    """
    found = [i for i, known in enumerate(labels) if known.casefold() == label.casefold()]
    if len(found) != 1:
        problem = f"{len(found)} labels are" if found else "no label is"
        hint = f"give the number: {', '.join(map(str, found[:5]))}" if found else None
        raise ConfigError(
            f"{origin}: {problem} {label!r} in {file}",
            hint=hint or perhaps(label, labels),
        )
    return found[0]


def _read_shapes(table: Table, names: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for name in names:
        shapes[name] = table.take_list(name, int)
        if any(size < 1 for size in shapes[name]):
            raise table.fail(name, f"{list(shapes[name])} holds a size below 1")
    return shapes


def _read_states(table: Table, names: Mapping[str, Any]) -> dict[str, str]:
    return {name: table.take(name, str) for name in names}


def _read_constants(table: Table, names: Mapping[str, Any]) -> dict[str, Constant]:
    constants: dict[str, Constant] = {}
    for name, value in names.items():
        kind: Any = int | float | bool
        if table.has_list(name):
            constants[name] = table.take_list(name, kind)
            if value == []:
                raise table.fail(name, "is empty")
        else:
            constants[name] = table.take(name, kind)
    return constants
