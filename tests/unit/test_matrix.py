"""`edgepack matrix`: which jobs a CI gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgepack.cli import main

FLEET = """
[devices.one]
address = "one"
board = "rasp3b"
labels = { site = "berlin" }
[devices.two]
address = "two"
board = "rasp3b"
[devices.three]
address = "three"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, board in (("doors", 'board = "rk3399"\n'), ("parking", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(b"")
        (tmp_path / name / "edgepack.toml").write_text(
            f'[project]\nname = "{name}"\nmodel = "model.onnx"\n{board}'
        )
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "empty.toml").write_text("[defaults]\nboard = 'rasp3b'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def jobs(capsys: pytest.CaptureFixture[str], *words: str) -> list[tuple[str, str]]:
    assert main(["matrix", *words]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1  # $GITHUB_OUTPUT takes one line
    return [(job["name"], job["board"]) for job in json.loads(out)["include"]]


def test_a_job_for_each_project_and_board(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ("doors/edgepack.toml", "parking/edgepack.toml")
    assert jobs(capsys, both[0]) == [("doors", "rk3399")]
    assert jobs(capsys, *both, "--board", "rasp3b", "--board", "local", "--board", "rasp3b") == [
        ("doors", "rasp3b"), ("doors", "local"), ("parking", "rasp3b"), ("parking", "local"),
    ]  # fmt: skip
    assert main(["matrix", both[0]]) == 0
    (job,) = json.loads(capsys.readouterr().out)["include"]
    assert job["triple"] == "aarch64-linux-gnu"
    assert job["debian_arch"] == "arm64"


def test_the_boards_of_a_fleet_each_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("parking/edgepack.toml", "--fleet", "fleet.toml")
    assert jobs(capsys, *words, "--board", "local") == [("parking", "local"), ("parking", "rasp3b")]
    assert jobs(capsys, *words, "--limit", "site=berlin") == [("parking", "rasp3b")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("parking/edgepack.toml",), "no board is named"),
        (("parking/edgepack.toml", "--board", "raspb3"), "unknown board: raspb3"),
        (("parking/edgepack.toml", "--fleet", "fleet.toml"), "three has no board"),
        (("parking/edgepack.toml", "--limit", "one"), "only with --fleet"),
        (("doors/edgepack.toml", "--fleet", "fleet.toml", "--board", "local", "--board", "pynq"),
         "there is one board"),
        (("nowhere.toml",), "nowhere.toml"),
        # Not the project's own board, which nobody has.
        (("doors/edgepack.toml", "--fleet", "empty.toml"), "no devices in it"),
        (("doors/edgepack.toml",) * 257, "257 jobs; a CI takes at most 256"),
    ],
)  # fmt: skip
def test_what_no_job_can_be_made_of(
    folder: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["matrix", *words]) == 2
    assert said in capsys.readouterr().err
