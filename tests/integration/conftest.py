from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration import sshd_server
from tests.integration.sshd_server import Sshd
from tests.support import require_tool


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server that a module's tests share."""
    require_tool("sshd", "/usr/sbin/sshd")
    server = sshd_server.start(tmp_path_factory.mktemp("ssh") / "device")
    yield server
    server.stop()
