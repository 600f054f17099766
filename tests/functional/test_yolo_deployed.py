"""What ultralytics exports, each kind deployed to a virtual board with nothing but `init` before.

Its box, class, points and angle come back as the model says them; `tests/yolo_exports.py` makes the
files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack.cli import main
from edgepack.postprocess.instances import encode_mask
from tests import yolo_exports
from tests.boards import own_boards
from tests.yolo_exports import ANGLE, CENTRE, EXPORTS, SCORE, SEEN, SIDE, SIZE, Export

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def boards() -> Iterator[None]:
    with own_boards():
        yield


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
def test_from_the_file_to_boxes_on_a_board(
    export: Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    yolo_exports.write(export, Path("yolo.onnx"))
    # Of the input's size: what the model says in its pixels are the photo's.
    pixels = np.random.default_rng(5).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    cv2.imwrite("photo.png", pixels)
    name = f"yolo-{export.name}"
    assert main(["init", "yolo.onnx", "--board", "rasp3b", "--image", "photo.png"]) == 0
    where = ["--name", name, "--board", "rasp3b", "--device", "virtual"]
    assert main(["deploy", *where]) == 0
    capsys.readouterr()
    assert main(["run", *where, "--image", "photo.png", "--json"]) == 0
    (box,) = json.loads(capsys.readouterr().out)["boxes"]
    assert (box["index"], box["label"]) == (SEEN, f"thing {SEEN}")
    assert box["score"] == pytest.approx(SCORE, abs=0.01)
    left, top, right, bottom = box["box"]
    if export.task == "obb":
        # What a box at an angle reaches upright, by the definition of its corners.
        wide = SIZE[0] * np.cos(ANGLE) + SIZE[1] * np.sin(ANGLE)
        high = SIZE[0] * np.sin(ANGLE) + SIZE[1] * np.cos(ANGLE)
    else:
        wide, high = SIZE
    assert ((left + right) / 2, (top + bottom) / 2) == pytest.approx(CENTRE, abs=0.1)
    assert (right - left, bottom - top) == pytest.approx((wide, high), abs=0.1)
    if export.task == "segment":
        inside = np.zeros((SIDE, SIDE), np.bool_)
        inside[50:70, 100:120] = True  # the right half
        assert box["mask"] == encode_mask(inside).to_dict()
    if export.task == "pose":
        assert len(box["points"]) == export.table["points"]
