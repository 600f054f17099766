"""manifest.json: what a bundle holds and which boards it fits.

The parser takes every key it knows out of the document and refuses what is left,
so that a manifest of a later schema, or one written by hand, is never half
understood. There are no timestamps: equal content gives equal bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from edgepack.base.errors import BundleError
from edgepack.base.tables import Table, parse_json
from edgepack.bundle.service import Service, take_service

SCHEMA = 2
SCHEMA_STATIC = 3
SCHEMAS = (1, SCHEMA, SCHEMA_STATIC)
"""What is read. `SCHEMA_STATIC` is written for a bundle that needs no C library, else `SCHEMA`."""
MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 4 << 20
"""Far above any real one: two thousand files take half a megabyte."""
SIGNATURE_NAME = "manifest.json.sig"
APP = "bin/edgepack-run"
LIBRARY = "model/model.so"
GRAPH = "model/graph.json"
PARAMS = "model/params.bin"
# Machine code of a GPU is an ELF file, too, but none that the CPU runs.
CUBIN, OPENCL_TEXT = "model/kernels.cubin", "model/kernels.cl"
# Beside machine code: the same for later GPUs, which their driver compiles.
PTX = "model/kernels.ptx"
# Of a model for a GPU the plan for the CPU, where that may run it, too.
CPU_FOLDER = "model/cpu/"
# Of a bundle of several models: what the later ones look at, and a folder for each, laid out as a
# bundle.
STAGES, STAGES_FOLDER = "stages.json", "stages"
DEVICE_TOOL = "bin/edgepack-device"
INSTALL = "install"
REQUIRED_FILES = {
    1: (APP, LIBRARY, GRAPH, PARAMS),
    SCHEMA: (APP, LIBRARY, GRAPH, PARAMS, DEVICE_TOOL, INSTALL),
    SCHEMA_STATIC: (APP, GRAPH, PARAMS, DEVICE_TOOL, INSTALL),
}
"""By schema."""
SINKS = "bin/edgepack-sinks"
EXECUTABLES = (APP, DEVICE_TOOL, SINKS, INSTALL)

MODES = ("0644", "0755")
SCORES = ("raw", "softmax")
DTYPES = (
    *("bool", "float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)

# Names and paths become shell words, tar headers and device paths: letters, digits
# and a few signs only, and no part that begins with '-' or '.'.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@-]*")
# A million seconds, milliseconds or megabytes: whatever is more is a slip of the unit.
_LARGEST_BOUND = 10**6
_OPTIONAL = ("product", "valid_until")
_SINCE_2 = ("version", "health", "service", *_OPTIONAL)
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_RELEASE = re.compile(r"[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_STATIC = "static"
_PRECISIONS = ("float32", "float16", "tf32", "int8")
_GLIBC = re.compile(r"[0-9]+\.[0-9]+")


class ManifestError(BundleError):
    """manifest.json is not what its schema says."""


class UnsupportedSchemaError(ManifestError):
    """The bundle was written for another version of the manifest."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One model input or output: its name, numpy dtype name and full static shape.

    `bounded` are the axes of an output whose size depends on the data, at most what `shape` says;
    in the file the key is left out if there are none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bounded: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Compatible:
    """What a device must be: triple, LLVM cpu name, /proc/cpuinfo features, glibc floor.

    Without a C library (`SCHEMA_STATIC`) `glibc` is empty; the file has "linked": "static" instead.
    """

    triple: str
    cpu: str
    hwcaps: tuple[str, ...]
    glibc: str


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Of a model on 8-bit integers: how many of its layers are in float, and what `edgepack
    quantize` wrote into its file: the SHA-256 of the photos it was calibrated on, and for how many
    others, as a share, the first class was float32's. "" and None if it did not.
    """

    in_float: int = 0
    calibration: str = ""
    agreement: float | None = None


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """The ONNX model the bundle was made from, and the memory it takes at run time.

    `precision` is what it was compiled to, "float32", "float16", "tf32", or "int8" of a quantised
    model, of which some layers may be in float; in the file the key is left out for the first.
    `quantized` is there for int8 only.
    """

    file: str
    sha256: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    arena_bytes: int
    params_bytes: int
    precision: str = "float32"
    quantized: Quantization | None = None


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of the bundle; `mode` is "0644" or "0755"."""

    sha256: str
    size: int
    mode: str


