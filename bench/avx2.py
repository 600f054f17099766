"""The peers on this machine as if its CPU had AVX2 and no AVX-512.

A program may use AVX-512 only where the system keeps its registers; it asks for that with XGETBV.
The peers' libraries are copied, and there the instruction becomes one that says AVX alone. What a
peer does then is what it does on a CPU with AVX2. It needs no option for that; most have none.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

from bench.fetch import bench_dir
from edgepack.base.errors import ToolchainError
from edgepack.base.paths import atomic_dir, locked

BOARDS = Path(__file__).with_name("avx2.toml")
BOARD = "avx2"
PACKAGES = ("ai_edge_litert", "ncnn", "onnxruntime", "openvino")

# XGETBV after `xor ecx, ecx` or a move between registers. After anything else the three bytes are
# parts of two instructions.
_XGETBV = re.compile(rb"(\x31\xc9|\x89[\xc0-\xff])\x0f\x01\xd0", re.DOTALL)
# mov al, 7; nop: bits 0 to 2, the x87's, SSE's and AVX's registers, of those below 8
_AVX_ONLY = b"\\1\xb0\x07\x90"


def site(python: Path) -> Path:
    """A folder for PYTHONPATH with the packages of `python`'s environment, held to AVX2."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    key = hashlib.sha256(str(packages).encode() + Path(__file__).read_bytes()).hexdigest()[:12]
    folder = bench_dir() / f"avx2-{key}"
    with locked(folder):
        if not folder.is_dir():
            with atomic_dir(folder) as work:
                for entry in packages.iterdir():
                    if entry.is_dir():
                        shutil.copytree(
                            entry, work / entry.name, symlinks=True, copy_function=os.link
                        )
                    else:
                        os.link(entry, work / entry.name)
                for package in PACKAGES:
                    if not _hold(work / package):
                        raise ToolchainError(f"{package} does not ask for AVX-512's registers")
    return folder


def without_avx512(library: bytes) -> bytes:
    """The library, in which no XGETBV tells of AVX-512's registers."""
    return _XGETBV.sub(_AVX_ONLY, library)


def _hold(package: Path) -> int:
    """Changes the libraries of a package; returns how many had something to change."""
    changed = 0
    for path in sorted(package.rglob("*.so*")):
        if path.is_symlink():
            continue
        before = path.read_bytes()
        after = without_avx512(before)
        if after != before:
            mode = path.stat().st_mode
            path.unlink()  # the other name of the file keeps its content
            path.write_bytes(after)
            path.chmod(mode)
            changed += 1
    return changed
