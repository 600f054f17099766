"""Postprocessing in Python against the app's, on this machine and on both ARM triples.

The same boxes in the same order, within 1e-4 of the photo: of outputs made by hand, and of random
ones, in which boxes overlap by every amount.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgepack.base.errors import ConfigError, UsageError
from edgepack.boards import get_board
from edgepack.bundle.bundle import POSTPROCESS as POSTPROCESS_JSON
from edgepack.bundle.manifest import APP
from edgepack.cli import main
from edgepack.flow.check import check_project
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import Project, load_project
from edgepack.flow.reference import make_golden
from edgepack.flow.results import check_results, golden_results
from edgepack.native.app import build_runtime
from edgepack.native.toolchain import select
from edgepack.postprocess.base import PostprocessSpec
from edgepack.postprocess.boxes import Boxes
from edgepack.postprocess.classes import Classes, Tensors
from edgepack.postprocess.results import ResultsMismatchError, check_equal
from edgepack.preprocess.spec import PreprocessSpec, Resize
from tests import outputs
from tests.onnx_models import Builder
from tests.support import require_tool

RUNTIMES = {
    "local": ("local", None, None),
    "armhf-zig": ("rasp3b", "zig", "qemu-arm-static"),
    "aarch64-zig": ("rasp3b-64", "zig", "qemu-aarch64-static"),
}
LABELS = ("a", "b")
SIZE = (330, 457)
PREPROCESS = PreprocessSpec(
    input="x", resize=Resize(mode="letterbox", height=outputs.HEIGHT, width=outputs.WIDTH)
)


@dataclass(frozen=True)
class App:
    """edgepack-run, how to start it here, and a folder to play the bundle."""

    command: tuple[str, ...]
    folder: Path

    def check(self, spec: PostprocessSpec, tensors: Sequence[np.ndarray]) -> int:
        """Compare it with the reference; how many boxes there are."""
        (self.folder / "postprocess.json").write_text(spec.to_json())
        words = ["--bundle", str(self.folder), "--json", "--size", f"{SIZE[1]}x{SIZE[0]}"]
        for index, tensor in enumerate(tensors):
            path = self.folder / f"{index}.npy"
            np.save(path, np.ascontiguousarray(tensor))
            words += ["--postprocess", str(path)]
        done = subprocess.run(
            [*self.command, *words], capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        want = spec.run(tensors, PREPROCESS.geometry(*SIZE), LABELS)
        check_equal(json.loads(done.stdout), want, SIZE, what="edgepack-run")
        return len(want.boxes or ())


@pytest.fixture(scope="module", params=RUNTIMES)
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> App:
    name, toolchain, emulator = RUNTIMES[request.param]
    board = get_board(name)
    start = (require_tool(emulator), "-L", f"/usr/{board.triple}") if emulator else ()
    build = build_runtime(board, select(board, toolchain).toolchain)
    folder = tmp_path_factory.mktemp(name)
    (folder / "manifest.json").write_text("{}")
    (folder / "preprocess.json").write_text(PREPROCESS.to_json())
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    return App(command=(*start, str(build.app)), folder=folder)


@pytest.mark.parametrize("case", outputs.CASES, ids=lambda case: case.name)
def test_results_are_equal(app: App, case: outputs.Case) -> None:
    assert app.check(case.spec, case.tensors) == len(case.boxes or ())
    if isinstance(case.spec, Classes | Tensors):
        return
    # Everything counts, much of it overlaps, some of it is no number; in half precision as well.
    random = np.random.default_rng(9)
    some = 0
    for number, iou in enumerate((0.3, 0.6)):
        spec = case.spec
        if isinstance(spec, Boxes):
            spec = replace(spec, score=0.02, iou=iou, class_aware=number == 0, max_boxes=200)
        made = [_shaken(tensor, random).astype("f4" if number else "f2") for tensor in case.tensors]
        some += app.check(spec, made)
    assert some > 1 or case.boxes is None


def _shaken(tensor: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Each element a little other, and some of another box; a few are no numbers."""
    noise = random.normal(0, 0.15, tensor.shape) * (np.abs(tensor) + 0.5)
    shaken = np.where(random.uniform(0, 1, tensor.shape) < 0.2, random.permuted(tensor), tensor)
    bad = random.uniform(0, 1, tensor.shape) < 0.002
    values = np.array([np.nan, np.inf, -np.inf, 0.0])
    return np.where(bad, random.choice(values, tensor.shape), shaken + noise)


