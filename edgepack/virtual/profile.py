"""What a virtual board says about itself: the files that `uname` and friends do not cover."""

from __future__ import annotations

from edgepack.boards import Board, Cluster, VirtualProfile
from edgepack.cpus import families_of

# Part numbers of Arm's cores (MIDR_EL1, bits 15:4), for boards with several kinds of them.
_PARTS = {
    "cortex-a7": "0xc07",
    "cortex-a8": "0xc08",
    "cortex-a9": "0xc09",
    "cortex-a15": "0xc0f",
    "cortex-a17": "0xc0e",
    "cortex-a35": "0xd04",
    "cortex-a53": "0xd03",
    "cortex-a55": "0xd05",
    "cortex-a57": "0xd07",
    "cortex-a72": "0xd08",
    "cortex-a73": "0xd09",
    "cortex-a76": "0xd0b",
}
# Features lines of real kernels: Zynq-7020 for ARMv7 without, Raspberry Pi 3 for cores with
# hardware divide and VFPv4; both are followed by what the profile's hwcaps and families add.
_ARMV7 = ("half", "thumb", "fastmult", "vfp", "edsp", "neon", "vfpv3", "tls", "vfpd32")
_ARMV7_VFPV4 = (
    *("half", "thumb", "fastmult", "vfp", "edsp", "neon", "vfpv3", "tls"),
    *("vfpv4", "idiva", "idivt", "vfpd32", "lpae", "evtstrm", "crc32"),
)
_ARMV8 = ("fp", "asimd", "evtstrm", "crc32", "cpuid")


def cores(board: Board) -> list[Cluster]:
    """The cluster of each core, in the order kernels number them: slow cores first."""
    slow_first = sorted(board.clusters, key=lambda cluster: cluster.max_mhz)
    return [cluster for cluster in slow_first for _ in range(cluster.cores)]


def features(board: Board) -> tuple[str, ...]:
    """Names on the Features line of the board's /proc/cpuinfo."""
    usual: tuple[str, ...] = _ARMV8
    if board.debian_arch == "armhf":
        usual = _ARMV7_VFPV4 if "vfpv4" in board.hwcaps else _ARMV7
    families = families_of(board.triple)
    own = [families[name].hwcap for name in board.has]
    return tuple(dict.fromkeys((*usual, *board.hwcaps, *filter(None, own))))


def cpuinfo(board: Board, virtual: VirtualProfile) -> str:
    """/proc/cpuinfo: a stanza per core, as a kernel for the board's architecture writes it."""
    arm64 = board.debian_arch == "arm64"
    stanzas = []
    for number, cluster in enumerate(cores(board)):
        lines = [f"processor\t: {number}"]
        if virtual.model:
            lines.append(f"model name\t: {virtual.model}")
        lines += [
            "BogoMIPS\t: 48.00",
            f"Features\t: {' '.join(features(board))}",
            "CPU implementer\t: 0x41",
            f"CPU architecture: {8 if arm64 else 7}",
            "CPU variant\t: 0x0",
            f"CPU part\t: {_PARTS.get(cluster.cpu, virtual.part)}",
            "CPU revision\t: 4",
        ]
        stanzas.append("\n".join(lines) + "\n\n")
    if not arm64:
        stanzas.append(f"Hardware\t: {board.title}\nRevision\t: 0000\nSerial\t\t: 0\n")
    return "".join(stanzas)


def meminfo(board: Board) -> str:
    """/proc/meminfo of a board that has just booted: an eighth of its memory in use."""
    total_kb = board.memory_mb * 1024
    free_kb = total_kb - total_kb // 8
    values = {"MemTotal": total_kb, "MemFree": free_kb, "MemAvailable": free_kb}
    values |= {"Buffers": 0, "Cached": 0, "SwapTotal": 0, "SwapFree": 0}
    return "".join(f"{name + ':':<15} {value:>9} kB\n" for name, value in values.items())


def sys_files(board: Board) -> dict[str, str]:
    """Files below /sys, by path relative to it: cores, their speeds, and the board's model."""
    kinds = cores(board)
    every = f"0-{len(kinds) - 1}" if len(kinds) > 1 else "0"
    cpu = "devices/system/cpu"
    files = {f"{cpu}/{name}": f"{every}\n" for name in ("possible", "present", "online")}
    files[f"{cpu}/offline"] = "\n"
    files[f"{cpu}/kernel_max"] = "255\n"
    files["firmware/devicetree/base/model"] = board.title + "\0"
    fastest = max(cluster.max_mhz for cluster in kinds)
    for number, cluster in enumerate(kinds):
        core = f"{cpu}/cpu{number}"
        files[f"{core}/cpu_capacity"] = f"{1024 * cluster.max_mhz // max(fastest, 1)}\n"
        files[f"{core}/cpufreq/cpuinfo_max_freq"] = f"{cluster.max_mhz * 1000}\n"
        files[f"{core}/cpufreq/scaling_max_freq"] = f"{cluster.max_mhz * 1000}\n"
        files[f"{core}/topology/core_id"] = f"{number}\n"
        files[f"{core}/topology/physical_package_id"] = "0\n"
    return files
