"""Models of MLflow: folders as mlflow 3.17 wrote them, photos and tables."""

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
from edgepack.model.sources.mlflow import check_place, columns_of, read_about

# Written by mlflow.onnx.log_model, with a signature of photos of 96 x 128.
LOGGED = Path(__file__).parents[1] / "fixtures" / "mlflow"
# The same of skl2onnx's logistic regression on Fisher's irises, with a table's signature.
TABLE = LOGGED.with_name("mlflow-table")
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


# ------------------------------------------------ tables

# Two of Fisher's irises, a setosa and a virginica, whose columns lie in another order than the
# model's, beside one that is no input.
IRISES = """\
petal width (cm),note,petal length (cm),kind,sepal width (cm),sepal length (cm)
0.2,x,1.4,0,3.5,5.1
2.5,,6.0,2,3.3,6.3
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TABLE, tmp_path / "irises")
    assert main(["init", "irises"]) == 0
    Path("rows.csv").write_text(IRISES)
    return tmp_path / "irises"


def with_types(folder: Path, *types: str) -> None:
    """Give the table's columns other types."""
    file = folder / "MLmodel"
    parts = file.read_text().split('"float"')
    assert len(parts) == len(types) + 1
    file.write_text(
        parts[0] + "".join(f'"{t}"{part}' for t, part in zip(types, parts[1:], strict=True))
    )


def test_columns_are_found_by_their_names(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [one.name for one in columns_of(table / "model.onnx")] == [
        "sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)",
    ]  # fmt: skip
    capsys.readouterr()
    assert main(["check", "--rows", "rows.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in lines] == ["line 2: label 0", "line 3: label 2"]
    assert main(["evaluate", "--rows", "rows.csv", "--target", "kind"]) == 0
    assert "accuracy 100.0% (2)" in capsys.readouterr().out
    # Without names they come in the signature's order.
    Path("rows.csv").write_text("\n5.1,3.5,1.4,0.2\n6.3,3.3,6.0,2.5\n")
    assert main(["check", "--rows", "rows.csv"]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    # So they do where MLmodel is of another file.
    shutil.copy(table / "model.onnx", "own.onnx")
    assert columns_of(Path("own.onnx")) == ()


def test_types(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_types(table, "double", "boolean", "long", "integer")
    head = "sepal length (cm),sepal width (cm),petal length (cm),petal width (cm)\n"
    Path("rows.csv").write_text(f"{head}5.1,True,1,0\n")
    capsys.readouterr()
    assert main(["check", "--rows", "rows.csv"]) == 0
    said = capsys.readouterr().out
    with_numbers = Path("rows.csv")
    with_numbers.write_text(f"{head}5.1,1,1,0\n")
    assert main(["check", "--rows", "rows.csv"]) == 0
    assert capsys.readouterr().out == said
    for row, words in (
        (
            "5.1,2,1,0",
            "line 2: sepal width (cm): '2' is no boolean, which the column is by MLmodel",
        ),
        ("5.1,1,1.5,0", "line 2: petal length (cm): '1.5' is no long"),
        ("5.1,1,,0", "line 2: petal length (cm): '' is no long"),
        ("5.1,1,1,3000000000", "line 2: petal width (cm): '3000000000' is no integer"),
        ("x,1,1,1", "line 2: sepal length (cm): 'x' is no float32"),
    ):
        Path("rows.csv").write_text(f"{head}{row}\n")
        assert main(["check", "--rows", "rows.csv"]) == 2
        assert words in capsys.readouterr().err


def test_tables_that_do_not_fit(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    words = ["evaluate", "--rows", "rows.csv", "--target", "petal width (cm)"]
    assert main(words) == 2
    assert "column 'petal width (cm)' is an input of the model" in capsys.readouterr().err
    Path("rows.csv").write_text(IRISES.replace("sepal length", "length of sepal"))
    assert main(["check", "--rows", "rows.csv"]) == 2
    assert "rows.csv: no column 'sepal length (cm)'" in capsys.readouterr().err
    with_types(table, "float", "string", "float", "float")
    assert main(["check", "--rows", "rows.csv"]) == 2
    error = capsys.readouterr().err
    assert "MLmodel: signature.inputs: column 'sepal width (cm)' is of type 'string'" in error
    file = table / "MLmodel"
    file.write_text(
        file.read_text().replace("inputs: '[", """inputs: '[{"type": "float", "name": "a"}, """)
    )
    assert main(["check", "--rows", "rows.csv"]) == 2
    assert "signature.inputs: 5 columns, but the model takes 4 numbers" in capsys.readouterr().err
