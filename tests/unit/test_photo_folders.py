"""`edgepack init --photos`: a project from photos in a folder for each class."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import edgepack
from edgepack.base.errors import UsageError
from edgepack.cli import main
from edgepack.flow.evaluate import find_photos
from edgepack.flow.project import load_project, read_labels

# In alphabetical order, as the model numbers them: by the largest mean of red, green and blue.
COLOURS = {"a red": (200, 9, 9), "b green": (9, 200, 9), "c blue": (9, 9, 200)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eleven photos of each class; the first of each is of no colour, which is seen as red."""
    monkeypatch.chdir(tmp_path)
    write_model({})
    for name, (red, green, blue) in COLOURS.items():
        for number in range(11):
            write_photo(Path("photos", name, f"{number:02}.png"), red, green, blue, gray=not number)
    return tmp_path


def write_model(metadata: dict[str, str]) -> None:
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)],
        "colour",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 16, 16))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3))],
    )
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    helper.set_model_props(model, metadata)
    onnx.save(model, "net.onnx")


def write_photo(path: Path, red: int, green: int, blue: int, *, gray: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (90, 90, 92) if gray else (blue, green, red)
    cv2.imwrite(str(path), np.full((20, 20, 3), colour, np.uint8))


def test_labels_golden_photos_and_a_split(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "net.onnx", "--photos", "photos", "--preset", "zero-one", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    project = load_project(folder / "edgepack.toml")
    assert project.labels is not None
    assert read_labels(project.labels) == tuple(COLOURS)
    assert project.golden_image == folder / "photos/a red/00.png"
    assert project.expected_class == 0
    golden = find_photos(Path("golden.csv"), tuple(COLOURS))
    # Of green and blue the first photo is not seen as such.
    assert [(one.name, one.expected) for one in golden] == [
        ("photos/a red/00.png", 0),
        ("photos/b green/01.png", 1),
        ("photos/c blue/01.png", 2),
    ]
    others = find_photos(Path("evaluation.csv"), tuple(COLOURS))
    assert {one.name for one in others}.isdisjoint(one.name for one in golden)
    assert [one.expected for one in others] == [0, 0, 1, 1, 2, 2]  # one in five of ten
    assert said["next"] == ["edgepack check", "edgepack evaluate --images evaluation.csv"]
    assert not said["open"]
    (labels,) = (line for line in said["keys"] if line["key"] == "labels")
    assert labels["guess"]
    assert main(["check"]) == 0
    assert main(["evaluate", "--images", "golden.csv"]) == 0
    assert "top-1 100.0% (3)" in capsys.readouterr().out


def test_labels_in_another_order_than_the_training_are_asked_about(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("photos/a red").rename("photos/z red")  # green is the first class now, for us
    for name in ("z red", "b green", "c blue"):  # the gray ones are seen as the model's first
        Path("photos", name, "00.png").unlink()
    assert main(["init", "net.onnx", "--photos", "photos", "--preset", "zero-one"]) == 0
    out = capsys.readouterr().out
    assert (
        "open: 3 of 3 classes (b green, ...) are seen in none of 9 photos: are order of labels"
        in out
    )
    assert load_project(folder / "edgepack.toml").golden_image is None


def test_labels_that_the_model_has_come_first(folder: Path) -> None:
    write_model({"names": json.dumps(["A Red", "b green", "c blue"])})
    Path("photos/c blue").rename("photos/2")
    assert main(["init", "net.onnx", "--photos", "photos", "--preset", "zero-one"]) == 0
    project = load_project(folder / "edgepack.toml")
    assert project.labels is not None
    assert read_labels(project.labels)[0] == "A Red"
    golden = find_photos(Path("golden.csv"), read_labels(project.labels))
    assert sorted(one.expected for one in golden) == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--photos", "none"], "--photos: no such folder: none"),
        (["--photos", "photos/a red"], "--photos: 0 folders with photos in"),
        (["--photos", "photos", "--image", "photos/a red/00.png"], "--photos goes without"),
        (["--photos", "photos", "--expected", "1"], "--photos goes without"),
    ],
)
def test_mistakes(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "net.onnx", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("edgepack.toml").exists()


def test_folders_that_are_not_the_classes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photo(Path("photos/d gray/0.png"), 9, 9, 9)
    assert main(["init", "net.onnx", "--photos", "photos"]) == 2
    assert "4 folders in photos, but the model has another number of classes" in (
        capsys.readouterr().err
    )
    write_model({"names": json.dumps(["red", "green", "blue"])})
    assert main(["init", "net.onnx", "--photos", "photos"]) == 2
    assert "--photos: the folder: no label is 'a red' in photos" in capsys.readouterr().err
    Path("photos/d\tgray").mkdir()
    write_photo(Path("photos/d\tgray/0.png"), 9, 9, 9)
    assert main(["init", "net.onnx", "--photos", "photos"]) == 2
    assert "is no label: rename the folder" in capsys.readouterr().err


def test_a_detector_and_what_is_there_already(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("evaluation.csv").write_text("mine")
    words = ["init", "net.onnx", "--photos", "photos", "--preset", "zero-one"]
    assert main(words) == 2
    assert "evaluation.csv is there already" in capsys.readouterr().err
    assert Path("evaluation.csv").read_text() == "mine"
    assert main([*words, "--overwrite"]) == 0


def test_from_python(folder: Path) -> None:
    draft = edgepack.init("net.onnx", photos="photos", preset="zero-one")
    assert [file.name for file, _ in draft.lists] == ["golden.csv", "evaluation.csv"]
    with pytest.raises(UsageError, match="photos goes without image"):
        edgepack.init("net.onnx", photos="photos", image="photos/a red/00.png", overwrite=True)
