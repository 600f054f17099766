"""What was built before: wheels `edgepack-runtime-<triple>` with the app and the device tool.

`./dev wheels` makes them. Each build lies in a folder that has the name of its folder in the cache,
which holds a hash of all that went into it: one of other sources, flags or compilers is not found.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from edgepack.base.progress import Progress

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


def is_installed(triple: str) -> bool:
    """Whether the package for `triple` is there, whatever was built for it."""
    return importlib.util.find_spec(module_of(triple)) is not None


def find_prebuilt(triple: str, kind: str, name: str) -> Path | None:
    """The folder `kind`/`name` of the package for `triple`; None if it is not there."""
    spec = importlib.util.find_spec(module_of(triple))
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / kind / name
    return folder if folder.is_dir() else None


def say_why_built(triple: str, what: str, progress: Progress) -> None:
    """One line: `what` is built from source, and why."""
    package = package_of(triple)
    if not is_installed(triple):
        why = f"{package} is not installed"
    else:
        why = f"the {package} that is installed was made with other sources, flags or compilers"
    progress.step(f"building {what} from source: {why}")
