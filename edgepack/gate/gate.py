"""The gate before anything is copied: does a bundle fit a board, and this very device?

`check_bundle` looks into every ELF file of a bundle, `check_device` compares what they
need with what a device said about itself. All problems are collected; the message has
the first few.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack import cpus
from edgepack.base.errors import BundleError
from edgepack.base.tables import read_json
from edgepack.boards import Board, version_tuple
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import (
    APP,
    CPU_FOLDER,
    CUBIN,
    GRAPH,
    LIBRARY,
    MANIFEST_NAME,
    OPENCL_TEXT,
    PTX,
)
from edgepack.device.facts import RENDER_NODES, DeviceFacts
from edgepack.gate.cuda import CudaNeeds, find_old_driver, later_than, runs_on
from edgepack.gate.elf import MAGIC, Elf, NotElfError, VersionNeed, find_instructions, read_elf

APP_BYTES = 8 << 20
"""Memory of the app itself, besides weights and arena."""

_SHOWN_PROBLEMS = 4
# AArch64 kernels have pages of 4, 16 or 64 KB: 16 on Asahi and, from Android 15 on, on phones.
_LARGE_PAGES = ("aarch64-linux-gnu",)
_LARGE_PAGE_BYTES = 16 << 10
_DISK_MARGIN_BYTES = 1 << 20

# machine and word size of the ELF files of a triple, by the triple's first word
_MACHINES = {"arm": ("ARM", 32), "aarch64": ("AArch64", 64), "x86_64": ("x86-64", 64)}
# uname -m of the kernels that can run them; armv8l is a 64-bit kernel's 32-bit personality
KERNELS = {
    "arm": re.compile(r"armv[78].*|aarch64|arm64"),
    "aarch64": re.compile(r"aarch64|arm64"),
    "x86_64": re.compile(r"x86_64|amd64"),
}
# What belongs to glibc; libc6 itself depends on libgcc_s in Debian and Ubuntu.
_BASE_LIBRARIES = re.compile(
    r"ld-linux.*|lib(c|m)\.so\.6|lib(pthread|m)\.so\.0|libdl\.so\.2|librt\.so\.1|libgcc_s\.so\.1"
)
# A CPU that has the first has the second, whether or not a profile says so.
_IMPLIED = {"vfpv4": {"vfpv3", "vfp"}, "vfpv3": {"vfp"}, "neon": {"vfpv3", "vfp"}}
_CPU_ARCH = {10: "ARMv7", 14: "ARMv8"}
_FP_ARCH = {3: "VFPv3", 4: "VFPv3-D16", 5: "VFPv4", 6: "VFPv4-D16", 7: "ARMv8 FP", 8: "ARMv8 FP"}
_SIMD_ARCH = {1: "NEON", 2: "NEON with fused multiply-add", 3: "ARMv8 NEON", 4: "ARMv8.1 NEON"}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a bundle does not fit: the file it is in, what, and the way out."""

    file: str
    text: str
    hint: str


class GateError(BundleError):
    """A bundle, or what is to become one, does not fit a board or device; `problems` has all
    reasons."""

    def __init__(self, name: str, where: str, problems: Sequence[Problem]) -> None:
        lines = [f"{problem.file}: {problem.text}" for problem in problems[:_SHOWN_PROBLEMS]]
        if len(problems) > _SHOWN_PROBLEMS:
            lines.append(f"and {len(problems) - _SHOWN_PROBLEMS} more")
        super().__init__(
            f"{name} does not fit {where}: " + "\n  ".join(lines),
            hint=problems[0].hint,
        )
        self.problems = tuple(problems)


def check_bundle(bundle: Bundle, board: Board) -> None:
    """Raise `GateError` unless all of `bundle` can run on `board`.

    Checked are what it was built for (triple, CPU features), and of every ELF file the
    machine, word size, float ABI, loader, libraries, glibc version, ARM attributes, and
    the code itself for instructions that the board's CPU lacks.
    """
    problems = [*_profile_problems(bundle, board)]
    for name in _elf_files(bundle):
        try:
            problems += _elf_problems(bundle, name, board)
        except NotElfError as error:
            problems.append(Problem(file=name, text=error.message, hint=_again(board)))
    if problems:
        raise GateError(bundle.path.name, f"{board.name} ({board.title})", problems)


