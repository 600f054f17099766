"""What TVM's LLVM knows, and a board as a TVM target."""

from __future__ import annotations

import re
from pathlib import Path

import tvm
from tvm.target import codegen

from edgepack.boards import Board
from edgepack.kernels.tiles.cpu import cpu_model

# LLVM 22's ARM load/store optimizer turns neighbouring stores into `add r3, r3, #152; stm r3, ...`
# while stores with an offset from the old r3 follow: found in the copy of an 8x7x7 tensor for a
# Cortex-A53. Assembly tiles are not touched by it.
_NO_LOAD_STORE_MERGING = "-arm-load-store-opt:bool=false"


def cpu_names(llvm_triple: str) -> frozenset[str]:
    """CPU names that LLVM knows for a triple such as `armv7l-linux-gnueabihf`."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": llvm_triple})
    return frozenset(str(name) for name in codegen.llvm_get_cpu_archlist(target))


def cpu_features(llvm_triple: str, cpu: str) -> frozenset[str]:
    """Features, without sign (`neon`, `vfp4`), that `cpu` has by default."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": llvm_triple, "mcpu": cpu})
    return frozenset(str(name) for name in codegen.llvm_get_cpu_features(target))


def tvm_target(board: Board) -> tvm.target.Target:
    """The board's CPU. Without `mfloat-abi` 32-bit ARM code passes floats in core registers."""
    cpu, features = board.cpu, list(board.features)
    if cpu == "native":
        cpu = codegen.llvm_get_system_cpu()
        features += _hidden_features(board.llvm_triple, cpu, Path("/proc/cpuinfo"))
    config: dict[str, object] = {
        "kind": "llvm",
        "mtriple": _with_vendor(board.llvm_triple),
        "mcpu": cpu,
        "num-cores": board.cores,
    }
    if features:
        config["mattr"] = features
    if board.float_abi:
        config["mfloat-abi"] = board.float_abi
    if board.llvm_triple.startswith("arm"):
        config["cl-opt"] = [_NO_LOAD_STORE_MERGING]
    return tvm.target.Target(config)


def cost_model_gap(board: Board) -> str | None:
    """What is to be said if kernels for a board are chosen by figures of another CPU, or None."""
    target = tvm_target(board)
    nearest = cpu_model(target)
    if not nearest.is_default:
        return None
    return (
        f"no cost model for the CPU '{target.attrs['mcpu']}': kernels are chosen as for "
        f"{nearest.name}, with the slowest memory of its family"
    )


def _with_vendor(llvm_triple: str) -> str:
    """The triple in four parts: TVM passes it on as it is, and LLVM reads it by position.

    In `armv7l-linux-gnueabihf` it would see the vendor "linux" and no system, and
    call `__divsi3`, which the ARM EABI has under another name.
    """
    arch, *rest = llvm_triple.split("-")
    return "-".join([arch, "unknown", *rest] if len(rest) == 2 else [arch, *rest])


def _hidden_features(llvm_triple: str, cpu: str, cpuinfo: Path) -> list[str]:
    """Vector extensions that the CPU has by name, and a hypervisor or the kernel hides.

    LLVM says `avx512vnni` where /proc/cpuinfo's flags say `avx512_vnni`.
    """
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), flags=re.MULTILINE)
    if flags is None:
        return []
    shown = {flag.replace("_", "") for flag in flags[1].split()}
    vector = re.compile(r"(avx|fma|f16c|amx|gfni|vaes|vpclmulqdq)")
    names = sorted(name for name in cpu_features(llvm_triple, cpu) if vector.match(name))
    return [f"-{name}" for name in names if re.sub(r"[-_.]", "", name) not in shown]
