"""Models of MLflow: folders as mlflow 3.17 wrote them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgepack.base.errors import UsageError
from edgepack.cli import main
from edgepack.flow.project import load_project
from edgepack.model.errors import SourceError
from edgepack.model.sources import local_model
from edgepack.model.sources.mlflow import check_place, read_about

# Written by mlflow.onnx.log_model, with a signature of photos of 96 x 128.
LOGGED = Path(__file__).parents[1] / "fixtures" / "mlflow"
RUN = "53488b6e40af4e5d8a568d2f02f94432"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(LOGGED, tmp_path / "logged")
    return tmp_path / "logged"


def test_the_signature_gives_the_size(folder: Path) -> None:
    about = read_about(folder)
    assert about is not None
    assert about.shapes == {"image": (-1, 3, 96, 128)} and about.run_id == RUN
    assert main(["init", "logged"]) == 0
    project = load_project(Path("edgepack.toml"))
    assert project.model == Path("logged/model.onnx")
    assert project.shapes == {"image": (1, 3, 96, 128)}


def test_mlmodel_says_which_of_several(folder: Path) -> None:
    shutil.copy(folder / "model.onnx", folder / "another.onnx")
    assert local_model(folder) == folder / "model.onnx"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flavors: {sklearn: {}}", "no flavor onnx.*sklearn"),
        ("flavors: {onnx: {data: ../../x.onnx}}", "is no file in its folder"),
        ("flavors: {onnx: {data: /etc/passwd}}", "is no file in its folder"),
        ("flavors: {onnx: {data: [1]}}", "is no file in its folder"),
        ("[1, 2", "not YAML"),
        ("!!python/object/apply:os.system ['touch x']", "not YAML"),
        ("[" * 5000, "not YAML"),
        ("1", "no flavor onnx"),
    ],
)
def test_files_that_are_none(folder: Path, text: str, words: str) -> None:
    (folder / "MLmodel").write_text(text)
    with pytest.raises(SourceError, match=words):
        local_model(folder)


@pytest.mark.parametrize("name", ["models:/a", "runs:/1/model", "models:/a/b/c", "models:/../3"])
def test_addresses_that_are_none(name: str) -> None:
    with pytest.raises(UsageError, match="not a model of MLflow"):
        local_model(name)


@pytest.mark.parametrize(
    ("server", "place", "is_taken"),
    [
        ("http://models.example", "mlflow-artifacts:/1/model", True),
        ("http://models.example", "s3://bucket/1/model", True),
        ("sqlite:///mlflow.db", "/srv/models/1", True),
        ("http://models.example", "/etc", False),
        ("https://models.example", "file:///etc", False),
        ("https://models.example", "FILE:/etc", False),
        ("https://models.example", "", False),
    ],
)
def test_a_server_that_says_its_files_are_here(server: str, place: str, is_taken: bool) -> None:
    """With a stand-in for the client, which knows the server's address."""
    client = SimpleNamespace(get_tracking_uri=lambda: server)
    if is_taken:
        check_place(place, "models:/a/1", client)
        return
    with pytest.raises(SourceError, match="that it lies on this machine"):
        check_place(place, "models:/a/1", client)
