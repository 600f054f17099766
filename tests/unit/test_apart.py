"""Work in a process of its own: what comes back, and how its end is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from edgepack.base import apart
from edgepack.base.apart import Apart, CrashError, LimitError, Limits
from edgepack.base.errors import ModelError
from edgepack.base.progress import NO_PROGRESS, NoProgress, Progress


def square(number: int, *, progress: Progress = NO_PROGRESS) -> tuple[int, int]:
    progress.step(f"squaring {number}")
    print("a library's word")
    return os.getpid(), number * number


def refuse() -> None:
    raise ModelError("model.onnx: no", hint="another")


def divide() -> float:
    return 1 / (os.getpid() * 0)


def abort() -> None:
    apart.at("importing Conv 'first'")
    os.abort()


def fill() -> int:
    apart.at("folding constants")
    return len(np.ones(1 << 30))


def spin() -> None:
    apart.at("lowering it")
    while True:
        pass


def test_the_result_and_the_steps_come_back() -> None:
    steps: list[str] = []

    class Steps(NoProgress):
        def step(self, text: str) -> None:
            steps.append(text)

    pid, result = Apart().call(square, 7, progress=Steps())
    assert (result, steps) == (49, ["squaring 7"])
    assert pid != os.getpid()
    assert Apart().call(square, 8)[1] == 64  # nobody listens
    assert steps == ["squaring 7"]


def test_its_variables_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPACK_HERE", "here")
    there = Apart(environment={"EDGEPACK_THERE": "there"})
    assert there.call(os.getenv, "EDGEPACK_THERE") == "there"
    assert there.call(os.getenv, "EDGEPACK_HERE") == "here"
    assert "EDGEPACK_THERE" not in os.environ


def test_its_errors_are_of_their_own_class_and_a_bug_has_its_traceback() -> None:
    with pytest.raises(ModelError, match=r"^model.onnx: no") as caught:
        Apart().call(refuse)
    assert caught.value.hint == "another"
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        Apart().call(divide)


def test_a_crash_says_how_and_at_what() -> None:
    with pytest.raises(CrashError) as caught:
        Apart().call(abort)
    assert (caught.value.how, caught.value.at) == (
        signal.Signals(signal.SIGABRT).name,
        "importing Conv 'first'",
    )


def test_memory_and_time_have_limits() -> None:
    # numpy takes 8 GiB; what the interpreter itself needs is far below the limit.
    with pytest.raises(LimitError) as caught:
        Apart(limits=Limits(memory_mb=1024, cpu_s=60)).call(fill)
    assert (caught.value.what, caught.value.at) == ("memory", "folding constants")
    with pytest.raises(LimitError) as caught:
        Apart(limits=Limits(memory_mb=1024, cpu_s=1)).call(spin)
    assert (caught.value.what, caught.value.at) == ("cpu", "lowering it")


LEFT_OPEN = """
import gc
from edgepack.base.apart import Apart
assert Apart().call(len, "four") == 4
gc.collect()
"""


def test_no_pipe_is_left_open() -> None:
    """As `python -W always` says, and a program that runs for weeks would feel. In an interpreter
    of its own: in this one, what other tests forgot is found at any time."""
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", LEFT_OPEN]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ran.stderr == ""