@dataclass(frozen=True, kw_only=True)
class Versions:
    """What the bundle was made with."""

    edgepack: str
    tvm: str
    opencv: str
    toolchain: str


@dataclass(frozen=True, kw_only=True)
class Health:
    """What the release must keep to in its test on the device.

    `timeout_s` bounds the whole test. `max_latency_ms` bounds one run of the model, without
    loading, and `max_memory_mb` the app's peak resident set (10^6 bytes); None is no bound.
    """

    timeout_s: float = 600.0
    max_latency_ms: float | None = None
    max_memory_mb: float | None = None


DEFAULT_HEALTH = Health()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """manifest.json.

    `release` is the first 12 hex digits of the SHA-256 over everything else here,
    the file table included. `version` is the maker's own number; a device that has signers
    pinned takes no lower one than it has had. `tolerance` bounds max |error| /
    max |reference| of the golden outputs. A device of a `product` takes no bundle of another, or of
    none. After `valid_until` ("2027-01-31T12:00:00Z") no device installs it. Both are left out in
    the file if they are None. `scores` says whether the app applies softmax
    before it ranks. Schema 1 has neither `version`, `health` nor `service`.
    """

    schema: int = SCHEMA
    name: str
    board: str
    release: str
    version: int = 0
    compatible: Compatible
    model: SourceModel
    health: Health = DEFAULT_HEALTH
    service: Service | None = None
    product: str | None = None
    valid_until: str | None = None
    tolerance: float
    scores: str
    versions: Versions
    files: Mapping[str, FileEntry]

    def to_bytes(self) -> bytes:
        """The manifest as UTF-8 JSON with sorted keys, the same bytes for the same content."""
        text = json.dumps(_document(self), sort_keys=True, indent=2, ensure_ascii=False)
        return text.encode() + b"\n"

    @property
    def is_static(self) -> bool:
        """Whether the kernels are in the app, which needs no C library."""
        return self.schema == SCHEMA_STATIC

    @property
    def runs_on_gpu(self) -> bool:
        """Whether there is a plan for a GPU; there may be one for the CPU, too."""
        return not {CUBIN, OPENCL_TEXT}.isdisjoint(self.files)

    @property
    def folder_name(self) -> str:
        """`<name>-<board>-<release>`: the bundle's folder and the tarball's top folder."""
        return f"{self.name}-{self.board}-{self.release}"

    @property
    def total_bytes(self) -> int:
        """Size of all files of the table."""
        return sum(entry.size for entry in self.files.values())


