"""Helpers for all tests."""

from __future__ import annotations

import os
import shutil

import pytest


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
