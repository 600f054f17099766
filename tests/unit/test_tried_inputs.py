"""`init`: shapes that a model runs with, and inputs that tell something, where nobody says any."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

from edgepack.cli import main
from edgepack.flow.init import draft_project
from edgepack.flow.project import load_project
from tests.onnx_models import Builder


def test_a_count_of_features_that_only_the_last_weights_tell(tmp_path: Path) -> None:
    """Frames of bands, as models of music take them: of 3 x 3 windows in 12 bands 10 are left, and
    four channels of them are 40 features. Of 22 bands 20 are left, which run too if the frames are
    even, counted together."""
    b = Builder()
    image = b.op("Unsqueeze", "x", b.const(np.array([0, 1])))
    weights = np.random.default_rng(0).normal(size=(4, 1, 3, 3)).astype(np.float32)
    maps = b.op("Transpose", b.op("Conv", image, b.const(weights)), perm=[0, 2, 1, 3])
    rows = b.op("Reshape", maps, b.const(np.array([-1, 40])))
    last = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)
    b.op("MatMul", rows, b.const(last), outputs=["y"])
    draft = draft_project(
        b.save(tmp_path / "m.onnx", {"x": ["n", "bands"]}, {"y": [None, 2]}), tmp_path / "e.toml"
    )
    assert tomllib.loads(draft.text)["shapes"] == {"x": [16, 12]}
    assert "what shape has 'x'? (see [shapes])" in draft.open


def made(tmp_path: Path, b: Builder, shape: list[int | str | None]) -> tuple[str, np.ndarray]:
    """What is said of the input that `init` makes, and the input itself."""
    b.save(tmp_path / "m.onnx", {"x": shape}, {"y": [None] * len(shape)})
    out = tmp_path / "edgepack.toml"
    assert main(["init", str(tmp_path / "m.onnx"), "--out", str(out)]) == 0
    (file,) = load_project(out).golden_input
    line = next(line for line in out.read_text().splitlines() if line.startswith("golden_input"))
    return line, np.load(file)


def test_an_input_for_which_the_outputs_are_numbers(tmp_path: Path) -> None:
    b = Builder()
    b.op("Sqrt", b.op("ReduceMin", "x", keepdims=1), outputs=["y"])
    line, x = made(tmp_path, b, [1, 3, 50])
    assert "# generated (noise from 0 to 1)" in line
    assert x.shape == (1, 3, 50)
    assert np.sqrt(x.min()) > 0


def test_an_input_large_enough_to_tell(tmp_path: Path) -> None:
    b = Builder()
    b.op("Relu", b.op("Sub", "x", b.const(np.float32(50))), outputs=["y"])
    _, x = made(tmp_path, b, [1, 3, 50])
    assert 0 < (x > 50).mean() < 1


def test_sound_is_a_tone(tmp_path: Path) -> None:
    """Of 220 Hz, 16,000 values a second: the strongest frequency by numpy."""
    b = Builder()
    b.op("Sqrt", b.op("ReduceMin", b.op("Sub", b.const(np.float32(0.6)), "x")), outputs=["y"])
    _, x = made(tmp_path, b, [1, 16000])
    assert np.abs(np.fft.rfft(x[0])).argmax() == 220


def test_data_that_the_model_knows(tmp_path: Path) -> None:
    """Nearest neighbours: any point far away is of one class."""
    known = np.array([[90, 10, 40], [20, 70, 60]], np.float32)
    b = Builder()
    away = b.op("Abs", b.op("Sub", "x", b.const(known)))
    near = b.op("Less", b.op("ReduceSum", away, b.const(np.array([1]))), b.const(np.float32(1)))
    b.op("Cast", near, outputs=["y"], to=1)
    line, x = made(tmp_path, b, [1, 3])
    assert "a row of the model's own data" in line
    assert any((x == row).all() for row in known)


def test_outputs_that_are_all_but_nothing_are_a_last_resort(tmp_path: Path) -> None:
    """Of values up to 1 a sigmoid of x - 20 is 5e-9 at most; it is 1 for large ones."""
    b = Builder()
    root = b.op("Sqrt", b.op("ReduceMin", "x", keepdims=1))
    b.op("Mul", b.op("Sigmoid", b.op("Sub", "x", b.const(np.float32(20)))), root, outputs=["y"])
    _, x = made(tmp_path, b, [1, 3, 2])
    assert (np.sqrt(x.min()) / (1 + np.exp(20 - x))).max() > 0.01


def test_random_inputs_that_tell_need_no_file(tmp_path: Path) -> None:
    b = Builder()
    b.op("Relu", "x", outputs=["y"])
    draft = draft_project(
        b.save(tmp_path / "m.onnx", {"x": [1, 3, 50]}, {"y": [1, 3, 50]}), tmp_path / "e.toml"
    )
    assert (draft.tensors, "golden_input" in draft.text) == ((), False)


def test_sizes_smaller_than_a_poolings_window_are_passed_over(tmp_path: Path) -> None:
    """onnxruntime pools 1 row by windows of 2 as if there were 2 rows; kernels, and ONNX's
    definition, have no result. Frames of one row are what `init` tries first."""
    b = Builder()
    image = b.op("Unsqueeze", "x", b.const(np.array([0, 1])))
    pooled = b.op("MaxPool", image, kernel_shape=[2, 2], strides=[2, 2])
    b.op("ReduceMax", pooled, keepdims=0, outputs=["y"])
    draft = draft_project(
        b.save(tmp_path / "m.onnx", {"x": ["n", "bands"]}, {"y": []}), tmp_path / "e.toml"
    )
    frames, bands = tomllib.loads(draft.text)["shapes"]["x"]
    assert frames >= 2
    assert bands >= 2
    assert "nothing tells axes 0, 1" in draft.text
