"""A quantised model is judged by its task; the numbers here are counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest

from edgepack.cli.quantize import agreement_text, short_name
from edgepack.flow.agreement import judge_for
from edgepack.flow.project import load_project
from edgepack.flow.quantize import quantize_project
from edgepack.model import ModelSpec, read_model
from edgepack.postprocess.instances import Prototypes
from edgepack.quantization.quantize import Agreement
from tests.onnx_models import Builder

SHAPE = [1, 3, 4, 4]


def judged(
    tmp_path: Path, postprocess: str, outputs: dict[str, list[int]], exact: Any, made: Any
) -> Agreement:
    """What `exact` and `made`, rows of the outputs, come to by a project's [postprocess]."""
    net = Builder()
    for name, shape in outputs.items():
        net.op("ReduceMean", "x", outputs=[f"{name}_mean"], keepdims=0)
        size = net.const(np.array(shape, np.int64))
        net.op("Expand", f"{name}_mean", size, outputs=[name])
    path = net.save(tmp_path / "net.onnx", {"x": SHAPE}, outputs)
    file = tmp_path / "edgepack.toml"
    file.write_text(
        '[project]\nmodel = "net.onnx"\n[preprocess]\n'
        f'resize = {{ mode = "exact", height = 4, width = 4 }}\n{postprocess}'
    )
    rows = [[np.asarray(one, np.float32) for one in side] for side in (exact, made)]
    return judge_for(load_project(file), read_model(ModelSpec(path=path)))(*rows)


def test_masks_by_the_overlap_of_their_areas(tmp_path: Path) -> None:
    """Two classes beside the background, of which one pixel in four is lost."""
    exact = np.zeros((1, 3, 4, 4))
    exact[0, 0] = 0.5
    exact[0, 1, 0, :] = 1  # four pixels of class 1
    exact[0, 2, 3, :2] = 1  # two of class 2
    made = exact.copy()
    made[0, 1, 0, 3] = 0
    table = '[postprocess]\nkind = "segmentation"\n'
    shape = {"y": [1, 3, 4, 4]}
    found = judged(tmp_path, table, shape, [exact.reshape(1, -1)], [made.reshape(1, -1)])
    # Class 1: 3 of 4; class 2: 2 of 2; the rest: 10 of 11.
    assert found.miou == pytest.approx((3 / 4 + 1 + 10 / 11) / 3)
    assert (found.top1, found.top5, found.map) == (None, None, None)
    assert "mIoU 0.886" in agreement_text(found)
    assert "top-1" not in agreement_text(found)
    same = judged(tmp_path, table, shape, [exact.reshape(1, -1)], [exact.reshape(1, -1)])
    assert same.miou == 1.0


def test_a_mask_of_one_map(tmp_path: Path) -> None:
    logits = np.full((2, 1, 4, 4), -3.0)
    logits[:, 0, :2, :] = 3
    made = logits.copy()
    made[1, 0, 0, :] = -3  # half of the second photo's area
    table = '[postprocess]\nkind = "segmentation"\nscores = "sigmoid"\nscore = 0.5\n'
    rows = [[one.reshape(2, -1)] for one in (logits, made)]
    found = judged(tmp_path, table, {"y": [1, 1, 4, 4]}, *rows)
    assert found.miou == pytest.approx((12 / 16 + 16 / 20) / 2)


def test_boxes_by_their_precision(tmp_path: Path) -> None:
    """Corners, scores and classes as NMS leaves them; float32's are the truth."""
    table = '[postprocess]\nkind = "yolo"\nhead = "end2end"\nscore = 0.25\n'
    shape = {"y": [1, 2, 6]}
    boxes = np.array([[[0, 0, 2, 2, 0.9, 0], [2, 2, 4, 4, 0.8, 1]]], float)
    row = [boxes.reshape(1, -1)]
    assert judged(tmp_path, table, shape, row, row).map == pytest.approx(1.0)
    half = boxes.copy()
    half[0, 1, 4] = 0  # the second is not seen any more
    found = judged(tmp_path, table, shape, row, [half.reshape(1, -1)])
    assert found.map == pytest.approx(0.5)
    assert "mAP 50-95 0.500" in agreement_text(found)
    nothing = np.zeros_like(boxes).reshape(1, -1)
    assert judged(tmp_path, table, shape, [nothing], [nothing]).map is None


