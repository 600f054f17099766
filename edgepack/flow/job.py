"""The flow: from a project and a board to compiled models and bundles.

Project -> Job -> CompiledModel, RuntimeBuild, Golden -> Bundle
"""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgepack.base.apart import Limits
from edgepack.base.errors import ConfigError, UsageError, perhaps
from edgepack.base.paths import NotCachedError, only_cached
from edgepack.base.process import Beside
from edgepack.base.progress import NO_PROGRESS, Progress, end_step
from edgepack.base.tables import to_toml
from edgepack.base.tools import install
from edgepack.boards import Board, get_board, load_boards
from edgepack.bundle.bundle import Bundle, Contents, Golden, StageContents, make_bundle
from edgepack.bundle.service import Service
from edgepack.bundle.verified import Verified
from edgepack.compiler import CompiledModel, compile_with, cpu_key
from edgepack.compiler.compiled import CompileTask, keep_compiled
from edgepack.compiler.limited import limits_for, within
from edgepack.compiler.settings import CompileSettings
from edgepack.flow.exporters import read_exporter
from edgepack.flow.gallery_check import check_gallery, maker_of
from edgepack.flow.monitor import make_monitor
from edgepack.flow.optimize import GROWTH
from edgepack.flow.own_program import check_loads
from edgepack.flow.preprocess_diagnosis import find_mending
from edgepack.flow.project import Project, labels_of
from edgepack.flow.quantized import describe_quantization, find_precision, read_quantization
from edgepack.flow.records import Chosen, Trial, choose_for_cpu, read_records, shipped_records
from edgepack.flow.reference import (
    Array,
    ExpectedClassError,
    ReferenceRunError,
    golden_inputs,
    make_golden,
)
from edgepack.flow.results import check_results, check_stages, golden_results
from edgepack.flow.sinks import fetch_mosquitto, prove_sinks
from edgepack.flow.stages import (
    BOX_KINDS,
    OpenStage,
    find_stage,
    gives_boxes,
    golden_crops,
    labels_of_all,
    open_stages,
    project_of,
)
from edgepack.flow.tolerances import golden_tolerance, tolerance_of
from edgepack.flow.verify import check_tells, make_cases, verify
from edgepack.frontend.precision import COMPUTE, FULL, PRECISIONS, TF32, Precision
from edgepack.gate import gate
from edgepack.gpus import Gpu, find_local
from edgepack.kernels.choices import maker
from edgepack.model import (
    LoadedModel,
    ModelSpec,
    TensorInfo,
    batch_of,
    check_model,
    read_model,
    walk_nodes,
)
from edgepack.model.sources.folders import origin_of
from edgepack.native.app import RuntimeBuild, build_runtime, need_programs
from edgepack.native.device_tool import build_device_tool
from edgepack.native.linked_app import link_app
from edgepack.native.sinks import build_sinks
from edgepack.native.toolchain import Choice, Toolchain, for_kernels, select
from edgepack.postprocess.base import PostprocessSpec
from edgepack.postprocess.classes import Classes
from edgepack.postprocess.embedding import Embedding
from edgepack.preprocess.spec import PreprocessSpec

log = logging.getLogger(__name__)

