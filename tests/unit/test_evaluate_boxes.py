"""`edgepack evaluate` of a detector that sees one thing everywhere, here and on a device."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgepack.base import paths
from edgepack.base.errors import ConfigError, MismatchError, UsageError
from edgepack.cli import main
from edgepack.deploy.answers import Answer
from edgepack.deploy.app_answers import AppAnswer
from edgepack.flow.evaluate_boxes import evaluate_boxes
from edgepack.flow.project import Project, load_project
from tests import yolo_exports
from tests.scripted_tool import RELEASE, STATUS, ScriptedDevice
from tests.yolo_exports import EXPORTS, SEEN, Export

# In photos of 320 x 240 the model sees this, left, top, width, height: see test_ultralytics.py.
BOX = [160, 60, 80, 40]


def made(folder: Path, export: Export) -> Project:
    yolo_exports.write(export, folder / "yolo.onnx")
    assert main(["init", "yolo.onnx", "--overwrite"]) == 0
    return load_project(folder / "edgepack.toml")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """With three photos: the thing is in the first, elsewhere in the second, not in the third.

    The first is the brightest, of which the score is the largest, by a little.
    """
    monkeypatch.setattr(paths, "_cache_dir", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("abc"):
        cv2.imwrite(f"{name}.png", np.full((240, 320, 3), 9 - number, np.uint8))
    names = ["other", f"thing {SEEN}"]
    top = {
        "categories": [{"id": 5 * i, "name": name} for i, name in enumerate(names)],
        "images": [{"id": i, "file_name": f"{name}.png"} for i, name in enumerate("abc")],
        "annotations": [
            {"id": 1, "image_id": 0, "category_id": 5, "bbox": BOX},
            {"id": 2, "image_id": 1, "category_id": 5, "bbox": [0, 0, 30, 30]},
        ],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(top))
    return made(tmp_path, EXPORTS[0])


def device(
    project: Project, monkeypatch: pytest.MonkeyPatch, *outputs: np.ndarray
) -> tuple[Any, list[Path]]:
    """One whose app gives `outputs`, and the photos that it was asked for."""
    asked: list[Path] = []
    digest = hashlib.sha256(project.model.read_bytes()).hexdigest()
    status = {**STATUS, "current": {**RELEASE, "model_sha256": digest}}

    def ask(_device: Any, _root: str, request: Any) -> AppAnswer:
        asked.append(request.image)
        for file, output in zip(request.outputs, outputs, strict=True):
            np.save(file, output)
        return AppAnswer.read(Answer({"edgepack": "1"}, "app"))

    monkeypatch.setattr("edgepack.flow.evaluate.ask_app", ask)
    return ScriptedDevice("pi", lambda _: json.dumps(status)), asked


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
def test_one_of_two_is_found(project: Project, export: Export) -> None:
    own = made(project.model.parent, export)
    if export.task == "obb":
        with pytest.raises(ConfigError, match="rotated boxes: their precision is not measured"):
            evaluate_boxes(own, Path("boxes.json"))
        return
    found = evaluate_boxes(own, Path("boxes.json"))
    # The right box is the best one: a precision of 1 to a recall of 1/2.
    assert found.reference.map == pytest.approx(51 / 101)
    assert (found.photos, found.objects) == (3, 2)
    assert [(one.index, one.objects) for one in found.reference.classes] == [(SEEN, 2)]


def test_a_device_that_errs_and_what_was_seen_is_not_asked_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (output,) = yolo_exports.outputs_of(EXPORTS[0])
    wrong = output.copy()
    wrong[0, 2:4] /= 2  # half as wide and high: an overlap of a quarter
    pi, asked = device(project, monkeypatch, wrong)
    for _ in range(2):
        found = evaluate_boxes(project, Path("boxes.json"), device=pi, root="r")
        assert found.on_device is not None
        assert found.on_device.map50 == 0
        assert found.reference.map50 == pytest.approx(51 / 101)
    assert [path.name for path in asked] == ["a.png", "b.png", "c.png"]
    pi, asked = device(project, monkeypatch, output)
    found = evaluate_boxes(project, Path("boxes.json"), device=pi, root="other")
    assert found.on_device is not None
    assert found.on_device.map == found.reference.map


SEGMENTS = [export for export in EXPORTS if export.task == "segment"]
# The thing's mask is the right half of its box.
RIGHT = [200, 60, 240, 60, 240, 100, 200, 100]


def outlined(outline: Any, other: Any = ([0, 0, 30, 0, 30, 30, 0, 30],)) -> Path:
    top = json.loads(Path("boxes.json").read_text())
    for annotation, segmentation in zip(top["annotations"], (outline, list(other)), strict=True):
        annotation["segmentation"] = segmentation
    Path("outlines.json").write_text(json.dumps(top))
    return Path("outlines.json")


@pytest.mark.parametrize("export", SEGMENTS, ids=lambda export: export.name)
def test_masks(project: Project, export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    own = made(project.model.parent, export)
    found = evaluate_boxes(own, outlined([RIGHT]))
    assert found.masks is not None
    assert found.masks.map == pytest.approx(51 / 101)
    # Of the whole box the mask is one half, which is an overlap of 0.5 and no more.
    box = [160, 60, 240, 60, 240, 100, 160, 100]
    found = evaluate_boxes(own, outlined([box]))
    assert found.masks is not None
    assert found.masks.map50 == pytest.approx(51 / 101)
    assert found.masks.map == pytest.approx(51 / 101 / 10)
    assert found.reference.map == pytest.approx(51 / 101)
    # The device sees the other half of each box, where nothing is.
    first, prototypes = yolo_exports.outputs_of(export)
    pi, _ = device(own, monkeypatch, first, -prototypes)
    found = evaluate_boxes(own, outlined([RIGHT]), device=pi, root="r")
    assert found.masks_on_device is not None
    assert found.masks_on_device.map50 == 0
    assert found.on_device is not None
    assert found.on_device.map == pytest.approx(51 / 101)
    said = found.to_dict()
    assert (said["device_masks"]["map50"], said["without_masks"]) == (0, None)
    assert found.rows()[0]["masks_ap"] == pytest.approx(51 / 101)


def test_masks_that_cannot_be_measured(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    made(project.model.parent, SEGMENTS[0])
    capsys.readouterr()
    assert main(["evaluate", "--images", str(outlined([RIGHT], [])), "--html", "page.html"]) == 0
    out = capsys.readouterr().out
    assert "masks      not measured: 1 of 2 objects have no outline" in out
    assert "not measured: 1 of 2" in Path("page.html").read_text()
    assert main(["evaluate", "--images", str(outlined([RIGHT])), "--html", "page.html"]) == 0
    out = capsys.readouterr().out
    assert "masks      mAP 50-95 0.5050, mAP 50 0.5050" in out
    assert f"thing {SEEN}  2        0.5050    0.5050  0.5050       0.5050" in out
    assert main(["evaluate", "--images", str(outlined([[1e8, 0, 0, 1e8, 5, 5]]))]) == 2
    assert "a.png: object 1: its outline is longer than" in capsys.readouterr().err
    small = {"size": [2, 2], "counts": "04"}
    assert main(["evaluate", "--images", str(outlined(small))]) == 2
    assert "its mask is of 2 x 2 pixels, the photo is 240 x 320" in capsys.readouterr().err


def test_outputs_that_are_not_the_models(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    pi, _ = device(project, monkeypatch, np.zeros((1, 84, 3), np.float32))
    with pytest.raises(MismatchError, match=r"output 'output0' is \(1, 84, 3\), not \(1, 84, 525"):
        evaluate_boxes(project, Path("boxes.json"), device=pi, root="r")


def test_the_command(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["evaluate", "--images", "boxes.json", "--html", "page.html"]) == 0
    out = capsys.readouterr().out
    assert "photos     3, with 2 objects" in out
    assert "reference  mAP 50-95 0.5050, mAP 50 0.5050 (50-95: small 0.0000, medium 1.0000" in out
    assert f"thing {SEEN}  2        0.5050    0.5050" in out
    made = Path("page.html").read_text()
    assert "thing 16" in made
    # Of all classes and of the one: precision is 1 up to a recall of one half, 0 beyond.
    curves = re.findall(r'<polyline class="s0" points="([^"]*)"', made)
    assert len(curves) == 2
    points = [[float(side) for side in point.split(",")] for point in curves[1].split()]
    assert len(points) == 101
    assert len({up for _, up in points[:51]}) == len({up for _, up in points[51:]}) == 1
    assert points[50][1] < points[51][1]  # up is less in a picture
    assert main(["evaluate", "--images", "boxes.json", "--json", "--score", "0.8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reference"]["map50"] == 0  # the thing has a score of 0.75
    assert found["classes"][0]["label"] == f"thing {SEEN}"
    assert main(["evaluate", "--images", "boxes.json", "--score", "2"]) == 2
    assert "'2' is not a number from 0 to 1" in capsys.readouterr().err
    assert main(["evaluate", "--images", "."]) == 2
    assert "no photos with boxes in ." in capsys.readouterr().err


def test_a_classifier_has_no_splits(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("edgepack.toml")
    text = file.read_text()
    file.write_text(text[: text.index("[postprocess]")])
    assert main(["evaluate", "--images", "boxes.json", "--split", "val"]) == 2
    assert "--split: only for a detector" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="kind 'none' gives no boxes"):
        evaluate_boxes(load_project(file), Path("boxes.json"))


def test_photos_of_another_size_and_unknown_classes(project: Project) -> None:
    top = json.loads(Path("boxes.json").read_text())
    top["images"][1] |= {"width": 240, "height": 320}
    Path("turned.json").write_text(json.dumps(top))
    with pytest.raises(UsageError, match=r"b\.png: the photo is 320 x 240, by its annotations"):
        evaluate_boxes(project, Path("turned.json"))
    top["categories"][1]["name"] = "nothing"
    Path("other.json").write_text(json.dumps(top))
    with pytest.raises(UsageError, match="class 5 'nothing' is none of the model's labels"):
        evaluate_boxes(project, Path("other.json"))
