"""What kernels take of a GPU of NVIDIA's, as its assembler says: no GPU is needed."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from edgepack.compiler.gpu.dialect import whole_text
from edgepack.compiler.gpu.kernel import DeviceKernel
from edgepack.compiler.gpu.nvrtc import _OPTIONS, Nvrtc, find_nvrtc


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Registers of a thread, threads of a group and the bytes that these share, and bytes that a
    thread stores or loads because registers do not suffice."""

    function: str
    registers: int
    threads: int
    shared: int
    spilt: int


class _Telling(Nvrtc):
    """Gives what the assembler says of each kernel in the place of its code."""

    def _compile(self, text: str, arch: str) -> bytes:
        program = ctypes.c_void_p()
        self._check("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"", 0, None, None)
        try:
            words = [f"--gpu-architecture={arch}", "--ptxas-options=-v", *_OPTIONS]
            options = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
            code = self._library.nvrtcCompileProgram(program, len(words), options)
            size = ctypes.c_size_t()
            self._check("nvrtcGetProgramLogSize", program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            self._check("nvrtcGetProgramLog", program, log)
            assert code == 0, log.value.decode()
            return log.value
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))


_KERNEL = re.compile(
    r"entry function '(?P<name>\w+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@cache
def _compiler(driver: str) -> Nvrtc:
    return _Telling(find_nvrtc(driver))


def usages(kernels: Iterable[DeviceKernel], arch: str, driver: str = "12.2") -> Sequence[Usage]:
    """Of each function of some kernels, compiled as a bundle's are."""
    kernels = list(kernels)
    launches = [launch for kernel in kernels for launch in kernel.launches]
    threads = {launch.function: launch.block[0] * launch.block[1] for launch in launches}
    text = whole_text("cuda", [kernel.text for kernel in kernels])
    said = _compiler(driver).compile(text, arch).decode()
    made = []
    for found in _KERNEL.finditer(said):
        shared = re.search(r"(\d+) bytes smem", found["rest"])
        made.append(
            Usage(
                function=found["name"],
                registers=int(found["registers"]),
                threads=threads[found["name"]],
                shared=int(shared[1]) if shared else 0,
                spilt=int(found["stores"]) + int(found["loads"]),
            )
        )
    assert {usage.function for usage in made} == threads.keys()
    return made
