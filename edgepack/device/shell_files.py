"""Files on a device by its shell alone: adb, and SSH servers without SFTP.

What is used there is cat, dd, mv, mkdir and rmdir: of GNU, busybox and toybox.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from edgepack.base import text
from edgepack.base.errors import RemoteError
from edgepack.base.process import last_lines
from edgepack.device.base import RemoteResult, Stream
from edgepack.device.errors import TooMuchOutputError, disk_full
from edgepack.device.lines import MAX_FILE_BYTES

_CHUNK = 64_000
"""Two SSH packets."""

_SILENCE_S = 120.0


class ByteStream(Stream, Protocol):
    """One whose output need not be lines."""

    def read_piece(self, timeout_s: float) -> bytes:
        """What comes next, as it comes; empty at the end. Raises ConnectionLostError if nothing
        does for `timeout_s` seconds."""


def put(
    device: str,
    start: Callable[[str], ByteStream],
    local: Path,
    remote: str,
    *,
    offset: int,
    sent: Callable[[int], None] | None,
) -> None:
    """See `Device.put`; `start` runs a command on the one that is called `device`."""
    name = shlex.quote(remote)
    command = f"cat >{name}"
    if offset:
        # dd moves to the place, for whoever has the same open file: cat writes from there on.
        command = (
            f"[ -f {name} ] || {{ cat -- {name}; exit 1; }}\n"
            f"{{ dd bs=1 seek={offset} conv=notrunc </dev/null 2>/dev/null && cat; }} 1<>{name}"
        )
    stream = start(command)
    with contextlib.closing(stream), local.open("rb") as source:
        source.seek(offset)
        with contextlib.suppress(BrokenPipeError):  # the end says why
            while chunk := source.read(_CHUNK):
                stream.write(chunk)
                if sent:
                    sent(len(chunk))
        check(device, stream.finish(), remote)


def get(
    device: str,
    start: Callable[[str], ByteStream],
    remote: str,
    local: Path,
    *,
    moved: Callable[[int], None],
) -> None:
    """See `Device.get`; `start` as in `put`. `moved` is told the size of what has come."""
    stream = start(f"cat -- {shlex.quote(remote)}")
    size = 0
    with contextlib.closing(stream), local.open("wb") as target:
        while piece := stream.read_piece(_SILENCE_S):
            size += len(piece)
            check_size(device, remote, size)
            target.write(piece)
            moved(len(piece))
        check(device, stream.finish(), remote)


def rename_command(old: str, new: str) -> str:
    """What does `Device.rename`."""
    folder, slash, name = new.rpartition("/")
    folder += slash or "."
    aside = f"{folder}/.edgepack-{secrets.token_hex(8)}"
    source, target, into, own, there = map(
        shlex.quote, (old, new, folder, aside, f"{aside}/{name}")
    )
    # mv follows a link to a folder, toybox's even with -T, but not one that it finds in the
    # folder that things are moved into.
    return (
        f"[ -d {target} ] || exec mv -f -- {source} {target}\n"
        f"mkdir {own} && mv -- {source} {there} || exit 1\n"
        f"mv -f -- {there} {into} || {{ mv -- {there} {source}; false; }}\n"
        f"code=$?; rmdir {own}; exit $code"
    )


def check(device: str, done: RemoteResult, path: str) -> None:
    """Raise RemoteError, or DiskFullError, if what was done with `path` failed."""
    if done.returncode == 0:
        return
    said = text.printable(last_lines(done.stderr, 1).strip())
    if "No space left on device" in done.stderr:
        raise disk_full(device, f"  {path}: {said}")
    raise RemoteError(f"{path} on {device}: {said or f'exit code {done.returncode}'}")


def check_size(device: str, path: str, size: int) -> None:
    """Raise TooMuchOutputError for a file that is larger than any that is asked for."""
    if size > MAX_FILE_BYTES:
        raise TooMuchOutputError(f"{path} on {device}: more than {MAX_FILE_BYTES} bytes")
