"""`edgepack evaluate`: a model that names a photo's colour, here and on a device that may err."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepack.base import paths
from edgepack.base.errors import ConfigError, UsageError
from edgepack.cli import main
from edgepack.deploy.answers import Answer
from edgepack.deploy.app_answers import AppAnswer
from edgepack.flow.evaluate import evaluate, find_photos
from edgepack.flow.project import Project, load_project
from edgepack.flow.reference import Reference
from tests.schemas import check_output
from tests.scripted_tool import RELEASE, STATUS, ScriptedDevice

COLOURS = ("red", "green", "blue")
# Two blue ones are greener than blue.
PHOTOS = {"red": [(200, 0, 0), (90, 20, 10)], "green": [(0, 99, 7)], "blue": [(0, 9, 8), (1, 9, 2)]}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path / "cache")
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)],
        "colour",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 4, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3))],
    )
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "c.onnx")
    (tmp_path / "labels.txt").write_text("\n".join(COLOURS))
    (tmp_path / "edgepack.toml").write_text(
        '[project]\nmodel = "c.onnx"\nlabels = "labels.txt"\n[preprocess]\n'
        'resize = { mode = "exact", height = 4, width = 4 }\n'
    )
    for label, colours in PHOTOS.items():
        folder = tmp_path / "photos" / label
        folder.mkdir(parents=True)
        for index, (red, green, blue) in enumerate(colours):
            pixels = np.full((8, 8, 3), (blue, green, red), np.uint8)
            cv2.imwrite(str(folder / f"{index}.png"), pixels)
    yield load_project(tmp_path / "edgepack.toml")


def device(
    project: Project, monkeypatch: pytest.MonkeyPatch, see: Callable[[Path], list[int]]
) -> tuple[Any, list[Path]]:
    """One whose app sees what `see` says, and the photos that it was asked for."""
    asked: list[Path] = []
    digest = hashlib.sha256(project.model.read_bytes()).hexdigest()
    status = {**STATUS, "current": {**RELEASE, "model_sha256": digest}}

    def ask(_device: Any, _root: str, request: Any) -> AppAnswer:
        asked.append(request.image)
        top = [{"index": index, "label": "", "score": 0.5} for index in see(request.image)]
        return AppAnswer.read(Answer({"edgepack": "1", "top": top}, "app"))

    monkeypatch.setattr("edgepack.flow.evaluate.ask_app", ask)
    return ScriptedDevice("pi", lambda _: json.dumps(status)), asked


def test_the_reference_alone(project: Project) -> None:
    found = evaluate(project, project.model.parent / "photos")
    assert [one.reference[0] for one in found.judged] == [1, 1, 1, 0, 0]
    values = found.to_dict()
    check_output("evaluate", values)
    assert (values["photos"], values["device"], values["differ"]) == (5, None, [])
    assert values["reference"] == {"top1": 0.6, "top5": 1.0}
    wrong = [one for one in values["confusion"] if one["expected"] != one["seen"]]
    assert wrong == [{"expected": 2, "seen": 1, "count": 2}]


def test_where_the_device_differs_and_what_was_judged_is_not_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def see(photo: Path) -> list[int]:
        if len(asked) == 4:
            raise KeyboardInterrupt
        return [2, 1, 0] if photo.parent.name == "blue" else [0, 1, 2]

    pi, asked = device(project, monkeypatch, see)
    photos = project.model.parent / "photos"
    with pytest.raises(KeyboardInterrupt):
        evaluate(project, photos, device=pi, root="r")
    assert len(asked) == 4
    (journal,) = (project.model.parent / "cache" / "evaluated").glob("*.jsonl")
    journal.write_bytes(journal.read_bytes() + b'{"sha256": "cut')
    ran: list[object] = []
    run = Reference.run
    monkeypatch.setattr(Reference, "run", lambda *args: ran.append(args) or run(*args))
    found = evaluate(project, photos, device=pi, root="r")
    assert (len(asked), len(ran)) == (6, 2)  # the fourth anew, and the fifth
    assert found.to_dict()["device"] == {"top1": 0.8, "top5": 1.0}
    assert [one.photo.name for one in found.differing] == [
        "blue/0.png",
        "blue/1.png",
        "green/0.png",
    ]
    assert evaluate(project, photos, device=pi, root="r").to_dict() == found.to_dict()
    assert len(asked) == 6


def test_a_release_of_another_model_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: Any = ScriptedDevice("pi", lambda _: json.dumps(STATUS))
    with pytest.raises(UsageError, match=r"is of another model, m\.onnx"):
        evaluate(project, project.model.parent / "photos", device=other, root="r")


def test_the_command_prints_a_table_and_json(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pi, _ = device(project, monkeypatch, lambda _: [0, 1, 2])
    monkeypatch.setattr("edgepack.cli.evaluate.open_release", lambda *_: (pi, "r"))
    monkeypatch.chdir(project.model.parent)
    assert main(["evaluate", "--images", "photos", "--device", "pi", "--html", "e.html"]) == 0
    out = capsys.readouterr().out
    text = Path("e.html").read_text()
    # Two photos of the reference's own mistakes, and three on which the device differs.
    assert text.count('src="data:image/jpeg;base64,') == 5
    # Of two photos of five: Wilson's interval.
    assert "top-1 40.0% (11.8% to 76.9% with 95 % confidence)" in text
    matrix = text[
        text.index('<table class="matrix">') : text.index("</table>", text.index('matrix">'))
    ]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in matrix.split("<tr>")[2:]]
    # The device sees everything as red.
    assert rows == [
        ["1", "red", "2", "", ""],
        ["2", "green", "1", "", ""],
        ["3", "blue", "2", "", ""],
    ]
    # Each class has a line with the reference's share, and the device's.
    assert text.count('<svg class="cell"') == 6
    assert "reference  top-1 60.0% (3), top-5 100.0% (5)\n" in out
    assert "device     top-1 40.0% (2), top-5 100.0% (5)\ndiffer     3 photos\n" in out
    assert "blue/0.png   blue      green      red\n" in out
    assert main(["evaluate", "--images", "photos", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] is None


def test_a_csv_file_names_photos_and_classes(project: Project) -> None:
    folder = project.model.parent
    file = folder / "photos.csv"
    file.write_text("image,class\nphotos/red/0.png,Red\nphotos/blue/1.png, 2\n\n")
    found = find_photos(file, COLOURS)
    assert [(one.name, one.expected) for one in found] == [
        ("photos/red/0.png", 0),
        ("photos/blue/1.png", 2),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("photos/red/0.png,pink", "no label is"),
        ("photos/red/0.png,3", "class 3, but there are 3"),
        ("none.png,red", "line 1: no such photo: none.png"),
        ("photos/red/0.png", "line 1: 1 values"),
        ("", "no photos in"),
    ],
)
def test_what_a_csv_file_cannot_say(project: Project, row: str, message: str) -> None:
    file = project.model.parent / "photos.csv"
    file.write_text(row)
    with pytest.raises((ConfigError, UsageError), match=message):
        find_photos(file, COLOURS)


def test_a_photo_alone_has_no_class(project: Project) -> None:
    photo = next((project.model.parent / "photos").rglob("*.png"))
    with pytest.raises(UsageError, match="a photo, of which nobody says the class") as caught:
        find_photos(photo, ["red"])
    assert "`edgepack check` takes a photo" in (caught.value.hint or "")
