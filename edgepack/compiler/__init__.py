"""ONNX -> one library per board CPU, a plan, and the parameters.

    model.onnx -importer-> Relax -lower-> fused kernels -schedule-> -plan-> graph.json, params.bin
                                                                       |
                                                                     build-> model.so

This package and the two beneath it, `frontend` and `kernels`, are the only ones that import TVM,
and only when something is compiled. What is asked of them without compiling, a CPU's cost model
for one, has nothing of it imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.base.paths import atomic_dir
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.text import format_count
from edgepack.compiler.compiled import OBJECTS
from edgepack.compiler.compiled import CompiledModel as CompiledModel
from edgepack.compiler.settings import DEFAULTS, CompileSettings
from edgepack.frontend.precision import FULL, Precision
from edgepack.kernels.choices import NO_CHOICES, UNLIMITED, Choices

if TYPE_CHECKING:
    from edgepack.boards import Board
    from edgepack.compiler.backend.plan import Plan
    from edgepack.compiler.backend.report import Estimate, LayerReport
    from edgepack.frontend.load import CheckedModel
    from edgepack.gpus import Gpu
    from edgepack.kernels.rules.rule import Rule
    from edgepack.model import ModelSpec
    from edgepack.native.toolchain import Toolchain


def compile_model(
    model: CheckedModel | ModelSpec,
    board: Board,
    toolchain: Toolchain,
    out: str | Path,
    *,
    rules: Sequence[Rule] | None = None,
    growth: float = UNLIMITED,
    precision: Precision = FULL,
    choices: Choices = NO_CHOICES,
    gpu: Gpu | None = None,
    progress: Progress = NO_PROGRESS,
) -> CompiledModel:
    """Compile a model into `out`/{model.so, graph.json, params.bin}; `out` is replaced.

    A `ModelSpec` is first loaded by `load_model`. `rules` are the kernel rules to try for each
    layer, in order; None stands for those of `kernels.rules.table`. With other rules you can
    compare kernels, or test one. `precision` selects half precision for weights and arithmetic,
    and the layers of a quantised model that use integers. `choices` has kernel parameters of
    single layers, as found by tuning. With a `gpu`, the GPU runs all layers that it can, in
    float32, and `rules`, `growth` and `choices` have no effect. The stored weights may be up to
    `growth` times the model's, because Winograd's transformed weights take up to nine times the
    bytes. They are used where they save most time. Equal model, shapes, board, toolchain,
    `rules`, `growth`, `precision` and `choices` give equal bytes in any folder. Machine code of
    known kernels is taken from the cache. Raises the errors of `load_model`, `BoardMemoryError`,
    `ModelError` for errors that only show while compiling, and `ToolchainError` if the link
    fails.
    """
    from edgepack.frontend.errors import named_failures

    settings = CompileSettings(rules=rules, growth=growth, precision=precision, choices=choices)
    with named_failures(model.path):
        return compile_with(
            model, board, toolchain, Path(out), settings, gpu=gpu, progress=progress
        )


def compile_with(
    model: CheckedModel | ModelSpec,
    board: Board,
    toolchain: Toolchain,
    out: Path,
    settings: CompileSettings = DEFAULTS,
    *,
    gpu: Gpu | None = None,
    progress: Progress = NO_PROGRESS,
) -> CompiledModel:
    """`compile_model` with its settings as one value, to be called through `limited.within`.

    Errors that the compiler has no words for are left to that.
    """
    if gpu is not None:
        return _compile_for_gpu(model, board, toolchain, out, settings.precision, gpu, progress)
    return _compile_for_cpu(model, board, toolchain, out, settings, progress)


def _compile_for_cpu(
    model: CheckedModel | ModelSpec,
    board: Board,
    toolchain: Toolchain,
    out: Path,
    settings: CompileSettings,
    progress: Progress,
) -> CompiledModel:
    from edgepack.base import apart
    from edgepack.compiler.planning import Planner
    from edgepack.frontend.load import load_model
    from edgepack.model import ModelSpec

    if isinstance(model, ModelSpec):
        model = load_model(model)
    planner = Planner(model, board, settings, progress=progress)
    laid_out, kernels, layers = planner.plan(settings.choices)
    progress.step(f"compiling {format_count(len(kernels), 'kernel')} for {board.cpu}")
    import tvm

    from edgepack.compiler.backend import build, code

    apart.at(f"making machine code of {len(kernels)} kernels")
    with atomic_dir(out) as work:
        build.build_library(
            kernels, planner.target, toolchain, work / OBJECTS, work / "model.so", code.kept_code()
        )
        (work / "graph.json").write_text(laid_out.to_json(layers), encoding="utf-8")
        (work / "params.bin").write_bytes(laid_out.params)
    return CompiledModel(
        folder=out,
        graph=out / "graph.json",
        params=out / "params.bin",
        library=out / "model.so",
        inputs=laid_out.infos(laid_out.inputs),
        outputs=laid_out.infos(laid_out.outputs),
        arena_bytes=laid_out.arena_bytes,
        params_bytes=len(laid_out.params),
        model_sha256=model.sha256,
        tvm_version=tvm.__version__,
        layers=layers,
        floats=planner.floats,
        states_bytes=laid_out.states_bytes,
    )


def _compile_for_gpu(
    model: CheckedModel | ModelSpec,
    board: Board,
    toolchain: Toolchain,
    out: Path,
    precision: Precision,
    gpu: Gpu,
    progress: Progress,
) -> CompiledModel:
    from edgepack.base import apart
    from edgepack.compiler.gpu import planning
    from edgepack.frontend.load import load_model
    from edgepack.model import ModelSpec

    if isinstance(model, ModelSpec):
        model = load_model(model)
    progress.step(f"importing {model.path.name}")
    planned = planning.plan_model(model, board, gpu, precision)
    import tvm

    from edgepack.compiler.backend import build, code

    progress.step(f"compiling {format_count(len(planned.on_gpu), 'kernel')} for {gpu.device}")
    with atomic_dir(out) as work:
        apart.at(f"compiling {len(planned.on_gpu)} kernels of the GPU")
        made = planning.device_code(planned, gpu)
        for name, content in made.files.items():
            (work / name).write_bytes(content)
        build.build_library(
            planned.on_cpu,
            planned.target,
            toolchain,
            work / OBJECTS,
            work / "model.so",
            code.kept_code(),
        )
        text = planned.plan.to_json(planned.reports, planning.describe(planned, gpu, made))
        (work / "graph.json").write_text(text, encoding="utf-8")
        (work / "params.bin").write_bytes(planned.plan.params)
    return CompiledModel(
        folder=out,
        graph=out / "graph.json",
        params=out / "params.bin",
        library=out / "model.so",
        inputs=planned.plan.infos(planned.plan.inputs),
        outputs=planned.plan.infos(planned.plan.outputs),
        arena_bytes=planned.plan.arena_bytes,
        params_bytes=len(planned.plan.params),
        model_sha256=model.sha256,
        tvm_version=tvm.__version__,
        layers=planned.reports,
        states_bytes=planned.plan.states_bytes,
        device_code=out / next(iter(made.files)),
    )


def plan_model(
    model: CheckedModel,
    board: Board,
    *,
    rules: Sequence[Rule] | None = None,
    growth: float = UNLIMITED,
    precision: Precision = FULL,
    choices: Choices = NO_CHOICES,
    progress: Progress = NO_PROGRESS,
) -> tuple[Plan, dict[str, Any], tuple[LayerReport, ...], Any]:
    """All but the machine code: the plan, its kernels by name, a report of each, TVM's target.

    Parameters and errors are those of `compile_model`.
    """
    from edgepack.compiler.planning import Planner

    settings = CompileSettings(rules=rules, growth=growth, precision=precision)
    planner = Planner(model, board, settings, progress=progress)
    return (*planner.plan(choices), planner.target)


def cpu_key(board: Board) -> str:
    """The CPU that machine code for `board` is made for, in words: architecture, LLVM's name,
    features, and how many cores share the work."""
    cpu, features = board.cpu, board.features
    if cpu == "native":
        from edgepack.compiler.backend.llvm import tvm_target

        found = tvm_target(board).attrs
        cpu, features = str(found["mcpu"]), tuple(map(str, found.get("mattr", ()) or ()))
    arch = board.llvm_triple.split("-", maxsplit=1)[0]
    return " ".join([arch, cpu, *sorted(features), f"x{board.cores}"])


# edgepack-run and edgepack-device for ARM, stripped, with a library of dozens of kernels.
_PROGRAMS_BYTES = 4_000_000


def estimate_model(
    spec: ModelSpec,
    board: Board,
    *,
    growth: float = UNLIMITED,
    progress: Progress = NO_PROGRESS,
) -> Estimate:
    """What the model will take on the board; no machine code is made.

    To be called through `limited.within`. `growth` is `compile_model`'s. Raises what that raises.
    """
    from edgepack.compiler.backend.report import BlockReport, Estimate
    from edgepack.frontend.load import load_model

    plan, _, layers, _ = plan_model(load_model(spec), board, growth=growth, progress=progress)
    mhz = max(cluster.max_mhz for cluster in board.clusters)
    cycles = sum(layer.cycles for layer in layers)
    return Estimate(
        board=board.name,
        outputs=plan.infos(plan.outputs),
        arena_bytes=plan.arena_bytes,
        params_bytes=len(plan.params),
        bundle_bytes=len(plan.params) + _PROGRAMS_BYTES,
        kernels=len(layers),
        uncosted=sum(not layer.cycles for layer in layers),
        blocks=tuple(
            BlockReport(
                node=block.name,
                operator=block.operator,
                kernels=block.end - block.first,
                most_turns=block.most,
            )
            for block in plan.blocks
        ),
        mhz=mhz,
        ms=cycles / mhz / 1e3 if mhz and cycles else None,
    )
