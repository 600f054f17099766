"""CPUs: what LLVM knows of them, and the instructions that some have and others lack.

`cpus.json` is what the pinned TVM's LLVM says, so that LLVM need not be loaded;
`python -m tests.llvm_cpus` writes it again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Family:
    """Instructions that a CPU has all of, or none.

    `feature` is LLVM's name of it, `hwcap` the name in the Features line of /proc/cpuinfo
    (Linux, Documentation/arch/arm64/elf_hwcaps and arm/vfp; empty: it has none).
    """

    title: str
    feature: str
    hwcap: str = ""


_ARM = {
    "fma": Family(title="fused multiply-add", feature="vfp4", hwcap="vfpv4"),
    "hwdiv": Family(title="hardware divide", feature="hwdiv-arm", hwcap="idiva"),
    "armv8": Family(title="ARMv8", feature="v8"),
}
_AARCH64 = {
    name: Family(title=title, feature=name, hwcap=hwcap)
    for name, hwcap, title in (
        ("crc", "crc32", "CRC"),
        ("aes", "aes", "AES"),
        ("sha2", "sha2", "SHA-1 and SHA-256"),
        ("lse", "atomics", "atomic memory (LSE)"),
        ("rdm", "asimdrdm", "rounding doubling multiply (RDM)"),
        ("lor", "", "limited ordering (LOR)"),
        ("fullfp16", "asimdhp", "half-precision"),
        ("sha3", "sha3", "SHA-3 and SHA-512"),
        ("sm4", "sm4", "SM3 and SM4"),
        ("dotprod", "asimddp", "dot product"),
        ("fp16fml", "asimdfhm", "half-precision multiply to single (FHM)"),
        ("sve", "sve", "SVE"),
        ("pauth", "paca", "pointer authentication"),
        ("complxnum", "fcma", "complex number"),
        ("jsconv", "jscvt", "JavaScript conversion"),
        ("rcpc", "lrcpc", "load-acquire RCpc"),
        ("rcpc-immo", "ilrcpc", "load-acquire RCpc with offset"),
        ("flagm", "flagm", "flag manipulation"),
        ("altnzcv", "flagm2", "flag conversion"),
        ("fptoint", "frint", "rounding to 32 and 64 bits"),
        ("sb", "sb", "speculation barrier"),
        ("rand", "rng", "random number"),
        ("mte", "mte", "memory tagging"),
        ("i8mm", "i8mm", "int8 matrix"),
        ("bf16", "bf16", "bfloat16"),
        ("wfxt", "wfxt", "wait with time limit"),
        ("xs", "", "XS barrier"),
        ("ls64", "", "64-byte load and store"),
        ("mops", "mops", "memory copy"),
        ("hbc", "hbc", "hinted branch"),
        ("cssc", "cssc", "common short sequence"),
        ("lse128", "lse128", "128-bit atomic"),
        ("rcpc3", "lrcpc3", "release-consistent pair"),
        ("sme", "sme", "SME"),
    )
}
FAMILIES: Mapping[str, Mapping[str, Family]] = {"arm": _ARM, "aarch64": _AARCH64, "x86_64": {}}
"""By the first word of the triple: what is beyond ARMv7-A with NEON, and beyond ARMv8.0-A."""

# What the least CPU of a triple has, by its names in /proc/cpuinfo, and the families that kernels
# are written for.
_LEAST_HWCAPS = {"arm": ("neon",), "aarch64": ("fp", "asimd"), "x86_64": ()}
_FAMILIES_OF_KERNELS = {"arm": ("fma", "hwdiv"), "aarch64": ("dotprod", "fullfp16"), "x86_64": ()}


def families_of(triple: str) -> Mapping[str, Family]:
    """The families of an instruction set, by their names in boards.toml."""
    return FAMILIES[triple.partition("-")[0]]


def hwcaps_of(triple: str, has: Collection[str]) -> tuple[str, ...]:
    """What /proc/cpuinfo lists on a CPU that has the families `has`, of what kernels may need."""
    architecture = triple.partition("-")[0]
    families = FAMILIES[architecture]
    used = (name for name in _FAMILIES_OF_KERNELS[architecture] if name in has)
    return (*_LEAST_HWCAPS[architecture], *(families[name].hwcap for name in used))


@functools.cache
def _table() -> dict[str, dict[str, str]]:
    """LLVM triple -> CPU -> its features, separated by spaces."""
    table: dict[str, dict[str, str]] = json.loads(
        Path(__file__).with_name("cpus.json").read_text(encoding="utf-8")
    )
    return table


def cpu_names(llvm_triple: str) -> frozenset[str]:
    """CPU names for a triple such as `armv7l-linux-gnueabihf`."""
    return frozenset(_table()[llvm_triple])


def cpu_features(llvm_triple: str, cpu: str) -> frozenset[str]:
    """Features, without sign (`neon`, `vfp4`), that LLVM gives `cpu` by default."""
    return frozenset(_table()[llvm_triple][cpu].split())


@functools.cache
def feature_names(llvm_triple: str) -> frozenset[str]:
    """Features that any CPU of a triple has."""
    return frozenset(
        name for features in _table()[llvm_triple].values() for name in features.split()
    )
