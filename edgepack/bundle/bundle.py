"""Bundles: everything a device needs for one model, in a folder or the same as a tarball.

Layout:

    manifest.json            what is here, for which board (edgepack.manifest)
    manifest.json.sig        its signature, if there is one (edgepack.signing)
    install                  installs this bundle where it was unpacked
    bin/edgepack-run         the app
    bin/edgepack-device      what installs it, here and in a deploy
    model/                   model.so (unless the kernels are in the app), graph.json, params.bin
    preprocess.json          if the model takes images
    postprocess.json         if the project says what becomes of the outputs
    monitor.json             what was seen in photos, for live input to be compared with
    labels.txt               one per line, if there are any
    tuning.jsonl             records of tuning that kernels were made by, if by any
    source.json              where the model was fetched from, if it was
    verified.json            on which inputs it was compared with the reference, if on any
    golden/                  input.npy, output.npy: known inputs and outputs (input.<i>.npy
                             and output.<i>.npy for those after the first), image.png or
                             .jpg and expected.json {"index", "label"} if a photo was given
    licenses/                of everything in the bundle
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgepack.base.errors import BundleError
from edgepack.base.kept import keep
from edgepack.base.paths import atomic_dir, cache_dir
from edgepack.base.tables import Table, read_json
from edgepack.base.version import VERSION
from edgepack.boards import Board
from edgepack.bundle import licenses, manifest, shared_weights, tarball
from edgepack.bundle.manifest import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    Compatible,
    FileEntry,
    Health,
    Manifest,
    Quantization,
    SourceModel,
    Tensor,
    Versions,
)
from edgepack.bundle.service import Service
from edgepack.bundle.sinks import CONFIG as SINKS_CONFIG
from edgepack.bundle.sinks import SinkTables, with_sinks
from edgepack.bundle.verified import DEFAULT_TOLERANCE, Verified
from edgepack.model import TensorInfo
from edgepack.model.sources import ModelSource
from edgepack.native.toolchain import Toolchain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

PREPROCESS = "preprocess.json"
POSTPROCESS = "postprocess.json"
MONITOR = "monitor.json"
LABELS = "labels.txt"
VERIFIED = "verified.json"
SOURCE = "source.json"
TUNING = "tuning.jsonl"
EXPECTED = "golden/expected.json"
_INSTALL_SCRIPT = """\
#!/bin/sh
# Installs this bundle as `edgepack deploy` does: ./install [--root DIR] [OPTION ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ "${{1:-}}" = --root ]; then root=$2; shift 2; else root=$HOME/edgepack/{name}; fi
# The tool that came with a release before is trusted already; the one here is not yet.
tool=$root/bin/edgepack-device
[ -x "$tool" ] || tool=$here/bin/edgepack-device
exec "$tool" --root "$root" install "$here" "$@"
"""
_IMAGE_SUFFIXES = {".png": ".png", ".jpg": ".jpg", ".jpeg": ".jpg"}
_SHOWN_PROBLEMS = 4


class NotABundleError(BundleError):
    """The path is neither a bundle folder nor a bundle tarball."""


class DamagedBundleError(BundleError):
    """Files differ from the manifest; `problems` holds (file, what differs) of each."""

    def __init__(self, path: Path, problems: Sequence[tuple[str, str]]) -> None:
        shown = [f"{file}: {problem}" for file, problem in problems[:_SHOWN_PROBLEMS]]
        if len(problems) > _SHOWN_PROBLEMS:
            shown.append(f"and {len(problems) - _SHOWN_PROBLEMS} more")
        super().__init__(
            f"{path}: damaged bundle: {'; '.join(shown)}", hint="fetch or make the bundle again"
        )
        self.problems = tuple(problems)


@dataclass(frozen=True, kw_only=True)
class ExpectedClass:
    """The class a golden photo must be given: output index and label (or "")."""

    index: int
    label: str


@dataclass(frozen=True, kw_only=True)
class Golden:
    """Known inputs and outputs, in the model's order; each has the tensor's own dtype and shape.

    `image` is the photo (.png or .jpg) that the first input was made from, and
    `expected` its class.
    """

    inputs: tuple[NDArray[np.generic], ...]
    outputs: tuple[NDArray[np.generic], ...]
    image: Path | None = None
    expected: ExpectedClass | None = None


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle whose files match its manifest.

    `path` is the folder. Its files may change later: check each copy of a file against
    `manifest.files`.
    """

    path: Path
    manifest: Manifest
    manifest_sha256: str

    def file(self, name: str) -> Path:
        """Return the path of the file `name` of the manifest."""
        return self.path / name

    @property
    def signature(self) -> bytes:
        """The signature over the manifest's bytes; empty without one."""
        path = self.path / SIGNATURE_NAME
        return path.read_bytes() if path.is_file() else b""

    @property
    def source(self) -> ModelSource | None:
        """The source of the model; None if it is not recorded.

        Raises `BundleError` if the record is none of ours.
        """
        if SOURCE not in self.manifest.files:
            return None
        file = self.file(SOURCE)
        return ModelSource.parse(file.read_bytes(), file=str(file))

    @property
    def verified(self) -> Verified | None:
        """The comparisons made before packing; None if they are not recorded.

        Raises `BundleError` if the record is none of ours.
        """
        if VERIFIED not in self.manifest.files:
            return None
        file = self.file(VERIFIED)
        table = Table(read_json(file, error=BundleError), file=file, error=BundleError)
        if table.has("inputs"):  # as it was written before anything was emulated
            emulated: tuple[str, ...] = ()
            local = table.take_list("inputs", str)
        else:
            emulated = table.take_list("emulated", str)
            local = table.take_list("local", str)
        found = Verified(
            emulated=emulated,
            local=local,
            tolerance=table.take("tolerance", float),
            choices=table.take_list("choices", str, ()),
        )
        table.finish()
        return found

    @property
    def golden_image(self) -> str | None:
        """The name of the smoke test's photo in the bundle, if there is one."""
        names = (f"golden/image{suffix}" for suffix in sorted(set(_IMAGE_SUFFIXES.values())))
        return next((name for name in names if name in self.manifest.files), None)


