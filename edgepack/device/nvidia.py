"""What a device says of NVIDIA's driver and of its GPUs: commands, and their parsers."""

from __future__ import annotations

import re
from dataclasses import dataclass

DRIVER_COMMAND = (
    "head -n 1 /etc/nv_tegra_release; head -n 1 /proc/driver/nvidia/version; "
    'for l in /usr/local/cuda*/compat/libcuda.so.1; do [ -e "$l" ] && echo "$l"; done; :'
)
# Without a driver in the kernel nvidia-smi would load it; one that hangs must not hang us.
ARCHS_COMMAND = (
    "tr '\\000' '\\n' </proc/device-tree/compatible | grep '^nvidia,tegra'; "
    "[ -e /proc/driver/nvidia/version ] && "
    "timeout 10 nvidia-smi --query-gpu=compute_cap --format=csv,noheader; :"
)
_MOST_GPUS = 16

_JETSON_LINUX = re.compile(
    r"^# R([0-9]{1,3}) \(release\), REVISION: ([0-9]{1,3}(?:\.[0-9]{1,3}){0,2})(?=[,\s]|\Z)",
    re.MULTILINE,
)
# Jetsons up to JetPack 5 have Jetson Linux's own number here, which is below 100.
_DRIVER = re.compile(
    r"^NVRM version: [^\n]{0,60}?Kernel Module(?: for [a-z0-9_]{1,20})? {1,8}"
    r"([0-9]{3}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)(?=\s|\Z)",
    re.MULTILINE,
)
_COMPAT = re.compile(r"^/usr/local/cuda[^\n/]{0,40}/compat/libcuda\.so\.1$", re.MULTILINE)

# The integrated GPUs: NVIDIA's list "CUDA GPU Compute Capability", Jetson products.
_OF_TEGRA = {
    "nvidia,tegra210": "sm_53",
    "nvidia,tegra186": "sm_62",
    "nvidia,tegra194": "sm_72",
    "nvidia,tegra234": "sm_87",
}


@dataclass(frozen=True, kw_only=True)
class NvidiaDriver:
    """`jetson_linux` is a Jetson's release, e.g. "35.4.1", and `version` that of the driver in the
    kernel, e.g. "535.104.05"; empty if not known. With `has_compat` NVIDIA's package cuda-compat
    is installed, whose CUDA may be newer than the driver's own.
    """

    jetson_linux: str
    version: str
    has_compat: bool


def parse_driver(text: str) -> NvidiaDriver:
    """First lines of /etc/nv_tegra_release and /proc/driver/nvidia/version, paths of cuda-compat;
    any may be missing."""
    release, driver = _JETSON_LINUX.search(text), _DRIVER.search(text)
    return NvidiaDriver(
        jetson_linux=f"{release[1]}.{release[2]}" if release else "",
        version=driver[1] if driver else "",
        has_compat=_COMPAT.search(text) is not None,
    )


def parse_archs(text: str) -> tuple[str, ...]:
    """Names of Tegra chips, and a compute capability per card ("8.6"), as "sm_86".

    Lines that say something else are left out: old versions of nvidia-smi cannot answer.
    """
    archs: dict[str, None] = {}
    for line in text.splitlines():
        capability = re.fullmatch(r"([0-9]{1,2})\.([0-9])", line.strip())
        arch = f"sm_{capability[1]}{capability[2]}" if capability else _OF_TEGRA.get(line.strip())
        if arch and len(archs) < _MOST_GPUS:
            archs[arch] = None
    return tuple(archs)