def check_device(bundle: Bundle, facts: DeviceFacts, *, send_bytes: int | None = None) -> None:
    """Raise `GateError` unless the device that gave `facts` can take and run `bundle`.

    `send_bytes` is how much must be uploaded, by default all of it.
    """
    elves = {name: read_elf(bundle.file(name)) for name in _elf_files(bundle)}
    problems = [
        *_kernel_problems(bundle, facts, elves),
        *_library_problems(facts, elves),
        *_feature_problems(bundle, facts),
        *_space_problems(bundle, facts, send_bytes),
        *gpu_problems(bundle, facts),
    ]
    if problems:
        raise GateError(bundle.path.name, title_of(facts), problems)


def title_of(facts: DeviceFacts) -> str:
    """A device as errors of the gate name it."""
    return f"{facts.hostname} ({facts.model})" if facts.model else facts.hostname


_DRIVERS = {CUBIN: "libcuda.so.1", OPENCL_TEXT: "libOpenCL.so.1"}
# OpenCL's drivers of Mesa (two) and Intel, which cannot do without a render node.
_OPEN_RENDER_NODES = ("libRusticlOpenCL.so", "libMesaOpenCL.so", "libigdrcl.so")


def needs_opencl(bundle: Bundle) -> bool:
    """Whether a GPU with a driver of OpenCL runs the bundle's model."""
    return OPENCL_TEXT in bundle.manifest.files


def gpu_problems(bundle: Bundle, facts: DeviceFacts) -> Iterator[Problem]:
    """Whether the driver of the GPU is there, new enough, and may be used by who we are, and
    whether the machine code is for the GPU. What the device does not say is no problem."""
    if any(name.startswith(CPU_FOLDER) for name in bundle.manifest.files):
        return  # the CPU runs it then
    for name in _DRIVERS:
        if name in bundle.manifest.files:
            yield from kernel_problems(name, lambda: _cuda_needs(bundle), facts)


def kernel_problems(
    name: str, needs: Callable[[], CudaNeeds], facts: DeviceFacts
) -> Iterator[Problem]:
    """The same of kernels in the file `name`, which is there or will be; `needs` tells what those
    of CUDA are for."""
    driver = _DRIVERS[name]
    if driver not in facts.gpu_drivers:
        yield Problem(
            file=name,
            text=f"runs on a GPU by {driver}, which is not there",
            hint="install the GPU's driver, or deploy with --compute cpu",
        )
        return
    if node := _closed_node(name, facts):
        yield Problem(
            file=name,
            text=f"runs on a GPU, whose {node} {facts.user} may not open",
            hint=f"add {facts.user} to its group, often video or render, or --compute cpu",
        )
    if name == CUBIN:
        yield from _cuda_problems(needs(), facts)


def _closed_node(name: str, facts: DeviceFacts) -> str:
    """The node that the driver for the file `name` has to open and cannot, or empty."""
    others = [node for node in facts.gpu_closed if not node.startswith(RENDER_NODES)]
    if others or not facts.gpu_closed or name != OPENCL_TEXT:
        return others[0] if others else ""
    needed = [driver.startswith(_OPEN_RENDER_NODES) for driver in facts.opencl_drivers]
    return facts.gpu_closed[0] if needed and all(needed) else ""


def _cuda_needs(bundle: Bundle) -> CudaNeeds:
    gpu = read_json(bundle.file(GRAPH), error=BundleError).get("gpu")
    needs = gpu if isinstance(gpu, dict) else {}
    return CudaNeeds(
        arch=str(needs.get("arch", "")),
        driver=str(needs.get("driver", "")),
        ptx=str(needs.get("ptx", "")) if PTX in bundle.manifest.files else "",
    )