# ------------------------------------------------ packages

PROJECT = """
[project]
name = "finder"
model = "finder.onnx"
labels = "labels.txt"
golden_image = "photo.png"

[preprocess]
preset = "yolo-letterbox"
resize = { mode = "letterbox", height = 64, width = 96 }
"""
POSTPROCESS = """
[postprocess]
kind = "yolo"
bins = 1
score = 0.5
iou = 0.2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector of bright spots: means of 8 x 8 pixels, then a head with sides of a cell and one
    for each of two classes: red and blue ones.
    """
    folder = tmp_path_factory.mktemp("finder")
    for batch in (1, 2):
        _finder(folder / ("finder.onnx", "pairs.onnx")[batch - 1], batch)
    (folder / "labels.txt").write_text("red\nblue\n")
    photo = np.zeros((200, 330, 3), np.uint8)
    photo[30:80, 40:110] = (0, 0, 255)
    photo[110:170, 200:290] = (255, 0, 0)
    cv2.imwrite(str(folder / "photo.png"), photo)
    cv2.imwrite(str(folder / "lower.png"), photo[100:])
    return folder


def _finder(path: Path, batch: int) -> None:
    b = Builder()
    weights = np.zeros((6, 3, 1, 1), np.float32)
    weights[4, 0], weights[5, 2] = 20, 20
    means = b.op("AveragePool", "x", kernel_shape=[8, 8], strides=[8, 8])
    bias = np.array([1, 1, 1, 1, -10, -10], np.float32)
    b.op("Conv", means, b.const(weights), b.const(bias), outputs=["found"])
    model = b.model({"x": [batch, 3, 64, 96]}, {"found": [batch, 6, 8, 12]})
    path.write_bytes(model.SerializeToString())


def _project(folder: Path, text: str, **flags: object) -> Project:
    (folder / "edgepack.toml").write_text(text)
    return load_project(folder / "edgepack.toml", flags)


@pytest.mark.parametrize("board", ["local", "rasp3b"])
def test_a_package_finds_what_the_reference_finds(folder: Path, board: str, tmp_path: Path) -> None:
    job = make_job(_project(folder, PROJECT + POSTPROCESS, board=board))
    bundle = package_job(job, tmp_path)  # which compares the app's results
    assert json.loads(bundle.file(POSTPROCESS_JSON).read_text())["outputs"] == ["found"]
    assert POSTPROCESS_JSON in bundle.manifest.files
    golden = make_golden(job.model, preprocess=job.preprocess, image=folder / "photo.png")
    assert job.postprocess is not None
    assert job.labels is not None
    found, size = golden_results(golden, ["found"], job.postprocess, job.preprocess, job.labels)
    assert size == (200, 330)
    assert found.boxes is not None
    # By the eye: in each box of a class is the colour, in none both.
    assert {box.label for box in found.boxes} == {"red", "blue"}
    for box in found.boxes:
        left, top, right, bottom = box.box
        x, y = (left + right) / 2, (top + bottom) / 2
        red = 40 <= x <= 110 and 30 <= y <= 80
        assert red == (box.label == "red")
        assert red or (200 <= x <= 290 and 110 <= y <= 170)
    # Another threshold than the bundle's is another result.
    with pytest.raises(ResultsMismatchError, match="boxes, the reference has"):
        check_results(
            bundle,
            job.board,
            golden,
            replace(job.postprocess, score=0.99),  # type: ignore[call-arg]
            job.preprocess,
            job.labels,
        )


