"""Which tests a change reaches: `./dev check` leaves out what compiles where nothing of the
compiler was changed, and runs first what imports a changed module."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent
_IMPORT = re.compile(r"^\s*(?:from|import) ([\w.]+)", re.MULTILINE)
_COMPILING = re.compile(
    r"(edgepack\.(compiler|kernels|tuning|quantization|flow\.(verify|quantize))|tvm)(\.|$)"
)
"""The modules by whose import a file of tests compiles: half of the unit tests' time."""
_REACHED = re.compile(
    r"edgepack/(base|bundle|compiler|cpus|cycles|formats|frontend|gpus|kernels|model|native|"
    r"quantization|tuning|flow/(verify|quantize|reference|adversarial))|tests/[^/]+$|[^/]+$"
)
"""Files that such tests reach."""


class Reach:
    """A plugin for pytest; `changed` are files below the root, None if nobody knows."""

    def __init__(self, changed: Sequence[str] | None) -> None:
        self._changed = None if changed is None else frozenset(changed)
        self._reaches = changed is None or any(map(_REACHED.match, changed))

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if self._changed is None or not collection_path.name.startswith("test_"):
            return None
        name = collection_path.relative_to(_ROOT).as_posix()
        if self._reaches or name in self._changed:
            return None
        return any(map(_COMPILING.match, imports(collection_path))) or None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: not self._is_near(item.path))

    def pytest_report_header(self) -> str | None:
        if self._reaches:
            return None
        return "left out: tests that compile, for nothing that they reach was changed (./dev test)"

    def _is_near(self, file: Path) -> bool:
        """Whether it is a changed file of tests, or imports a changed module."""
        changed = self._changed or frozenset()
        names = [one.replace(".", "/") for one in imports(file)]
        return file.relative_to(_ROOT).as_posix() in changed or any(
            f"{name}.py" in changed or f"{name}/__init__.py" in changed for name in names
        )


@functools.cache
def imports(file: Path) -> tuple[str, ...]:
    """The modules that a file names in import statements, wherever they are."""
    return tuple(_IMPORT.findall(file.read_text(encoding="utf-8")))


def changed_files() -> list[str] | None:
    """What differs from where this branch left main, files that git does not know among it; None
    if git cannot say."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout

    try:
        base = next(filter(None, map(_base, ("origin/main", "main"))), "HEAD")
        listed = git("diff", "--name-only", base) + git(
            "ls-files", "--others", "--exclude-standard"
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return listed.splitlines()


def _base(branch: str) -> str | None:
    words = ["git", "merge-base", "HEAD", branch]
    done = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
