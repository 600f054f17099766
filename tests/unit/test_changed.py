"""`edgepack check --changed`, which the hook for pre-commit calls with the names of files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from edgepack.cli import main
from edgepack.flow.changed import projects_of
from tests.onnx_models import one_conv

ROOT = Path(__file__).parents[2]
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two projects, one of them with labels and a photo, and a model of no project."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b/deep"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        one_conv(folder / "net.onnx")
        (folder / "edgepack.toml").write_text('[project]\nmodel = "net.onnx"\n')
    (tmp_path / "b/deep/labels.txt").write_text("one\ntwo\n")
    one_conv(tmp_path / "b/other.onnx")
    (tmp_path / "README.txt").write_text("about it\n")
    return tmp_path


def hook(files: Sequence[str], *options: str) -> int:
    """What pre-commit does: the entry, with those of the files that it is for."""
    wanted = [file for file in files if re.search(HOOK["files"], file)]
    program, *words = shlex.split(HOOK["entry"])
    assert program == "edgepack"
    return main([*options, *words, *wanted]) if wanted else 0


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["a/edgepack.toml"], ["a/edgepack.toml"]),
        (["a/net.onnx"], ["a/edgepack.toml"]),
        (["a/net.onnx", "a/edgepack.toml"], ["a/edgepack.toml"]),
        (["b/deep/labels.txt"], []),  # of no project
        (["b/other.onnx"], ["b/other.onnx"]),
        (["README.txt"], []),
        (["b/deep/net.onnx", "a/net.onnx"], ["b/deep/edgepack.toml", "a/edgepack.toml"]),
    ],
)
def test_files_belong_to_projects(repository: Path, files: list[str], found: list[str]) -> None:
    assert projects_of([Path(file) for file in files]) == tuple(map(Path, found))


def test_a_file_that_a_project_above_names(repository: Path) -> None:
    (repository / "edgepack.toml").write_text(
        '[project]\nmodel = "b/other.onnx"\n[postprocess]\nkind = "ctc"\ncharset = "./b/keys.txt"\n'
    )
    (repository / "b/keys.txt").write_text("a\n")
    for file in ("b/other.onnx", "b/keys.txt"):
        assert projects_of([Path(file)]) == (Path("edgepack.toml"),)


def test_the_hook_passes_what_is_right(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["a/edgepack.toml", "b/deep/net.onnx", "b/other.onnx", "README.txt", "code.py"]
    assert hook(files) == 0
    assert capsys.readouterr().out == (
        "a/edgepack.toml: ok\nb/deep/edgepack.toml: ok\nb/other.onnx: ok\n"
    )
    assert hook(["code.py"]) == 0
    assert hook(["README.txt"]) == 0


def test_the_hook_names_each_mistake(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "a/edgepack.toml").write_text('[project]\nmodle = "net.onnx"\n')
    (repository / "b/deep/net.onnx").write_bytes(b"no model")
    assert hook(["a/edgepack.toml"]) == 2
    assert "a/edgepack.toml: project.modle: unknown key" in capsys.readouterr().err
    assert hook(["b/deep/net.onnx"]) == 3
    assert "b/deep/net.onnx" in capsys.readouterr().err
    files = ["a/edgepack.toml", "b/deep/net.onnx", "b/other.onnx"]
    assert hook(files, "--json") == 2
    told = capsys.readouterr()
    rows, _ = json.JSONDecoder().raw_decode(told.out)  # the error follows
    assert [row["project"] for row in rows] == [
        *("a/edgepack.toml", "b/deep/edgepack.toml", "b/other.onnx")
    ]
    assert [row["problem"] is None for row in rows] == [False, False, True]
    assert "unknown key" in told.err
    assert "b/deep/net.onnx" in told.err


def test_a_photo_that_a_project_names_is_looked_at(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = repository / "a"
    cv2.imwrite(str(folder / "photo.png"), np.zeros((8, 8, 3), np.uint8))
    (folder / "edgepack.toml").write_text(
        '[project]\nmodel = "net.onnx"\ngolden_image = "photo.png"\nexpected_class = 7\n'
        '[preprocess]\nresize = { mode = "exact", height = 16, width = 16 }\n'
    )
    assert hook(["a/photo.png"]) == 2
    told = capsys.readouterr()
    assert told.out == "a/edgepack.toml: failed\n"
    assert "a/edgepack.toml: expected_class: no class can be seen in a/photo.png" in told.err


def test_what_cannot_be_asked(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "a/net.onnx", "--changed", "a/edgepack.toml"]) == 2
    assert "--changed goes without" in capsys.readouterr().err
    assert main(["check", "--changed", "a/none.onnx"]) == 2
    assert "no such file: a/none.onnx" in capsys.readouterr().err
