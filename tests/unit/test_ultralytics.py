"""What ultralytics exports: from the file to boxes without a key typed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

from edgepack.cli import main
from edgepack.flow.exporters import said_by_ultralytics
from edgepack.flow.init import draft_project
from edgepack.flow.project import load_project
from edgepack.model import TensorInfo
from edgepack.postprocess.instances import encode_mask
from edgepack.postprocess.spec import read_postprocess
from tests import yolo_exports
from tests.yolo_exports import ANGLE, CLASSES, EXPORTS, SCORE, SEEN, Export


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a photo of 320 x 240: half as large in the input, with 20 pixels of border above."""
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("photo.png", np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8))
    return tmp_path


def _outputs(export: Export) -> list[TensorInfo]:
    return [
        TensorInfo(name=f"output{number}", dtype="float32", shape=shape)
        for number, shape in enumerate(export.shapes)
    ]


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
def test_boxes_without_a_key_typed(
    folder: Path, export: Export, capsys: pytest.CaptureFixture[str]
) -> None:
    yolo_exports.write(export, folder / "yolo.onnx")
    assert main(["init", "yolo.onnx", "--image", "photo.png", "--board", "rasp3b"]) == 0
    project = load_project(folder / "edgepack.toml")
    assert project.postprocess == read_postprocess(export.table, file="x")
    capsys.readouterr()
    assert main(["check", "--json"]) == 0
    (seen,) = json.loads(capsys.readouterr().out)["seen"]
    assert seen["top"] == []
    (box,) = seen["boxes"]
    assert (box["index"], box["label"]) == (SEEN, f"thing {SEEN}")
    assert box["score"] == pytest.approx(SCORE, abs=2e-3)
    wide, high = 40.0, 20.0
    if export.task == "obb":
        cos, sin = np.cos(ANGLE), np.sin(ANGLE)
        wide, high = wide * cos + high * sin, wide * sin + high * cos
        # The middle of the upper side, clockwise from upright: to the right of the centre.
        top = np.mean(box["points"][:2], 0)
        np.testing.assert_allclose(top, (200 + 20 * sin, 80 - 20 * cos), atol=0.01)
    np.testing.assert_allclose(
        box["box"], (200 - wide, 80 - high, 200 + wide, 80 + high), atol=0.01
    )
    if export.task == "segment":
        # From the middle of the box to its right side, in a photo of 320 x 240.
        inside = np.zeros((240, 320), np.bool_)
        inside[60:100, 200:240] = True
        assert box["mask"] == encode_mask(inside).to_dict()
    if export.task == "pose":
        points = 4 if "point_size" in export.table else 17
        np.testing.assert_allclose(box["points"], [(60, 20)] * points, atol=0.01)


def test_masks_with_outputs_beside_them() -> None:
    export = next(one for one in EXPORTS if one.task == "segment" and not one.rows)
    said = yolo_exports.metadata_of(export)
    more = [*_outputs(export), TensorInfo(name="more", dtype="float32", shape=(1, 3))]
    known = said_by_ultralytics(said, more)
    assert known is not None
    assert known.postprocess["outputs"] == ["output0", "output1"]


def test_shapes_that_are_ambiguous() -> None:
    """Of 2 classes, as many boxes as channels, each as many numbers as a row."""
    info = TensorInfo(name="output0", dtype="float32", shape=(1, 6, 6))
    said = {"author": "Ultralytics", "task": "detect", "names": "{0: 'a', 1: 'b'}"}

    def preset(**more: str) -> object:
        known = said_by_ultralytics({**said, **more}, [info])
        assert known is not None
        return known.postprocess["preset"]

    assert preset() == preset(args="{'nms': None}") == "yolo-letterbox"
    assert preset(args="{'nms': True}") == preset(end2end="True") == "yolo-end2end"


