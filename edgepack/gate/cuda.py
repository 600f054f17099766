"""Which versions of CUDA a device's driver supports, and which GPUs run a bundle's machine code.

What a device does not say, and drivers that are newer than the tables here, count as fit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.boards import version_tuple
from edgepack.device.facts import DeviceFacts

Version = tuple[int, ...]

# NVIDIA, "CUDA Toolkit Release Notes", table "CUDA Toolkit and Corresponding Driver Versions": of
# each version the branch of the oldest driver on Linux. Drivers before that one but of its branch
# count, too: they were the betas of the same version (450.36 of 11.0 in that table).
_FIRST_BRANCH: dict[Version, int] = {
    (11, 0): 450,
    (11, 1): 455,
    (11, 2): 460,
    (11, 3): 465,
    (11, 4): 470,
    (11, 5): 495,
    (11, 6): 510,
    (11, 7): 515,
    (11, 8): 520,
    (12, 0): 525,
    (12, 1): 530,
    (12, 2): 535,
    (12, 3): 545,
    (12, 4): 550,
    (12, 5): 555,
    (12, 6): 560,
    (12, 8): 570,
    (12, 9): 575,
    (13, 0): 580,
}
# That of Jetson Linux 36 whatever its CUDA is; none for cards has this number.
_BRANCH_OF_JETSONS = 540


@dataclass(frozen=True, kw_only=True)
class _JetsonLinux:
    since: Version
    cuda: Version
    jetpack: int


# NVIDIA, "JetPack Archive" and the release notes of JetPack 4.6, 5.0, 6.0 and 6.1. Each release of
# Jetson Linux has one driver.
_JETSON_LINUX = (
    _JetsonLinux(since=(36, 4), cuda=(12, 6), jetpack=6),
    _JetsonLinux(since=(36,), cuda=(12, 2), jetpack=6),
    _JetsonLinux(since=(34,), cuda=(11, 4), jetpack=5),
    _JetsonLinux(since=(32,), cuda=(10, 2), jetpack=4),
)
_OLDEST_JETPACK_WITH_A_PROFILE = 5


@dataclass(frozen=True, kw_only=True)
class CudaNeeds:
    """What kernels are for: the architecture of their machine code ("sm_87"), the oldest CUDA of a
    driver ("12.2"), and the oldest whose driver takes their PTX. Empty is what is not said."""

    arch: str
    driver: str
    ptx: str = ""


@dataclass(frozen=True, kw_only=True)
class OldDriver:
    """A driver that does not support a version of CUDA: what there is, and the way out."""

    text: str
    hint: str


def find_old_driver(facts: DeviceFacts, cuda: str) -> OldDriver | None:
    """The driver of a device on which nothing supports the version `cuda`, e.g. "12.2"; None if
    something may. A Jetson with a card has two drivers."""
    need = _version(cuda)
    if need is None or facts.cuda_compat:
        return None
    answers = [
        *([_jetson(facts.jetson_linux, need)] if facts.jetson_linux else []),
        *([_card(facts.nvidia_driver, need)] if _is_of_a_card(facts.nvidia_driver) else []),
    ]
    return answers[0] if answers and None not in answers else None


def runs_on(arch: str, archs: Sequence[str]) -> bool:
    """Whether machine code for `arch` ("sm_86") runs on one of the GPUs `archs`, or may.

    NVIDIA, "CUDA C++ Programming Guide", section "Binary Compatibility": on the same major
    compute capability from its own minor one on.
    """
    code = _capability(arch)
    there = [found for found in map(_capability, archs) if found]
    return not code or not there or any(gpu[0] == code[0] and gpu >= code for gpu in there)


def later_than(arch: str, archs: Sequence[str]) -> bool:
    """Whether one of the GPUs `archs` is later than `arch`, so that a driver may compile for it.

    The same guide, section "PTX Compatibility": PTX is for its own compute capability and for all
    that are higher.
    """
    code = _capability(arch)
    return code is not None and any(gpu > code for gpu in map(_capability, archs) if gpu)


def _jetson(release: str, need: Version) -> OldDriver | None:
    number = version_tuple(release)
    if number[0] > _JETSON_LINUX[0].since[0]:
        return None
    found = next((item for item in _JETSON_LINUX if number >= item.since), None)
    if found is None or found.cuda >= need:
        return None
    return OldDriver(
        text=f"the device has Jetson Linux {release} (JetPack {found.jetpack}), whose driver is of "
        f"CUDA {_text(found.cuda)}",
        hint=f"choose the board's profile for JetPack {found.jetpack} (edgepack boards), or "
        "deploy with --compute cpu"
        if found.jetpack >= _OLDEST_JETPACK_WITH_A_PROFILE
        else "install a newer JetPack on the board, or deploy with --compute cpu",
    )


def _is_of_a_card(driver: str) -> bool:
    return driver != "" and version_tuple(driver)[0] != _BRANCH_OF_JETSONS


def _card(driver: str, need: Version) -> OldDriver | None:
    branch = max((first for cuda, first in _FIRST_BRANCH.items() if cuda <= need), default=0)
    if version_tuple(driver)[0] >= branch:
        return None
    return OldDriver(
        text=f"the device has NVIDIA's driver {driver}, and that takes {branch} at least",
        hint="install a newer driver on the device, or deploy with --compute cpu",
    )


def _version(text: str) -> Version | None:
    return version_tuple(text) if re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", text) else None


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def _capability(arch: str) -> tuple[int, int] | None:
    """ "sm_87" as (8, 7); None for code of one GPU only ("sm_90a"), and for other words."""
    found = re.fullmatch(r"sm_([0-9]{1,2})([0-9])", arch)
    return (int(found[1]), int(found[2])) if found else None
