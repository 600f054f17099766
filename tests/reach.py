"""Which tests a change reaches: `./dev check` leaves out what compiles where nothing of the
compiler was changed, and dear tests whose file does not name what was changed; what does runs
first."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Mapping, Sequence
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


DEAR_S = 0.2
"""CPU seconds from which on a test is dear: one of thirty, and half of their time."""


class Reach:
    """A plugin for pytest; `changed` are files below the root, None if nobody knows. `costs` are
    tests' CPU seconds of the last time, by their ids."""

    def __init__(
        self, changed: Sequence[str] | None, costs: Mapping[str, float] | None = None
    ) -> None:
        self._changed = None if changed is None else frozenset(changed)
        self._reaches = changed is None or any(map(_REACHED.match, changed))
        self._costs = costs or {}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if self._changed is None or not collection_path.name.startswith("test_"):
            return None
        name = collection_path.relative_to(_ROOT).as_posix()
        if self._reaches or name in self._changed:
            return None
        return any(map(_COMPILING.match, imports(collection_path))) or None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left_out = [item for item in items if self.leaves_out(item.nodeid, item.path)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            gone = set(map(id, left_out))
            items[:] = [item for item in items if id(item) not in gone]
        items.sort(key=lambda item: not self._is_near(item.path))

    def pytest_report_header(self) -> str | None:
        if self._changed is None:
            return None
        kinds = "" if self._reaches else "what compiles, for nothing that it reaches was changed; "
        return (
            f"left out: {kinds}tests of {DEAR_S} s and more whose file names nothing that was "
            "changed (./dev test)"
        )

    def leaves_out(self, test: str, file: Path) -> bool:
        """Whether a test is dear, and its file names nothing that was changed."""
        return (
            self._changed is not None
            and self._costs.get(test, 0) >= DEAR_S
            and not self._is_near(file)
        )

    def _is_near(self, file: Path) -> bool:
        """Whether it is a changed file of tests, imports a changed module, or names the folder, or
        the file without one, of something else that was changed."""
        changed = self._changed or frozenset()
        names = [one.replace(".", "/") for one in imports(file)]
        if file.relative_to(_ROOT).as_posix() in changed or any(
            f"{name}.py" in changed or f"{name}/__init__.py" in changed for name in names
        ):
            return True
        text = _text(file)
        others = {Path(one).parts[0] for one in changed if not one.endswith(".py")}
        return any(f'"{other}' in text or f"/{other}" in text for other in others)


@functools.cache
def imports(file: Path) -> tuple[str, ...]:
    """The modules that a file names in import statements, wherever they are."""
    return tuple(_IMPORT.findall(_text(file)))


@functools.cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


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
