from __future__ import annotations

import time
from pathlib import Path

import pytest

from edgepack.base.errors import ToolchainError
from edgepack.base.process import Beside, run


def sleeper(started: Path) -> None:
    run(["sh", "-c", f"touch '{started}'; exec sleep 600"])


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_functions_beside_a_block_give_their_results() -> None:
    with Beside() as beside:
        word = beside.start(run, ["echo", "beside"])
        assert run(["echo", "here"]).stdout == "here\n"
    assert word.result().stdout == "beside\n"


def test_what_a_function_raises_comes_with_its_result() -> None:
    with pytest.raises(ToolchainError, match="exit code 3"), Beside() as beside:
        beside.start(run, ["sh", "-c", "exit 3"]).result()


def test_children_end_with_a_block_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Beside() as beside:
        slow = beside.start(sleeper, tmp_path / "started")
        wait_for(tmp_path / "started")
        _ = 1 / 0
    with pytest.raises(ToolchainError, match="exit code -9"):
        slow.result()


def test_a_child_that_starts_after_the_failure_ends_too(tmp_path: Path) -> None:
    def later() -> None:
        wait_for(tmp_path / "failed")
        sleeper(tmp_path / "started")

    beside = Beside()
    slow = beside.start(later)
    (tmp_path / "failed").touch()
    beside.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with pytest.raises(ToolchainError, match="exit code -9"):
        slow.result()
