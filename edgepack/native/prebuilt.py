"""What was built before: wheels `edgepack-runtime-<triple>` with the app and the device tool.

`./dev wheels` makes them; they are installed, or lie where --find-links says. Each build lies in a
folder that has the name of its folder in the cache, which holds a hash of all that went into it:
one of other sources, flags or compilers is not found.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from edgepack.base.kept import keep
from edgepack.base.paths import NotCachedError, cache_dir
from edgepack.base.progress import Progress
from edgepack.base.version import VERSION
from edgepack.native.wheel_places import find_wheel, places

_KIND = "prebuilt"
"""The folder of the cache with what was taken of wheels."""

LICENSES = "licenses"
"""The folder beside a program with a text for each library in it."""


def read_licenses(folder: Path) -> dict[str, str]:
    """The licence texts beside a program, by name."""
    files = sorted((folder / LICENSES).iterdir())
    return {file.name: file.read_text(encoding="utf-8") for file in files}


def package_of(triple: str) -> str:
    """The distribution for boards of a GNU triple, e.g. "edgepack-runtime-aarch64-linux-gnu"."""
    return f"edgepack-runtime-{triple}"


def module_of(triple: str) -> str:
    """The importable name of `package_of`."""
    return package_of(triple).replace("-", "_")


def is_available(triple: str) -> bool:
    """Whether the package for `triple` is installed, or at a place where wheels are looked for,
    whatever was built for it. Raises `WheelError`."""
    if importlib.util.find_spec(module_of(triple)) is not None:
        return True
    return find_wheel(package_of(triple)) is not None


def find_prebuilt(triple: str, kind: str, name: str) -> Path | None:
    """The folder `kind`/`name` of the package for `triple`; None if there is none.

    What is installed goes first, then what was taken of a wheel before, into the cache, then what
    was built here. Raises `WheelError` if a wheel is not what it should be.
    """
    spec = importlib.util.find_spec(module_of(triple))
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / kind / name
        if folder.is_dir():
            return folder
    kept = cache_dir() / _KIND / f"{kind}-{name}"
    if not os.path.lexists(kept) and (not places() or (cache_dir() / kind / name).exists()):
        return None
    try:
        return keep(kept, lambda work: _unpack(triple, kind, name, work))
    except (NotCachedError, _NoneError):
        return None


class _NoneError(Exception):
    """No wheel has it."""


def _unpack(triple: str, kind: str, name: str, work: Path) -> None:
    wheel = find_wheel(package_of(triple))
    folder = f"{module_of(triple)}/{kind}/{name}"
    if wheel is None or not wheel.has(folder):
        raise _NoneError
    for file in wheel.files(folder):
        path = work / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(0o755 if file.is_program else 0o644)


def say_why_built(triple: str, what: str, progress: Progress) -> None:
    """One line: `what` is built from source, and why."""
    package = package_of(triple)
    if importlib.util.find_spec(module_of(triple)) is not None:
        why = f"the {package} that is installed was made with other sources, flags or compilers"
    elif wheel := find_wheel(package):
        why = f"{wheel.source} was made with other sources, flags or compilers"
    elif places():
        why = f"no {package} {VERSION} is in {' or '.join(places())}"
    else:
        why = f"{package} is not installed"
    progress.step(f"building {what} from source: {why}")
