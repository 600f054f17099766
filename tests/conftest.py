from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.base.paths import set_cache_dir
from tests import support
from tests.costs import Costs


def pytest_configure(config: pytest.Config) -> None:
    # The same cache as ./dev uses.
    if cache := os.environ.get("EDGEPACK_CACHE"):
        set_cache_dir(Path(cache))
    # A shell ignores it for what it runs in the background; tests and what they start do not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Costs(config), "costs")


@pytest.fixture(scope="session")
def require_tool() -> Callable[..., str]:
    """`require_tool(name, ...)`: see tests.support."""
    return support.require_tool