def test_the_app_runs_the_photo(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = package_job(make_job(_project(folder, PROJECT + POSTPROCESS, board="local")), tmp_path)
    app, photo, drawn = bundle.file(APP), folder / "photo.png", tmp_path / "drawn.png"
    words = ["--image", str(photo), "--json", "--draw", str(drawn)]
    done = subprocess.run([app, *words], capture_output=True, text=True, check=True)
    boxes = json.loads(done.stdout)["boxes"]
    assert {box["label"] for box in boxes} == {"red", "blue"}
    picture, original = cv2.imread(str(drawn)), cv2.imread(str(photo))
    assert picture is not None
    assert original is not None
    ((left, top, _, _),) = [box["box"] for box in boxes[:1]]
    assert (picture[round(top), round(left)] != original[round(top), round(left)]).any()
    assert main(["check", "--project", str(folder / "edgepack.toml"), "--json"]) == 0
    (seen,) = json.loads(capfd.readouterr().out)["seen"]
    assert [box["index"] for box in seen["boxes"]] == [box["index"] for box in boxes]


def test_a_batch_of_photos(folder: Path, tmp_path: Path) -> None:
    """Each has the boxes that it has alone, in its own pixels; of too few the last is repeated."""
    photos, answers = (folder / "photo.png", folder / "lower.png"), {}
    for model in ("finder", "pairs"):
        text = (PROJECT + POSTPROCESS).replace("finder", model)
        bundle = package_job(make_job(_project(folder, text, board="local")), tmp_path / model)

        def answer(app: Path, *images: Path) -> Any:
            words = [word for image in images for word in ("--image", str(image))]
            done = subprocess.run([app, "--json", *words], capture_output=True, check=False)
            return json.loads(done.stdout)

        answers[model] = partial(answer, bundle.file(APP))
    alone = [answers["finder"](photo)["boxes"] for photo in photos]
    assert alone[0] != alone[1]
    together = answers["pairs"](*photos)
    assert together["boxes"] == alone[0]
    assert together["more"] == [{"image": str(photos[1]), "boxes": alone[1]}]
    single = answers["pairs"](photos[1])
    assert (single["boxes"], "more" in single) == (alone[1], False)
    error = answers["pairs"](*photos, photos[0])["error"]
    assert (error["code"], error["message"]) == (2, "3 times --image: the model takes 2")
    seen = check_project(_project(folder, text, board="local")).seen
    assert seen[0].results is not None
    assert [box.index for box in seen[0].results.boxes or ()] == [box["index"] for box in alone[0]]


def test_a_mask_is_a_picture(folder: Path, tmp_path: Path) -> None:
    """Which class each pixel is of, as the reference has it; 255 beside all of them."""
    text = PROJECT + '[postprocess]\nkind = "segmentation"\nbackground = 0\n'
    text = text.replace('labels = "labels.txt"\n', "")
    job = make_job(_project(folder, text, board="local"))
    app = package_job(job, tmp_path).file(APP)
    words = [app, "--image", folder / "photo.png", "--mask", tmp_path / "mask.png"]
    subprocess.run([*words, "--draw", tmp_path / "drawn.png"], capture_output=True, check=True)
    golden = make_golden(job.model, preprocess=job.preprocess, image=folder / "photo.png")
    assert job.postprocess is not None
    found, _ = golden_results(golden, ["found"], job.postprocess, job.preprocess, ())
    assert found.mask is not None
    want = np.full(200 * 330, 255, np.uint8)
    for area in found.mask.areas:
        for start, length in np.array(area.runs).reshape(-1, 2).tolist():
            want[start : start + length] = area.index
    got = cv2.imread(str(tmp_path / "mask.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(got, want.reshape(200, 330))
    # Half of the photo's colour is left where a mask is, all of it elsewhere.
    drawn, photo = (
        cv2.imread(str(path)) for path in (tmp_path / "drawn.png", folder / "photo.png")
    )
    assert drawn is not None
    assert photo is not None
    seen = (drawn != photo).any(2)
    assert seen[got != 255].mean() > 0.9
    np.testing.assert_array_equal(drawn[got == 255], photo[got == 255])
    done = subprocess.run([*words[:-1], tmp_path / "mask.jpg"], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"not .png" in done.stderr


def test_the_app_runs_what_comes_on_stdin(folder: Path, tmp_path: Path) -> None:
    bundle = package_job(make_job(_project(folder, PROJECT + POSTPROCESS, board="local")), tmp_path)
    photo = cv2.imread(str(folder / "photo.png"))
    assert photo is not None
    height, width = photo.shape[:2]
    jpeg = cv2.imencode(".jpg", photo)[1].tobytes()
    # Another frame: its lower half.
    lower = cv2.imencode(".jpg", np.ascontiguousarray(photo[100:]))[1].tobytes()
    size = f"{width}x{height}"
    paths = f"{folder}/photo.png\n{folder}/none.png\n{folder}/photo.png"
    for words, stdin, frames, broken in (
        (["--images", "-"], paths.encode(), 2, 1),
        (["--frames", "mjpeg"], jpeg + jpeg[: len(jpeg) // 2] + lower + jpeg, 3, 1),
        (["--frames", "mjpeg"], _without_tables(jpeg), 1, 0),
        (["--frames", "mjpeg", "--size", size], jpeg + lower + jpeg + jpeg[:99], 2, 2),
        (["--frames", "bgr24", "--size", size], photo.tobytes() * 2 + b"x", 2, 1),
        (["--frames", "rgb24", "--size", size], photo[:, :, ::-1].tobytes(), 1, 0),
        (["--frames", "gray", "--size", size], b"", 0, 0),
        (["--frames", "yuyv", "--size", size], _yuyv(photo), 1, 0),
    ):
        done = subprocess.run(
            [bundle.file(APP), *words], input=stdin, capture_output=True, check=False
        )
        # Where nothing came, whatever writes it has failed.
        assert done.returncode == (0 if stdin else UsageError.exit_code), done.stderr
        assert stdin or b"nothing came" in done.stderr
        *lines, end = (json.loads(line) for line in done.stdout.splitlines())
        assert (end["end"]["frames"], end["end"]["broken"]) == (frames, broken), words
        seen = [{box["label"] for box in line["boxes"]} for line in lines if "boxes" in line]
        assert seen == [{"red", "blue"}, {"blue"}, {"red", "blue"}][:frames] or (
            frames < 3 and all(labels == {"red", "blue"} for labels in seen)
        )
        assert len(seen) == frames


def _without_tables(jpeg: bytes) -> bytes:
    """As webcams send it: the Huffman tables are those of the standard's annex K, and left out."""
    kept, at = bytearray(jpeg[:2]), 2
    while jpeg[at + 1] != 0xDA:  # SOS
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if jpeg[at + 1] != 0xC4:  # DHT
            kept += jpeg[at:end]
        at = end
    assert at > len(kept)
    return bytes(kept) + jpeg[at:]


def _yuyv(photo: np.ndarray) -> bytes:
    """As a camera has it: every second U and V of OpenCV's planes is left out."""
    y, v, u = cv2.split(cv2.cvtColor(photo, cv2.COLOR_BGR2YCrCb))
    pairs = np.stack([y[:, ::2], u[:, ::2], y[:, 1::2], v[:, ::2]], 2)
    # From the full range, that of JPEG, to that of television.
    pairs[:, :, ::2] = np.round(pairs[:, :, ::2] * (219 / 255)) + 16
    return bytes(pairs.tobytes())


def test_a_detector_has_no_expected_class(folder: Path) -> None:
    text = PROJECT.replace("golden_image", "expected_class = 1\ngolden_image") + POSTPROCESS
    with pytest.raises(ConfigError, match="expected_class cannot be used with kind 'yolo'"):
        make_job(_project(folder, text, board="local"))


def test_without_a_table_there_is_no_file(folder: Path, tmp_path: Path) -> None:
    text = PROJECT.replace('labels = "labels.txt"\n', "")
    bundle = package_job(make_job(_project(folder, text, board="local")), tmp_path)
    assert POSTPROCESS_JSON not in bundle.manifest.files