def test_masks_of_boxes_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a second for each photo, and the boxes are what is compared."""
    table = '[postprocess]\nkind = "yolo"\nhead = "end2end"\nscore = 0.25\nmasks = 2\n'
    boxes = np.array([[[0, 0, 2, 2, 0.9, 0, 1, 1], [2, 2, 4, 4, 0.8, 1, 1, 1]]], float)
    row = [boxes.reshape(1, -1), np.ones((1, 2 * 2 * 2))]
    made: list[object] = []
    monkeypatch.setattr(Prototypes, "mask", lambda *given: made.append(given))
    shapes = {"y": [1, 2, 8], "z": [1, 2, 2, 2]}
    assert judged(tmp_path, table, shapes, row, row).map == pytest.approx(1.0)
    assert not made


def test_what_nobody_names_is_judged_by_its_values(tmp_path: Path) -> None:
    """Maps of depth, of a detector, two numbers: no class is the largest of them."""
    for shape in ([1, 3, 4, 4], [1, 8, 6], [1, 1]):
        rows = [np.arange(1.0, 1 + np.prod(shape)).reshape(1, -1)]
        found = judged(tmp_path, "", {"y": shape}, rows, [rows[0] * 1.1])
        assert (found.top1, found.miou, found.map) == (None, None, None)
        assert found.snr_db == pytest.approx(20)
        assert agreement_text(found) == "20.0 dB above the error"
    classes = [np.array([[0.1, 0.2, 0.7]])]
    found = judged(tmp_path, "", {"y": [1, 3]}, classes, classes)
    assert (found.top1, found.top5) == (1.0, 1.0)


def test_a_segmenter_from_photos_to_its_file(tmp_path: Path) -> None:
    """A real one: the file does not claim that classes of photos agree; HardSwish is no float."""
    net = Builder()
    net.op("HardSwish", net.conv("x", 3, 8), outputs=["act"])
    net.op("Identity", net.conv("act", 8, 3), outputs=["y"])
    net.save(tmp_path / "net.onnx", {"x": [1, 3, 16, 16]}, {"y": [1, 3, 16, 16]})
    (tmp_path / "photos").mkdir()
    random = np.random.default_rng(1)
    for number in range(8):
        pixels = cv2.resize(random.integers(0, 255, (4, 4, 3)).astype("uint8"), (16, 16))
        cv2.imwrite(str(tmp_path / "photos" / f"{number}.png"), pixels)
    file = tmp_path / "edgepack.toml"
    file.write_text(
        '[project]\nmodel = "net.onnx"\n[preprocess]\npreset = "zero-one"\n'
        'resize = { mode = "exact", height = 16, width = 16 }\n'
        '[postprocess]\nkind = "segmentation"\nbackground = -1\n'
    )
    out = tmp_path / "small.onnx"
    found = quantize_project(load_project(file), tmp_path / "photos", out)
    assert found.agreement.miou is not None
    assert 0.5 < found.agreement.miou <= 1
    assert found.agreement.top1 is None
    keys = {item.key for item in onnx.load(out).metadata_props}
    assert "edgepack.calibration" in keys
    assert "edgepack.agreement" not in keys
    # It is a table between integers, whatever operators onnxruntime makes of it.
    assert found.untouched == ()


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        ("conv1", "conv1"),
        ("/model.22/cv3.0/cv3.0.1/act/Mul", "...cv3.0.1/act/Mul"),
        ("mobilenetv2_1.00_224/block_1_expand_relu/Relu6;very/long/thing", "...;very/long/thing"),
        ("x" * 60, "..." + "x" * 21),
    ],
)
def test_names_are_short(layer: str, shown: str) -> None:
    assert len(short_name(layer)) <= 24
    assert layer.endswith(short_name(layer).removeprefix("..."))
    assert short_name(layer).startswith("...") == (len(layer) > 24)
