"""Completions in Debian's fish and zsh; those in bash are in tests/unit/test_completion.py."""

from __future__ import annotations

import os
import pty
import select
from pathlib import Path

import pytest

from edgepack.base.process import run
from edgepack.cli import main
from tests.boards import unpacked

pytestmark = pytest.mark.slow

WORDS = [
    ("edgepack depl", "edgepack deploy "),
    ("edgepack fleet sta", "edgepack fleet status "),
    ("edgepack deploy --dry", "edgepack deploy --dry-run"),
    ("edgepack deploy --board rasp4", "edgepack deploy --board rasp4b"),
]
_PATIENCE_S = 300


@pytest.fixture(scope="module")
def shells() -> Path:
    return unpacked("shells", ["fish", "zsh"], suite="bookworm", arch="amd64")


@pytest.fixture
def script(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Path:
    """The completions for the shell that the test's parameter names."""
    assert main(["completion", request.param]) == 0
    file = tmp_path / "_edgepack"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    return file


def environment(root: Path, home: Path) -> dict[str, str]:
    libraries = [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"]
    return {
        "HOME": str(home),
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "PATH": "/usr/bin:/bin",
        "TERM": "dumb",
    }


@pytest.mark.parametrize("script", ["fish"], indirect=True)
@pytest.mark.parametrize(("typed", "completed"), WORDS)
def test_fish_completes(
    shells: Path, script: Path, tmp_path: Path, typed: str, completed: str
) -> None:
    command = f"source {script}; complete -C '{typed}'"
    said = run(
        [shells / "usr/bin/fish", "--no-config", "-c", command],
        env=environment(shells, tmp_path),
    ).stdout
    offered = [line.split("\t")[0] for line in said.splitlines()]
    assert any(word.startswith(completed.rsplit(maxsplit=1)[-1]) for word in offered), said


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
@pytest.mark.parametrize(("typed", "completed"), WORDS)
def test_zsh_completes(
    shells: Path, script: Path, tmp_path: Path, typed: str, completed: str
) -> None:
    """As typed at a terminal, with a tabulator behind it."""
    files = (shells / "usr/share/zsh/functions").rglob("*")
    functions = sorted({file.parent for file in files})
    setup = " ".join(
        [
            f"module_path=({shells}/usr/lib/x86_64-linux-gnu/zsh/5.9);",
            f"fpath=({script.parent} {' '.join(map(str, functions))});",
            "autoload -U compinit; compinit -u -D; PROMPT=; echo rea''dy",
        ]
    )
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execve(shells / "bin/zsh", ["zsh", "-f", "-i"], environment(shells, tmp_path))
        finally:
            os._exit(127)
    try:
        send(terminal, f"{setup}\n", "ready")
        send(terminal, f"{typed}\t", completed)
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def send(terminal: int, text: str, expected: str) -> None:
    """Type `text`, and wait until the terminal shows `expected`."""
    os.write(terminal, text.encode())
    shown = ""
    while expected not in shown:
        ready, _, _ = select.select([terminal], [], [], _PATIENCE_S)
        assert ready, shown
        shown += os.read(terminal, 4096).decode(errors="replace")
