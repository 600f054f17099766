"""The deployed model layer by layer: what its kernels make on the device, beside onnxruntime.

The device runs the model on one input and writes results of layers while they are in its arena,
some at a time. Which ONNX tensor a result is, and how it lies in memory, is known here from
compiling; see `LayerReport`. Of a model that computes on integers the reference is their
definition, which a device equals to the bit (`integer_reference`, where uint8 is int8, 128 less).
Layers whose result is no tensor of the model (a part of a node, or what TVM lowered) are left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgepack.base.errors import BundleError, MismatchError, ModelError
from edgepack.base.page import Tabular
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tables import Table, parse_json, read_json
from edgepack.bundle.manifest import (
    GRAPH,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    STAGES,
    STAGES_FOLDER,
    Manifest,
    parse_manifest,
)
from edgepack.compiler import CompiledModel
from edgepack.compiler.backend.report import Joint, LayerReport
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.remote_app import (
    Dump,
    RunRequest,
    ask_app,
    need_release,
    release_folder,
    stage_folder,
)
from edgepack.device import Device
from edgepack.flow.job import Job, compile_job, job_inputs, stage_jobs
from edgepack.flow.reference import Array, Comparison, compare, make_golden, run_reference
from edgepack.flow.tolerances import tolerance_of_layers
from edgepack.frontend.integer_reference import integer_model, tensors
from edgepack.model import LoadedModel, infer_shapes
from edgepack.model.index import GraphIndex
from edgepack.model.meanings import as_meant

# What is written on the device at a time, at least one tensor: its temporary files may be memory.
PIECE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class LayerError:
    """How far a layer's result is from the reference's.

    `call` is its number in the plan, `layer` the ONNX node (of a fused layer the first),
    `operator` what it does, `value` the ONNX tensor that was compared, `rule` what made the kernel,
    `shape` the tensor's. The error is the largest absolute one, the reference's largest magnitude
    beside it; infinite where one is not finite and the other is.
    """

    call: int
    layer: str
    operator: str
    value: str
    rule: str
    shape: tuple[int, ...]
    max_abs_error: float
    max_abs_reference: float
    ok: bool

    @property
    def relative(self) -> float:
        """The error, of the reference's largest magnitude; 0 if there is no error."""
        if self.max_abs_error == 0:
            return 0.0
        return self.max_abs_error / self.max_abs_reference if self.max_abs_reference else np.inf


@dataclass(frozen=True, kw_only=True)
class Compared(Tabular):
    """All layers that were compared, in the order of the plan.

    `calls` is how many the plan has, `board` and `cpu` what it was compiled for. `same_plan` tells
    whether the device's plan is the one that this project compiles to.
    """

    board: str
    cpu: str
    tolerance: float
    calls: int
    same_plan: bool
    layers: tuple[LayerError, ...]

    @property
    def first(self) -> LayerError | None:
        """The first layer that is off by more than the tolerance."""
        return next((layer for layer in self.layers if not layer.ok), None)

    def rows(self) -> list[dict[str, Any]]:
        """The layers, in the order of the plan."""
        return [_as_json(layer) for layer in self.layers]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is not finite is null."""
        return {
            "board": self.board,
            "cpu": self.cpu,
            "tolerance": self.tolerance,
            "calls": self.calls,
            "same_plan": self.same_plan,
            "first_diverging": None if self.first is None else self.first.call,
            "layers": [_as_json(layer) for layer in self.layers],
        }


@dataclass(frozen=True, kw_only=True)
class Changed:
    """What is different between the current release and another one on the same device.

    `facts` are parts of the manifests that differ, (name, current, other); `files` the names of
    files that differ or that one of them lacks. `output` is the model's first output and `layers`
    the results of the layers, the current release's error being its distance from the other's;
    there are none unless both have the plan that this project compiles to.
    """

    current: str
    other: str
    facts: tuple[tuple[str, str, str], ...]
    files: tuple[str, ...]
    output: Comparison
    layers: tuple[LayerError, ...]

    @property
    def first(self) -> LayerError | None:
        """The first layer that is not the same to the bit."""
        return next((layer for layer in self.layers if layer.max_abs_error), None)

    @property
    def differs(self) -> bool:
        """Whether its output or a layer's result is not the same to the bit."""
        return self.output.max_abs_error != 0 or self.first is not None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is not finite is null."""
        return {
            "current": self.current,
            "other": self.other,
            "facts": {name: {"current": now, "other": was} for name, now, was in self.facts},
            "files": list(self.files),
            "output": {
                "max_abs_difference": _finite(self.output.max_abs_error),
                "max_abs_other": self.output.max_abs_reference,
            },
            "first_differing": None if self.first is None else self.first.call,
            "layers": [_as_json(layer) for layer in self.layers],
        }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _as_json(layer: LayerError) -> dict[str, Any]:
    known = {**asdict(layer), "relative_error": layer.relative}
    return {k: _finite(v) if isinstance(v, float) else v for k, v in known.items()}


@dataclass(frozen=True, kw_only=True)
class _Point:
    """A result that can be compared: of `call`, at `tensor` of the plan."""

    call: int
    tensor: int
    dtype: str
    stored_shape: tuple[int, ...]
    report: LayerReport

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.stored_shape)) * np.dtype(self.dtype).itemsize

    def read(self, path: Path, device: str) -> Array:
        """What the device wrote, in the order of the model's tensor."""
        found = _load(path, device)
        if found.shape != self.stored_shape or found.dtype != self.dtype:
            raise SenselessError(
                f"{device}: tensor {self.tensor} is {found.dtype} {found.shape} there, "
                f"{self.dtype} {self.stored_shape} by this project's plan",
                hint="deploy this project first, or give the one that is deployed",
            )
        stored = self.report.stored
        return found if stored is None else stored.plain(found, self.report.shape)


