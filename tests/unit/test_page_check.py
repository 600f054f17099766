"""`check --html`: the page of what the model sees, and of what it was given."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack.base.errors import MismatchError
from edgepack.cli import main
from edgepack.cli.pages.photos import area_color, mark_photo
from edgepack.postprocess.results import Area
from tests import yolo_exports
from tests.onnx_models import Builder
from tests.unit.test_page import EVIL, Parsed
from tests.yolo_exports import EXPORTS, SEEN

PROJECT = """[project]
model = "net.onnx"
board = "rasp3b"
labels = "labels.txt"
golden_image = "photo.png"
expected_class = {expected}
[preprocess]
color = "{color}"
resize = {{ mode = "letterbox", height = 8, width = 8 }}
scale = 0.00392156862745098
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose classes are the mean red, green and blue, and a photo that is rather red."""
    monkeypatch.chdir(tmp_path)
    b = Builder()
    b.op("GlobalAveragePool", "x", outputs=["m"])
    b.op("Flatten", "m", outputs=["y"])
    model = b.model({"x": [1, 3, 8, 8]}, {"y": [1, 3]})
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "labels.txt").write_text(f"{EVIL}\ngreen\nblue\n")
    cv2.imwrite("photo.png", np.full((30, 60, 3), (30, 60, 200), np.uint8))
    return tmp_path


def checked(folder: Path, *words: str, color: str = "rgb", expected: int = 0) -> tuple[int, Parsed]:
    file = folder / "edgepack.toml"
    file.write_text(PROJECT.format(color=color, expected=expected))
    code = main(["check", "--html", "check.html", *words])
    parsed = Parsed((folder / "check.html").read_text())
    assert parsed.opened == []
    assert "script" not in parsed.tags
    return code, parsed


def test_each_step_is_shown(folder: Path) -> None:
    code, parsed = checked(folder)
    assert code == 0
    assert "The photo is seen as the class that is expected" in parsed.said
    for words in (
        "photo: photo.png, 60 x 30 pixels",
        "color: RGB",
        "resize: letterbox, linear, to 8 x 8: the photo 8 x 4, the border 114",
        "tensor: float32 NCHW 1x3x8x8",
        "undone: the tensor turned back into pixels where they lie in the photo: the whole photo, "
        "0.0 of 255 off the pixels that went in",
        "0 to 1, RGB: as [preprocess] says",
    ):
        assert words in parsed.said, words
    assert EVIL in parsed.said
    # Of 64 values of each channel 32 are the border's.
    cells = re.findall(
        r"<tr><td>red</td>(.*?)</tr>", (folder / "check.html").read_text().replace("\n", "")
    )
    values = [float(one) for one in re.findall(r">([\d.]+)<", cells[0])]
    assert values[:3] == pytest.approx([114 / 255, 200 / 255, 157 / 255], rel=1e-3)


def test_a_photo_that_is_seen_wrongly_has_a_page(folder: Path) -> None:
    """Which is when one looks at it."""
    code, parsed = checked(folder, color="bgr")
    assert code == MismatchError.exit_code
    assert "photo.png: the reference sees class 2 (blue), expected 0" in parsed.said
    assert "red and blue look exchanged" in parsed.said
    assert "0 to 1, BGR: as [preprocess] says" in parsed.said


def test_boxes_are_drawn_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    yolo_exports.write(EXPORTS[0], tmp_path / "yolo.onnx")
    assert main(["init", "yolo.onnx"]) == 0
    cv2.imwrite("photo.png", np.full((240, 320, 3), 9, np.uint8))
    assert main(["check", "--image", "photo.png", "--html", "out.html"]) == 0
    made = Path("out.html").read_text()
    # That model sees one thing: left 160, top 60, 80 x 40 (see test_ultralytics.py).
    (box,) = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"/>', made
    )
    assert [float(side) for side in box] == pytest.approx([160, 60, 80, 40], abs=0.1)
    assert f"thing {SEEN}" in made


def test_areas_are_painted_where_they_are() -> None:
    """Two rows in the middle of a black photo of 40 x 20, as runs of pixels."""
    area = Area(index=3, label="road", pixels=80, runs=(9 * 40, 40, 10 * 40, 40))
    made = mark_photo(np.zeros((20, 40, 3), np.uint8), areas=[area], alt="x")
    (content,) = re.findall(r"base64,([^\"]*)", made)
    image = cv2.imdecode(np.frombuffer(base64.b64decode(content), np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    scale = image.shape[0] // 20
    rows = image.max((1, 2)) > 60
    assert np.flatnonzero(rows).min() // scale == 9
    assert np.flatnonzero(rows).max() // scale == 10
    assert area_color(3) != area_color(4)


def test_a_detector_says_what_it_sees_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    yolo_exports.write(EXPORTS[0], tmp_path / "yolo.onnx")
    assert main(["init", "yolo.onnx"]) == 0
    for name, value in (("photo.png", 9), ("other.png", 200)):
        cv2.imwrite(name, np.full((240, 320, 3), value, np.uint8))
    words = ["--image", "photo.png", "--image", "other.png"]
    assert main(["check", *words, "--html", "out.html"]) == 0
    parsed = Parsed(Path("out.html").read_text())
    assert f"photo.png: 1 thing, first thing {SEEN} 0.75" in parsed.said
    assert parsed.said.count("Step by step") == 2
    # What is turned back lies right beside the photo.
    assert parsed.said.index("undone: ") < parsed.said.index("color: RGB")


def test_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = Builder()
    b.op("Identity", "x", outputs=["y"])
    model = b.model({"x": [1, 2]}, {"y": [1, 2]})
    (folder / "rows.onnx").write_bytes(model.SerializeToString())
    (folder / "rows.csv").write_text("a,b,kind\n1,0.25,0\n3,4,0\n")
    words = ["rows.onnx", "--rows", "rows.csv", "--target", "kind"]
    assert main(["check", *words, "--html", "rows.html"]) == 0
    parsed = Parsed((folder / "rows.html").read_text())
    assert "y: right in 1 of 2 rows" in parsed.said
    assert "1 0.25" in parsed.said
    assert main(["check", "--changed", "rows.onnx", "--html", "rows.html"]) == 2
    assert "--changed goes without" in capsys.readouterr().err
    assert main(["check", *words, "--html", "rows.csv/x.html"]) == 2