@pytest.mark.parametrize(
    ("changes", "shapes"),
    [
        ({"task": "detect"}, [(1, 300, 84)]),  # RT-DETR: neither head
        ({"task": "detect"}, [(1, 83, 525)]),
        ({"task": "detect"}, [(1, 84)]),
        ({"task": "detect"}, []),
        ({"task": "pose"}, [(1, 135, 525)]),  # without kpt_shape
        ({"task": "pose", "kpt_shape": "[17]"}, [(1, 135, 525)]),
        ({"task": "pose", "kpt_shape": "[17, True]"}, [(1, 135, 525)]),
        ({"task": "pose", "kpt_shape": "[-17, 3]"}, [(1, 33, 525)]),
        ({"task": "segment"}, [(1, 116, 525)]),  # without prototypes
        ({"task": "depth"}, [(1, 1, 160, 160)]),
        ({"task": "detect", "names": "{}"}, [(1, 84, 525)]),
    ],
)
def test_heads_that_are_not_known_are_a_question(
    changes: dict[str, str], shapes: list[tuple[int, ...]]
) -> None:
    said = {**yolo_exports.metadata_of(EXPORTS[0]), **changes}
    infos = [TensorInfo(name=f"y{i}", dtype="float32", shape=s) for i, s in enumerate(shapes)]
    known = said_by_ultralytics(said, infos)
    assert known is not None
    assert known.postprocess == {}
    assert "outputs" in known.question


def test_dynamic_sizes_and_the_older_repository() -> None:
    free = TensorInfo(name="output0", dtype="float32", shape=("batch", 4 + CLASSES, "anchors"))
    known = said_by_ultralytics(yolo_exports.metadata_of(EXPORTS[0]), [free])
    assert known is not None
    assert known.postprocess == {"preset": "yolo-letterbox"}
    # yolov5's export.py says no more than this.
    old = {"stride": "32", "names": str([f"thing {i}" for i in range(CLASSES)])}
    rows = TensorInfo(name="output0", dtype="float32", shape=(1, 25200, 5 + CLASSES))
    known = said_by_ultralytics(old, [rows])
    assert known is not None
    assert known.postprocess == {"preset": "yolov5"}
    assert len(known.labels) == CLASSES
    assert said_by_ultralytics({"stride": "32"}, [rows]) is None


def test_a_question_is_asked(folder: Path) -> None:
    export = replace(EXPORTS[0], metadata={"task": "depth"})
    yolo_exports.write(export, folder / "yolo.onnx")
    draft = draft_project(folder / "yolo.onnx", folder / "edgepack.toml")
    assert "what do the outputs hold? (see [postprocess])" in draft.open
    assert "[postprocess]" not in draft.text


# ------------------------------------------------ without [postprocess]


def test_a_photo_that_shows_no_class_is_refused_before_anything_is_built(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yolo_exports.write(EXPORTS[2], folder / "yolo.onnx")
    assert main(["init", "yolo.onnx", "--image", "photo.png", "--board", "rasp3b"]) == 0
    file = folder / "edgepack.toml"
    text = file.read_text()
    file.write_text(text[: text.index("[postprocess]")])
    capsys.readouterr()
    for words in (
        ["check"],
        ["compile"],
        ["package", "--out", "bundle"],
        ["deploy", "--device", "pi@127.0.0.1:9"],
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "edgepack.toml: labels: no class can be seen in" in error
        assert "'output0' (1, 135, 525) is not one score per class" in error
        assert '[postprocess]\npreset = "yolo-letterbox"\npoints = 17' in error
    # A photo that nothing is expected of is shown as what it gives.
    assert main(["check", "--image", "photo.png"]) == 0
    out = capsys.readouterr().out
    assert "output0 (1, 135, 525): from " in out
    assert " to 100, mean " in out
    assert "not one score per class" in out
    # What the hint says helps.
    file.write_text(file.read_text() + '[postprocess]\npreset = "yolo-letterbox"\npoints = 17\n')
    assert main(["check"]) == 0
    assert f"{SEEN}  thing {SEEN}  at " in capsys.readouterr().out


def test_an_expected_class_of_no_classes_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = yolo_exports.write(EXPORTS[0], folder / "yolo.onnx")
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)
    Path("edgepack.toml").write_text(
        '[project]\nmodel = "yolo.onnx"\ngolden_image = "photo.png"\nexpected_class = 3\n'
        'board = "rasp3b"\n[preprocess]\npreset = "yolo-letterbox"\n'
        'resize = { mode = "letterbox", height = 160, width = 160, fill = 114 }\n'
    )
    assert main(["package", "--out", "bundle"]) == 2
    error = capsys.readouterr().err
    assert "edgepack.toml: expected_class: no class can be seen in" in error
    assert 'kind = "tensors"' in error
