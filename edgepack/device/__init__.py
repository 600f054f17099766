"""Reachable machines: over SSH or adb, this machine, or a virtual board.

`open_device` is the door; everything behind it is used through the Protocol
`Device`. SSH libraries are imported in `edgepack.device.ssh` only.
"""

from __future__ import annotations

from edgepack.base.errors import RefusedError, UsageError
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.boards import Board
from edgepack.device import adb
from edgepack.device.base import Device, RemoteResult
from edgepack.device.errors import (
    AuthError,
    ChangedHostKeyError,
    ConnectionLostError,
    DiskFullError,
    NotExecutableError,
    NotStartedError,
    ProxyError,
    RemoteCommandError,
    RemoteTimeout,
    TooMuchOutputError,
    UnknownHostKeyError,
    UnreachableError,
)
from edgepack.device.local import LocalDevice
from edgepack.device.options import COMMAND_TIMEOUT_S, Address, SshOptions
from edgepack.virtual.state import VirtualBoard

__all__ = [
    "Address",
    "AuthError",
    "ChangedHostKeyError",
    "ConnectionLostError",
    "Device",
    "DiskFullError",
    "LocalDevice",
    "NotExecutableError",
    "NotStartedError",
    "ProxyError",
    "RefusedError",
    "RemoteCommandError",
    "RemoteResult",
    "RemoteTimeout",
    "SshOptions",
    "TooMuchOutputError",
    "UnknownHostKeyError",
    "UnreachableError",
    "open_device",
    "open_virtual",
]


def open_device(
    spec: str,
    board: Board,
    *,
    options: SshOptions | None = None,
    opencl: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Device:
    """Connect to the device that `spec` names, and return it; the caller closes it.

    `spec` is `user@host[:port]`, an alias of the OpenSSH configuration, `adb:SERIAL` (a phone;
    `adb:` for the only phone), `local` (this machine) or `virtual` (the board's virtual board,
    started if needed, with a driver of OpenCL if `opencl`). Of `options`, all but the time limits
    are for SSH.

    Raises:
        UsageError: `spec` has none of these forms, or `local` is used for another board.
        ConnectError: a subclass says why the device cannot be used.
    """
    options = options or SshOptions()
    if spec == "local":
        if not board.is_local:
            raise UsageError(
                f"--device local: {board.name} is not this machine",
                hint=f"--board local, or the address of the {board.name}",
            )
        return LocalDevice(timeout_s=options.command_timeout_s)
    if (serial := adb.serial_of(spec)) is not None:
        return adb.AdbDevice(
            serial,
            timeout_s=options.command_timeout_s,
            connect_timeout_s=options.connect_timeout_s,
        )
    from edgepack.device.ssh import SshDevice

    if spec == "virtual":
        if board.is_local:
            return LocalDevice(timeout_s=options.command_timeout_s)
        from edgepack import virtual

        return open_virtual(
            virtual.up(board, opencl=opencl, progress=progress),
            timeout_s=options.command_timeout_s,
        )
    return SshDevice(Address.parse(spec), options=options)


def open_virtual(board: VirtualBoard, *, timeout_s: float | None = COMMAND_TIMEOUT_S) -> Device:
    """Connect to a running virtual board, by its own key and host key."""
    from edgepack.device.ssh import SshDevice

    device = SshDevice(
        Address(host=board.host, user=board.user, port=board.port),
        options=SshOptions(
            use_config=False,
            identity=board.key_file,
            identities_only=True,
            host_keys=(board.host_key,),
            command_timeout_s=timeout_s,
        ),
        name=f"virtual {board.name}",
    )
    device.is_emulated = True
    return device
