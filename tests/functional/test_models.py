"""The short form of `./dev models`: a streaming model on a second of speech, a small pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgepack.flow.reference import run_reference
from tests import models, onnx_models
from tests.pipelines import Infer, Pipeline, Result
from tests.support import require_tool


@pytest.mark.parametrize("target", [pytest.param("local", marks=pytest.mark.slow), "rasp3b"])
def test_a_voice_activity_detector_carries_its_state(target: str, tmp_path: Path) -> None:
    require_tool("qemu-arm-static")
    silero = models.MODELS[0]
    assert silero.name == "silero-vad"
    short = replace(silero, inputs=lambda loaded: silero.inputs(loaded)[300:330], emulated=30)
    row = models.check(short, target, tmp_path)
    assert (row.verdict, row.runs) == ("equal", 30)


def test_a_pipeline_is_compared_with_the_same_on_onnxruntime(tmp_path: Path) -> None:
    images = np.random.RandomState(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    path = onnx_models.one_conv(tmp_path / "model.onnx", "n")

    def run(infer: Infer | None, _: Path) -> Result:
        if infer is None:
            (features,) = run_reference(path, {"image": images.shape}, [images])
        else:
            (features,) = infer(path, {"image": images})
        words = ("here" if infer is None else "there",)
        picture = np.zeros((2, 2, 3), np.uint8)
        return Result(words=words, numbers=features.ravel(), picture=picture)

    row = models.check_pipeline(Pipeline(name="small", run=run), "local", tmp_path, tmp_path)

    assert row.runs == 2  # item by item
    assert row.error <= models.RTOL
    assert row.verdict == "reads 'there', not 'here'"
    assert (tmp_path / "small.local.txt").read_text() == "there\n"
    assert (tmp_path / "small.onnxruntime.png").exists()
