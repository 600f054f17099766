"""What the compiler put into the libraries of a build folder."""

from __future__ import annotations

from pathlib import Path

_NOTHING_TO_GUARD = ("libtest_support", "libllhttp")
"""llhttp's functions have no arrays, and take no local variable's address."""


def unguarded(build: Path) -> list[str]:
    """The names of static libraries without a single guarded stack frame."""
    archives = [path for path in build.rglob("lib*.a") if path.stem not in _NOTHING_TO_GUARD]
    assert archives
    return [path.name for path in archives if b"__stack_chk_fail" not in path.read_bytes()]