def compare_layers(
    job: Job,
    device: Device,
    root: str,
    *,
    inputs: Sequence[Array] = (),
    stage: int = 0,
    progress: Progress = NO_PROGRESS,
) -> Compared:
    """Compare the results of all layers on the device with the reference's.

    `inputs` are the model's, in order; without any, the golden ones. With `stage` the job's model
    is that of the release's stages, from 1. Raises what compiling, the
    reference and running on the device raise, `ModelError` if there is nothing to compare, and
    `SenselessError` if the plan there is of another model.
    """
    need_release(device, root)
    compiled = compile_job(job, progress=progress)
    given = tuple(inputs) or _golden(job)
    integers = integer_model(job.model.path, job.model.proto, compiled.floats)
    points = list(_points(compiled, _tensors(job.model, integers)))
    if not points:
        raise ModelError(
            f"{job.model.path}: no layer's result is a tensor of the model",
            hint="compare its outputs: edgepack run --golden",
        )
    tolerance = tolerance_of_layers(job.project)
    found: list[LayerError] = []
    for piece in _pieces(points):
        progress.step(
            f"layers {piece[0].call} to {piece[-1].call} of {len(compiled.layers)} on {device.name}"
        )
        got = _results(piece, device, root, given, stage=stage)
        names = [point.report.value for point in piece]
        if integers is not None:
            known = tensors(integers, given, names)
            wanted = [known[name] for name in names]
        else:
            wanted = _reference(job.model, names, given)
        for point, result, reference in zip(piece, got, wanted, strict=True):
            found.append(_error(point, result, reference, tolerance))
    return Compared(
        board=job.board.name,
        cpu=job.board.cpu,
        tolerance=tolerance,
        calls=len(compiled.layers),
        same_plan=_file(device, root, "", GRAPH, stage) == compiled.graph.read_bytes(),
        layers=tuple(found),
    )


def compare_stages(
    job: Job, device: Device, root: str, *, progress: Progress = NO_PROGRESS
) -> dict[str, Compared]:
    """The same of each stage on what it is given of the golden photo, by their names, in order."""
    if not job.stages:
        return {}
    golden = make_golden(job.model, preprocess=job.preprocess, image=job.project.golden_image)
    return {
        opened.stage.name: compare_layers(own, device, root, stage=number, progress=progress)
        for number, (opened, own) in enumerate(stage_jobs(job, golden), start=1)
    }


def compare_releases(
    job: Job,
    device: Device,
    root: str,
    other: str,
    *,
    inputs: Sequence[Array] = (),
    progress: Progress = NO_PROGRESS,
) -> Changed:
    """What changed from the release `other` to the current one; `inputs` as in `compare_layers`.

    Raises what compiling and running on the device raise, and `ManifestError` for a manifest there
    that is none.
    """
    now, was = _manifests(device, root, other)
    output, layers = _changes(job, device, root, other, tuple(inputs) or _golden(job), 0, progress)
    return Changed(
        current=now.release,
        other=was.release,
        facts=tuple(fact for fact in _facts(now, was) if fact[1] != fact[2]),
        files=_changed_files(now, was),
        output=output,
        layers=layers,
    )


