"""Which tests a change reaches: `./dev check` leaves out what compiles where nothing of the
compiler was changed, and dear tests whose file does not name what was changed; what does runs
first."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
        self._left_out: dict[str, set[str]] = {"tests": set(), "files": set()}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not collection_path.name.startswith("test_") or not self.leaves_out_file(
            collection_path
        ):
            return None
        self._left_out["files"].add(collection_path.name)
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left_out = [item for item in items if self.leaves_out(item.nodeid, item.path)]
        if left_out:
            self._left_out["tests"].update(item.nodeid for item in left_out)
            config.hook.pytest_deselected(items=left_out)
            gone = set(map(id, left_out))
            items[:] = [item for item in items if id(item) not in gone]
        items.sort(key=lambda item: not self._is_near(item.path))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        # Files may change while workers start.
        node.workerinput["changed"] = None if self._changed is None else sorted(self._changed)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker tells whom it works for."""
        if hasattr(session.config, "workeroutput"):
            said = {kind: sorted(names) for kind, names in self._left_out.items()}
            session.config.workeroutput["left_out"] = said

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for kind, names in getattr(node, "workeroutput", {}).get("left_out", {}).items():
            self._left_out[kind].update(names)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        kinds = {
            "tests": f"tests of {DEAR_S} s and more whose file names nothing that was changed",
            "files": "files that compile, for nothing that they reach was changed",
        }
        counts = {kind: len(names) for kind, names in self._left_out.items()}
        said = "; ".join(f"{counts[kind]} {what}" for kind, what in kinds.items() if counts[kind])
        if said:
            terminalreporter.write_line(f"left out, but not by ./dev test: {said}")

    def leaves_out_file(self, file: Path) -> bool:
        """Whether it compiles, and nothing that such a file reaches was changed."""
        if self._changed is None or self._reaches:
            return False
        if file.relative_to(_ROOT).as_posix() in self._changed:
            return False
        return any(map(_COMPILING.match, imports(file)))

    def costs_to_come(self) -> dict[str, float]:
        """The costs of the unit tests that are not left out."""
        files = {test.partition("::")[0] for test in self._costs}
        unit = {name: _ROOT / name for name in files if name.startswith("tests/unit/")}
        there = {
            name: file
            for name, file in unit.items()
            if file.exists() and not self.leaves_out_file(file)
        }
        return {
            test: cost
            for test, cost in self._costs.items()
            if (file := there.get(test.partition("::")[0])) and not self.leaves_out(test, file)
        }

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
