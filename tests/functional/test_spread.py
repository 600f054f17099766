"""Transposed convolutions to few channels on images that several cores share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from edgepack.compiler import CompiledModel
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs

# Rows that are no multiple of the cores.
SHAPE = (2, 48, 31, 33)


@every_target
def test_phases_end_at_different_rows(tmp_path: Path, board: str, cpu: str) -> None:
    """Of a window of 4 by strides of 2 and a padding of 1, both phases are sums of two rows of
    parts, but of other ones; by strides of 3, a window of 7 has phases of three rows and of two."""
    net = Builder(5)
    four, seven, bias = net.weight(48, 1, 4, 4), net.weight(48, 1, 7, 3), net.weight(1)
    even = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    uneven = {"strides": [3, 2], "pads": [4, 0, 0, 1], "output_padding": [2, 1]}
    cases = {
        "four": net.op("ConvTranspose", "x", four, bias, **even),
        "seven": net.op("ConvTranspose", "x", seven, bias, **uneven),
    }
    path = save_cases(tmp_path / "phases.onnx", net, {"x": SHAPE}, cases)
    x = net.random.normal(size=SHAPE).astype("float32")
    compiled, got = compile_and_run(path, [x], board, cpu, tmp_path)
    assert not wrong_outputs(path, [x], got, tolerance=1e-5)
    assert _shares(compiled, "spread4x4", rows=2, points=16) > 0
    assert _shares(compiled, "spread7x3", rows=3, points=21) > 0


def _shares(compiled: CompiledModel, kernel: str, *, rows: int, points: int) -> int:
    """The cores for each of which a kernel keeps so many rows of parts."""
    plan = json.loads(compiled.graph.read_text())
    (call,) = [call for call in plan["calls"] if call["kernel"].startswith(kernel)]
    planes, *_, lanes = plan["tensors"][call["args"][-1]]["shape"]
    cores, rest = divmod(planes, rows * -(-points // lanes))
    assert rest == 0
    return cores


@every_target
def test_each_core_has_rows_of_its_own(tmp_path: Path, board: str, cpu: str) -> None:
    """A number that is none reaches the results that its window meets, of whichever core, and no
    others."""
    net = Builder(2)
    weights = net.weight(48, 1, 5, 5), net.weight(1)
    cases = {"one": net.op("ConvTranspose", "x", *weights, strides=[2, 2], pads=[2, 1, 2, 1])}
    path = save_cases(tmp_path / "spread.onnx", net, {"x": SHAPE}, cases)
    x = net.random.normal(size=SHAPE).astype("float32")
    x[0, 3, 15, 16], x[1, 0, 30, 0], x[1, 1, 8, 32] = np.nan, np.inf, -np.inf
    compiled, got = compile_and_run(path, [x], board, cpu, tmp_path)
    assert not wrong_outputs(path, [x], got, tolerance=1e-5)
    assert np.isnan(got[0][0]).any() and not np.isnan(got[0][0, :, :20]).any()
    assert "spread" in {layer.rule for layer in compiled.layers}
    # Each result is a sum of three rows, of 25 points of the window.
    shares = _shares(compiled, "spread5x5", rows=3, points=25)
    assert shares == {"local": shares, "pynq": 2, "rk3399": 6}.get(board, shares) > 0
