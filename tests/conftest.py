from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import support


@pytest.fixture(scope="session")
def require_tool() -> Callable[..., str]:
    """`require_tool(name, ...)`: see tests.support."""
    return support.require_tool
