"""CUDA C -> machine code of one GPU, and PTX, by NVRTC, NVIDIA's compiler as a library.

It needs neither a GPU nor the toolkit: the library comes with the packages
`nvidia-cuda-nvrtc-cu12` and `-cu11`. Machine code of it runs on drivers of its own major version
on. PTX is what drivers of its own version on compile for the GPU that they have, if that is of the
same compute capability or a later one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from edgepack.base.errors import ToolchainError
from edgepack.gpus import NVRTC_MAJORS

Made = TypeVar("Made")

_SUCCESS = 0
# Products and sums may be one rounding, as on the CPU; nothing else is less exact than IEEE 754.
_OPTIONS = (
    *("--fmad=true", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"),
    *("--std=c++17", "-w"),  # numbers in hexadecimal
)


class NvrtcError(ToolchainError):
    """NVRTC is not there, or refuses what it was given."""


def find_nvrtc(driver: str) -> Path:
    """The library for drivers from version `driver` on, e.g. "12.2": the newest that such a driver
    can run the code of; raises NvrtcError."""
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc") if _has("nvidia") else None
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    able = [major for major in NVRTC_MAJORS if major <= int(driver.split(".", maxsplit=1)[0])]
    for major in able:
        for folder in folders:
            for path in sorted(Path(folder).glob(f"lib/libnvrtc.so.{major}*")):
                return path
    if not able:
        raise NvrtcError(
            f"there is no NVRTC for a driver of CUDA {driver}",
            hint=f"a board with CUDA {NVRTC_MAJORS[-1]} or newer, or --compute cpu",
        )
    raise NvrtcError(
        f"kernels for a driver of CUDA {driver} are compiled by NVRTC {able[0]}, which is not here",
        hint=f"pip install nvidia-cuda-nvrtc-cu{able[0]}",
    )


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@dataclass(frozen=True, kw_only=True)
class CudaCode:
    """What NVRTC makes of a text: machine code for one architecture, and PTX for later ones.

    `ptx` is text with a NUL at its end, as the driver reads it. `ptx_driver` is the oldest version
    of CUDA whose driver takes it, e.g. "12.2". Of an architecture whose PTX is for no other GPU
    ("sm_90a") both are empty.
    """

    cubin: bytes
    ptx: bytes
    ptx_driver: str


class Nvrtc:
    """The compiler of one library."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NvrtcError(f"{path} cannot be loaded: {error}") from error

    @property
    def version(self) -> str:
        """Its version, e.g. "12.2"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(self, text: str, arch: str) -> bytes:
        """The machine code ("cubin") of a text for an architecture such as "sm_87".

        Raises NvrtcError with what the compiler says.
        """
        return _in_other_thread(self._compile, text, arch)

    def compile_for_all(self, text: str, arch: str) -> CudaCode:
        """The same, and what later GPUs take: one run of the compiler makes both."""
        return _in_other_thread(self._compile_for_all, text, arch)

    def _compile(self, text: str, arch: str) -> bytes:
        return self._compile_for_all(text, arch).cubin

    def _compile_for_all(self, text: str, arch: str) -> CudaCode:
        if not re.fullmatch(r"sm_\d{2,3}a?", arch):
            raise NvrtcError(f"{arch!r} is not the architecture of a GPU", hint="for example sm_87")
        program = ctypes.c_void_p()
        source = text.encode()
        self._check(
            "nvrtcCreateProgram", ctypes.byref(program), source, b"kernels.cu", 0, None, None
        )
        try:
            given = [option.encode() for option in (f"--gpu-architecture={arch}", *_OPTIONS)]
            options = (ctypes.c_char_p * len(given))(*given)
            if self._library.nvrtcCompileProgram(program, len(given), options) != _SUCCESS:
                raise NvrtcError(f"NVRTC refuses the kernels for {arch}: {self._log(program)}")
            cubin = self._made("CUBIN", program)
            if arch.endswith("a"):
                return CudaCode(cubin=cubin, ptx=b"", ptx_driver="")
            return CudaCode(cubin=cubin, ptx=self._made("PTX", program), ptx_driver=self.version)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _made(self, kind: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._check(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        made = ctypes.create_string_buffer(size.value)
        self._check(f"nvrtcGet{kind}", program, made)
        return made.raw

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._check("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self._check("nvrtcGetProgramLog", program, log)
        return log.value.decode(errors="replace")[:4000]

    def _check(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != _SUCCESS:
            raise NvrtcError(f"{self._path.name}: {name} failed with {code}")


def _in_other_thread(compile: Callable[[str, str], Made], text: str, arch: str) -> Made:
    """NVRTC leaves the thread that calls it in another locale, by which Python reads text."""
    with ThreadPoolExecutor(max_workers=1) as other_thread:
        return other_thread.submit(compile, text, arch).result()
