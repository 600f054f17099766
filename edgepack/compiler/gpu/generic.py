"""Kernels for a GPU of what no rule takes: TVM's default schedules, as text.

Each function becomes one launch after the other. What TVM cannot schedule for a GPU, or has
written out as loops already, is left to the CPU.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import dlight

from edgepack.compiler.backend import exact, inside
from edgepack.compiler.gpu import reads
from edgepack.compiler.gpu.kernel import DeviceKernel, Extents, Launch
from edgepack.kernels.tiles import tir

log = logging.getLogger(__name__)

# What TVM does by default (`tvm.s_tir.pipeline`) up to where a function is split between host and
# device; what of that is for other hardware, or for asynchronous copies, is left out.
_PASSES = (
    s_tir.transform.CanonicalizeLoop,
    s_tir.transform.LowerCrossThreadReduction,
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.LiftThreadBinding,
    s_tir.transform.CompactBufferAllocation,
    s_tir.transform.UnifyThreadBinding,
    s_tir.transform.LowerMatchBuffer,
    s_tir.transform.StmtSimplify,
    s_tir.transform.LowerOpaqueBlock,
    exact.hide_remainders,
    tirx.transform.FlattenBuffer,
    exact.show_remainders,
    lambda: tirx.transform.NarrowDataType(32),
    s_tir.transform.LoopPartition,
    tirx.transform.VectorizeLoop,
    s_tir.transform.InjectVirtualThread,
    tirx.transform.StorageRewrite,
    s_tir.transform.HoistIfThenElse,
    tirx.transform.UnrollLoop,
    s_tir.transform.RenormalizeSplitPattern,
    tirx.transform.StmtSimplify,
    tirx.transform.RemoveNoOp,
    s_tir.transform.RewriteUnsafeSelect,
    tirx.transform.CommonSubexprElim,
    tirx.transform.VerifyMemory,
    tirx.transform.AnnotateEntryFunc,
    lambda: s_tir.transform.ThreadSync("shared"),
    s_tir.transform.LowerThreadAllreduce,
    s_tir.transform.MergeSharedMemoryAllocations,
    tirx.transform.SplitHostDevice,
)
_DEVICE_PASSES = (
    tirx.transform.LowerWarpMemory,
    tirx.transform.StmtSimplify,
    tirx.transform.LowerIntrin,
)
# Types that a text for a GPU has no word for, or that its driver need not know; of OpenCL's double
# TVM writes constants with seven digits.
_UNKNOWN_TYPES = {
    "cuda": re.compile(r"\b(half|nv_bfloat16)\d*\b"),
    "opencl": re.compile(r"\b(?:convert_|vload_|vstore_)?(half|double|bfloat16)\d*\b"),
}
_RULES = (
    dlight.gpu.GEMV,
    dlight.gpu.Reduction,
    dlight.gpu.GeneralReduction,
    dlight.gpu.Fallback,
)


def make_kernel(
    name: str,
    function: tirx.PrimFunc,
    target: tvm.target.Target,
    compared: Collection[int] = (),
    numbers: inside.Numbers = MappingProxyType({}),
) -> DeviceKernel | None:
    """The kernel of one function that TVM lowered; None if it is for the CPU.

    That compares positions that come at run time; no error leaves a GPU. Arguments that are
    positions it has `compared` are read at here, as are constants of known `numbers`.
    """
    if not isinstance(function.body, s_tir.SBlockRealize):
        return None
    bounded = reads.keep_inside(function, compared, numbers)
    if bounded is None:
        return None
    try:
        with target, tvm.transform.PassContext(opt_level=3):
            named = _with_own_names(bounded.with_body(_with_fences(bounded.body)))
            # Python's "<lambda>" is a name, too.
            symbol = re.sub(r"\W", "_", name)
            return _make(symbol, named.with_attr("global_symbol", symbol), target)
    except Exception as error:  # TVM's errors share no base
        log.debug("%s stays on the CPU: %s", name, error, exc_info=True)
        return None


def _with_own_names(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function whose tensors, those inside of it, too, have names in C: a model's may have any
    sign in theirs."""
    inner: list[tirx.Var] = []
    tvm_ffi.structural_walk(
        function.body, (s_tir.SBlock, lambda block: inner.extend(block.alloc_buffers))
    )
    names = {
        hash(one): tirx.decl_buffer(one.shape, str(one.dtype), f"t{index}", scope=one.scope())
        for index, one in enumerate([*function.params, *inner])
    }
    body = tvm_ffi.structural_map(function.body, (tirx.Var, lambda one: names.get(hash(one), one)))
    own = [names[hash(one)] for one in function.params]
    return tirx.PrimFunc(own, body, attrs=function.attrs)


