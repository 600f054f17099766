"""`repair` as the operator's side sees it."""

from __future__ import annotations

from typing import Any

import pytest

from edgepack.base.errors import EdgepackError
from edgepack.deploy import remote_tool
from edgepack.device.base import RemoteResult


class Device:
    """Answers every command alike."""

    name = "pi"

    def __init__(self, stdout: str, returncode: int) -> None:
        self._done = RemoteResult(command="", returncode=returncode, stdout=stdout, stderr="")

    def run(self, command: str, *, check: bool = True) -> RemoteResult:
        assert command.endswith("--json repair")
        return self._done


def repair(stdout: str, returncode: int) -> Any:
    device: Any = Device(stdout, returncode)
    return remote_tool.repair(device, "edgepack/tiny")


def test_what_is_lost_is_an_answer_and_no_error() -> None:
    assert repair('{"mended":["a"],"lost":[]}', 0).mended == ("a",)
    assert repair('{"mended":[],"lost":["b"]}', 5).lost == ("b",)


@pytest.mark.parametrize(
    ("stdout", "returncode"),
    [
        ('{"error":{"kind":"damaged","message":"no lost and found","hint":""}}', 5),
        ('{"error":{"kind":"usage","message":"unknown command: repair","hint":""}}', 2),
        ('{"mended":[],"lost":7}', 5),
        ('{"mended":[]}', 0),
        ("", 5),
    ],
)
def test_all_else_is(stdout: str, returncode: int) -> None:
    with pytest.raises(EdgepackError):
        repair(stdout, returncode)
