"""Completions, as the shells have them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from edgepack.base.text import printable
from edgepack.cli import COMMANDS, main

TRY = """
source "$0"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_shtab_edgepack
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "edgepack.bash"
    with pytest.MonkeyPatch.context() as patch, file.open("w") as out:
        patch.setattr("sys.stdout", out)
        assert main(["completion", "bash"]) == 0
    return file


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["depl"], {"deploy"}),
        (["fleet", "st"], {"status"}),
        (["deploy", "--dry"], {"--dry-run"}),
        (["deploy", "--board", "rasp3b-"], {"rasp3b-64"}),
        (["board", "up", "pyn"], {"pynq"}),
        (["service", "rem"], {"remove"}),
    ],
)
def test_bash_completes(script: Path, words: list[str], found: set[str]) -> None:
    bash = ["bash", "-c", TRY, script, "edgepack", *words]
    done = subprocess.run(bash, check=True, capture_output=True, text=True)
    assert found <= set(done.stdout.split())
    assert len(done.stdout.split()) <= 2


@pytest.mark.parametrize("shell", ["fish", "zsh"])
def test_the_others_know_all_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)
    assert "rasp3b" in out
    assert printable(out) == out
