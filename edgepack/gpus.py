"""Profiles of GPUs: what boards.toml says of one, and what this machine has."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass

from edgepack.base.tables import Table

APIS = ("cuda", "opencl")
# The major versions of NVRTC that kernels are compiled with, the newest first.
NVRTC_MAJORS = (12, 11)
# The newest architecture that both compile for, by nvrtcGetSupportedArchs of 12.2 and of 11.8.
_NEWEST_ARCH = 90
# Of CUDA: what the app calls is all there from this version on.
_OLDEST_DRIVER = (11, 4)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU and the driver that is expected with it.

    `api` is one of `APIS`, `device` a name for people. With CUDA `arch` is the compute capability
    that kernels are compiled for ("sm_87") and `driver` the oldest version of CUDA that a driver
    has to support ("12.2"); both are empty with OpenCL, whose drivers compile. The cost model takes
    `processors`, the units with registers of their own, and `lanes`, the float32 multiply-adds that
    each starts in a cycle. `threads` is the largest group, `shared_kb` the memory that one shares.
    With `unified_memory` nothing is copied between the processors if the driver, too, says that
    they have the same memory. `bytes_per_cycle` of its own clock is what its memory moves; 0 says
    nothing.
    """

    api: str
    device: str
    arch: str
    driver: str
    processors: int
    lanes: int
    threads: int
    shared_kb: int
    unified_memory: bool = True
    bytes_per_cycle: int = 0

    @property
    def has_tensor_cores(self) -> bool:
        """Whether it has NVIDIA's of compute capability 8.0 or later: for m16n8k16, and TF32."""
        found = re.fullmatch(r"sm_(\d+)a?", self.arch)
        return self.api == "cuda" and found is not None and int(found[1]) >= 80


def read_gpu(table: Table) -> Gpu:
    """The profile in a table of boards.toml. Raises ConfigError."""
    api = table.take_choice("api", APIS)
    arch, driver = table.take("arch", str, ""), table.take("driver", str, "")
    for key, value, pattern, example in (
        ("arch", arch, r"sm_\d{2,3}", "sm_87"),
        ("driver", driver, r"\d+\.\d+", "12.2"),
    ):
        if api == "opencl" and value:
            raise table.fail(
                key, "OpenCL's drivers compile kernels themselves", hint="leave it out"
            )
        if api == "cuda" and not re.fullmatch(pattern, value):
            raise table.fail(key, f"{value!r} is none", hint=f'for example "{example}"')
    numbers = {key: table.take(key, int) for key in ("processors", "lanes", "threads", "shared_kb")}
    for key, number in numbers.items():
        if number < 1:
            raise table.fail(key, f"{number} is below 1")
    if numbers["threads"] > 1024:
        raise table.fail("threads", f"{numbers['threads']} is above 1024")
    bytes_per_cycle = table.take("bytes_per_cycle", int, 0)
    if bytes_per_cycle < 0:
        raise table.fail("bytes_per_cycle", f"{bytes_per_cycle} is below 0")
    gpu = Gpu(
        api=api,
        device=table.take("device", str),
        arch=arch,
        driver=driver,
        unified_memory=table.take("unified_memory", bool, True),
        bytes_per_cycle=bytes_per_cycle,
        **numbers,
    )
    table.finish()
    return gpu


def find_local() -> Gpu | None:
    """The GPU of this machine: NVIDIA's, or else OpenCL's first device; None if there is none."""
    return _first(_cuda, _opencl)


def _first(*ways: Callable[[], Gpu | None]) -> Gpu | None:
    for way in ways:
        try:
            found = way()
        except (OSError, AttributeError):  # no driver, or one of another kind
            continue
        if found is not None:
            return found
    return None


# CUdevice_attribute, by CUDA's driver API.
_MULTIPROCESSORS, _SHARED_BYTES, _MAJOR, _MINOR = 16, 8, 75, 76
_CLOCK_KHZ, _MEMORY_CLOCK_KHZ, _MEMORY_BITS = 13, 36, 37
# float32 multiply-adds that a multiprocessor starts in a cycle, by NVIDIA's CUDA C++ Programming
# Guide, table "Throughput of Native Arithmetic Instructions"; 128 where it is not one of these.
_LANES = {60: 64, 70: 64, 72: 64, 75: 64, 80: 64}


def _cuda() -> Gpu | None:
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuInit(0) != 0:
        return None
    version, device = ctypes.c_int(), ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) or driver.cuDeviceGet(
        ctypes.byref(device), 0
    ):
        return None

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, 255, device)
    arch = attribute(_MAJOR) * 10 + attribute(_MINOR)
    return Gpu(
        api="cuda",
        device=name.value.decode(errors="replace"),
        # A later card's driver compiles PTX.
        arch=f"sm_{min(arch, _NEWEST_ARCH)}",
        driver=oldest_driver((version.value // 1000, version.value % 1000 // 10)),
        processors=attribute(_MULTIPROCESSORS),
        lanes=_LANES.get(arch, 128),
        threads=1024,
        shared_kb=attribute(_SHARED_BYTES) // 1024,
        # Two transfers in each cycle of its memory.
        bytes_per_cycle=(
            attribute(_MEMORY_CLOCK_KHZ)
            * attribute(_MEMORY_BITS)
            // 4
            // max(1, attribute(_CLOCK_KHZ))
        ),
    )


def oldest_driver(driver: tuple[int, int]) -> str:
    """The oldest version of CUDA whose driver runs the machine code that is compiled for `driver`.

    NVIDIA, "CUDA Compatibility", section "Minor Version Compatibility": what a compiler makes runs
    on the drivers of its own major version, older ones, too, and on all later ones.
    """
    major = next((major for major in NVRTC_MAJORS if major <= driver[0]), driver[0])
    return "{}.{}".format(*min(driver, max((major, 0), _OLDEST_DRIVER)))


# cl_device_info, by the OpenCL specification.
_MAX_COMPUTE_UNITS, _MAX_WORK_GROUP_SIZE, _LOCAL_MEM_SIZE, _NAME = 0x1002, 0x1004, 0x1023, 0x102B
_ALL_DEVICES = ctypes.c_uint64(0xFFFFFFFF)


def _opencl() -> Gpu | None:
    library = ctypes.CDLL("libOpenCL.so.1")
    platforms, count = (ctypes.c_void_p * 8)(), ctypes.c_uint()
    if library.clGetPlatformIDs(8, platforms, ctypes.byref(count)) != 0:
        return None
    for platform in platforms[: min(count.value, 8)]:
        device = ctypes.c_void_p()
        if library.clGetDeviceIDs(
            ctypes.c_void_p(platform), _ALL_DEVICES, 1, ctypes.byref(device), None
        ):
            continue

        def number(key: int, kind: type[ctypes.c_uint] | type[ctypes.c_uint64]) -> int:
            value = kind()
            library.clGetDeviceInfo(device, key, ctypes.sizeof(value), ctypes.byref(value), None)  # noqa: B023
            return int(value.value)

        name = ctypes.create_string_buffer(256)
        library.clGetDeviceInfo(device, _NAME, 255, name, None)
        return Gpu(
            api="opencl",
            device=name.value.decode(errors="replace"),
            arch="",
            driver="",
            processors=number(_MAX_COMPUTE_UNITS, ctypes.c_uint),
            lanes=8,
            threads=min(256, number(_MAX_WORK_GROUP_SIZE, ctypes.c_uint64)),
            shared_kb=number(_LOCAL_MEM_SIZE, ctypes.c_uint64) // 1024,
        )
    return None