def compare_stage_releases(
    job: Job, device: Device, root: str, other: str, *, progress: Progress = NO_PROGRESS
) -> dict[str, Changed | None]:
    """The same of each stage on what it is given of the golden photo, by their names, in order;
    `facts` are those of the releases. None for one that the release `other` has not, or not as the
    same number."""
    if not job.stages:
        return {}
    now, was = _manifests(device, root, other)
    names = [
        _stage_names(device, root, release, manifest)
        for release, manifest in (("", now), (other, was))
    ]
    golden = make_golden(job.model, preprocess=job.preprocess, image=job.project.golden_image)
    found: dict[str, Changed | None] = {}
    for number, (opened, own) in enumerate(stage_jobs(job, golden), start=1):
        name = opened.stage.name
        found[name] = None
        if any(some[number - 1 : number] != [name] for some in names):
            continue
        output, layers = _changes(own, device, root, other, _golden(own), number, progress)
        found[name] = Changed(
            current=now.release,
            other=was.release,
            facts=(),
            files=_changed_files(now, was, f"{STAGES_FOLDER}/{number}/"),
            output=output,
            layers=layers,
        )
    return found


def _manifests(device: Device, root: str, other: str) -> tuple[Manifest, Manifest]:
    """The current release's and that of `other`."""
    for release in ("", other):
        need_release(device, root, release)
    now, was = (
        parse_manifest(_file(device, root, release, MANIFEST_NAME)) for release in ("", other)
    )
    return now, was


def _stage_names(device: Device, root: str, release: str, manifest: Manifest) -> list[str]:
    if STAGES not in manifest.files:
        return []
    document = parse_json(_file(device, root, release, STAGES), file=STAGES, error=BundleError)
    stages = Table(document, file=STAGES, error=BundleError).take_list("stages", dict)
    return [str(stage.get("name")) for stage in stages]


def _changed_files(now: Manifest, was: Manifest, below: str = "") -> tuple[str, ...]:
    return tuple(
        name
        for name in sorted({*now.files, *was.files})
        if name.startswith(below) and now.files.get(name) != was.files.get(name)
    )


def _changes(
    job: Job,
    device: Device,
    root: str,
    other: str,
    given: Sequence[Array],
    stage: int,
    progress: Progress,
) -> tuple[Comparison, tuple[LayerError, ...]]:
    """How far the model's first output, and results of its layers, are from those of `other`."""
    compiled = compile_job(job, progress=progress)
    progress.step(f"both releases on {device.name}")
    outputs = [_output(device, root, release, given, stage) for release in ("", other)]
    plan = compiled.graph.read_bytes()
    layers: list[LayerError] = []
    if all(_file(device, root, release, GRAPH, stage) == plan for release in ("", other)):
        integers = integer_model(job.model.path, job.model.proto, compiled.floats)
        for piece in _pieces(list(_points(compiled, _tensors(job.model, integers)))):
            results = (
                _results(piece, device, root, given, release, stage=stage)
                for release in ("", other)
            )
            for point, new, old in zip(piece, *results, strict=True):
                layers.append(_error(point, new, old.reshape(new.shape), 0.0))
    return compare(outputs[0], outputs[1], 0.0), tuple(layers)


def _facts(now: Manifest, was: Manifest) -> Iterator[tuple[str, str, str]]:
    for name in ("name", "board", "version", "tolerance", "scores"):
        yield name, str(getattr(now, name)), str(getattr(was, name))
    yield "model", now.model.sha256[:12], was.model.sha256[:12]
    for name in ("edgepack", "tvm", "opencv", "toolchain"):
        yield name, getattr(now.versions, name), getattr(was.versions, name)


def _golden(job: Job) -> tuple[Array, ...]:
    return tuple(job_inputs(job))


def _file(device: Device, root: str, release: str, name: str, stage: int = 0) -> bytes:
    """A file of a release there, or of one of its stages."""
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        local = Path(folder) / "file"
        device.get(f"{stage_folder(release_folder(root, release), stage)}/{name}", local)
        with local.open("rb") as file:
            return file.read(MAX_MANIFEST_BYTES + 1)


def _output(device: Device, root: str, release: str, inputs: Sequence[Array], stage: int) -> Array:
    """A release's first output."""
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        output = Path(name) / "output.npy"
        request = RunRequest(
            inputs=_saved(inputs, Path(name)), outputs=(output,), release=release, stage=stage
        )
        ask_app(device, root, request)
        return _load(output, device.name)