def release_id(document: Mapping[str, object]) -> str:
    """The release id of a manifest given as a JSON object; its own `release` is left out.

    It is computed from the parsed document and not from `Manifest`, so that it stays
    what it was when a later schema adds fields.
    """
    rest = {key: value for key, value in document.items() if key != "release"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_release(manifest: Manifest) -> Manifest:
    """`manifest` with its `release` computed from the rest."""
    return replace(manifest, release=release_id(_document(manifest)))


def _document(manifest: Manifest) -> dict[str, Any]:
    """The JSON object, without what its schema does not have."""
    missing = _SINCE_2 if manifest.schema == 1 else ()
    document = {key: value for key, value in asdict(manifest).items() if key not in missing}
    if manifest.is_static:
        del document["compatible"]["glibc"]
        document["compatible"]["linked"] = _STATIC
    for key in _OPTIONAL:
        if document.get(key, "") is None:
            del document[key]
    if document["model"]["precision"] == _PRECISIONS[0]:
        del document["model"]["precision"]
    if document["model"]["quantized"] is None:
        del document["model"]["quantized"]
    for tensor in (*document["model"]["inputs"], *document["model"]["outputs"]):
        if not tensor["bounded"]:
            del tensor["bounded"]
    return document


def check_name(value: str, what: str) -> str:
    """`value` if it can be part of a path on every system, else `ManifestError`."""
    if not _PART.fullmatch(value) or len(value) > 64:
        raise ManifestError(
            f"{what}: {value!r}",
            hint="letters, digits and . _ + @ -, not beginning with . or -, at most 64",
        )
    return value


def check_path(path: str, *, limit: int = 100) -> str:
    """`path` if it is a safe relative path, else `ManifestError`.

    Safe: parts of letters, digits and `. _ + @ -` joined by '/', none empty and none
    beginning with '.' or '-' (so no '..'), at most `limit` characters (a tar header
    holds 100 after the folder name).
    """
    if len(path) > limit or not all(_PART.fullmatch(part) for part in path.split("/")):
        raise ManifestError(f"unsafe path in a bundle: {path!r}")
    return path


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in `data` (UTF-8 JSON).

    Raises `UnsupportedSchemaError` for another schema, and `ManifestError` naming the
    field for anything else: no JSON, a key that is missing, unknown or given twice, a
    wrong type or value, an unsafe path, or a release id that the content does not have.
    The device's reader (cpp_runtime/device/src/manifest_reader.cc) has the same rules.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"{MANIFEST_NAME}: more than {MAX_MANIFEST_BYTES >> 20} MiB")
    document = parse_json(data, file=MANIFEST_NAME, error=ManifestError)
    top = Table(document, file=MANIFEST_NAME, error=ManifestError)
    schema = _size(top, "schema")
    if schema not in SCHEMAS:
        raise UnsupportedSchemaError(
            f"{MANIFEST_NAME}: schema {schema}; this edgepack reads {SCHEMAS[0]} to {SCHEMAS[-1]}",
            hint="make the bundle again with this edgepack, or use the edgepack that made it",
        )
    since_2: dict[str, Any] = {}
    if schema >= 2:
        since_2 = {
            "version": _size(top, "version"),
            "health": parse_health(_table(top, "health").need(asdict(DEFAULT_HEALTH))),
            "service": take_service(top.need(["service"]), whole=True),
            "product": _product(top),
            "valid_until": _valid_until(top),
        }
    manifest = Manifest(
        schema=schema,
        **since_2,
        name=check_name(top.take("name", str), f"{MANIFEST_NAME}: name"),
        board=check_name(top.take("board", str), f"{MANIFEST_NAME}: board"),
        release=_matching(top, "release", _RELEASE, "12 hex digits"),
        compatible=_compatible(_table(top, "compatible"), schema),
        model=_source_model(_table(top, "model")),
        tolerance=_tolerance(top),
        scores=top.take_choice("scores", SCORES),
        versions=_versions(_table(top, "versions")),
        files=_files(top, schema),
    )
    top.finish()
    actual = release_id(document)
    if manifest.release != actual:
        raise ManifestError(
            f"{MANIFEST_NAME}: release is {manifest.release}, its content is that of {actual}",
            hint="the manifest was changed after it was written; make the bundle again",
        )
    return manifest


def _product(top: Table) -> str | None:
    name = top.take("product", str) if top.has("product") else None
    return None if name is None else check_name(name, f"{MANIFEST_NAME}: product")


def _valid_until(top: Table) -> str | None:
    text = top.take("valid_until", str) if top.has("valid_until") else None
    if text is not None and parse_time(text) is None:
        raise top.fail("valid_until", f"{text!r} is no time such as 2027-01-31T12:00:00Z")
    return text


def parse_time(text: str) -> datetime | None:
    """The time in "2027-01-31T12:00:00Z", of 1970 or later; None for any other text."""
    with contextlib.suppress(ValueError):
        time = datetime.strptime(text, TIME_FORMAT).replace(tzinfo=UTC)
        if time.strftime(TIME_FORMAT) == text and time.year >= 1970:
            return time
    return None


def _compatible(table: Table, schema: int) -> Compatible:
    glibc = ""
    if schema == SCHEMA_STATIC:
        table.take_choice("linked", (_STATIC,))
    else:
        glibc = _matching(table, "glibc", _GLIBC, "a version such as 2.31")
    value = Compatible(
        triple=table.take("triple", str),
        cpu=table.take("cpu", str),
        hwcaps=table.take_list("hwcaps", str),
        glibc=glibc,
    )
    table.finish()
    return value


def parse_health(table: Table) -> Health:
    """The health table of a manifest, or of a project file, where keys may be left out.

    Raises what `table` raises, for a bound that is not above 0 too.
    """
    values: dict[str, Any] = {}
    for key, default in asdict(DEFAULT_HEALTH).items():
        value = table.take(key, float, default)
        if value is not None and not 0 < value <= _LARGEST_BOUND:
            raise table.fail(key, f"{value} is not above 0, or beyond {_LARGEST_BOUND}")
        values[key] = value
    table.finish()
    return Health(**values)


def _source_model(table: Table) -> SourceModel:
    value = SourceModel(
        file=table.take("file", str),
        sha256=_matching(table, "sha256", _SHA256, "64 hex digits"),
        inputs=_tensors(table, "inputs"),
        outputs=_tensors(table, "outputs"),
        arena_bytes=_size(table, "arena_bytes"),
        params_bytes=_size(table, "params_bytes"),
        precision=table.take("precision", str, _PRECISIONS[0]),
        quantized=_quantized(_table(table, "quantized")) if table.has("quantized") else None,
    )
    if value.precision not in _PRECISIONS:
        raise table.fail("precision", f"unknown value {value.precision!r}")
    table.finish()
    return value


def _quantized(table: Table) -> Quantization:
    value = Quantization(
        in_float=_size(table, "in_float"),
        calibration=table.take("calibration", str),
        agreement=table.need(["agreement"]).take("agreement", float, None),
    )
    if value.calibration and not _SHA256.fullmatch(value.calibration):
        raise table.fail("calibration", f"{value.calibration!r} is not 64 hex digits")
    if value.agreement is not None and not 0 <= value.agreement <= 1:
        raise table.fail("agreement", f"{value.agreement} is not between 0 and 1")
    table.finish()
    return value


def _tensors(table: Table, key: str) -> tuple[Tensor, ...]:
    tensors = []
    for index, values in enumerate(table.take_list(key, dict)):
        path = f"{table.name(key)}[{index}]"
        item = Table(values, file=MANIFEST_NAME, path=path, error=ManifestError)
        tensors.append(
            Tensor(
                name=item.take("name", str),
                dtype=item.take_choice("dtype", DTYPES),
                shape=item.take_list("shape", int),
                bounded=item.take_list("bounded", int) if "bounded" in values else (),
            )
        )
        item.finish()
        if any(not 0 <= axis < len(tensors[-1].shape) for axis in tensors[-1].bounded):
            raise item.fail("bounded", f"{list(tensors[-1].bounded)}: no axes of its shape")
        if any(size < 0 for size in tensors[-1].shape):
            raise item.fail("shape", f"{list(tensors[-1].shape)} has a negative size")
    return tuple(tensors)


def _versions(table: Table) -> Versions:
    value = Versions(
        edgepack=table.take("edgepack", str),
        tvm=table.take("tvm", str),
        opencv=table.take("opencv", str),
        toolchain=table.take("toolchain", str),
    )
    table.finish()
    return value


def _files(top: Table, schema: int) -> dict[str, FileEntry]:
    files = {}
    for path, values in top.take("files", dict).items():
        check_path(path)
        if not isinstance(values, dict):
            raise top.fail(f"files.{path}", f"{values!r} is not a table")
        table = Table(values, file=MANIFEST_NAME, path=f"files.{path}", error=ManifestError)
        files[path] = FileEntry(
            sha256=_matching(table, "sha256", _SHA256, "64 hex digits"),
            size=_size(table, "size"),
            mode=table.take_choice("mode", MODES),
        )
        table.finish()
    if missing := [name for name in REQUIRED_FILES[schema] if name not in files]:
        raise top.fail("files", f"{', '.join(missing)} missing")
    for name in (MANIFEST_NAME, SIGNATURE_NAME):
        if name in files:
            raise top.fail("files", f"lists {name}, which cannot be covered by itself")
    for path in files:
        for folder in PurePosixPath(path).parents:
            if str(folder) in files:
                raise top.fail("files", f"{folder} is both a file and the folder of {path}")
    return files


def _table(table: Table, key: str) -> Table:
    value = table.take_table(key)
    assert value is not None  # required
    return value


def _size(table: Table, key: str) -> int:
    value = table.take(key, int)
    if value < 0:
        raise table.fail(key, f"{value} is not a size")
    return value


def _tolerance(table: Table) -> float:
    value = table.take("tolerance", float)
    if not 0 < value < 1:
        raise table.fail("tolerance", f"{value} is not between 0 and 1")
    return value


def _matching(table: Table, key: str, pattern: re.Pattern[str], what: str) -> str:
    value = table.take(key, str)
    if not pattern.fullmatch(value):
        raise table.fail(key, f"{value!r} is not {what}")
    return value
