"""`edgepack quantize` from photos to a device's answers: the file it writes, compiled, equals the
definition on integers to the bit, and the float model as nearly as the command said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

from edgepack.cli import main
from edgepack.flow.project import load_project
from edgepack.frontend import integer_reference
from edgepack.frontend.integer_recognition import NODE
from edgepack.frontend.precision import FULL
from edgepack.quantization.network import outputs
from tests.onnx_models import Builder
from tests.targets import compile_and_run

SIZE = 32


def network(path: Path) -> None:
    """Inverted residual blocks, whose channels differ, a strided one, and a dense layer."""
    b = Builder(11)
    ends = b.const(0.0, "float32"), b.const(6.0, "float32")

    def conv(data: str, ins: int, outs: int, kernel: int, **given: object) -> str:
        group = int(given.get("group", 1))  # type: ignore[call-overload]
        weight = b.random.normal(size=(outs, ins // group, kernel, kernel))
        weight *= b.random.uniform(0.2, 2.0, (outs, 1, 1, 1)) / np.sqrt(weight[0].size)
        bias = b.const(b.random.normal(size=outs) * 0.1, "float32")
        pads = [kernel // 2] * 4
        return b.op("Conv", data, b.const(weight, "float32"), bias, pads=pads, **given)  # type: ignore[arg-type]

    x = b.op("Clip", conv("x", 3, 16, 3, strides=[2, 2]), *ends)
    for ins, outs, kernel, step in ((16, 16, 3, 1), (16, 24, 5, 2), (24, 24, 5, 1)):
        wide = b.op("Clip", conv(x, ins, 3 * ins, 1), *ends)
        given = {"group": 3 * ins, "strides": [step, step]}
        deep = b.op("Clip", conv(wide, 3 * ins, 3 * ins, kernel, **given), *ends)
        thin = conv(deep, 3 * ins, outs, 1)
        x = b.op("Add", x, thin) if ins == outs else thin
    row = b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", x)))
    b.op("Gemm", row, b.weight(10, 24), b.weight(10), transB=1, outputs=["y"])
    onnx.save(b.model({"x": (1, 3, SIZE, SIZE)}, {"y": (1, 10)}), path)


def photos(folder: Path, count: int, seed: int) -> list[Path]:
    """Smooth pictures as files."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        pixels = cv2.resize(random.integers(0, 255, (6, 6, 3)).astype("uint8"), (50, 40))
        made.append(folder / f"{index}.png")
        cv2.imwrite(str(made[-1]), pixels)
    return made


@pytest.mark.slow
def test_from_photos_to_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    network(tmp_path / "net.onnx")
    photos(tmp_path / "photos", 40, seed=1)
    judge = photos(tmp_path / "judge", 60, seed=2)
    (tmp_path / "edgepack.toml").write_text(
        '[project]\nmodel = "net.onnx"\n[preprocess]\nscale = 0.01\nmean = [127, 127, 127]\n'
        f'resize = {{ mode = "exact", height = {SIZE}, width = {SIZE} }}\n'
        '[quantize]\nimages = "photos"\njudge = "judge"\n'
    )
    assert main(["quantize", "--json", "--cache-dir", "kept"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["calibrated"], said["judged"]) == (40, 60)
    assert said["in_float"] == []
    assert said["agreement"]["snr_db"] > 15
    assert said["agreement"]["top1"] >= 0.75

    path = tmp_path / "net.int8.onnx"
    whole = integer_reference.integer_model(path, onnx.load(path))
    assert whole is not None
    assert {node.op_type for node in whole.graph.node} == {NODE}
    spec = load_project(tmp_path / "edgepack.toml").preprocess
    assert spec is not None
    given = [spec.load(photo) for photo in judge]
    exact = outputs(onnx.load("net.onnx"), given)[0]
    expected = np.concatenate([integer_reference.run(whole, [one])[0] for one in given])
    # What the command said of the file is so of what a device computes.
    error = ((expected - exact) ** 2).sum()
    assert 10 * np.log10((exact**2).sum() / error) > said["agreement"]["snr_db"] - 3
    same = (expected.argmax(axis=1) == exact.argmax(axis=1)).mean()
    assert abs(same - said["agreement"]["top1"]) <= 0.1
    # By its cost, a CPU with fast floats leaves some of so small a network in float.
    integers = replace(FULL, quantized="int8")
    for board, cpu in (
        ("local", "native"),
        ("pynq", "cortex-a9"),
        ("rk3399", "cortex-a72"),
        ("rasp5b", "cortex-a76"),
    ):
        work = tmp_path / board
        work.mkdir()
        compiled, (got,) = compile_and_run(path, given[:1], board, cpu, work, precision=integers)
        assert not compiled.floats
        np.testing.assert_array_equal(got, expected[:1], err_msg=board)