def _results(
    points: Sequence[_Point],
    device: Device,
    root: str,
    inputs: Sequence[Array],
    release: str = "",
    *,
    stage: int = 0,
) -> list[Array]:
    """The results at `points` on the device, in the order of the model's tensors."""
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        dumps = tuple(
            Dump(call=point.call, tensor=point.tensor, file=Path(name) / f"{point.call}.npy")
            for point in points
        )
        request = RunRequest(
            inputs=_saved(inputs, Path(name)),
            dumps=dumps,
            release=release,
            stage=stage,
            options=("--top", "0"),
        )
        ask_app(device, root, request)
        return [
            point.read(dump.file, device.name) for point, dump in zip(points, dumps, strict=True)
        ]


def _saved(inputs: Sequence[Array], folder: Path) -> tuple[Path, ...]:
    paths = tuple(folder / f"input{i}.npy" for i in range(len(inputs)))
    for path, array in zip(paths, inputs, strict=True):
        np.save(path, array)
    return paths


def _load(path: Path, device: str) -> Array:
    try:
        found: Array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise SenselessError(f"{device}: no .npy file came from it: {error}") from None
    return found


def _tensors(model: LoadedModel, integers: onnx.ModelProto | None) -> set[str]:
    """The tensors inside of the model, as `integers` if it has any, that the reference can give."""
    if integers is not None:
        return set(GraphIndex(integers.graph).makers)
    return set(GraphIndex(infer_shapes(model.proto).graph).results)


def _points(compiled: CompiledModel, tensors: set[str]) -> Iterator[_Point]:
    plan = read_json(compiled.graph)
    for call, (done, report) in enumerate(zip(plan["calls"], compiled.layers, strict=True)):
        if report.value not in tensors:
            continue
        index = done["args"][report.result]
        if report.joint is not None:
            index = _number_of(plan["tensors"], index, report.joint)
        tensor = plan["tensors"][index]
        yield _Point(
            call=call,
            tensor=index,
            dtype=tensor["dtype"],
            stored_shape=tuple(tensor["shape"]),
            report=report,
        )


def _number_of(tensors: Sequence[Mapping[str, Any]], part: int, joint: Joint) -> int:
    """That of the joint that tensor `part` is the last part of."""
    own = tensors[part]
    wanted = own["storage"], own["dtype"], own["offset"] - joint.start, list(joint.shape)
    return next(
        index
        for index, tensor in enumerate(tensors)
        if (tensor["storage"], tensor["dtype"], tensor["offset"], tensor["shape"]) == wanted
    )


def _pieces(points: Sequence[_Point]) -> Iterator[list[_Point]]:
    piece: list[_Point] = []
    for point in points:
        if piece and sum(it.nbytes for it in (*piece, point)) > PIECE_BYTES:
            yield piece
            piece = []
        piece.append(point)
    yield piece


def _reference(model: LoadedModel, names: Sequence[str], inputs: Sequence[Array]) -> list[Array]:
    """The reference's tensors of these names."""
    from edgepack.frontend.float16 import widen  # see flow/reference.py

    wide = widen(as_meant(model.proto))
    known = GraphIndex(infer_shapes(wide).graph).results
    proto = type(wide)()
    proto.CopyFrom(wide)
    del proto.graph.output[:]
    once = list(dict.fromkeys(names))
    proto.graph.output.extend(known[name] for name in once)
    found = dict(zip(once, run_reference(proto, {}, inputs), strict=True))
    return [found[name] for name in names]


def _as_volume(got: Array, shape: tuple[int, ...]) -> Array:
    """What a layer made in the model's shape. A volume (1, C, D, H, W) is done as images (D, C, H,
    W): see `frontend.volumes`."""
    if len(shape) == _VOLUME and got.shape == (shape[2], shape[1], *shape[3:]):
        got = got.swapaxes(0, 1)
    return got.reshape(shape)


_VOLUME = 5


def _error(point: _Point, got: Array, reference: Array, tolerance: float) -> LayerError:
    report = point.report
    if got.size != reference.size:
        raise MismatchError(
            f"'{report.value}' has {got.size} elements there, {reference.size} in the reference"
        )
    found = compare(_as_volume(got, reference.shape), reference, tolerance)
    return LayerError(
        call=point.call,
        layer=report.layer,
        operator=report.operator,
        value=report.value,
        rule=report.rule,
        shape=tuple(reference.shape),
        max_abs_error=found.max_abs_error,
        max_abs_reference=found.max_abs_reference,
        ok=found.ok,
    )
