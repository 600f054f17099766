"""What the programs in `cpp_runtime` are made of, for the keys of the caches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

_SUFFIXES = frozenset({".c", ".cc", ".cmake", ".h", ".txt"})
_ONLY_TESTS = frozenset({"fuzz", "tests"})


def source_hashes(program: Path, *, tests: bool = False) -> dict[str, str]:
    """SHA-256 of each source by path, of `cpp_runtime/<program>` and of what programs share.

    Those of tests and fuzzers only with `tests`; never what CMake left in `build` folders.
    """
    root = program.parent
    skipped = {"build"} if tests else {"build", *_ONLY_TESTS}
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in (program, root / "common")
        for path in _files(folder, skipped)
    }


def _files(folder: Path, skipped: set[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in skipped:
                yield from _files(path, skipped)
        elif path.suffix in _SUFFIXES:
            yield path
