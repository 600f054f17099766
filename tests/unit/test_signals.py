"""A command that is asked to end: nothing that it started stays, and it says why it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.base.errors import TimeLimitError
from edgepack.base.process import processes, run

# A program that starts another in a process group of its own, as ninja starts compilers, which
# starts one in a session of its own, as what runs apart does.
TREE = """
import os, subprocess, sys, time
from pathlib import Path
depth = int(sys.argv[2])
Path(sys.argv[1], str(depth)).write_text(str(os.getpid()))
if depth < 3:
    own = {"process_group": 0} if depth == 1 else {"start_new_session": True}
    subprocess.Popen([sys.executable, __file__, sys.argv[1], str(depth + 1)], **own)
time.sleep(600)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """The program, as a file in a folder where each of its processes leaves its number."""
    path = tmp_path / "tree.py"
    path.write_text(TREE)
    yield path
    for number in tmp_path.glob("[123]"):
        if int(number.read_text()) in {one.pid for one in processes()}:
            os.kill(int(number.read_text()), signal.SIGKILL)


def numbers_of(tree: Path) -> set[int]:
    """The numbers of its three processes, once all run."""
    files = [tree.parent / str(depth) for depth in (1, 2, 3)]
    while not all(file.exists() and file.read_text() for file in files):
        time.sleep(0.01)
    return {int(file.read_text()) for file in files}


def have_ended(numbers: set[int]) -> bool:
    deadline = time.monotonic() + 10
    while running := numbers & {one.pid for one in processes()}:
        if time.monotonic() > deadline:
            pytest.fail(f"still run: {running}")
        time.sleep(0.01)
    return True


def begin(tree: Path) -> subprocess.Popen[str]:
    """`edgepack doctor`, whose `ssh -V` is the tree."""
    program = tree.parent / "ssh"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {tree} {tree.parent} 1\n")
    program.chmod(0o755)
    return subprocess.Popen(
        [sys.executable, "-m", "edgepack", "doctor", "--board", "local"],
        env={**os.environ, "PATH": f"{tree.parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests under nohup has these ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
    )


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGHUP, 129, "hung up"),
    ],
)
def test_a_signal_ends_all_that_a_command_started(
    tree: Path, number: int, code: int, word: str
) -> None:
    command = begin(tree)
    running = numbers_of(tree)
    command.send_signal(number)
    _, err = command.communicate(timeout=60)
    assert (command.returncode, err) == (code, f"error: {word}\n")
    assert have_ended(running)


def test_the_second_signal_ends_a_command_that_takes_long_to_end(tmp_path: Path) -> None:
    """Whoever is closing a connection that hangs, and the interpreter waiting for a thread."""
    script = (
        "import sys, threading, time\n"
        "from edgepack import __main__\n"
        "import edgepack.cli\n"
        "def main(argv):\n"
        "    try:\n"
        "        print('begun', flush=True)\n"
        "        time.sleep(600)\n"
        "    finally:\n"
        "        print('closing', flush=True)\n"
        "        time.sleep(600)\n"
        "edgepack.cli.main = main\n"
        "__main__.entry_point()\n"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    for word in ("begun", "closing"):
        assert command.stdout.readline() == f"{word}\n"
        command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert (command.returncode, err.strip()) == (130, "error: interrupted")


def test_a_signal_while_the_interpreter_ends_changes_nothing(tmp_path: Path) -> None:
    """A thread that nobody waits for, as an SSH connection's, must not keep Python from ending."""
    script = (
        "import threading, time\n"
        "from edgepack import __main__\n"
        "import edgepack.cli\n"
        "def main(argv):\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(600)\n"
        "edgepack.cli.main = main\n"
        "__main__.entry_point()\n"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    assert command.stdout.readline() == "begun\n"
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert (command.returncode, err.strip()) == (130, "error: interrupted")


def test_a_time_limit_ends_all_that_a_program_started(tree: Path) -> None:
    with pytest.raises(TimeLimitError):
        run([sys.executable, tree, tree.parent, "1"], timeout_s=2)
    assert have_ended(numbers_of(tree))


def test_nohup_keeps_a_command_running_when_its_terminal_closes(tree: Path) -> None:
    script = (
        "import signal, time\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from edgepack.cli.signals import hear_signals\n"
        "hear_signals()\n"
        "signal.raise_signal(signal.SIGHUP)\n"
        "print('still here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "still here\n"