# What a comparison needs of code is that it is made quickly: that of YOLOv8n takes 17 s of CPU time
# for this CPU, and 27 s for one with AVX-512. Flags of /proc/cpuinfo.
_PLAIN_CPU = "haswell"
_PLAIN_FLAGS = {"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A loaded model with fixed shapes, its board, and a compiler."""

    project: Project
    board: Board
    toolchain: Choice
    model: LoadedModel
    preprocess: PreprocessSpec | None
    postprocess: PostprocessSpec | None
    labels: tuple[str, ...] | None
    stages: tuple[OpenStage, ...] = ()

    @property
    def spec(self) -> ModelSpec:
        """The model's file, shapes, constants and states."""
        return spec_of(self.project)


def spec_of(project: Project) -> ModelSpec:
    """The project's model: its file, shapes, constants and states."""
    return ModelSpec(
        path=project.model,
        shapes=project.shapes,
        constants=project.constants,
        states=project.states,
    )


def make_job(project: Project) -> Job:
    """Read the model and check everything that needs no compiler.

    Raises UsageError without a board, ConfigError if the board is unknown or the numbers of
    labels and classes differ, and the errors of boards, toolchains, models, preprocessing and
    labels.
    """
    board = board_of(project)
    toolchain = select(board, project.toolchain)
    model = read_model(spec_of(project))
    check_model(model)
    _check_precision(project)
    _check_exact(project, model)
    read_quantization(model)
    preprocess = project.preprocess
    labels = labels_of(project)
    if labels is not None and project.postprocess is None:
        check_labels(project, labels, model.outputs[0])
    check_classes(project, model)
    postprocess = bound_postprocess(project, model, labels)
    stages = open_stages(project, model, postprocess, labels)
    _check_track(project, postprocess, stages)
    prove_sinks(
        project.sinks,
        project.service,
        labels_of_all(labels, stages),
        boxes=gives_boxes(postprocess),
    )
    if stages:
        _check_stage_board(project, board)
    return Job(
        project=project,
        board=board,
        toolchain=toolchain,
        model=model,
        preprocess=preprocess.for_inputs(model.given).for_memory(
            _photo_bytes(board, project.service)
        )
        if preprocess
        else None,
        postprocess=postprocess,
        labels=labels,
        stages=stages,
    )


def _check_track(
    project: Project, postprocess: PostprocessSpec | None, stages: Sequence[OpenStage]
) -> None:
    """Raise ConfigError for a service that is to track boxes, of which there are none, and for one
    that does not, where a stage has states."""
    words = [word.partition("=")[0] for word in project.service.args] if project.service else []
    if "--track" in words and not gives_boxes(postprocess):
        raise ConfigError(
            "[service] args: --track: there are no boxes to track: the model's [postprocess] gives "
            "none",
            hint=f"kinds that give boxes: {', '.join(BOX_KINDS)} (docs/guides/detectors.md)",
        )
    for opened in stages:
        if opened.model.states and project.service and "--track" not in words:
            raise ConfigError(
                f"[service] args: stage '{opened.stage.name}' keeps states of each track, and "
                "boxes are not tracked",
                hint='add "--track", "15": frames in a row that something may be missed in; for '
                "--images, --frames and --camera",
            )


def _check_stage_board(project: Project, board: Board) -> None:
    """Raise ConfigError for programs that cannot run stages."""
    where = project.stages[0].where
    if board.is_static:
        raise ConfigError(
            f"{where}: a program that needs no C library has the kernels of one model, and "
            f"{board.name} is to have such a program",
            hint="--no-static (static = false), or a board with glibc: edgepack boards",
        )
    if project.compute != COMPUTE[0]:
        raise ConfigError(
            f"{where}: models in a row run on the CPU, and compute is '{project.compute}'",
            hint=f"--compute {COMPUTE[0]}",
        )
    if project.golden_image is None:
        raise ConfigError(
            f"{where}: without a golden_image no stage can be tested on the device",
            hint="name a photo in [project] that shows what the stages look at",
        )


def bound_postprocess(
    project: Project, model: LoadedModel, labels: Sequence[str] | None
) -> PostprocessSpec | None:
    """The project's postprocessing, for this model. Raises `PostprocessMismatchError`."""
    if project.postprocess is None:
        return None
    if project.expected_class is not None and not isinstance(project.postprocess, Classes):
        raise ConfigError(
            f"{project.origins['expected_class']}: expected_class cannot be used with kind "
            f"'{project.postprocess.kind}' of [postprocess], which gives no classes of a photo",
            hint="leave it out: the smoke test compares the outputs anyway",
        )
    bound = project.postprocess.for_model(
        model.inputs,
        model.outputs,
        size=project.preprocess.size if project.preprocess else None,
        labels=labels,
    )
    if isinstance(bound, Embedding):
        preprocess = project.preprocess.for_inputs(model.given) if project.preprocess else None
        made_by = maker_of(model, preprocess, bound.outputs)
        check_gallery(bound, made_by, "[postprocess] gallery")
    return bound


def check_classes(project: Project, model: LoadedModel) -> None:
    """Raise `NoClassesError` if the golden photo's class is to be told by an output that is not a
    score per class."""
    if project.postprocess is not None or project.golden_image is None:
        return
    key = "expected_class" if project.expected_class is not None else "labels"
    if key == "labels" and project.labels is None:
        return  # numbers are compared, no class is looked for
    if class_output(model, None) is not None:
        return
    raise NoClassesError(
        f"{project.origins[key]}: {key}: no class can be seen in {project.golden_image}: output "
        f"'{model.outputs[0].name}' {tuple(model.outputs[0].shape)} is not one score per class",
        hint=outputs_hint(model),
    )


def outputs_hint(model: LoadedModel) -> str:
    """How to say what the outputs hold, by what the exporter says if it says anything."""
    known = read_exporter(model)
    if known is not None and known.postprocess:
        keys = "\n".join(f"{key} = {to_toml(value)}" for key, value in known.postprocess.items())
        return f"say what the outputs hold, as `edgepack init` would:\n\n[postprocess]\n{keys}"
    return (
        "say what the outputs hold: [postprocess] with a kind of docs/guides/detectors.md, or "
        'kind = "tensors", which compares numbers only'
    )


def class_output(model: LoadedModel, postprocess: PostprocessSpec | None) -> int | None:
    """Which of the outputs tells the class of a photo; None if none does."""
    if postprocess is None:
        return 0 if is_score_per_class(model.outputs[0], batch_of(model.inputs)) else None
    if not isinstance(postprocess, Classes):
        return None
    return [info.name for info in model.outputs].index(postprocess.outputs[0])


def is_score_per_class(output: TensorInfo, batch: int = 1) -> bool:
    """Whether an output is one vector for each photo of a batch."""
    sizes = [size for size in output.shape if isinstance(size, int)]
    if batch > 1 and sizes[:1] == [batch]:
        sizes = sizes[1:]
    return len(sizes) > 0 and math.prod(sizes) == max(sizes)


def precision_of(job: Job) -> Precision:
    """What the model is compiled to; of halves with the inputs that it will be compared on."""
    name, quantized, exact = job.project.precision, job.project.quantized, job.project.exact
    direct = exact if isinstance(exact, bool) else frozenset(exact)
    plain = Precision(quantized=quantized, bounded=_bounded(job), direct=direct)
    if name == FULL.name:
        return plain
    samples = tuple(make_cases(job.model.inputs, job_inputs(job)).values())
    return replace(plain, name=name, samples=samples)


def settings_of(job: Job) -> CompileSettings:
    """How the model is compiled, but for what tuning found."""
    return CompileSettings(growth=GROWTH[job.project.optimize], precision=precision_of(job))


def _bounded(job: Job) -> frozenset[str]:
    """The inputs whose values have the size that the model was trained with: photos, and what the
    project says."""
    photo = job.preprocess and (job.preprocess.input or job.model.given[0].name)
    return frozenset([*job.project.bounded, *([photo] if photo else [])])


def _check_precision(project: Project) -> None:
    """Raise ConfigError for a precision that the processor does not have."""
    if project.precision == TF32 and project.compute == COMPUTE[0]:
        raise ConfigError(
            f"{project.origins['precision']}: {TF32} is for NVIDIA's GPUs, and the CPU runs the "
            "model",
            hint="--compute gpu, or another precision: " + ", ".join(PRECISIONS[:2]),
        )


def _check_exact(project: Project, model: LoadedModel) -> None:
    """Raise ConfigError if a layer that is to be exact is none of the model's nodes, or a bounded
    input none of its inputs."""
    inputs = [info.name for info in model.inputs]
    for name in project.bounded:
        if name not in inputs:
            raise ConfigError(
                f"{project.origins['bounded']}: bounded: the model has no input '{name}'",
                hint=perhaps(name, inputs) or f"its inputs: {', '.join(inputs)}",
            )
    if isinstance(project.exact, bool):
        return
    names = {
        node.name or next(filter(None, node.output), "") for node in walk_nodes(model.proto.graph)
    }
    for name in project.exact:
        if name not in names:
            raise ConfigError(
                f"{project.origins['exact']}: exact: the model has no node '{name}'",
                hint=perhaps(name, names) or "`edgepack compile --explain` lists the layers",
            )


def job_inputs(job: Job) -> list[Array]:
    """The golden inputs: a photo, the project's own tensors, or random ones."""
    return golden_inputs(
        job.model,
        preprocess=job.preprocess,
        image=job.project.golden_image,
        files=job.project.golden_input,
    )


def gpu_of(job: Job) -> Gpu | None:
    """The GPU that runs the model; None if the CPU does.

    Raises `NoGpuError` for a board that has none in its profile, or none that the precision is for,
    and UsageError for programs that cannot open its driver.
    """
    if job.project.compute == COMPUTE[0]:
        return None
    board = job.board
    gpu = find_local() if board.is_local else board.gpu
    if gpu is None:
        where = "this machine has" if board.is_local else f"the profile of {board.name} has"
        raise NoGpuError(
            f"{job.project.origins.get('compute', 'compute')}: {where} no GPU with a driver for "
            "CUDA or OpenCL",
            hint="--compute cpu, or a board of `edgepack boards` with a GPU",
        )
    if board.is_static:
        raise UsageError(
            "a program that needs no C library cannot open the driver of a GPU",
            hint="--no-static, or --compute cpu",
        )
    if job.project.precision == TF32 and not gpu.has_tensor_cores:
        raise NoGpuError(
            f"{job.project.origins['precision']}: {gpu.device} ({gpu.arch or gpu.api}) has no "
            "TF32, which NVIDIA's GPUs have from sm_80 on",
            hint="--precision float16 or float32",
        )
    return gpu


def cpu_job(job: Job) -> Job | None:
    """The job of the plan by which the CPU runs the model where the GPU does not; None if there is
    to be none."""
    if job.project.compute != COMPUTE[-1]:
        return None
    precision = FULL.name if job.project.precision == TF32 else job.project.precision
    return replace(job, project=replace(job.project, compute=COMPUTE[0], precision=precision))


def app_of(job: Job, runtime: RuntimeBuild) -> Path:
    """The program for the job's bundle; raises what `gpu_of` does."""
    return runtime.app if gpu_of(job) is None else runtime.gpu_app


def needed_gpu(job: Job) -> Gpu | None:
    """The GPU without which the model does not run; raises what `gpu_of` does."""
    return None if cpu_job(job) is not None else gpu_of(job)


class NoClassesError(ConfigError):
    """The model gives no scores of classes, and one is expected of the golden photo."""


class NoGpuError(ConfigError):
    """The board has no GPU that kernels can be made for."""


def _photo_bytes(board: Board, service: Service | None) -> int:
    """What decoding a photo may take: the model and the system need memory, too."""
    half = (board.memory_mb << 20) // 2
    if service is None or service.memory_mb is None:
        return half
    return min(half, service.memory_mb * 10**6 * 3 // 4)


def board_of(project: Project) -> Board:
    """The project's board, without a C library if the project wants it so.

    Raises UsageError and ConfigError.
    """
    name = project.need_board()
    boards = load_boards(project.boards)
    if name not in boards:
        origin = project.origins.get("board", "board")
        raise ConfigError(f"{origin}: unknown board: {name}", hint=perhaps(name, boards))
    board = boards[name]
    if project.static is False and board.is_static:
        raise ConfigError(
            f"{project.origins.get('static', 'static')}: {name} has no C library",
            hint="leave it out, or choose another board: edgepack boards",
        )
    return board.without_libc() if project.static else board


def check_labels(project: Project, labels: Sequence[str], output: TensorInfo) -> None:
    """Raise ConfigError if an output of one score per class has another number of classes."""
    sizes = [size for size in output.shape if isinstance(size, int)]
    classes = max(sizes, default=1)
    if len(sizes) < len(output.shape) or math.prod(sizes) != classes or classes == 1:
        return  # boxes, masks and the like
    if len(labels) != classes:
        raise ConfigError(
            f"{project.labels}: {len(labels)} labels, but the model's output '{output.name}' has "
            f"{classes} classes",
            hint="one line for each class, in the order of the output",
        )


def compile_job(
    job: Job, *, floats: Mapping[str, str] | None = None, progress: Progress = NO_PROGRESS
) -> CompiledModel:
    """Compile the job's model, or return it from the cache.

    `floats` are the nodes of a quantised model that compute in float; by default those that are
    faster in float on this board. Raises the errors of `compile_model` and of
    `compiler.limited.within`.
    """
    task = compile_task(job, floats=floats)

    def compile_there(work: Path) -> CompiledModel:
        return within(
            task.spec.path,
            model_limits(job),
            compile_with,
            task.spec,
            task.board,
            task.toolchain,
            work,
            task.settings,
            gpu=task.gpu,
            progress=progress,
        )

    return keep_compiled(task, compile_there)


def compile_task(job: Job, *, floats: Mapping[str, str] | None = None) -> CompileTask:
    """All that the job's compiled model depends on."""
    return CompileTask(
        model=job.model,
        spec=job.spec,
        board=job.board,
        toolchain=kernel_toolchain(job),
        settings=CompileSettings(
            growth=GROWTH[job.project.optimize],
            precision=replace(precision_of(job), floats=floats),
            choices=choose_tuned(job).choices,
        ),
        gpu=gpu_of(job),
    )


def choose_tuned(job: Job) -> Chosen:
    """How kernels are made otherwise than by the cost model, by the records that the project names,
    or else those shipped for the board; other networks' kernels may be among them. Raises
    `RecordsError`."""
    named = job.project.origins.get("records", "default") != "default"
    files = job.project.records if named else shipped_records(job.board.name)
    if not files:
        return Chosen(choices={})
    records = read_records(files)
    return choose_for_cpu(records, cpu=cpu_key(job.board), compiler=maker(), model=job.model.sha256)


def choose_tuned_for(job: Job, compiled: CompiledModel) -> Chosen:
    """The same for kernels of this model only."""
    found = choose_tuned(job)
    own = {layer.signature for layer in compiled.layers}
    choices = {kernel: way for kernel, way in sorted(found.choices.items()) if kernel in own}
    records = (one for one in found.records if not isinstance(one, Trial) or one.kernel in own)
    return Chosen(choices=choices, records=tuple(records) if choices else ())


def _golden(job: Job, floats: Collection[str] = ()) -> Golden:
    """As `make_golden`, whose `ExpectedClassError` names what would mend it, if anything does."""
    image, expected = job.project.golden_image, job.project.expected_class
    output = class_output(job.model, job.postprocess)
    try:
        return make_golden(
            job.model,
            preprocess=job.preprocess,
            image=image,
            files=job.project.golden_input,
            expected_class=expected,
            labels=job.labels,
            class_output=output,
            floats=floats,
        )
    except ExpectedClassError as error:
        if image is None or expected is None or output is None or job.preprocess is None:
            raise
        mending = find_mending(job.model, job.preprocess, image, expected, output)
        if mending is None:
            raise
        raise ExpectedClassError(error.message, hint=str(mending)) from None


def golden_words(project: Project) -> str:
    """What the golden input is, for a message."""
    if project.golden_image is not None:
        return f"the photo {project.golden_image}"
    if project.golden_input:
        return f"the tensors {', '.join(map(str, project.golden_input))}"
    return "random inputs"


@dataclass(frozen=True, kw_only=True)
class _Proven:
    """A compiled model that gives what the reference gives; `on_cpu` is the plan for the CPU of one
    for a GPU."""

    compiled: CompiledModel
    on_cpu: CompiledModel | None
    golden: Golden
    verified: Verified
    tolerance: float


def _refuse_early(job: Job, progress: Progress) -> Golden | None:
    """Refuse what the reference alone shows to be wrong with the golden input, before the compiler
    has worked for it; the golden input and outputs, if the compiler will not change them. Raises
    `SenselessGoldenError`, `ExpectedClassError`, and what `golden_crops` raises.
    """
    if _is_compiled(job):
        return None  # the comparison, which comes next, says the same
    from edgepack.frontend.operator_form import is_quantized

    progress.step("running the reference (onnxruntime)")
    # Of a quantised model it is not known yet which nodes this board does in float.
    is_certain = not is_quantized(job.model.proto)
    try:
        golden = _golden(job)
        if job.project.verify:
            given = golden_words(job.project)
            check_tells(job.model, golden.inputs, golden.outputs, given=given)
    except ReferenceRunError:
        return None  # the compiler says more of a model that cannot be run
    except ExpectedClassError:
        if is_certain:
            raise
        return None
    for _, own in stage_jobs(job, golden) if is_certain else ():
        _refuse_early(own, progress)
    return golden if is_certain else None


def _is_compiled(job: Job) -> bool:
    """Whether the job's compiled model is in the cache."""
    try:
        with only_cached():
            compile_job(job)
    except NotCachedError:
        return False
    return True


def _prove(job: Job, progress: Progress, golden: Golden | None = None) -> _Proven:
    """The job's model, compiled and compared with the reference; `golden` as `_refuse_early`."""
    compiled = compile_job(job, progress=progress)
    other = cpu_job(job)
    on_cpu = None if other is None else compile_job(other, progress=progress)
    # What is tried here: of two plans that of the CPU.
    tried = job if other is None else other
    if golden is None:
        progress.step("running the reference (onnxruntime)")
        golden = _golden(job, compiled.floats)
    verified = Verified()
    tolerance = tolerance_of(job.project, job.model, compiled)
    if job.project.verify and gpu_of(tried) is not None:
        progress.step(
            "not compared with the reference: no emulator has a GPU; the device is tested"
        )
        check_tells(job.model, golden.inputs, golden.outputs, given=golden_words(job.project))
    elif job.project.verify:
        verified, ordered = verify(
            job.model,
            job.board,
            compiled if on_cpu is None else on_cpu,
            golden.inputs,
            tolerance=tolerance,
            precision=precision_of(job),
            given=golden_words(job.project),
            build_local=lambda: compile_job(
                _local(tried), floats=compiled.floats or None, progress=progress
            ),
            progress=progress,
        )
        if ordered is not None:
            golden = replace(golden, outputs=tuple(ordered))
        if job.project.origins.get("tolerance", "default") == "default":
            tolerance = max(tolerance, verified.tolerance)
    return _Proven(
        compiled=compiled, on_cpu=on_cpu, golden=golden, verified=verified, tolerance=tolerance
    )


def stage_jobs(job: Job, golden: Golden) -> Generator[tuple[OpenStage, Job]]:
    """Each stage of the job as a job of its own, whose golden input is what it is given of the
    golden photo; `golden` is that of the first model. Each is good until the next is asked for."""
    if not job.stages or job.postprocess is None:
        return
    names = [info.name for info in job.model.outputs]
    labels = job.labels or ()
    seen, _ = golden_results(golden, names, job.postprocess, job.preprocess, labels)
    crops = golden_crops(job.project, job.stages, seen)
    for opened in job.stages:
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            crop = Path(folder) / f"{opened.stage.name}.npy"
            np.save(crop, crops[opened.stage.name])
            yield opened, make_job(project_of(job.project, opened, crop))


@contextlib.contextmanager
def stage_job(job: Job, name: str) -> Iterator[Job]:
    """The job's stage of this name as a job of its own, as `stage_jobs` gives it, while the context
    lasts. Raises UsageError if there is none, and what the golden input's crops raise."""
    find_stage(job.project, name)
    golden = make_golden(job.model, preprocess=job.preprocess, image=job.project.golden_image)
    with contextlib.closing(stage_jobs(job, golden)) as jobs:
        yield next(own for opened, own in jobs if opened.stage.name == name)


def _prove_stages(job: Job, first: _Proven, progress: Progress) -> list[StageContents]:
    """The models after the first, each compared on what it is given of the golden photo."""
    proven = []
    for opened, own in stage_jobs(job, first.golden):
        stage = opened.stage
        progress.step(f"stage '{stage.name}': {stage.model}")
        found = _prove(own, progress)
        proven.append(
            StageContents(
                name=stage.name,
                classes=opened.classes,
                most=stage.most,
                padding=stage.padding,
                align=opened.how_to_align(),
                compiled=found.compiled,
                preprocess=opened.preprocess,
                postprocess=opened.postprocess,
                labels=opened.labels,
                golden=found.golden,
                model_file=stage.model.name,
                tolerance=golden_tolerance(found.tolerance, found.golden.outputs),
                verified=found.verified,
            )
        )
    return proven


def package_job(job: Job, out: str | Path, *, progress: Progress = NO_PROGRESS) -> Bundle:
    """Make the bundle in the folder `out`, and check it by the gate.

    The app and the device tool are built while the model is compiled. Raises the errors of
    compiling, building the runtime, the reference, `verify` and the gate.
    """
    out = Path(out)
    chosen = job.toolchain.toolchain
    need_programs(job.board, chosen)
    golden = _refuse_early(job, progress)
    progress.step(f"toolchain: {chosen.title}: {job.toolchain.reason}")
    with Beside() as beside:
        app = beside.start(build_runtime, job.board, chosen, progress=progress)
        device_tool = beside.start(build_device_tool, job.board, progress=progress)
        sinks = (
            beside.start(build_sinks, job.board, fetch_mosquitto, progress=progress)
            if job.project.sinks
            else None
        )
        proven = _prove(job, progress, golden)
        stages = _prove_stages(job, proven, progress)
        compiled, on_cpu, golden = proven.compiled, proven.on_cpu, proven.golden
        end_step()
        monitor = make_monitor(job, progress=progress)
        runtime, tool = app.result(), device_tool.result()
        runtime = replace(runtime, app=app_of(job, runtime))
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        if job.board.is_static:
            progress.step("linking the app with the kernels")
            linked = Path(folder) / "edgepack-run"
            link_app(runtime, compiled.objects, compiled.graph, linked)
            runtime = replace(runtime, app=linked)
        contents = Contents(
            name=job.project.name,
            board=job.board,
            compiled=compiled,
            runtime=runtime,
            tool=tool,
            stages=stages,
            preprocess=job.preprocess,
            postprocess=job.postprocess,
            labels=job.labels,
            golden=golden,
            model_file=job.project.model.name,
            scores=job.project.scores,
            tolerance=golden_tolerance(proven.tolerance, golden.outputs),
            verified=proven.verified,
            precision=find_precision(compiled, job.project.precision),
            quantized=describe_quantization(job.model, compiled),
            tuning=[record.to_json() for record in choose_tuned_for(job, compiled).records],
            version=job.project.version,
            product=job.project.product,
            valid_until=job.project.valid_until,
            source=origin_of(job.project.model),
            sinks=job.project.sinks,
            sinks_program=sinks.result() if sinks else None,
            health=job.project.health,
            service=job.project.service,
            monitor=monitor,
            hwcaps=gate.needed_hwcaps(
                job.board,
                (
                    *(compiled.library, runtime.app, *([on_cpu.library] if on_cpu else [])),
                    *(stage.compiled.library for stage in stages),
                ),
            ),
            on_cpu=on_cpu,
        )
        bundle = make_bundle(contents, out)
    progress.step(f"checking every ELF file against {job.board.name}")
    gate.check_bundle(bundle, job.board)
    if gpu_of(cpu_job(job) or job) is not None:
        return bundle
    _try_program(job, bundle, progress)
    if job.postprocess is not None and job.project.verify:
        progress.step("comparing the app's results with the reference's")
        labels = job.labels or ()
        if not check_results(bundle, job.board, golden, job.postprocess, job.preprocess, labels):
            hint = install("zig")
            progress.step(f"not compared: the app for this machine is not built ({hint} can)")
    if job.stages and job.project.verify:
        progress.step("running the smoke test's photo through all stages with the app")
        if (why := check_stages(bundle, job.board, job.stages, golden)) is not None:
            progress.step(f"not run here: {why}; the device runs it")
    return bundle


def _try_program(job: Job, bundle: Bundle, progress: Progress) -> None:
    """Have the board's own program load the bundle, where that can be done here."""
    progress.step(f"loading the bundle with the program for {job.board.name}")
    if (wanted := check_loads(bundle, job.board)) is not None:
        progress.step(f"not loaded here: there is no emulator, or no C library ({wanted})")


def _local(job: Job) -> Job:
    """The same for this machine, and to be made quickly: for the plainest of CPUs with vectors of
    256 bits, if this one does what that does."""
    board = get_board("local")
    if set(_CPUINFO.read_text().split()) >= _PLAIN_FLAGS:
        board = replace(board, cpu=_PLAIN_CPU)
    return replace(job, board=board, toolchain=select(board))


def model_limits(job: Job) -> Limits:
    """What compiling the model may take: what the project says, else by its size."""
    return limits_for(
        job.model,
        memory_mb=job.project.compile_memory_mb,
        cpu_s=job.project.compile_cpu_s,
    )


def kernel_toolchain(job: Job) -> Toolchain:
    """The compiler that links the kernels."""
    return for_kernels(job.toolchain.toolchain, job.board)
