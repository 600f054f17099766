"""Bundles as .tar.gz: written reproducibly, unpacked without trust.

Writing: file order, modes, owners and times are fixed, and the gzip blocks are
stored, not compressed. The bytes of a compressed stream depend on the zlib that
Python was built with (zlib-ng gives others than zlib); float weights, most of a
bundle, would shrink by some 7 %.

Unpacking: `tarfile` is used to decode headers only. Its `filter="data"` can be
relied on from Python 3.11.5 and refuses less than this does: plain files and
folders with safe relative names under one top folder, each once, within limits.
Compressed archives are read too.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from edgepack.base.errors import BundleError
from edgepack.bundle.manifest import ManifestError, check_path

MAX_MEMBERS = 2000
MAX_BYTES = 4 << 30
_MAX_PATH = 255
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20
_STORED_MAX = 0xFFFF
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a named pipe",
}


class ArchiveError(BundleError):
    """The file is no .tar.gz, or is cut short or damaged."""


class UnsafeArchiveError(BundleError):
    """The archive holds something that no bundle has; nothing of it is kept."""


def write_tar_gz(
    out: Path, top: str, files: Iterable[tuple[str, Path, int]], *, mtime: int = 0
) -> str:
    """Write `files` (path in the archive below `top`, source, mode) to `out`; its SHA-256.

    The bytes depend on the arguments and the files' content only. `out` is replaced in
    one step. `mtime` is in seconds since 1970.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    work = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            _write(file, top, files, mtime)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        work.chmod(0o644)
        work.replace(out)
    except BaseException:
        work.unlink(missing_ok=True)
        raise
    return digest


def _write(file: IO[bytes], top: str, files: Iterable[tuple[str, Path, int]], mtime: int) -> None:
    stream = _StoredGzip(file)
    for path, source, mode in files:
        info = tarfile.TarInfo(f"{top}/{path}")
        info.mode, info.mtime, info.size = mode, mtime, source.stat().st_size
        stream.write(info.tobuf(tarfile.USTAR_FORMAT))
        left = info.size
        with source.open("rb") as data:
            while chunk := data.read(min(_CHUNK, left)):
                stream.write(chunk)
                left -= len(chunk)
        if left:
            raise BundleError(f"{source} was cut short while it was read")
        stream.write(b"\0" * (-info.size % _BLOCK))
    stream.write(b"\0" * (2 * _BLOCK))
    stream.finish()


