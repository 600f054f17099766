"""The little file system a full-system board boots from: kernel modules and a shell script."""

from __future__ import annotations

import gzip
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from edgepack.virtual.files import BoardFile
from edgepack.virtual.kernel import GuestKernel
from edgepack.virtual.rootfs import PI_UID

# Finds the disk, writes the board's own files to it and hands over to its process 1.
_INIT = """#!/bin/busybox sh
fail() { echo "$1"; poweroff -f; }
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module" || fail "insmod $module failed"; done < /order
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 200 ]; do usleep 50000; tries=$((tries + 1)); done
mount -t ext4 /dev/vda /disk || fail 'the disk cannot be mounted'
cp -a /files/. /disk/ || fail 'the disk cannot be written'
for folder in dev proc sys; do mount --move /$folder /disk/$folder; done
exec switch_root /disk /etc/board-init
"""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    path: str
    mode: int
    uid: int
    data: bytes


def build(kernel: GuestKernel, files: Sequence[BoardFile]) -> bytes:
    """A gzipped cpio archive that boots `kernel` into the root file system on /dev/vda.

    `files` are written over that root file system at each boot.
    """
    order = "".join(f"{path.name}\n" for path in kernel.modules)
    entries = [
        *(_folder(name) for name in ("bin", "dev", "disk", "files", "modules", "proc", "sys")),
        _file("init", _INIT.encode(), mode=0o755),
        _file("order", order.encode()),
        _file("bin/busybox", kernel.busybox.read_bytes(), mode=0o755),
        *(_file(f"modules/{path.name}", path.read_bytes()) for path in kernel.modules),
        *_overlay(files),
    ]
    return gzip.compress(_cpio(entries), compresslevel=1, mtime=0)


def _overlay(files: Sequence[BoardFile]) -> list[_Entry]:
    """`files` below /files, and the folders above them with the owner of what is inside."""
    entries: dict[str, _Entry] = {}
    for file in files:
        uid = PI_UID if file.owner == "pi" else 0
        path = PurePosixPath("files") / file.path.lstrip("/")
        for folder in reversed(path.parents[:-2]):
            own = uid if PurePosixPath("files/home") in folder.parents else 0
            private = folder.name in (".ssh", "root")
            entries.setdefault(
                str(folder), _folder(str(folder), mode=0o700 if private else 0o755, uid=own)
            )
        entries[str(path)] = _file(str(path), file.data, mode=file.mode, uid=uid)
    return list(entries.values())


def _folder(path: str, *, mode: int = 0o755, uid: int = 0) -> _Entry:
    return _Entry(path=path, mode=stat.S_IFDIR | mode, uid=uid, data=b"")


def _file(path: str, data: bytes, *, mode: int = 0o644, uid: int = 0) -> _Entry:
    return _Entry(path=path, mode=stat.S_IFREG | mode, uid=uid, data=data)


def _cpio(entries: Sequence[_Entry]) -> bytes:
    """The "newc" format: 110 bytes of hexadecimal fields, name and data, each padded to 4."""
    out = bytearray()
    end = _Entry(path="TRAILER!!!", mode=0, uid=0, data=b"")
    for number, entry in enumerate((*entries, end), start=1):
        name = entry.path.encode() + b"\0"
        links = 2 if stat.S_ISDIR(entry.mode) else 1
        fields = (number, entry.mode, entry.uid, entry.uid, links, 0, len(entry.data))
        numbers = (*fields, 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % value for value in numbers) + name
        out += bytes(-len(out) % 4) + entry.data
        out += bytes(-len(out) % 4)
    return bytes(out)
