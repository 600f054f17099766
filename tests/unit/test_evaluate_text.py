"""`evaluate` of what reads: error rates, the files, and which projects it is for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.base.errors import ConfigError, UsageError
from edgepack.cli import main
from edgepack.deploy.answers import Answer
from edgepack.deploy.app_answers import AppAnswer
from edgepack.flow.evaluate_text import (
    ErrorRates,
    ReadPhoto,
    TextEvaluation,
    _lines_there,
    edit_distance,
    evaluate_text,
    reading_stage,
    reads_text,
)
from edgepack.flow.project import load_project

CHARACTERS = "abc "


@pytest.mark.parametrize(
    ("right", "read", "edits"),
    [
        ("kitten", "sitting", 3),  # Levenshtein's classic
        ("saturday", "sunday", 3),
        ("", "abc", 3),
        ("abc", "", 3),
        ("same", "same", 0),
        (["the", "cat", "sat"], ["the", "dog", "cat", "sat"], 1),
    ],
)
def test_edits_between_sequences(right: list[str], read: list[str], edits: int) -> None:
    assert edit_distance(right, read) == edit_distance(read, right) == edits


def test_rates_are_over_all_texts_together() -> None:
    """2 of 10 letters, and 1 of 3 words; more than is there is more than all of it."""
    rates = ErrorRates.of([("ab cd", "ab xx"), ("abcde", "abcde")])
    assert (rates.letters, rates.words) == (2 / 10, 1 / 3)
    assert ErrorRates.of([("a", "b c d")]).words == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader whose three steps are the brightness of thirds of the photo, and two photos."""
    # Scores (steps, 1, classes): blank, and a, b, c and the space, of which the nearest wins.
    levels = np.array([0, 60, 120, 180, 240], np.float32) / 255
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2], keepdims=0),
        helper.make_node("Transpose", ["mean"], ["steps"], perm=[1, 0]),
        helper.make_node("Unsqueeze", ["steps", "axis"], ["columns"]),
        helper.make_node("Sub", ["columns", "levels"], ["apart"]),
        helper.make_node("Abs", ["apart"], ["far"]),
        helper.make_node("Neg", ["far"], ["scores"]),
    ]
    values = [
        numpy_helper.from_array(np.array([2]), "axis"),
        numpy_helper.from_array(levels, "levels"),
    ]
    graph = helper.make_graph(
        nodes,
        "reader",
        [helper.make_tensor_value_info("x", 1, [1, 3, 1, 3])],
        [helper.make_tensor_value_info("scores", 1, [3, 1, 5])],
        values,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "reader.onnx")
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, thirds in (("one.png", (60, 120, 180)), ("two.png", (180, 240, 60))):
        gray = np.array([thirds], np.uint8)
        cv2.imwrite(str(photos / name), np.dstack([gray] * 3))
    (photos / "one.txt").write_text("abc\n")
    (photos / "two.txt").write_text("c\nb\n")
    (tmp_path / "edgepack.toml").write_text(
        '[project]\nmodel = "reader.onnx"\n[preprocess]\nscale = 0.00392156862745098\n'
        'resize = {mode = "exact", height = 1, width = 3}\n'
        '[postprocess]\nkind = "ctc"\ncharacters = ["a", "b", "c", " "]\n'
    )
    return tmp_path


def test_photos_are_read_and_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "abc" is right; "c a" is read where "c b" is: a letter of 6, a word of 3."""
    found = evaluate_text(load_project(folder / "edgepack.toml"), folder / "photos")
    assert [(one.expected, one.reference) for one in found.photos] == [
        ("abc", "abc"),
        ("c b", "c a"),
    ]
    assert found.on_device is None
    monkeypatch.chdir(folder)
    assert main(["evaluate", "--images", "photos", "--json", "--html", "page.html"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["reference"] == {"letters": 1 / 6, "words": 1 / 3}
    assert answer["device"] is None
    assert "c b" in (folder / "page.html").read_text()
    assert main(["evaluate", "--images", "photos"]) == 0
    said = capsys.readouterr().out
    assert "error rate of letters 16.7%, of words 33.3%" in said
    assert "one.png" not in said


def test_what_a_device_reads_is_compared_too() -> None:
    """Of a stage the lines of all boxes in their order, but for one that could not be cut out."""

    def box(answers: dict[str, object]) -> dict[str, object]:
        return {"index": 0, "score": 0.5, "box": [0, 0, 4, 4], "answers": answers}

    read = [{"text": line, "score": 0.5} for line in ("ab", "c")]
    boxes = [
        box({"plate": {"text": read[:1]}}),
        box({"plate": {"error": "its corners are those of nothing"}}),
        box({}),
        box({"plate": {"text": read[1:]}}),
    ]
    answer = AppAnswer.read(Answer({"edgepack": "1", "boxes": boxes, "text": read[:1]}, "device"))
    assert _lines_there(answer, "plate") == ("ab", "c")
    assert _lines_there(answer, "") == ("ab",)
    found = TextEvaluation(
        photos=(ReadPhoto(name="a", expected="ab c", reference="ab c", device="ab"),),
        device="pi",
    )
    assert found.on_device == ErrorRates(letters=2 / 4, words=1 / 2)
    assert found.differing == found.photos
    # A device that reads nothing is wrong in all of it.
    silent = dataclasses.replace(found.photos[0], device="")
    assert ErrorRates.of([("ab c", silent.device or "")]) == ErrorRates(letters=1, words=1)


def test_photos_without_text(folder: Path) -> None:
    project = load_project(folder / "edgepack.toml")
    with pytest.raises(UsageError, match="no folder"):
        evaluate_text(project, folder / "nowhere")
    (folder / "photos" / "two.txt").unlink()
    with pytest.raises(UsageError, match=r"two\.png has no text beside it") as error:
        evaluate_text(project, folder / "photos")
    assert "two.txt" in (error.value.hint or "")
    for name in ("one.txt", "two.txt"):
        (folder / "photos" / name).write_text(" \n")
    with pytest.raises(UsageError, match="no text in any"):
        evaluate_text(project, folder / "photos")
    (folder / "photos" / "one.txt").write_text("a" * 20_001)
    with pytest.raises(UsageError, match="20001 letters"):
        evaluate_text(project, folder / "photos")


def test_which_projects_read(folder: Path) -> None:
    file = folder / "edgepack.toml"
    assert reading_stage(load_project(file)) == ""
    assert reads_text(load_project(file), asked=False)
    text = file.read_text()
    file.write_text(text[: text.index("[postprocess]")])
    classes = load_project(file)
    assert not reads_text(classes, asked=False)
    with pytest.raises(UsageError, match="--text"):
        reads_text(classes, asked=True)
    with pytest.raises(ConfigError, match="reads text"):
        evaluate_text(classes, folder / "photos")
    # A stage that reads, behind a detector whose boxes can be judged: if it is asked for.
    stage = '[stage.preprocess]\nresize = {mode = "exact", height = 1, width = 3}\n'
    stage += text[text.index("[postprocess]") :].replace("[postprocess]", "[stage.postprocess]")
    boxes = (
        '[postprocess]\npreset = "yolo-end2end"\n[[stage]]\nname = "plate"\nmodel = "reader.onnx"\n'
    )
    file.write_text(text[: text.index("[postprocess]")] + boxes + stage)
    detector = load_project(file)
    assert reading_stage(detector) == "plate"
    assert not reads_text(detector, asked=False)
    assert reads_text(detector, asked=True)