class _StoredGzip:
    """A gzip stream (RFC 1952) of stored blocks (RFC 1951, 3.2.4)."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._pending = b""
        self._crc = 0
        self._size = 0
        # Deflate, no flags, no time, no level, unknown system.
        file.write(b"\x1f\x8b\x08\x00" + b"\0\0\0\0" + b"\x00\xff")

    def write(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        data = self._pending + data
        whole = len(data) - len(data) % _STORED_MAX
        for start in range(0, whole, _STORED_MAX):
            self._block(data[start : start + _STORED_MAX], last=False)
        self._pending = data[whole:]

    def finish(self) -> None:
        self._block(self._pending, last=True)
        self._file.write(struct.pack("<II", self._crc, self._size & 0xFFFFFFFF))

    def _block(self, data: bytes, *, last: bool) -> None:
        self._file.write(struct.pack("<BHH", last, len(data), len(data) ^ _STORED_MAX) + data)


def member_time(archive: Path) -> int:
    """The time of the first member of `archive`, in seconds since 1970.

    All members have the same in what `write_tar_gz` wrote. Raises `ArchiveError`.
    """
    try:
        with gzip.open(archive, "rb") as stream:
            return int(tarfile.TarInfo.frombuf(stream.read(_BLOCK), "ascii", "strict").mtime)
    except (OSError, EOFError, zlib.error, tarfile.HeaderError, ValueError) as error:
        raise ArchiveError(f"{archive}: damaged or no .tar.gz: {error}") from None


def unpack_tar_gz(
    archive: Path, out: Path, *, max_members: int = MAX_MEMBERS, max_bytes: int = MAX_BYTES
) -> Path:
    """Unpack `archive` into the empty folder `out`; the path of its one top folder.

    Raises `ArchiveError` if it is no gzip or tar, or is truncated or damaged, and
    `UnsafeArchiveError` for any link, device, unsafe or repeated name, a second top
    folder, or more than `max_members` members or `max_bytes` unpacked bytes.
    """
    try:
        with gzip.open(archive, "rb") as stream:
            return _Unpacker(archive, stream, out, max_members, max_bytes).run()
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ArchiveError(
            f"{archive}: damaged or no .tar.gz: {error}", hint="fetch or make the bundle again"
        ) from None
    except OSError as error:
        raise ArchiveError(f"{archive}: cannot unpack: {error}") from None


class _Unpacker:
    def __init__(
        self, archive: Path, stream: io.BufferedIOBase, out: Path, max_members: int, max_bytes: int
    ) -> None:
        self._archive = archive
        self._stream = stream
        self._out = out
        self._max_members = max_members
        self._max_bytes = max_bytes
        self._read_bytes = 0
        self._top: str | None = None

    def run(self) -> Path:
        seen: set[str] = set()
        while (info := self._next_header()) is not None:
            name = self._checked_name(info)
            if name in seen:
                raise self._unsafe(f"{name!r} is there twice")
            seen.add(name)
            if len(seen) > self._max_members:
                raise self._unsafe(f"more than {self._max_members} members")
            target = self._out / name
            try:
                if info.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    self._copy(info.size, file)
            except (FileExistsError, NotADirectoryError):
                raise self._unsafe(f"{name!r} is a file and a folder") from None
            target.chmod(0o755 if info.mode & 0o100 else 0o644)
        while self._read(_CHUNK):  # to the end of the stream, where the checksum is
            pass
        if self._top is None:
            raise ArchiveError(f"{self._archive}: an empty archive")
        return self._out / self._top

    def _next_header(self) -> tarfile.TarInfo | None:
        block = self._read_exactly(_BLOCK)
        if not any(block):
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "ascii", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise ArchiveError(f"{self._archive}: not a tar archive: {error}") from None

    def _checked_name(self, info: tarfile.TarInfo) -> str:
        if not (info.isdir() or info.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
            kind = _KINDS.get(info.type, f"of tar type {info.type!r}")
            raise self._unsafe(f"{info.name!r} is {kind}")
        try:
            check_path(info.name, limit=_MAX_PATH)
        except ManifestError:
            raise self._unsafe(f"{info.name!r} is not a safe relative path") from None
        top, _, below = info.name.partition("/")
        self._top = self._top or top
        if top != self._top or not (below or info.isdir()):
            raise self._unsafe(f"{info.name!r} is outside its top folder {self._top!r}")
        if info.size < 0 or (info.isdir() and info.size):
            raise self._unsafe(f"{info.name!r} has an impossible size")
        return info.name

    def _copy(self, size: int, file: IO[bytes]) -> None:
        if size > self._max_bytes - self._read_bytes:
            raise self._unsafe(f"more than {self._max_bytes} bytes")
        left = size
        while left:
            chunk = self._read_exactly(min(_CHUNK, left))
            file.write(chunk)
            left -= len(chunk)
        self._read_exactly(-size % _BLOCK)

    def _read_exactly(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) != size:
            raise EOFError("it ends too early")
        return data

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._read_bytes += len(data)
        if self._read_bytes > self._max_bytes:
            raise self._unsafe(f"more than {self._max_bytes} bytes")
        return data

    def _unsafe(self, problem: str) -> UnsafeArchiveError:
        return UnsafeArchiveError(
            f"{self._archive}: unsafe archive: {problem}",
            hint="a bundle holds plain files and folders only; do not use this one",
        )
