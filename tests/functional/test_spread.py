"""Transposed convolutions to few channels on images that several cores share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs

# Rows that are no multiple of the cores.
SHAPE = (2, 48, 31, 33)


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
    plan = json.loads(compiled.graph.read_text())
    (call,) = [call for call in plan["calls"] if call["kernel"].startswith("spread")]
    parts = plan["tensors"][call["args"][-1]]
    planes, lanes = parts["shape"][0], parts["shape"][-1]
    # Of each core three rows, of which each result is a sum, of 25 points of the window.
    shares = planes // (3 * -(-25 // lanes))
    assert shares == {"local": shares, "pynq": 2, "rk3399": 6}.get(board, shares) > 0
