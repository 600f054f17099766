"""`precision` of a stage, and a stage of 8-bit integers: each model of a bundle has its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from edgepack.bundle.manifest import APP, PARAMS
from edgepack.flow.check import check_project
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from edgepack.postprocess.results import Results
from tests.onnx_models import Builder

SIDE, CROP, CLASSES = 32, 16, 8


class _Noise(CalibrationDataReader):
    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self._left = [random.uniform(0, 255, (1, 3, CROP, CROP)).astype("f4") for _ in range(4)]

    def get_next(self) -> Any:
        return {"x": self._left.pop()} if self._left else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A detector of two boxes in each photo, a classifier of crops, and that on integers."""
    b = Builder()
    nothing = b.op("Mul", b.op("ReduceMean", "x", keepdims=0), b.const(1e-4, "f4"))
    rows = [[[0, 0, 16, 16, 0.9, 0], [8, 8, 32, 32, 0.8, 0]]]
    b.op("Add", b.const(rows, "f4"), nothing, outputs=["rows"])
    b.save(tmp_path / "boxes.onnx", {"x": [1, 3, SIDE, SIDE]}, {"rows": [1, 2, 6]})
    b = Builder(3)
    inner = b.op("Relu", b.conv("x", 3, 64))
    inner = b.op("Relu", b.conv(inner, 64, 64))
    pooled = b.op("Flatten", b.op("GlobalAveragePool", inner))
    b.op("MatMul", pooled, b.weight(64, CLASSES), outputs=["y"])
    plain = b.save(tmp_path / "kinds.onnx", {"x": [1, 3, CROP, CROP]}, {"y": [1, CLASSES]})
    whole = tmp_path / "whole.onnx"
    quantize_static(plain, whole, _Noise(), quant_format=QuantFormat.QDQ)
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(whole).graph.node)
    photo = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "photo.png"), photo)
    return tmp_path


def test_each_stage_has_a_precision_of_its_own(folder: Path) -> None:
    resize = "resize = { mode = 'exact', height = %d, width = %d }\n"
    text = (
        '[project]\nname = "many"\nmodel = "boxes.onnx"\ngolden_image = "photo.png"\n'
        f'board = "local"\n[preprocess]\n{resize % (SIDE, SIDE)}'
        '[postprocess]\npreset = "yolo-end2end"\n'
    )
    for name, model, precision in (
        ("full", "kinds.onnx", "float32"),
        ("half", "kinds.onnx", "float16"),
        ("whole", "whole.onnx", "float32"),
    ):
        text += f'[[stage]]\nname = "{name}"\nmodel = "{model}"\nprecision = "{precision}"\n'
        text += f"[stage.preprocess]\n{resize % (CROP, CROP)}"
    file = folder / "edgepack.toml"
    file.write_text(text)
    project = load_project(file)
    bundle = package_job(make_job(project), folder / "dist")
    sizes = [bundle.file(f"stages/{at}/{PARAMS}").stat().st_size for at in (1, 2, 3)]
    assert sizes[1] < 0.7 * sizes[0] and sizes[2] < 0.5 * sizes[0]
    done = subprocess.run(
        [bundle.file(APP), "--image", folder / "photo.png", "--json"],
        capture_output=True,
        check=True,
    )
    (seen,) = check_project(project).seen
    assert seen.results is not None and seen.results.boxes is not None
    for box, wanted in zip(json.loads(done.stdout)["boxes"], seen.results.boxes, strict=True):
        for name, bound in (("full", 1e-4), ("half", 2e-2), ("whole", 2e-2)):
            answer = wanted.answers[name]
            assert isinstance(answer, Results) and answer.top is not None
            best = box["answers"][name]["top"][0]
            assert best["index"] == answer.top[0].index
            assert best["score"] == pytest.approx(answer.top[0].score, abs=bound)
