"""A model as a plan for a GPU, with what only the CPU can do on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm

from edgepack.base import apart
from edgepack.base.errors import ModelError
from edgepack.boards import Board
from edgepack.compiler.backend import bind, llvm, schedule
from edgepack.compiler.backend.bind import Lowered, LoweredBlock
from edgepack.compiler.backend.kernel import Kernel
from edgepack.compiler.backend.plan import Plan
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.gpu import lower as gpu_lower
from edgepack.compiler.gpu.dialect import CUDA, whole_text
from edgepack.compiler.gpu.kernel import DeviceKernel
from edgepack.compiler.gpu.nvrtc import Nvrtc, find_nvrtc
from edgepack.compiler.gpu.transfers import Copy, find_copies, find_unified
from edgepack.compiler.place import lower
from edgepack.frontend import importer, memory, ranges
from edgepack.frontend.float16 import widen
from edgepack.frontend.integer_recognition import Recognition
from edgepack.frontend.load import CheckedModel
from edgepack.frontend.precision import Precision
from edgepack.gpus import Gpu
from edgepack.model import walk_nodes


class GpuModelError(ModelError):
    """The model is of a kind that no kernels of a GPU are made for."""


def _of_integers(model: CheckedModel, node: str) -> GpuModelError:
    return GpuModelError(
        f"{model.path}: '{node}' is on 8-bit integers, which no kernels of a GPU are made for",
        hint="take the model before it was quantised, or use --compute cpu",
    )


@dataclass(frozen=True, kw_only=True)
class GpuPlan:
    """The plan, its kernels by name, a report of each call, and TVM's target of the CPU."""

    plan: Plan
    kernels: Mapping[str, Kernel]
    reports: tuple[LayerReport, ...]
    target: tvm.target.Target

    @property
    def on_gpu(self) -> dict[str, DeviceKernel]:
        """Those of the GPU."""
        return {n: k for n, k in self.kernels.items() if isinstance(k, DeviceKernel)}

    @property
    def on_cpu(self) -> dict[str, Kernel]:
        """Those of the CPU."""
        return {n: k for n, k in self.kernels.items() if not isinstance(k, DeviceKernel)}


def plan_model(model: CheckedModel, board: Board, gpu: Gpu, precision: Precision) -> GpuPlan:
    """The plan of a model for a board's GPU.

    In half precision weights and what is between kernels are stored as halves, and computed with
    in float32. Raises the errors of `compile_model`, and `GpuModelError` for layers on integers.
    """

    def refuse(found: Recognition) -> dict[str, str]:
        for taken in found.taken.values():
            raise _of_integers(model, taken.node_name)
        return {}

    for node in walk_nodes(model.expanded.graph):
        if node.op_type == "DynamicQuantizeLinear":
            raise _of_integers(model, node.name or node.op_type)
    memory.check_before(model.path, model.expanded, board)
    target = llvm.tvm_target(board)
    if precision.is_half and precision.samples:
        apart.at("looking for what half precision has no room for")
        found = ranges.find(widen(model.expanded), precision.samples, computes=False)
        precision = replace(precision, exact={**found.exact, **precision.exact})
    imported = importer.import_model(model, refuse)
    bounds = importer.bounds_of(imported)
    lowered = _lowered(imported, model, target, gpu, precision)
    apart.at("laying out its memory")
    laid_out, kernels, reports = bind.extract_plan(lowered, model, bounds)
    memory.check_fits(model.path, laid_out.arena_bytes, len(laid_out.params), board)
    return GpuPlan(plan=laid_out, kernels=kernels, reports=reports, target=target)


@dataclass(frozen=True, kw_only=True)
class DeviceCode:
    """The GPU's kernels: the content of each file by its name, the first of which is always there.

    `ptx_driver` is the oldest version of CUDA whose driver compiles kernels.ptx, if there is one.
    """

    files: Mapping[str, bytes]
    ptx_driver: str = ""


