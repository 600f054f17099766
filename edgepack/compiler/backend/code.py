"""Machine code of kernels, kept by what it is made from: for other models and versions of one, too.

A file of the cache is a kernel's object file after its SHA-256; what is cut off or changed is made
again. It is written at once, so any number of processes may share the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx

from edgepack.base.paths import cache_dir, write_atomic

_DIGEST_BYTES = hashlib.sha256().digest_size
_HERE = Path(__file__).parent


def kept_code() -> Path:
    """The folder of the cache with the machine code of kernels."""
    return cache_dir() / "kernels"


class KeptCode:
    """Object files in `folder`, by key; nothing is kept if that is None."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """What is kept for `key`, or else what `make` makes."""
        if self._folder is None:
            return make()
        path = self._folder / f"{key}.o"
        kept = _read(path)
        if kept is None:
            kept = make()
            with contextlib.suppress(OSError):  # a full disk: the next one makes it again
                write_atomic(path, hashlib.sha256(kept).digest() + kept)
        return kept


def _read(path: Path) -> bytes | None:
    """The content of a whole entry, which is used now (see `edgepack.base.cache`)."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, kept = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(kept).digest() != digest:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return kept


def key_of(digest: str, name: str, target: tvm.target.Target) -> str:
    """A hash of all that a kernel's machine code depends on, of its function the digest."""
    return _hash(_maker(), str(target), name, digest)


def digest_of(function: tirx.PrimFunc) -> str:
    """A hash that only equal functions share."""
    # The shape and kind of what is between: only 64 bits, and mixed by additions.
    return _hash(repr(_content(function)), str(tvm_ffi.structural_hash(function)))


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:40]


def _content(kernel: tirx.PrimFunc) -> list[object]:
    """Every number, text, type, variable and kind of node of a kernel, in order.

    Its script says no more, leaves out long texts (those with assembly), and takes three times as
    long.
    """
    found: list[object] = []
    numbers: dict[int, int] = {}
    add = found.append

    def variable(var: tirx.Var) -> tvm_ffi.WalkResult:
        handle = hash(var)
        known = handle in numbers
        add(numbers.setdefault(handle, len(numbers)))
        if known:  # its type lies below it, at each use
            return tvm_ffi.WalkResult.SKIP
        add(var.name)
        return tvm_ffi.WalkResult.ADVANCE

    tvm_ffi.structural_walk(
        kernel,
        (
            ((tirx.IntImm, tirx.FloatImm, tvm.ir.StringImm), lambda number: add(number.value)),
            (tirx.Var, variable),
            (tvm.ir.PrimType, lambda scalar: add(str(scalar.dtype))),
            (str, add),
            (tvm_ffi.Array, lambda items: add(len(items))),
            (object, lambda node: add(type(node).__name__)),
        ),
        order="pre",
    )
    return found


@cache
def _maker() -> str:
    """What makes machine code of kernels: TVM, and the sources of this package."""
    digest = hashlib.sha256()
    for name in ("apache-tvm", "apache-tvm-ffi"):
        digest.update(importlib.metadata.version(name).encode() + b"\0")
    for path in sorted(_HERE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
