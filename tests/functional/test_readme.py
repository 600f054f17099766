"""Every command that the README shows is run here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.base import paths
from edgepack.cli import main
from tests.boards import own_cache
from tests.example import load_build

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DEV = ROOT / "dev"
# Of a whole line in a code block, and of a piece in the text.
COMMANDS = [
    re.sub(r"\s+#.*", "", command)
    for command in re.findall(r"^(\./dev .*)$|`(\./dev [^`]+)`", README, re.MULTILINE)
    for command in command
    if command
]
EDGEPACK = [command for command in COMMANDS if command.startswith("./dev edgepack ")]


def test_the_readme_shows_what_this_file_runs() -> None:
    assert {command for command in COMMANDS if command not in EDGEPACK} == {
        "./dev demo",  # below
        "./dev test",  # runs this file
        "./dev wheels",  # test_wheels.py
    }
    assert len(EDGEPACK) >= 7


def test_the_demo_names_the_cat_and_the_coffee(cache: Path) -> None:
    done = subprocess.run(
        [DEV, "demo"],
        env={**os.environ, "EDGEPACK_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\n +0\.7\d+ +285 +Egyptian cat\n", done.stdout)
    assert re.search(r"\n +0\.99\d+ +967 +espresso\n", done.stdout)
    assert "(limit 1e-04)" in done.stdout
    assert len(done.stdout.partition("\nnext:\n")[2].splitlines()) == 3


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """Boards of our own, so that the user's rasp3b is not touched; what is built is shared."""
    with own_cache(*(venv.name for venv in paths.cache_dir().glob("venv-*"))) as folder:
        yield folder


@pytest.fixture(scope="module")
def folder(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example as a user's own model.onnx."""
    out = tmp_path_factory.mktemp("own")
    load_build().build(out)
    shutil.copy(out / "mobilenetv2.onnx", out / "model.onnx")
    fleet = re.search(r"```toml\n(# fleet\.toml\n.*?)```", README, re.DOTALL)
    assert fleet is not None
    (out / "fleet.toml").write_text(fleet[1])
    return out


@pytest.mark.parametrize("command", EDGEPACK)
def test_the_command_works(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    words = command.split()[2:]
    if "pi@192.168.1.20" in words:
        words[words.index("pi@192.168.1.20")] = "virtual"
        words += ["--board", "rasp3b"] if "--board" not in words else []
    if words[0] == "bench":
        words += ["-n", "1", "--warmup", "0"]
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out
