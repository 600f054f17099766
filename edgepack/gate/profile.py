"""The gate before anything is built: do a board's programs run on this very device?"""

from __future__ import annotations

from collections.abc import Iterator

from edgepack.boards import Board, version_tuple
from edgepack.bundle.manifest import CUBIN, OPENCL_TEXT
from edgepack.device.facts import DeviceFacts
from edgepack.gate.cuda import CudaNeeds
from edgepack.gate.gate import KERNELS, Problem, kernel_problems
from edgepack.gpus import Gpu


def profile_problems(
    board: Board, glibc: str, facts: DeviceFacts, gpu: Gpu | None = None
) -> Iterator[Problem]:
    """Why `gate.check_device` will refuse any bundle for `board` on the device of `facts`.

    `glibc` is the version that programs for the board are linked against, e.g. "2.28"; static ones
    (`board.is_static`) need none. `gpu` is what the model is compiled for, unless the CPU may run
    it, too.
    """
    kernels = KERNELS.get(board.triple.partition("-")[0])
    if facts.system != "Linux" or kernels is None or not kernels.fullmatch(facts.machine):
        yield Problem(
            file=board.name,
            text=f"is {board.triple}; the device runs {facts.system} on {facts.machine}",
            hint="choose a board of the device's kind: edgepack boards",
        )
        return
    if not board.is_static:
        yield from _libc_problems(board, glibc, facts)
    if missing := [name for name in board.hwcaps if name not in facts.features]:
        yield Problem(
            file=board.name,
            text=f"has {', '.join(missing)}; the device's CPU has "
            f"{', '.join(sorted(facts.features)) or 'no known feature'}",
            hint="choose the device's own board, or one of the generic boards armv7 and aarch64",
        )
    if facts.noexec:
        yield Problem(
            file=board.name,
            text="no program can run in that folder: its file system is mounted noexec",
            hint="another folder with --root, or ask its owner to mount it without noexec",
        )
    if gpu is not None:
        # Which drivers take the PTX is known of what NVRTC has made: the oldest is let through.
        needs = CudaNeeds(arch=gpu.arch, driver=gpu.driver, ptx=gpu.driver)
        name = CUBIN if gpu.api == "cuda" else OPENCL_TEXT
        yield from kernel_problems(name, lambda: needs, facts)


def _libc_problems(board: Board, glibc: str, facts: DeviceFacts) -> Iterator[Problem]:
    if board.target.loader not in facts.loaders:
        yield Problem(
            file=board.name,
            text=f"programs want the loader {board.target.loader}; the device has "
            f"{', '.join(facts.loaders) or 'none that is known'}",
            hint="the device's system has another word size, float ABI or C library: choose "
            "a board of that kind (edgepack boards), or add --static",
        )
    elif facts.glibc is None:
        yield Problem(
            file=board.name,
            text=f"programs want glibc {glibc}; the device has none (its C library: {facts.libc})",
            hint="add --static: its programs will need no C library",
        )
    elif version_tuple(facts.glibc) < version_tuple(glibc):
        yield Problem(
            file=board.name,
            text=f"programs want glibc {glibc}; the device has {facts.glibc} ({facts.os})",
            hint="build with --toolchain zig, for a board profile whose glibc is "
            f"{facts.glibc} or older",
        )
