"""Helpers for all tests."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from edgepack.base.paths import cache_dir, data_file


def require_tool(*names: str) -> str:
    """The path of the first of `names` that is installed.

    Without any, the test is skipped on a laptop and fails in CI, where a missing tool
    means a missing install step.
    """
    for name in names:
        if path := shutil.which(name):
            return path
    message = f"{' or '.join(names)} is not installed; ./dev test installs it"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def importable(*folders: Path) -> None:
    """Make what lies in `folders`, unpacked wheels, importable after all that is installed."""
    sys.path.extend(str(folder) for folder in folders if str(folder) not in sys.path)


def ctest_build(name: str) -> Path:
    """CMake's folder of a preset: one for each checkout, whose paths CMake writes into it."""
    checkout = hashlib.sha256(bytes(data_file("cpp_runtime"))).hexdigest()[:8]
    return cache_dir() / "ctest" / f"{name}-{checkout}"
