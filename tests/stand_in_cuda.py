"""A stand-in for NVIDIA's driver, and kernels for it: no GPU is needed, and none is proven.

    python -m tests.stand_in_cuda --models resnet18 --runs 1     `./dev gpu` with it

`Nvrtc`, in the place of edgepack's, compiles the text that NVRTC would be given for the CPU of this
machine, or of a board; the driver (`stand_in_cuda_driver.cc`) loads what it made. So numbers,
barriers, launches, copies and errors are the program's own. Times, and what a real driver or GPU
would do with the machine code of NVRTC, are not.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from edgepack.base.kept import zig_cache
from edgepack.native.toolchain import zig_executable

_SOURCES = Path(__file__).parent
# What the text says in assembly of NVIDIA's GPUs, and the same for a CPU. Sums and products are
# never one operation here but where fmaf says so: a fence has nothing to do.
_ASSEMBLY = {
    'asm("" : "+f"(x));': "",
    'asm("" : "+d"(x));': "",
    'asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));': (
        "value = (float)__builtin_bit_cast(_Float16, bits);"
    ),
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));': (
        "bits = __builtin_bit_cast(ushort, (_Float16)value);"
    ),
    'asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));': (
        "bits = (__builtin_bit_cast(uint, value) + 0x1000u) & 0xffffe000u;"
    ),
}
_KERNEL = re.compile(
    r"^(?:KERNEL\(\d+\)|extern \"C\" __global__ void __launch_bounds__\(\d+\)) (\w+)\(", re.M
)
_FLAGS = ("-std=c++20", "-shared", "-fPIC", "-w", "-U_FORTIFY_SOURCE")


# In the environment: a zig target ("aarch64-linux-gnu.2.28") whose machine all of this is for; else
# it is for this one.
TARGET = "STAND_IN_TARGET"


def build_driver(folder: Path, *flags: str) -> Path:
    """Makes a libcuda.so.1 in a folder, which it returns."""
    folder.mkdir(parents=True, exist_ok=True)
    source = _SOURCES / "stand_in_cuda_driver.cc"
    _compile(source, folder / "libcuda.so.1", "-O1", "-pthread", "-Wl,-Bsymbolic", *flags)
    return folder


def find_nvrtc(driver: str) -> Path:
    """In the place of NVRTC's library for drivers from a version on."""
    return _SOURCES / driver


@dataclass(frozen=True, kw_only=True)
class CudaCode:
    """As `edgepack.compiler.gpu.nvrtc.CudaCode`, in whose place this module may be imported."""

    cubin: bytes
    ptx: bytes
    ptx_driver: str


class Nvrtc:
    """In the place of `edgepack.compiler.gpu.nvrtc.Nvrtc`."""

    def __init__(self, path: Path) -> None:
        """`path` would be NVRTC's."""

    def compile(self, text: str, arch: str) -> bytes:
        """A module of the stand-in driver."""
        return self.compile_for_all(text, arch).cubin

    def compile_for_all(self, text: str, arch: str) -> CudaCode:
        """The same, and once more as what the stand-in driver takes for PTX: behind the head that
        NVRTC 12.2 writes, the module in hexadecimal."""
        for assembly, cpu in _ASSEMBLY.items():
            assert assembly in text
            text = text.replace(assembly, cpu)
        launches = [f"STAND_IN_LAUNCH({name})" for name in dict.fromkeys(_KERNEL.findall(text))]
        parts = [
            (_SOURCES / "stand_in_cuda_kernels.h").read_text(encoding="utf-8"),
            f'extern "C" const int stand_in_arch = {arch.removeprefix("sm_")};',
            text,
            *launches,
        ]
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            source, made = Path(folder) / "kernels.cc", Path(folder) / "kernels.so"
            source.write_text("\n".join(parts), encoding="utf-8")
            native = () if os.environ.get(TARGET) else ("-march=native",)
            _compile(source, made, "-O2", *native, "-ffp-contract=off", "-Wl,-Bsymbolic")
            module = made.read_bytes()
        head = f"//\n// {module.hex()}\n//\n\n.version 8.2\n.target {arch}\n.address_size 64\n\0"
        return CudaCode(cubin=module, ptx=head.encode(), ptx_driver="12.2")


def main(argv: Sequence[str]) -> int:
    """`./dev gpu`, by the stand-in: what it says of errors is so, what it says of times is not."""
    from bench import gpu
    from edgepack.compiler.gpu import planning

    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        os.environ["LD_LIBRARY_PATH"] = str(build_driver(Path(folder)))
        os.environ["EDGEPACK_GPU_LIMIT_S"] = "86400"
        os.environ["STAND_IN_MEMORY"] = str(8 << 30)
        with mock.patch.multiple(planning, Nvrtc=Nvrtc, find_nvrtc=find_nvrtc):
            return gpu.main(["--arch", "sm_87", "--processors", "8", *argv])


def _compile(source: Path, made: Path, *flags: str) -> None:
    compiler, context = ["g++"], contextlib.nullcontext({})
    if target := os.environ.get(TARGET):
        compiler, context = [str(zig_executable()), "c++", "-target", target, "-s"], zig_cache()
    words = [*compiler, *_FLAGS, *flags, str(source), "-o", str(made), "-ldl", "-lm"]
    with context as added:
        env = {**os.environ, **added}
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[:4000]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
