"""PP-OCR as one bundle: the guide's project on a page, upside down too, beside rapidocr."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest

from bench.fetch import unpacked
from bench.models import RAPIDOCR
from edgepack import virtual
from edgepack.boards import get_board
from edgepack.bundle.manifest import APP
from edgepack.deploy.deploy import deploy_bundle
from edgepack.flow.evaluate_text import evaluate_text
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from tests.boards import login
from tests.pipelines import read

# Three networks are compiled and compared, for two CPUs: minutes.
pytestmark = pytest.mark.slow

LINES = (
    "ACME HARDWARE STORE",
    "Order 20417 of 12 March",
    "2 boxes of screws at 7.80",
    "1 cordless drill at 129.00",
    "Total of 136.80 EUR",
    "Thank you and good bye",
)


def _page() -> np.ndarray:
    """Lines on paper that lies a little askew: HWC uint8, BGR."""
    paper = np.full((576, 1152, 3), 236, np.uint8)
    for number, line in enumerate(LINES):
        at = (70 + 40 * (number % 2), 90 + 80 * number)
        cv2.putText(paper, line, at, cv2.FONT_HERSHEY_SIMPLEX, 1.5, (40, 36, 30), 3, cv2.LINE_AA)
    turn = cv2.getRotationMatrix2D((576, 288), 3, 0.92)
    paper = np.asarray(cv2.warpAffine(paper, turn, (1152, 576), borderValue=(150, 160, 158)))
    grain = np.random.default_rng(0).normal(0, 3, paper.shape)
    return np.clip(paper + grain, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide's project, with what its commands bring."""
    made = tmp_path_factory.mktemp("page")
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "stages.md").read_text()
    section = guide.split("## A page reader")[1].split("\n## ")[0]
    (made / "edgepack.toml").write_text(section.split("```toml\n")[1].split("```")[0])
    for file in unpacked(RAPIDOCR, part="-package").rglob("*.onnx"):
        shutil.copy(file, made / file.name)
    code = section.split('$ python -c "\n')[1].split('"\n```')[0]
    assert "onnx.load" in code
    found = {
        item.key: item.value
        for item in onnx.load(made / "ch_PP-OCRv4_rec_infer.onnx").metadata_props
    }
    (made / "keys.txt").write_text(found["character"], encoding="utf-8")
    (made / "directions.txt").write_text("0\n180\n")
    cv2.imwrite(str(made / "page.png"), _page())
    cv2.imwrite(str(made / "upside-down.png"), _page()[::-1, ::-1])
    return made


def _words(answer: Any) -> tuple[str, ...]:
    return tuple(box["answers"]["text"]["text"][0]["text"] for box in answer["boxes"])


def _ways(answer: Any) -> set[str]:
    return {box["answers"]["direction"]["top"][0]["label"] for box in answer["boxes"]}


def test_a_board_reads_what_rapidocr_reads(folder: Path, tmp_path: Path) -> None:
    """Which compares each crop of the page to the byte as it is packed, on both CPUs."""
    wanted = {
        name: read(np.asarray(cv2.imread(str(folder / name))), None).words
        for name in ("page.png", "upside-down.png")
    }
    assert wanted == {"page.png": LINES, "upside-down.png": LINES[::-1]}
    (tmp_path / "pages").mkdir()
    for name, lines in wanted.items():
        shutil.copy(folder / name, tmp_path / "pages")
        (tmp_path / "pages" / name).with_suffix(".txt").write_text("\n".join(lines))
    judged = evaluate_text(load_project(folder / "edgepack.toml"), tmp_path / "pages")
    assert [one.reference for one in judged.photos] == [" ".join(LINES), " ".join(LINES[::-1])]
    assert (judged.reference.letters, judged.reference.words) == (0, 0)
    text = (folder / "edgepack.toml").read_text()
    (folder / "local.toml").write_text(text.replace('board = "rasp3b"', 'board = "local"'))
    here = package_job(make_job(load_project(folder / "local.toml")), tmp_path)
    for name, ways in (("page.png", {"0"}), ("upside-down.png", {"180"})):
        done = subprocess.run(
            [here.file(APP), "--image", folder / name, "--json"], capture_output=True, check=True
        )
        answer = json.loads(done.stdout)
        assert _words(answer) == wanted[name]
        assert _ways(answer) == ways
    bundle = package_job(make_job(load_project(folder / "edgepack.toml")), tmp_path)
    board = virtual.up(get_board("rasp3b"), name="page")
    with ExitStack() as stack:
        stack.callback(virtual.down, board.name)
        device = stack.enter_context(closing(login(board, "pi")))
        report = deploy_bundle(bundle, device, "edgepack/page")
        assert report.smoke.photo is not None
        assert _words(report.smoke.photo) == wanted["page.png"]
        device.put(folder / "upside-down.png", "upside-down.png")
        app = "edgepack/page/current/bin/edgepack-run"
        ran = device.run(f"{app} --image upside-down.png --json", timeout_s=600)
        answer = json.loads(ran.stdout)
        assert _words(answer) == wanted["upside-down.png"]
        assert _ways(answer) == {"180"}