def _cuda_problems(needs: CudaNeeds, facts: DeviceFacts) -> Iterator[Problem]:
    """Whether the device's driver is new enough, and whether the GPU is one that the machine code
    is for, or a later one, for which the driver compiles PTX."""
    if old := find_old_driver(facts, needs.driver):
        yield Problem(
            file=CUBIN,
            text=f"needs a driver of CUDA {needs.driver} or newer; {old.text}",
            hint=old.hint,
        )
    if runs_on(needs.arch, facts.gpu_archs):
        return
    there = ", ".join(facts.gpu_archs)
    if not needs.ptx or not later_than(needs.arch, facts.gpu_archs):
        yield Problem(
            file=CUBIN,
            text=f"machine code for {needs.arch}; the device's GPU is {there}",
            hint="choose the device's own board (edgepack boards), one whose gpu.arch is "
            f"{facts.gpu_archs[0]}, or deploy with --compute cpu",
        )
    elif old := find_old_driver(facts, needs.ptx):
        yield Problem(
            file=CUBIN,
            text=f"machine code for {needs.arch}, which drivers of CUDA {needs.ptx} and newer "
            f"compile again for later GPUs; the device's is {there}, and {old.text}",
            hint="choose the device's own board (edgepack boards), one whose gpu.arch is "
            f"{facts.gpu_archs[0]}, or {old.hint}",
        )


def needed_hwcaps(board: Board, files: Sequence[Path]) -> tuple[str, ...]:
    """Names that /proc/cpuinfo's Features line must hold for the ELF `files` to run.

    The board's, and those of the instruction families of its CPU that the code uses.
    Raises `NotElfError`.
    """
    found = {item.family for file in files for item in find_instructions(file, board.has)}
    families = cpus.families_of(board.triple)
    used = [families[name].hwcap for name in board.has if name in found]
    return tuple(dict.fromkeys([*board.hwcaps, *(name for name in used if name)]))


def _elf_files(bundle: Bundle) -> list[str]:
    """The app and the kernels, which must be ELF files, and all others that are."""
    names = []
    for name in sorted(bundle.manifest.files):
        if name == CUBIN:
            continue
        with bundle.file(name).open("rb") as file:
            if name in (APP, LIBRARY) or file.read(len(MAGIC)) == MAGIC:
                names.append(name)
    return names


def _again(board: Board) -> str:
    return f"package the model for this board: edgepack package --board {board.name}"


def _profile_problems(bundle: Bundle, board: Board) -> Iterator[Problem]:
    needs = bundle.manifest.compatible
    if board.is_static and not bundle.manifest.is_static:
        yield Problem(
            file=MANIFEST_NAME,
            text=f"built for glibc {needs.glibc} ({bundle.manifest.board}); {board.name} has no "
            "C library",
            hint=_again(board),
        )
    if needs.triple != board.triple:
        yield Problem(
            file=MANIFEST_NAME,
            text=f"built for {needs.triple} ({bundle.manifest.board}), the board is {board.triple}",
            hint=_again(board),
        )
        return
    families = cpus.families_of(board.triple)
    has = {*board.hwcaps, *(families[name].hwcap for name in board.has)}
    has = has.union(*(_IMPLIED.get(name, set()) for name in has))
    if missing := [name for name in needs.hwcaps if name not in has]:
        yield Problem(
            file=MANIFEST_NAME,
            text=f"built for {needs.cpu} ({bundle.manifest.board}) with {', '.join(missing)}; "
            f"{board.cpu} has {', '.join(board.hwcaps) or 'none of these'}",
            hint=_again(board),
        )


def _elf_problems(bundle: Bundle, name: str, board: Board) -> Iterator[Problem]:
    elf = read_elf(bundle.file(name))
    machine, bits = _MACHINES[board.triple.partition("-")[0]]
    if (elf.machine, elf.bits, elf.little_endian) != (machine, bits, True):
        order = "" if elf.little_endian else " big-endian"
        yield Problem(
            file=name,
            text=f"code for {elf.machine}, {elf.bits}-bit{order}; the board runs {machine}, "
            f"{bits}-bit ({board.triple})",
            hint=_again(board),
        )
        return
    if board.float_abi and elf.float_abi not in ("", board.float_abi):
        yield Problem(
            file=name,
            text=f"{elf.float_abi}-float calling convention; "
            f"the board's system is {board.float_abi}-float ({board.triple})",
            hint="build it with -mfloat-abi=hard and a gnueabihf compiler",
        )
    static = board.is_static or bundle.manifest.is_static
    if static:
        yield from _static_problems(name, elf, board)
    elif elf.interpreter and elf.interpreter != board.target.loader:
        yield Problem(
            file=name,
            text=f"wants the loader {elf.interpreter}; the board's is {board.target.loader}",
            hint=_again(board),
        )
    if not static:
        yield from _version_problems(name, elf, board)
    yield from _page_problems(name, elf, board)
    if text := _attribute_problem(elf, board):
        yield Problem(file=name, text=text, hint=_again(board))
    yield from _instruction_problems(bundle, name, elf, board)