def _with_fences(body: tirx.Stmt) -> tirx.Stmt:
    """What LLVM is told by an intrinsic, told to the other compilers: see `dialect`."""

    def told(call: tvm.ir.Call) -> tirx.Expr:
        value = tir.in_fence(call)
        return call if value is None else tirx.call_pure_extern(str(call.ty.dtype), "fence", value)

    return tvm_ffi.structural_map(body, (tvm.ir.Call, told))


def _make(name: str, function: tirx.PrimFunc, target: tvm.target.Target) -> DeviceKernel | None:
    module = tvm.IRModule({name: function})
    module = dlight.ApplyDefaultSchedule(*(rule() for rule in _RULES))(module)
    module = tvm.IRModule({name: _with_scratch(module[name])})
    passes = [tirx.transform.BindTarget(target), *(make() for make in _PASSES)]
    module = tvm.transform.Sequential(passes)(module)
    host = next(f for var, f in module.functions.items() if var.name_hint == name)
    device = {var: f for var, f in module.functions.items() if var.name_hint != name}
    calls = _calls(host)
    if not calls or len(calls) != len(device):
        return None
    names = {str(call.args[0].value): f"@{index}" for index, call in enumerate(calls)}
    launches = [_launch(call, names, host) for call in calls]
    text = _text(device, names, target)
    if _UNKNOWN_TYPES[str(target.kind.name)].search(text):
        return None
    return DeviceKernel.from_text(
        text,
        launches,
        [(str(buffer.dtype), tuple(map(int, buffer.shape))) for buffer in host.params],
    )


def _launch(call: tvm.ir.Call, names: Mapping[str, str], host: tirx.PrimFunc) -> Launch:
    """A launch, of `call_ffi_kernel(name, tensors..., sizes...)`, all of them known."""
    axes = [str(axis) for axis in call.attrs.launch_params]
    _, *tensors = call.args[: len(call.args) - len(axes)]
    sizes = dict(zip(axes, map(int, call.args[len(call.args) - len(axes) :]), strict=True))
    places = _places(host)
    return Launch(
        function=names[str(call.args[0].value)],
        grid=_extents("blockIdx", sizes),
        block=_extents("threadIdx", sizes),
        args=tuple(places[tensor.args[0]] for tensor in tensors),
    )


def _places(host: tirx.PrimFunc) -> dict[tirx.Var, int]:
    """Which parameter each flat buffer of a host function is."""
    flat: list[tirx.DeclBuffer] = []
    tvm_ffi.structural_walk(host.body, (tirx.DeclBuffer, flat.append))
    found = {parameter: index for index, parameter in enumerate(host.params)}
    for declared in flat:
        parameter = declared.data.args[0]
        found[declared.buffer] = next(
            index for index, other in enumerate(host.params) if other.same_as(parameter)
        )
    return found


def _extents(word: str, sizes: Mapping[str, int]) -> Extents:
    x, y, z = (sizes.get(f"{word}.{axis}", 1) for axis in "xyz")
    return x, y, z


def _text(
    device: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc],
    names: Mapping[str, str],
    target: tvm.target.Target,
) -> str:
    """The functions' text, without what TVM's own text begins with."""
    module = tvm.IRModule(dict(device.items()))
    module = tvm.transform.Sequential([make() for make in _DEVICE_PASSES])(module)
    api = str(target.kind.name)
    made = tvm.get_global_func(f"target.build.{api}")(module, target)
    text = str(made.inspect_source())
    start = min(
        (at for word in ('extern "C" __global__', "__kernel") if (at := text.find(word)) >= 0),
        default=0,
    )
    pattern = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    text = re.sub(rf"\b({pattern})\b", lambda found: names[found[0]], text[start:])
    # Both languages' own drop a NaN.
    return re.sub(r"\b(max|min)\(", lambda found: _EXTREMA[found[1]] + "(", text)


_EXTREMA = {"max": "larger", "min": "smaller"}


def _with_scratch(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function whose tensors between two launches are parameters after its outputs."""
    root = function.body.block
    hoisted = [buffer for buffer in root.alloc_buffers if buffer.scope() == "global"]
    if not hoisted:
        return function
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        root.body,
        root.init,
        [b for b in root.alloc_buffers if not any(b.same_as(h) for h in hoisted)],
        root.match_buffers,
        root.annotations,
    )
    body = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc([*function.params, *hoisted], body, attrs=function.attrs)


def _calls(host: tirx.PrimFunc) -> list[tvm.ir.Call]:
    """The launches in a host function, in order."""
    found: list[tvm.ir.Call] = []

    def look(call: tvm.ir.Call) -> None:
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "tirx.call_ffi_kernel":
            found.append(call)

    tvm_ffi.structural_walk(host.body, (tvm.ir.Call, look))
    return found
