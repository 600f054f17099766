"""docs/guides/from-tvm.md: both tutorials are walked through, command by command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.cli import main, make_parser
from tests.boards import own_cache

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "from-tvm.md").read_text()
SECTIONS = {title: text for title, _, text in (s.partition("\n") for s in GUIDE.split("\n## ")[1:])}
# The first image size that all stages of a ResNet-18 make something of.
SMALL = ["--size", "64"]


@pytest.fixture(scope="module", autouse=True)
def _cache() -> Iterator[None]:
    with own_cache():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are typed, which is also home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def commands(section: str) -> list[list[str]]:
    """The lines of a section's code blocks, without `./dev`."""
    found = re.findall(r"^\./dev (.*)$", SECTIONS[section], re.MULTILINE)
    return [shlex.split(line, comments=True) for line in found]


def walk(section: str, capsys: pytest.CaptureFixture[str], extra: list[str]) -> dict[str, str]:
    """What each command printed, by its name."""
    printed = {}
    for program, *typed in commands(section):
        words = ["virtual" if word == "pi@192.168.1.20" else word for word in typed]
        if program == "python":
            script, *arguments = words
            argv = [sys.executable, str(ROOT / script), *arguments, *extra]
            subprocess.run(argv, env=dict(os.environ), check=True, capture_output=True)
            continue
        assert program == "edgepack"
        assert main(words) == 0, capsys.readouterr().err
        printed[words[0]] = capsys.readouterr().out
    return printed


@pytest.mark.slow
def test_the_raspberry_pi_sees_the_cat(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = walk("Deploy the pre-trained model on a Raspberry Pi", capsys, [])
    assert list(printed) == ["doctor", "deploy", "run", "bench"]
    for name in ("deploy", "run"):
        assert re.search(r"^ +0\.7\d+ +285 +Egyptian cat$", printed[name], re.MULTILINE)


@pytest.mark.slow
def test_the_quick_start_is_as_exact_as_it_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = walk("Quick start", capsys, SMALL)
    assert list(printed) == ["inspect", "compile", "deploy", "run", "bench"]
    built = folder / "build" / "resnet18-local"
    assert {"model.so", "graph.json", "params.bin"} <= {path.name for path in built.iterdir()}
    assert "max |error|" in printed["run"]
    (code,) = re.findall(r"```python\n(.*?)```", SECTIONS["Quick start"], re.DOTALL)
    exec(compile(code, "quick start", "exec"), {})  # the guide's own lines
    library, params = capsys.readouterr().out.split()
    assert Path(library).name == "model.so"
    assert Path(params).read_bytes() == (built / "params.bin").read_bytes()


def test_the_table_names_commands_and_options_that_exist() -> None:
    """Each `./dev edgepack ...` in the text is a line that the parser takes."""
    table = GUIDE.partition("\nBoth tutorials")[0]
    found = re.findall(r"`\./dev edgepack ([^`]+)`", table)
    assert len(found) >= 10
    for line in found:
        if line in ("compile", "run"):
            continue
        make_parser().parse_args(shlex.split(line))
