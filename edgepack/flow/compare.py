"""The deployed model layer by layer: what its kernels make on the device, beside onnxruntime.

The device runs the model on one input and writes results of layers while they are in its arena,
some at a time. Which ONNX tensor a result is, and how it lies in memory, is known here from
compiling; see `LayerReport`. Layers whose result is no tensor of the ONNX model (a part of a node,
or what TVM lowered) are left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import MismatchError, ModelError
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tables import read_json
from edgepack.bundle.manifest import GRAPH
from edgepack.compiler import CompiledModel
from edgepack.compiler.backend.report import LayerReport
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.remote_app import Dump, RunRequest, ask_app
from edgepack.device import Device
from edgepack.flow.job import Job, compile_job
from edgepack.flow.reference import Array, compare, make_golden, run_reference
from edgepack.model import LoadedModel, infer_shapes

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
class Compared:
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

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what is not finite is null."""
        layers = []
        for layer in self.layers:
            known = {**asdict(layer), "relative_error": layer.relative}
            layers.append(
                {
                    key: None if isinstance(value, float) and not np.isfinite(value) else value
                    for key, value in known.items()
                }
            )
        return {
            "board": self.board,
            "cpu": self.cpu,
            "tolerance": self.tolerance,
            "calls": self.calls,
            "same_plan": self.same_plan,
            "first_diverging": None if self.first is None else self.first.call,
            "layers": layers,
        }


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
        try:
            found = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise SenselessError(f"{device}: no .npy file came from it: {error}") from None
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
    progress: Progress = NO_PROGRESS,
) -> Compared:
    """Compare the results of all layers on the device with the reference's.

    `inputs` are the model's, in order; without any, the golden ones. Raises what compiling, the
    reference and running on the device raise, `ModelError` if there is nothing to compare, and
    `SenselessError` if the plan there is of another model.
    """
    compiled = compile_job(job, progress=progress)
    given = (
        tuple(inputs)
        or make_golden(job.model, preprocess=job.preprocess, image=job.project.golden_image).inputs
    )
    points = list(_points(compiled, _tensors(job.model)))
    if not points:
        raise ModelError(
            f"{job.model.path}: no layer's result is a tensor of the model",
            hint="compare its outputs: edgepack run --golden",
        )
    found: list[LayerError] = []
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        folder = Path(name)
        plan = folder / "graph.json"
        device.get(f"{root}/current/{GRAPH}", plan)
        same_plan = plan.read_bytes() == compiled.graph.read_bytes()
        uploads = tuple(folder / f"input{i}.npy" for i in range(len(given)))
        for path, array in zip(uploads, given, strict=True):
            np.save(path, array)
        for piece in _pieces(points):
            progress.step(
                f"layers {piece[0].call} to {piece[-1].call} of {len(compiled.layers)} "
                f"on {device.name}"
            )
            dumps = tuple(
                Dump(call=point.call, tensor=point.tensor, file=folder / f"{point.call}.npy")
                for point in piece
            )
            ask_app(device, root, RunRequest(inputs=uploads, dumps=dumps, options=("--top", "0")))
            wanted = _reference(job.model, [point.report.value for point in piece], given)
            for point, dump, reference in zip(piece, dumps, wanted, strict=True):
                got = point.read(dump.file, device.name)
                found.append(_error(point, got, reference, job.project.tolerance))
                dump.file.unlink()
    return Compared(
        board=job.board.name,
        cpu=job.board.cpu,
        tolerance=job.project.tolerance,
        calls=len(compiled.layers),
        same_plan=same_plan,
        layers=tuple(found),
    )


def _tensors(model: LoadedModel) -> set[str]:
    """The tensors inside of the model that the reference can give."""
    graph = infer_shapes(model.proto).graph
    return {value.name for value in (*graph.value_info, *graph.output)}


def _points(compiled: CompiledModel, tensors: set[str]) -> Iterator[_Point]:
    plan = read_json(compiled.graph)
    for call, (done, report) in enumerate(zip(plan["calls"], compiled.layers, strict=True)):
        if report.value not in tensors:
            continue
        index = done["args"][report.result]
        tensor = plan["tensors"][index]
        yield _Point(
            call=call,
            tensor=index,
            dtype=tensor["dtype"],
            stored_shape=tuple(tensor["shape"]),
            report=report,
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
    from edgepack.compiler.frontend.float16 import widened  # see flow/reference.py

    wide = widened(model.proto)
    shapes = infer_shapes(wide).graph
    known = {value.name: value for value in (*shapes.value_info, *shapes.output)}
    proto = type(wide)()
    proto.CopyFrom(wide)
    del proto.graph.output[:]
    once = list(dict.fromkeys(names))
    proto.graph.output.extend(known[name] for name in once)
    found = dict(zip(once, run_reference(proto, {}, inputs), strict=True))
    return [found[name] for name in names]


def _error(point: _Point, got: Array, reference: Array, tolerance: float) -> LayerError:
    report = point.report
    if got.size != reference.size:
        raise MismatchError(
            f"'{report.value}' has {got.size} elements there, {reference.size} in the reference"
        )
    found = compare(got.reshape(reference.shape), reference, tolerance)
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
