"""Sources of C and C++ libraries, from the sdists of Python packages that carry them.

An sdist is pinned by its SHA-256, which pip compares before it looks inside. pip asks an
sdist for its metadata before it hands the file over; here the answer comes from the
PKG-INFO within, through a build backend that does nothing else: nothing of the package
runs, and none of the tools that it is built with are fetched.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ToolchainError
from edgepack.base.process import run

# Hooks of PEP 517; the name of the folder that the first one makes is PEP 491's. Some packages wrap
# a backend of their own around this one, and so the names of the others must be there.
_BACKEND = """
import email, pathlib, shutil

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = email.message_from_string(pathlib.Path("PKG-INFO").read_text(encoding="utf-8"))
    name = info["Name"].replace("-", "_")
    folder = pathlib.Path(metadata_directory) / f"{name}-{info['Version']}.dist-info"
    folder.mkdir()
    shutil.copy("PKG-INFO", folder / "METADATA")
    return folder.name

def get_requires_for_build_wheel(config_settings=None):
    return []

def build_wheel(*arguments, **options):
    raise NotImplementedError

build_sdist = get_requires_for_build_sdist = build_wheel
"""
# The packages whose place it takes, and the module that each keeps its hooks in.
_BACKENDS = {"setuptools": "build_meta", "hatchling": "build"}


@dataclass(frozen=True, kw_only=True)
class Sdist:
    """A pinned source package of the Python package index."""

    package: str
    version: str
    sha256: str


def fetch_sdist(sdist: Sdist, folder: Path) -> Path:
    """The .tar.gz of `sdist`, fetched into `folder` with pip.

    Raises ToolchainError if pip fails or the file is not the pinned one.
    """
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        backends = work / "backends"
        for package, module in _BACKENDS.items():
            (backends / package).mkdir(parents=True)
            (backends / package / "__init__.py").write_text(f"from {package} import {module}\n")
            (backends / package / f"{module}.py").write_text(_BACKEND)
        pin = work / "requirements.txt"
        pin.write_text(f"{sdist.package}=={sdist.version} --hash=sha256:{sdist.sha256}\n")
        got = work / "got"
        run(
            [
                *(_python_with_pip(work), "-m", "pip", "--disable-pip-version-check"),
                *("download", "--no-deps", "--no-build-isolation", f"--no-binary={sdist.package}"),
                *("--require-hashes", f"--requirement={pin}", f"--dest={got}"),
            ],
            env={"PYTHONPATH": str(backends)},
            what=f"fetching the sdist of {sdist.package} {sdist.version}",
        )
        (file,) = got.glob("*.tar.gz")
        # pip compared it, too; this holds for whatever `pip` is.
        check_sdist(file, sdist)
        return Path(shutil.move(file, folder))


def _python_with_pip(folder: Path) -> Path:
    """This Python, or one in `folder` if this one's environment has no pip."""
    if importlib.util.find_spec("pip") is not None:
        return Path(sys.executable)
    environment = folder / "venv"
    run([sys.executable, "-m", "venv", environment], what="making a Python environment")
    return environment / "bin" / "python"


def check_sdist(file: Path, sdist: Sdist) -> None:
    """Raises ToolchainError unless `file` is the one that `sdist` pins."""
    with file.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    if digest != sdist.sha256:
        raise ToolchainError(
            f"{file.name}: sha256 is {digest}, expected {sdist.sha256}",
            hint="the package index serves another file than PyPI; check its address",
        )


def unpack_sdist(file: Path, folder: Path, wanted: Callable[[str], str | None]) -> None:
    """Unpack members of `file` into `folder`.

    `wanted` gets a path below the archive's top folder and answers with the path below
    `folder`, or None for what is left out. Raises ToolchainError if that is not below it.
    """
    top = file.name.removesuffix(".tar.gz") + "/"
    with tarfile.open(file) as archive:
        for member in archive:
            target = wanted(member.name.removeprefix(top)) if member.isfile() else None
            if target is None:
                continue
            path = folder / target
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ToolchainError(f"{file.name}: {member.name} would be unpacked outside")
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not `extract`: only Pythons newer than Debian 12's know its filters.
            data = archive.extractfile(member)
            assert data is not None  # a regular file
            with data, path.open("wb") as out:
                shutil.copyfileobj(data, out)
