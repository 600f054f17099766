"""What can go wrong between this machine and a device, one class per cause."""

from __future__ import annotations

from edgepack.base.errors import ConnectError, RemoteError, TimeLimitError
from edgepack.base.process import last_lines
from edgepack.device.base import RemoteResult

_NO_SPACE = "No space left on device"


class UnreachableError(ConnectError):
    """No SSH server answers at the address."""


class UnknownHostKeyError(ConnectError):
    """The device's host key is in no known_hosts file."""


class ChangedHostKeyError(ConnectError):
    """known_hosts has another key for the device, or this one is revoked."""


class AuthError(ConnectError):
    """The device knows none of our keys."""


class ConnectionLostError(ConnectError):
    """The connection broke off in use."""


class RemoteCommandError(RemoteError):
    """A command on the device ended with an exit code other than 0."""


class DiskFullError(RemoteError):
    """The device has no space left."""


class RemoteTimeout(TimeLimitError):  # noqa: N818 - named like TimeoutError's kind elsewhere
    """A command on the device took longer than its limit."""


def command_error(device: str, result: RemoteResult) -> RemoteError:
    """The error for a failed command, with the last ten lines of its output."""
    lines = last_lines(result.stdout + "\n" + result.stderr)
    if _NO_SPACE in result.stderr:
        return disk_full(device, lines)
    what = f"command failed on {device} with exit code {result.returncode}"
    return RemoteCommandError(f"{what}: {shorten(result.command)}\n{lines}".rstrip())


def disk_full(device: str, detail: str) -> DiskFullError:
    """The error for ENOSPC; `detail` is what the device said."""
    return DiskFullError(
        f"no space left on {device}\n{detail}".rstrip(),
        hint="free some space there (df -h), or deploy to another file system with --root",
    )


def shorten(command: str) -> str:
    """The first line of `command`, at most 100 characters."""
    line = command.strip().split("\n", 1)[0]
    return line if len(line) <= 100 and line == command else f"{line[:100]} …"