class Compiled(Protocol):
    """What a bundle needs of `compiler.CompiledModel`."""

    @property
    def library(self) -> Path: ...
    @property
    def graph(self) -> Path: ...
    @property
    def params(self) -> Path: ...
    @property
    def device_code(self) -> Path | None: ...
    @property
    def inputs(self) -> Sequence[TensorInfo]: ...
    @property
    def outputs(self) -> Sequence[TensorInfo]: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def params_bytes(self) -> int: ...
    @property
    def model_sha256(self) -> str: ...
    @property
    def tvm_version(self) -> str: ...


class Runtime(Protocol):
    """What a bundle needs of `native.app.RuntimeBuild`; `app` is a program."""

    @property
    def app(self) -> Path: ...
    @property
    def toolchain(self) -> Toolchain: ...
    @property
    def opencv_version(self) -> str: ...
    @property
    def licenses(self) -> Mapping[str, str]: ...


class ToolFiles(Protocol):
    """What a bundle needs of `device_tool.DeviceTool`."""

    @property
    def path(self) -> Path: ...
    @property
    def licenses(self) -> Mapping[str, str]: ...


class Spec(Protocol):
    """What a bundle needs of `PreprocessSpec`, `PostprocessSpec` and `MonitorSpec`."""

    def to_json(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class StageContents:
    """A model that looks at boxes of the bundle's first one: at the likeliest `most` of `classes`,
    if there are any, each enlarged by `padding`. `align` is what stages.json says of how crops are
    straightened. The others are as in `Contents`."""

    name: str
    classes: Sequence[int]
    most: int
    padding: float
    align: Mapping[str, object]
    compiled: Compiled
    preprocess: Spec
    postprocess: Spec
    labels: Sequence[str]
    golden: Golden
    model_file: str
    tolerance: float
    verified: Verified


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a bundle is made of.

    `model_file` is the name of the ONNX file, `scores` "softmax" or "raw"; `hwcaps` is what
    the device's /proc/cpuinfo must list, None for what the board's profile says; `verified`
    is recorded in `VERIFIED`, `tuning` are the lines of `TUNING`, `precision` and `quantized`
    are in the manifest, as are `product` and `valid_until`; `on_cpu` is the same model for the CPU
    alone, of one for a GPU that the CPU may run, too; `source` is recorded in `SOURCE`; `sinks` is
    what `sinks_program` does, if there are any; `stages` are the models after this one.
    """

    name: str
    board: Board
    compiled: Compiled
    runtime: Runtime
    tool: ToolFiles
    preprocess: Spec | None
    labels: Sequence[str] | None
    golden: Golden
    model_file: str
    scores: str = "softmax"
    tolerance: float = DEFAULT_TOLERANCE
    version: int = 0
    health: Health = manifest.DEFAULT_HEALTH
    service: Service | None = None
    model_license: str | None = None
    hwcaps: Sequence[str] | None = None
    verified: Verified | None = None
    postprocess: Spec | None = None
    precision: str = "float32"
    quantized: Quantization | None = None
    tuning: Sequence[str] = ()
    product: str | None = None
    valid_until: str | None = None
    on_cpu: Compiled | None = None
    monitor: Spec | None = None
    source: ModelSource | None = None
    sinks: SinkTables = field(default_factory=SinkTables)
    sinks_program: ToolFiles | None = None
    stages: Sequence[StageContents] = ()


def make_bundle(contents: Contents, out: Path) -> Bundle:
    """The bundle in the folder `<name>-<board>-<release>`, which is written into `out`.

    The folder appears whole or not at all; one of that name is replaced.
    Raises `BundleError` for a bad name, label or golden image.
    """
    board, compiled, runtime = contents.board, contents.compiled, contents.runtime
    content: dict[str, bytes | Path] = {
        manifest.APP: runtime.app,
        manifest.DEVICE_TOOL: contents.tool.path,
        manifest.INSTALL: _INSTALL_SCRIPT.format(name=contents.name).encode(),
        **({} if board.is_static else {manifest.LIBRARY: compiled.library}),
        manifest.GRAPH: compiled.graph,
        manifest.PARAMS: compiled.params,
        **_device_code(compiled),
        **_plan_for_cpu(contents.on_cpu, compiled),
        **_golden_files(contents.golden, compiled),
        **_stage_files(contents.stages),
    }
    if contents.preprocess is not None:
        content[PREPROCESS] = contents.preprocess.to_json().encode()
    if contents.postprocess is not None:
        content[POSTPROCESS] = contents.postprocess.to_json().encode()
    if contents.monitor is not None:
        content[MONITOR] = contents.monitor.to_json().encode()
    if contents.labels is not None:
        content[LABELS] = _label_lines(contents.labels)
    if contents.verified is not None:
        content[VERIFIED] = json.dumps(asdict(contents.verified), indent=2).encode() + b"\n"
    if contents.source is not None:
        content[SOURCE] = contents.source.to_json().encode()
    if contents.tuning:
        content[TUNING] = "".join(f"{line}\n" for line in contents.tuning).encode()
    texts = {**runtime.licenses, **contents.tool.licenses}
    if contents.sinks_program is not None:
        content[manifest.SINKS] = contents.sinks_program.path
        content[SINKS_CONFIG] = contents.sinks.to_json(contents.name).encode()
        texts |= contents.sinks_program.licenses
    for path, text in licenses.gather(texts, model=contents.model_license).items():
        content[path] = text.encode()
    document = manifest.with_release(
        Manifest(
            schema=manifest.SCHEMA_STATIC if board.is_static else manifest.SCHEMA,
            name=manifest.check_name(contents.name, "bundle name"),
            board=manifest.check_name(board.name, "board name"),
            release="",
            version=contents.version,
            health=contents.health,
            service=with_sinks(contents.service, contents.sinks),
            product=None
            if contents.product is None
            else manifest.check_name(contents.product, "product"),
            valid_until=contents.valid_until,
            compatible=Compatible(
                triple=board.triple,
                cpu=board.cpu,
                hwcaps=board.hwcaps if contents.hwcaps is None else tuple(contents.hwcaps),
                glibc=board.glibc,
            ),
            model=SourceModel(
                file=contents.model_file,
                sha256=compiled.model_sha256,
                inputs=_tensors(compiled.inputs),
                outputs=_tensors(compiled.outputs),
                # Of all models together: they run after each other.
                arena_bytes=max(one.arena_bytes for one in (compiled, *_compiled(contents))),
                params_bytes=sum(one.params_bytes for one in (compiled, *_compiled(contents))),
                precision=contents.precision,
                quantized=contents.quantized,
            ),
            tolerance=contents.tolerance,
            scores=contents.scores,
            versions=Versions(
                edgepack=VERSION,
                tvm=compiled.tvm_version,
                opencv=runtime.opencv_version,
                toolchain=runtime.toolchain.title,
            ),
            files={path: _entry(path, content[path]) for path in sorted(content)},
        )
    )
    data = document.to_bytes()
    folder = out / document.folder_name
    with atomic_dir(folder) as work:
        for path, file in content.items():
            _place(work / path, file, int(document.files[path].mode, 8))
        _place(work / MANIFEST_NAME, data, 0o644)
        _verify(work, manifest.parse_manifest(data), shown_as=folder)
    log.info("bundle %s: %d bytes", folder, document.total_bytes)
    return Bundle(path=folder, manifest=document, manifest_sha256=_sha256(data))


def _compiled(contents: Contents) -> Iterator[Compiled]:
    """The models after the first."""
    return (stage.compiled for stage in contents.stages)


def _stage_files(stages: Sequence[StageContents]) -> dict[str, bytes | Path]:
    if not stages:
        return {}
    looks = [
        {
            "name": stage.name,
            "classes": list(stage.classes),
            "padding": stage.padding,
            "most": stage.most,
            **stage.align,
        }
        for stage in stages
    ]
    document = {"format": "edgepack-stages", "version": 1, "stages": looks}
    files: dict[str, bytes | Path] = {
        manifest.STAGES: json.dumps(document, indent=2).encode() + b"\n"
    }
    for number, stage in enumerate(stages, start=1):
        compiled = stage.compiled
        about = {
            "name": stage.name,
            "model": {"file": stage.model_file, "sha256": compiled.model_sha256},
            # What postprocess.json says.
            "scores": "raw",
            "tolerance": stage.tolerance,
        }
        own: dict[str, bytes | Path] = {
            MANIFEST_NAME: json.dumps(about, indent=2, ensure_ascii=False).encode() + b"\n",
            manifest.LIBRARY: compiled.library,
            manifest.GRAPH: compiled.graph,
            manifest.PARAMS: compiled.params,
            PREPROCESS: stage.preprocess.to_json().encode(),
            POSTPROCESS: stage.postprocess.to_json().encode(),
            VERIFIED: json.dumps(asdict(stage.verified), indent=2).encode() + b"\n",
            **_golden_files(stage.golden, compiled),
        }
        if stage.labels:
            own[LABELS] = _label_lines(stage.labels)
        files |= {f"{manifest.STAGES_FOLDER}/{number}/{path}": file for path, file in own.items()}
    return files


def _plan_for_cpu(compiled: Compiled | None, on_gpu: Compiled) -> dict[str, bytes | Path]:
    if compiled is None:
        return {}
    files: dict[str, bytes | Path] = {
        file.name: file for file in (compiled.library, compiled.graph, compiled.params)
    }
    if (shared := shared_weights.without_shared(compiled, on_gpu)) is not None:
        files[compiled.graph.name], files[compiled.params.name] = shared
    return {f"{manifest.CPU_FOLDER}{name}": file for name, file in files.items()}


def _device_code(compiled: Compiled) -> dict[str, Path]:
    """The files with the kernels of a GPU, if one runs the model."""
    file = compiled.device_code
    if file is None:
        return {}
    later = file.parent / Path(manifest.PTX).name
    return {f"model/{file.name}": file, **({manifest.PTX: later} if later.is_file() else {})}


def open_bundle(path: str | Path) -> Bundle:
    """Return the bundle in a folder or a .tar.gz, after verifying every file.

    A tarball is unpacked into the cache. Raises `NotABundleError`, `ManifestError`,
    `DamagedBundleError` (files missing, too many, or of another size, hash or mode),
    `ArchiveError` or `UnsafeArchiveError`.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise NotABundleError(f"no such bundle: {path}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()

    def unpack(work: Path) -> None:
        log.info("unpacking %s", path)
        _open_folder(tarball.unpack_tar_gz(path, work), shown_as=path)

    unpacked = keep(cache_dir() / "bundles" / digest, unpack)
    return _open_folder(next(unpacked.iterdir()))


def write_tarball(bundle: Bundle, out: str | Path, *, mtime: int = 0) -> str:
    """Write `bundle` to `out` (.tar.gz), and return the tarball's SHA-256.

    Equal bundles give equal bytes, independent of the folder, its owner, the umask and zlib.
    `mtime` (SOURCE_DATE_EPOCH, seconds) is the time of every file in it.
    """
    out = Path(out)
    _verify(bundle.path, bundle.manifest, shown_as=bundle.path)
    members = [(MANIFEST_NAME, bundle.path / MANIFEST_NAME, 0o644)]
    if bundle.signature:
        members.append((SIGNATURE_NAME, bundle.path / SIGNATURE_NAME, 0o644))
    members += [
        (name, bundle.path / name, int(entry.mode, 8))
        for name, entry in sorted(bundle.manifest.files.items())
    ]
    return tarball.write_tar_gz(out, bundle.manifest.folder_name, members, mtime=mtime)


def _open_folder(folder: Path, *, shown_as: Path | None = None) -> Bundle:
    try:
        data = (folder / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise NotABundleError(
            f"not a bundle: {shown_as or folder}: {MANIFEST_NAME}: {error.strerror}",
            hint="`edgepack package` makes bundles",
        ) from None
    try:
        document = manifest.parse_manifest(data)
    except manifest.ManifestError as error:
        raise type(error)(f"{shown_as or folder}: {error.message}", hint=error.hint) from None
    _verify(folder, document, shown_as=shown_as or folder)
    return Bundle(path=folder, manifest=document, manifest_sha256=_sha256(data))


def _verify(folder: Path, document: Manifest, *, shown_as: Path) -> None:
    """Raise `DamagedBundleError` unless `folder` holds exactly what `document` lists."""
    found = dict(_walk(folder, ""))
    for name in (MANIFEST_NAME, SIGNATURE_NAME):
        found.pop(name, None)
    problems = []
    for path in sorted(found.keys() | document.files.keys()):
        if path not in found:
            problems.append((path, "missing"))
        elif path not in document.files:
            problems.append((path, "not in the manifest"))
        elif problem := _difference(found[path], document.files[path]):
            problems.append((path, problem))
    if problems:
        raise DamagedBundleError(shown_as, problems)


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below `folder` but folders with something in them; links are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                below = list(_walk(Path(entry.path), f"{name}/"))
                yield from below or [(name, entry)]
            else:
                yield name, entry


def _difference(found: os.DirEntry[str], entry: FileEntry) -> str | None:
    """How a file differs from its entry. Of the mode, only "executable" counts."""
    if not found.is_file(follow_symlinks=False):
        return "no plain file"
    status = found.stat(follow_symlinks=False)
    if status.st_size != entry.size:
        return f"{status.st_size} bytes instead of {entry.size}"
    mode = "0755" if status.st_mode & stat.S_IXUSR else "0644"
    if mode != entry.mode:
        return f"mode {mode} instead of {entry.mode}"
    try:
        with Path(found.path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"
    if digest != entry.sha256:
        return f"sha256 {digest[:12]}... instead of {entry.sha256[:12]}..."
    return None


def _golden_files(golden: Golden, compiled: Compiled) -> dict[str, bytes | Path]:
    files: dict[str, bytes | Path] = {}
    for kind, arrays, tensors in (
        ("input", golden.inputs, compiled.inputs),
        ("output", golden.outputs, compiled.outputs),
    ):
        found = [(array.dtype.name, array.shape) for array in arrays]
        wanted = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
        if len(arrays) != len(tensors) or not all(map(_fits, arrays, tensors)):
            raise BundleError(f"the smoke test's {kind}s are {found}, the model's are {wanted}")
        import numpy as np

        for index, array in enumerate(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.asarray(array, order="C"), version=(1, 0))
            files[f"golden/{kind}.{index}.npy" if index else f"golden/{kind}.npy"] = (
                buffer.getvalue()
            )
    if golden.image is not None:
        suffix = _IMAGE_SUFFIXES.get(golden.image.suffix.lower())
        if suffix is None:
            raise BundleError(
                f"the smoke test's photo {golden.image}: not .png or .jpg", hint="convert it to PNG"
            )
        files[f"golden/image{suffix}"] = golden.image
    if golden.expected is not None:
        expected = {"index": golden.expected.index, "label": golden.expected.label}
        files[EXPECTED] = json.dumps(expected, ensure_ascii=False).encode() + b"\n"
    return files


def _fits(array: np.ndarray, info: TensorInfo) -> bool:
    """Whether an array may be this input or output."""
    shape = list(array.shape)
    for axis in info.bounded:
        if axis < len(shape) and shape[axis] <= int(info.shape[axis] or 0):
            shape[axis] = int(info.shape[axis] or 0)
    return array.dtype.name == info.dtype and shape == list(info.shape)


def _label_lines(labels: Sequence[str]) -> bytes:
    for number, label in enumerate(labels):
        if len(label.splitlines()) != 1:
            raise BundleError(f"label {number}: {label!r} is not one line")
    return "".join(f"{label}\n" for label in labels).encode()


def _tensors(infos: Sequence[TensorInfo]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(
            name=info.name,
            dtype=info.dtype,
            shape=tuple(int(size or 0) for size in info.shape),
            bounded=info.bounded,
        )
        for info in infos
    )


def _entry(path: str, source: bytes | Path) -> FileEntry:
    data = source if isinstance(source, bytes) else _read(source)
    mode = "0755" if path in manifest.EXECUTABLES else "0644"
    return FileEntry(sha256=_sha256(data), size=len(data), mode=mode)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None


def _place(target: Path, source: bytes | Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, bytes):
        target.write_bytes(source)
    else:
        shutil.copyfile(source, target)
    target.chmod(mode)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