def _static_problems(name: str, elf: Elf, board: Board) -> Iterator[Problem]:
    """What would ask for a dynamic loader, which nobody has to have there."""
    wants = [
        *([f"the loader {elf.interpreter}"] if elf.interpreter else []),
        *(f"the library {library}" for library in elf.needed),
        *(f"the symbol {symbol} from elsewhere" for symbol in elf.undefined),
    ]
    if wants:
        yield Problem(
            file=name,
            text=f"wants {', '.join(wants[:_SHOWN_PROBLEMS])}; a program for {board.name} must "
            "need no C library",
            hint=_again(board),
        )


def _page_problems(name: str, elf: Elf, board: Board) -> Iterator[Problem]:
    """Kernels with large pages cannot map a file whose segments are closer to each other."""
    if board.triple in _LARGE_PAGES and elf.page_bytes < _LARGE_PAGE_BYTES:
        yield Problem(
            file=name,
            text=f"its segments are aligned to {elf.page_bytes} bytes; there are kernels for "
            f"{board.triple} with pages of {_LARGE_PAGE_BYTES} bytes",
            hint="link it with -Wl,-z,max-page-size=65536",
        )


def _version_problems(name: str, elf: Elf, board: Board) -> Iterator[Problem]:
    need = elf.highest("GLIBC")
    if need is not None and _newer(need, board.glibc):
        yield Problem(
            file=name,
            text=f"{_needs(need)}; the board has glibc {board.glibc} ({board.os})",
            hint="build with --toolchain zig, which pins an older glibc",
        )
    if board.is_local:
        return
    for library in elf.needed:
        if _BASE_LIBRARIES.fullmatch(library):
            continue
        versions = [item for item in elf.needs if item.library == library]
        yield Problem(
            file=name,
            text=f"needs {library}" + (f" ({_needs(versions[0])})" if versions else "")
            + "; a bundle may count on the C library only",
            hint="link it statically, for the C++ library with -static-libstdc++",
        )  # fmt: skip


def _needs(need: VersionNeed) -> str:
    return f"{need.symbol or need.library} needs {need.version}"


def _newer(need: VersionNeed, glibc: str) -> bool:
    return need.number is None or need.number > version_tuple(glibc)


def _attribute_problem(elf: Elf, board: Board) -> str | None:
    """What the compiler noted in the file, against what the board's CPU lacks."""
    found = elf.attributes
    families = cpus.families_of(board.triple)
    too_new = ("fma" in board.forbidden and (found.fp_arch >= 5 or found.simd_arch >= 2)) or (
        "armv8" in board.forbidden
        and (found.cpu_arch >= 14 or found.fp_arch >= 7 or found.simd_arch >= 3)
    )
    divides = "hwdiv" in board.forbidden and found.div_use == 2
    if not too_new and not divides:
        return None
    marks = [
        _CPU_ARCH.get(found.cpu_arch, f"Tag_CPU_arch {found.cpu_arch}"),
        _FP_ARCH.get(found.fp_arch, f"Tag_FP_arch {found.fp_arch}"),
        _SIMD_ARCH.get(found.simd_arch, f"Tag_Advanced_SIMD_arch {found.simd_arch}"),
        *(["hardware divide"] if found.div_use == 2 else []),
    ]
    lacks = ", ".join(families[family].title for family in board.forbidden)
    return (
        f"marked as code for {found.cpu_name or 'a CPU'} with {', '.join(marks)}; "
        f"{board.cpu} lacks {lacks}"
    )


