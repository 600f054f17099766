"""What can go wrong with a virtual board, one class per cause."""

from __future__ import annotations

import shutil
from pathlib import Path

from edgepack.base.errors import ConfigError, ConnectError, ToolchainError, UsageError


class NoVirtualBoardError(ConfigError):
    """The board's profile has no `virtual` table, so nothing can imitate it."""


class BoardConflictError(UsageError):
    """A board of that name runs already, as something other than what was asked for."""


class ToolMissingError(ToolchainError):
    """A program that virtual boards need is not installed."""


class RootfsError(ToolchainError):
    """A root file system or kernel could not be fetched or made."""


class BoardStartError(ConnectError):
    """A virtual board did not come up, or its sshd never answered."""


class LightBoardError(BoardStartError):
    """This kernel or container forbids what the light board needs."""


# The Debian and Ubuntu package that each program comes from.
_PACKAGES = {
    "apt-config": "apt",
    "apt-get": "apt",
    "debugfs": "e2fsprogs",
    "mke2fs": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "qemu-aarch64": "qemu-user",
    "qemu-aarch64-static": "qemu-user-static",
    "qemu-arm": "qemu-user",
    "qemu-arm-static": "qemu-user-static",
    "qemu-system-aarch64": "qemu-system-arm",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}


def find_tool(name: str) -> Path:
    """The program called `name`, also from the sbin folders that a user's PATH may lack.

    Raises ToolMissingError naming the package to install.
    """
    for path in (None, "/usr/sbin:/sbin"):
        if found := shutil.which(name, path=path):
            return Path(found)
    raise missing(name, _PACKAGES[name])


def missing(what: str, package: str) -> ToolMissingError:
    """The error for `what`, which comes with the apt package `package`."""
    return ToolMissingError(f"not found: {what}", hint=f"sudo apt-get install {package}")
