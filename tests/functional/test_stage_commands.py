"""What `bench`, `compare --release`, `quantize` and `tune` do with models in a row, on this
machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from edgepack.cli import main
from tests.onnx_models import Builder
from tests.schemas import check_output

SIDE, CROP, CLASSES, BRIGHT = 32, 16, 8, 100
PROJECT = """
[project]
name = "many"
model = "boxes.onnx"
golden_image = "photos/0.png"
board = "local"
device = "local"
[preprocess]
resize = { mode = "exact", height = 32, width = 32 }
[postprocess]
preset = "yolo-end2end"
[[stage]]
name = "all"
model = "all.onnx"
scores = "raw"
[stage.preprocess]
resize = { mode = "exact", height = 16, width = 16 }
[[stage]]
name = "best"
model = "best.onnx"
scores = "raw"
most = 1
[stage.preprocess]
resize = { mode = "exact", height = 16, width = 16 }
"""


def _classifier(path: Path, seed: int) -> None:
    b = Builder(seed)
    inner = b.op("Relu", b.conv("x", 3, 16))
    inner = b.op("Relu", b.conv(inner, 16, 32))
    pooled = b.op("Flatten", b.op("GlobalAveragePool", inner))
    b.op("MatMul", pooled, b.weight(32, CLASSES), outputs=["y"])
    b.save(path, {"x": [1, 3, CROP, CROP]}, {"y": [1, CLASSES]})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A detector that finds two boxes in each photo: the likelier one is its dark corner."""
    b = Builder()
    seen = b.op("ReduceMean", b.conv("x", 3, 4), keepdims=0)
    nothing = b.op("Mul", seen, b.const(1e-6, "f4"))
    # Enlarged to whole pixels, the first one is that corner.
    rows = [[[0, 0, CROP - 0.5, CROP - 0.5, 0.9, 0], [8, 8, SIDE, SIDE, 0.8, 0]]]
    b.op("Add", b.const(rows, "f4"), nothing, outputs=["rows"])
    b.save(tmp_path / "boxes.onnx", {"x": [1, 3, SIDE, SIDE]}, {"rows": [1, 2, 6]})
    _classifier(tmp_path / "all.onnx", 3)
    _classifier(tmp_path / "best.onnx", 4)
    (tmp_path / "photos").mkdir()
    random = np.random.default_rng(1)
    for number in range(8):
        photo = random.integers(200, 256, (SIDE, SIDE, 3), np.uint8)
        photo[:CROP, :CROP] = random.integers(0, BRIGHT + 1, (CROP, CROP, 3), np.uint8)
        cv2.imwrite(str(tmp_path / "photos" / f"{number}.png"), photo)
    (tmp_path / "edgepack.toml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(model: Path, x: Any) -> Any:
    return onnxruntime.InferenceSession(str(model)).run(None, {"x": x})[0]


def test_each_stage_is_timed_and_the_one_that_changed_is_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ("--root", str(folder / "device"))
    assert main(["deploy", *there]) == 0
    before = (folder / "device" / "current").resolve().name
    capsys.readouterr()
    words = ["bench", "-n", "5", *there, "--profile", "--html", str(folder / "bench.html")]
    assert main([*words, "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["stage_times"]["parts"]
    assert [(part["stage"], part["boxes"]) for part in parts] == [("", 1), ("all", 2), ("best", 1)]
    assert all(part["rss_peak_bytes"] > part["params_bytes"] > 0 for part in parts)
    graphs = [json.loads((folder / "device" / "current" / path).read_text())
              for path in ("stages/1/model/graph.json", "stages/2/model/graph.json")]  # fmt: skip
    assert [len(part["profile"]["layers"]) for part in parts[1:]] == [
        len(graph["calls"]) for graph in graphs
    ]
    shown = (folder / "bench.html").read_text()
    assert all(name in shown for name in ("Layers of all by time", "Layers of best by time"))

    (folder / "best.onnx").rename(folder / "was.onnx")
    _classifier(folder / "best.onnx", 5)
    assert main(["deploy", *there]) == 0
    capsys.readouterr()
    after = (folder / "device" / "current").resolve().name
    assert main(["bench", "-n", "1", *there, "--compare", before, after, "--json"]) == 0
    # Each release's own photo goes through its stages: that takes longer than its first model.
    assert len(json.loads(capsys.readouterr().out)["a_ms"]) == 10
    assert main(["compare", "--release", before, *there]) == 0
    assert capsys.readouterr().out.endswith("stage 'best' is the first to differ\n")
    assert main(["compare", "--release", before, *there, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stages"]
    stages = {one["stage"]: one["changed"] for one in found}
    assert list(stages) == ["all", "best"]
    assert stages["all"]["output"]["max_abs_difference"] == 0
    pixels = cv2.imread("photos/0.png")[:CROP, :CROP, ::-1]
    crop = pixels.transpose(2, 0, 1)[np.newaxis].astype(np.float32)
    wanted = np.abs(_run(folder / "best.onnx", crop) - _run(folder / "was.onnx", crop)).max()
    assert stages["best"]["output"]["max_abs_difference"] == pytest.approx(wanted, rel=1e-3)
    assert stages["best"]["first_differing"] == 0


def test_a_stage_is_quantised_on_what_it_is_given(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "--stage", "best", "--images", "photos", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["calibrated"], found["judged"]) == (6, 2)
    model = onnx.load("best.int8.onnx")
    numbers = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    scales = [
        float(numbers[node.input[1]])
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] == "x"
    ]
    # The rest of the photos is twice as bright, and more.
    assert scales and all(0.5 * BRIGHT / 255 < scale <= 1.01 * BRIGHT / 255 for scale in scales)


def test_all_models_are_quantised(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage of the same file as another one is not another model."""
    again = PROJECT[PROJECT.index('[[stage]]\nname = "best"') :].replace('"best"', '"again"')
    (folder / "edgepack.toml").write_text(PROJECT + again)
    assert main(["quantize", "--images", "photos", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    check_output("quantize", said)
    # The photos; both boxes of each; the likelier one of each.
    assert [(one["name"], one["calibrated"], one["judged"]) for one in said["models"]] == [
        *(("many", 6, 2), ("all", 12, 4), ("best", 6, 2))
    ]
    assert [one["file"] for one in said["models"]] == [
        f"{name}.int8.onnx" for name in ("boxes", "all", "best")
    ]
    assert main(["quantize", "--images", "photos"]) == 0
    headings = [line for line in capsys.readouterr().out.splitlines() if line[:1].strip()]
    assert headings == ["many:", "all:", "best:"]
    assert main(["quantize", "--images", "photos", "--stage", "many"]) == 0
    assert capsys.readouterr().out.startswith("boxes.int8.onnx: ")
    for option in ("--out", "--html"):
        assert main(["quantize", "--images", "photos", option, "x"]) == 2
        said = capsys.readouterr().err
        assert f"{option} is for one model, and the project has 3" in said
        assert "--stage NAME, one of many, all, best" in said


def test_all_models_are_tuned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = PROJECT[: PROJECT.rindex("[[stage]]")]
    (folder / "edgepack.toml").write_text(one)
    assert main(["tune", "--trials", "1", "--root", str(folder / "t"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    check_output("tune", said)
    assert [(one["name"], one["trials"] > 0) for one in said["models"]] == [
        *(("many", True), ("all", True))
    ]


@pytest.mark.parametrize("command", [("quantize", "--images", "photos"), ("tune",)])
def test_a_stage_that_there_is_not(
    folder: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert main([*command, "--stage", "bets"]) == 2
    said = capsys.readouterr().err
    assert "--stage: the project has no stage 'bets'" in said
    assert "perhaps you meant 'best'" in said