def device_code(planned: GpuPlan, gpu: Gpu) -> DeviceCode:
    """The files with the GPU's kernels.

    Of CUDA that is machine code for the GPU's own architecture, with PTX for later ones, of OpenCL
    text. Raises `NvrtcError`.
    """
    text = whole_text(gpu.api, [kernel.text for kernel in planned.on_gpu.values()])
    if gpu.api != CUDA:
        return DeviceCode(files={"kernels.cl": text.encode()})
    made = Nvrtc(find_nvrtc(gpu.driver)).compile_for_all(text, gpu.arch)
    files = {"kernels.cubin": made.cubin}
    if made.ptx:
        files["kernels.ptx"] = made.ptx
    return DeviceCode(files=files, ptx_driver=made.ptx_driver)


def describe(planned: GpuPlan, gpu: Gpu, code: DeviceCode) -> dict[str, Any]:
    """What graph.json says of the GPU's part."""
    on_gpu = planned.on_gpu
    launches = [
        {
            "call": index,
            "function": launch.function,
            "grid": launch.grid,
            "block": launch.block,
            "args": [call.args[number] for number in launch.args],
        }
        for index, call in enumerate(planned.plan.calls)
        if call.kernel in on_gpu
        for launch in on_gpu[call.kernel].launches
    ]

    def listed(copies: Iterable[Copy]) -> list[dict[str, Any]]:
        return [
            {"before": copy.before, "to": copy.to, "offset": copy.offset, "bytes": copy.nbytes}
            for copy in copies
        ]

    unified = {}
    if gpu.unified_memory:
        found = find_unified(planned.plan, on_gpu.__contains__)
        unified = {"unified": {"tensors": found.tensors, "uses": listed(found.uses)}}
    return {
        "api": gpu.api,
        "arch": gpu.arch,
        "driver": gpu.driver,
        **({"ptx": code.ptx_driver} if code.ptx_driver else {}),
        "launches": launches,
        "copies": listed(find_copies(planned.plan, on_gpu.__contains__)),
        **unified,
    }


def _tvm_target(gpu: Gpu) -> tvm.target.Target:
    config: dict[str, Any] = {
        "kind": gpu.api,
        "max_num_threads": gpu.threads,
        "max_threads_per_block": gpu.threads,
        "max_shared_memory_per_block": gpu.shared_kb << 10,
        # No shuffles between threads: the same text is for every GPU of the kind.
        "thread_warp_size": 1,
    }
    if gpu.api == CUDA:
        config["arch"] = gpu.arch
    return tvm.target.Target(config, host="llvm")


def _lowered(
    imported: tvm.IRModule,
    model: CheckedModel,
    target: tvm.target.Target,
    gpu: Gpu,
    precision: Precision,
) -> Lowered:
    ruled = gpu_lower.rewrite(lower.fold(imported, target, model, integers=False), gpu, precision)
    module = lower.lower_rest(ruled.module, target, model)
    devices = gpu_lower.lower_rest(module, _tvm_target(gpu))
    functions = {var.name_hint: function for var, function in module.functions.items()}
    on_cpu = {name: f for name, f in functions.items() if name not in devices}
    scheduled = schedule.schedule(tvm.IRModule(on_cpu), target)
    return Lowered(
        module=tvm.IRModule({v.name_hint: f for v, f in scheduled.functions.items()}),
        library=ruled.kernels,
        reports=ruled.reports,
        devices=devices,
        blocks=_blocks(imported, model, target),
    )


def _blocks(
    imported: tvm.IRModule, model: CheckedModel, target: tvm.target.Target
) -> dict[str, LoweredBlock]:
    """Loops and branches, which the CPU does as a whole."""
    return {
        key: LoweredBlock(
            name=block.name,
            operator=block.operator,
            states=block.states,
            most=block.most,
            bodies=tuple(_body(body, model, target) for body in block.bodies),
        )
        for key, block in importer.blocks_of(imported).items()
    }


def _body(imported: tvm.IRModule, model: CheckedModel, target: tvm.target.Target) -> Lowered:
    module, fast = lower.lower(imported, target, model)
    return Lowered(
        module=schedule.schedule(module, target),
        library=fast.kernels,
        reports=fast.reports,
        blocks=_blocks(imported, model, target),
    )
