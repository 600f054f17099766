"""What can go wrong between this machine and a device, one class per cause."""

from __future__ import annotations

import re

from edgepack.base import text
from edgepack.base.errors import ConnectError, RefusedError, RemoteError, TimeLimitError
from edgepack.base.process import last_lines
from edgepack.device.base import RemoteResult

_NO_SPACE = "No space left on device"
_NO_QUOTA = re.compile("(Disk q|Q)uota exceeded")
"""EDQUOT, as glibc and as musl put it."""
_NO_INODES = re.compile(r"^Filesystem +I.*\n.*?\s\d+ +\d+ +0 +(?:100%|-)", re.MULTILINE)
"""What `df -i` says where no file can be made, in a file system with a fixed number of them."""

_FOLDER_REASONS = {
    "Permission denied": "a folder that this login may write: --root",
    "Operation not permitted": "a folder that this login may write: --root",
    "Read-only file system": "a folder on a file system that can be written: --root; or its disk "
    "is failing, and was made read-only (dmesg)",
    "Not a directory": "something that is no folder is in the way: another --root",
    "File exists": "something that is no folder is in the way: another --root",
    "Input/output error": "its disk may be failing (dmesg says more)",
    "File name too long": "a shorter --root",
}
NOT_OURS = "belongs to user"
OPEN_TO_ALL = "can be written by everybody"
SHELL_CODES = {
    126: "the program is there but cannot be executed: is its file system mounted noexec, or does "
    "SELinux forbid it?",
    127: "the program, or its dynamic loader, is not there",
}
"""What a shell's own exit codes may mean."""


class UnreachableError(ConnectError):
    """Nothing answers at the address, or there is no such device."""


class UnknownHostKeyError(ConnectError):
    """The device's host key is in no known_hosts file."""


class ChangedHostKeyError(ConnectError):
    """known_hosts has another key for the device, or this one is revoked."""


class OtherDeviceError(ConnectError):
    """What answers at the address is not the device that it was."""


class AuthError(RefusedError):
    """The device does not take our login."""


class ProxyError(RefusedError):
    """The command that leads to the device fails; to try again is in vain if that `is_lasting`."""

    def __init__(self, message: str, *, hint: str | None = None, is_lasting: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_lasting = is_lasting


class ConnectionLostError(ConnectError):
    """The connection broke off in use."""


class RemoteCommandError(RemoteError):
    """A command on the device ended with an exit code other than 0."""


class DiskFullError(RemoteError):
    """The device has no space left."""


class NotExecutableError(RemoteError):
    """Programs cannot run in the folder there."""


class TooMuchOutputError(RemoteError):
    """A device says more than any answer has."""


class NotStartedError(RemoteError):
    """The login's shell did not run what it was given."""


class RemoteTimeout(TimeLimitError):  # noqa: N818 - named like TimeoutError's kind elsewhere
    """A command on the device took longer than its limit."""


class TooSlowError(TimeLimitError):
    """All that a device was asked, or one phase of it, takes longer than it may as a whole."""


def command_error(device: str, result: RemoteResult) -> RemoteError:
    """The error for a failed command, with the last ten lines of its output."""
    lines = _lines(result)
    for line in result.stderr.splitlines():
        if NOT_OURS in line or OPEN_TO_ALL in line:
            return RemoteError(
                f"{device}: {text.one_line(line)}",
                hint="log in as its owner, or choose another folder with --root",
            )
    if _NO_SPACE in result.stderr or _NO_QUOTA.search(result.stderr):
        return disk_full(device, lines)
    what = f"command failed on {device} with exit code {result.returncode}"
    return RemoteCommandError(
        f"{what}: {shorten(result.command)}\n{lines}".rstrip(),
        hint=SHELL_CODES.get(result.returncode),
    )


def not_started(device: str, result: RemoteResult) -> NotStartedError:
    """The error for a login whose shell ended before the command, with what it said."""
    what = f"{device}: its login shell does not run commands (exit code {result.returncode})"
    return NotStartedError(
        f"{what}\n{_lines(result)}".rstrip(),
        hint="`ssh` to it with a command, such as `true`, shows the same: see the account's "
        "shell, and what its start files do",
    )


def make_timeout_error(device: str, command: str, timeout_s: float | None) -> RemoteTimeout:
    """The error for a command that takes longer than `timeout_s`."""
    return RemoteTimeout(
        f"command took longer than {timeout_s} s on {device}: {shorten(command)}",
        hint="--device-timeout S gives it longer",
    )


def disk_full(device: str, detail: str) -> DiskFullError:
    """The error for ENOSPC and EDQUOT; `detail` is what the device said, `df -i` of it as well."""
    if _NO_QUOTA.search(detail):
        return no_quota(device, detail)
    full = DiskFullError(
        f"no space left on {device}\n{detail}".rstrip(),
        hint="free some space there (df -h), or deploy to another file system with --root",
    )
    return inodes_left(device, full, detail)


def no_quota(device: str, detail: str) -> DiskFullError:
    """The error for EDQUOT alone: what the whole disk has left is beside the point."""
    return DiskFullError(
        f"the disk quota of this login on {device} is used up\n{detail}".rstrip(),
        hint="free some of it there (quota -s), or deploy elsewhere with --root",
    )


def inodes_left(device: str, error: DiskFullError, df: str) -> DiskFullError:
    """`error`, or one that says that a quota is used up, or inodes, if `df -i` says so."""
    if _NO_QUOTA.search(error.message):
        return error if "quota -s" in str(error.hint) else no_quota(device, f"  {error.message}")
    if not _NO_INODES.search(df):
        return error
    return DiskFullError(
        f"no more files can be made on {device}: its file system has no inodes left",
        hint="remove files there, however small (df -i), or deploy to another file system "
        "with --root",
    )


def root_error(device: str, root: str, result: RemoteResult) -> RemoteError:
    """The error for a root folder that cannot be made or written, as `result` says."""
    said = result.stderr.strip()
    if _NO_SPACE in said or _NO_QUOTA.search(said):
        return disk_full(device, text.message(said))
    for reason, hint in _FOLDER_REASONS.items():
        if reason in said:
            first = next(line for line in said.splitlines() if reason in line)
            return RemoteError(
                f"{device}: {root} cannot be used: {text.one_line(first)}", hint=hint
            )
    return command_error(device, result)


def _lines(result: RemoteResult) -> str:
    lines = last_lines(result.stdout + "\n" + result.stderr).split("\n")
    return "\n".join(text.shorten(text.printable(line), text.MAX_NAME) for line in lines)


def shorten(command: str) -> str:
    """The first line of `command`, at most 100 characters."""
    line = command.strip().split("\n", 1)[0]
    return line if len(line) <= 100 and line == command else f"{line[:100]} …"