def _instruction_problems(bundle: Bundle, name: str, elf: Elf, board: Board) -> Iterator[Problem]:
    families = cpus.families_of(board.triple)
    found = find_instructions(bundle.file(name), board.forbidden)
    for family in board.forbidden:
        of_family = [instruction for instruction in found if instruction.family == family]
        if not of_family:
            continue
        first = of_family[0]
        place = f"{first.address:#x}" + (f" in {first.function}" if first.function else "")
        guess = "" if elf.has_code_map else " (a guess: the file is stripped)"
        yield Problem(
            file=name,
            text=f"{first.mnemonic} at {place}{guess}; {board.cpu} has no "
            f"{families[family].title} instructions, and the file has {len(of_family)}",
            hint=_again(board),
        )


def _kernel_problems(
    bundle: Bundle, facts: DeviceFacts, elves: dict[str, Elf]
) -> Iterator[Problem]:
    triple = bundle.manifest.compatible.triple
    kernels = KERNELS.get(triple.partition("-")[0])
    if facts.system != "Linux" or kernels is None or not kernels.fullmatch(facts.machine):
        yield Problem(
            file=MANIFEST_NAME,
            text=f"built for {triple}; the device runs {facts.system} on {facts.machine}",
            hint="package the model for a board of the device's kind: edgepack boards",
        )
        return
    wanted = elves[APP].interpreter
    if wanted and wanted not in facts.loaders:
        there = ", ".join(facts.loaders) or "none that is known"
        yield Problem(
            file=APP,
            text=f"wants the loader {wanted}, which the device lacks; it has {there} "
            f"(kernel: {facts.machine})",
            hint="the device's system has another word size, float ABI or C library: package "
            "the model for a board profile of that kind (edgepack boards), or with --static",
        )


def _library_problems(facts: DeviceFacts, elves: dict[str, Elf]) -> Iterator[Problem]:
    for name, elf in elves.items():
        need = elf.highest("GLIBC")
        if need is None:
            continue
        if facts.glibc is None:
            yield Problem(
                file=name,
                text=f"{_needs(need)}; the device has no glibc (its C library: {facts.libc})",
                hint="make the bundle with --static: its programs need no C library",
            )
        elif _newer(need, facts.glibc):
            yield Problem(
                file=name,
                text=f"{_needs(need)}; the device has glibc {facts.glibc} ({facts.os})",
                hint="build with --toolchain zig, for a board profile whose glibc is "
                f"{facts.glibc} or older",
            )


def _feature_problems(bundle: Bundle, facts: DeviceFacts) -> Iterator[Problem]:
    needs = bundle.manifest.compatible
    if missing := [name for name in needs.hwcaps if name not in facts.features]:
        yield Problem(
            file=MANIFEST_NAME,
            text=f"built for {needs.cpu} ({bundle.manifest.board}) with {', '.join(missing)}; "
            f"the device's CPU has {', '.join(sorted(facts.features)) or 'no known feature'}",
            hint="package the model for the device's own board, or for one of the generic "
            "boards armv7 and aarch64",
        )


def _space_problems(
    bundle: Bundle, facts: DeviceFacts, send_bytes: int | None
) -> Iterator[Problem]:
    to_send = bundle.manifest.total_bytes if send_bytes is None else send_bytes
    if to_send and to_send + _DISK_MARGIN_BYTES > facts.free_disk_bytes:
        yield Problem(
            file=MANIFEST_NAME,
            text=f"{_mb(to_send)} must be sent; the device has {_mb(facts.free_disk_bytes)} free",
            hint="make room on the device, or choose another folder with --root",
        )
    model = bundle.manifest.model
    memory = model.params_bytes + model.arena_bytes + APP_BYTES
    if memory > facts.memory_bytes:
        yield Problem(
            file=MANIFEST_NAME,
            text=f"weights, arena and app take {_mb(memory)} of memory; "
            f"the device has {_mb(facts.memory_bytes)}",
            hint="use a smaller model or input, or a device with more memory",
        )
    elif model.arena_bytes + APP_BYTES > facts.memory_available_bytes:
        # Weights are mapped from the file: the kernel can drop and read them again.
        yield Problem(
            file=MANIFEST_NAME,
            text=f"arena and app take {_mb(model.arena_bytes + APP_BYTES)} of memory; "
            f"the device has {_mb(facts.memory_available_bytes)} available now",
            hint="stop other programs on the device",
        )


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
