"""Programs that others make: where they are, and what to install where they are not."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.errors import ToolchainError

# The Debian and Ubuntu package that each program comes from.
DEBIAN_PACKAGES = {
    "adb": "adb",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "apt-config": "apt",
    "apt-ftparchive": "apt-utils",
    "apt-get": "apt",
    "arm-linux-gnueabihf-g++": "g++-arm-linux-gnueabihf",
    "debugfs": "e2fsprogs",
    "dpkg-deb": "dpkg",
    "g++": "g++",
    "gpg": "gnupg",
    "mender-artifact": "mender-artifact",
    "mke2fs": "e2fsprogs",
    "mksquashfs": "squashfs-tools",
    "mmdebstrap": "mmdebstrap",
    "newuidmap": "uidmap",
    "qemu-aarch64": "qemu-user",
    "qemu-aarch64-static": "qemu-user-static",
    "qemu-arm": "qemu-user",
    "qemu-arm-static": "qemu-user-static",
    "qemu-system-aarch64": "qemu-system-arm",
    "rauc": "rauc",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
# The Python package that each program or module comes from. What only builds from source need is an
# extra of this one.
_BUILD = "'edgepack[build]'"
PYTHON_PACKAGES = {
    "cmake": _BUILD,
    "ninja": _BUILD,
    "tvm_ffi": "apache-tvm-ffi",
    "zig": _BUILD,
}


class ToolMissingError(ToolchainError):
    """A program is not installed; the hint says what installs it."""


def look_for(*names: str) -> Path | None:
    """The first of `names` that is here.

    A program of this Python environment goes before one of the PATH; the sbin folders count,
    too, which a user's PATH may lack.
    """
    own = sysconfig.get_path("scripts")
    for name in names:
        for path in (*([own] if name in PYTHON_PACKAGES else []), None, "/usr/sbin:/sbin"):
            if found := shutil.which(name, path=path):
                return Path(found)
    return None


def find_tool(name: str) -> Path:
    """The program called `name`. Raises ToolMissingError naming the package to install."""
    if (found := look_for(name)) is None:
        raise explain_missing(name)
    return found


def install(name: str) -> str:
    """The shell command that installs a program or module of the tables above."""
    if name in PYTHON_PACKAGES:
        return f"pip install {PYTHON_PACKAGES[name]}"
    return apt(DEBIAN_PACKAGES.get(name, name))


def apt(*packages: str) -> str:
    """The shell command that installs Debian packages."""
    return f"sudo apt-get install {' '.join(packages)}"


def need_tools(*wanted: Sequence[str]) -> None:
    """Of each of `wanted` one program must be here.

    Raises ToolMissingError naming all that are not, and the one command that installs them.
    """
    lost = [names[0] for names in wanted if look_for(*names) is None]
    if lost:
        packages = dict.fromkeys(DEBIAN_PACKAGES.get(name, name) for name in lost)
        raise explain_missing(", ".join(lost), apt(*packages))


def explain_missing(name: str, hint: str | None = None) -> ToolMissingError:
    """The error for `name`: one of the tables above, else with its own `hint`."""
    return ToolMissingError(f"not found: {name}", hint=hint or install(name))
