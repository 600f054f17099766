"""Groups of a convolution, one of which holds NaN or infinity: it stays in its group."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from edgepack.frontend.precision import FULL, Precision
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases

SHAPE = (1, 12, 9, 11)
# Of the groups' channels, few fit a block of any CPU.
FORMS = [(3, 12, 3), (4, 12, 3), (6, 24, 3), (3, 15, 1), (12, 24, 3), (2, 10, 3)]


def drawn(source: str, net: Builder) -> dict[str, str]:
    cases = {}
    for groups, outs, size in FORMS:
        weight, bias = net.weight(outs, 12 // groups, size, size), net.weight(outs)
        around = {"pads": [size // 2] * 4, "group": groups}
        cases[f"{groups} to {outs}"] = net.op("Conv", source, weight, bias, **around)
        weight = net.weight(12, outs // groups, size, size)
        cases[f"{groups} to {outs} transposed"] = net.op(
            "ConvTranspose", source, weight, bias, strides=[2, 2], **around
        )
    return cases


@pytest.mark.parametrize("way", ["exact", "a layer exact", "from outside"])
@every_target
def test_what_is_not_finite_stays_in_its_group(
    way: str, board: str, cpu: str, tmp_path: Path
) -> None:
    net = Builder(6)
    source = "x"
    if way != "from outside":
        weight = net.const(np.ones((12, 1, 1, 1), "float32"))
        source = net.op("Conv", "x", weight, group=12)
    cases = drawn(source, net)
    path = save_cases(tmp_path / "model.onnx", net, {"x": SHAPE}, cases)
    x = np.random.default_rng(2).normal(size=SHAPE).astype("float32")
    x[0, 0, 4, 5], x[0, 7, 2, 2] = np.nan, np.inf
    nodes = [node.name for node in onnx.load(path).graph.node]
    precision = {
        "exact": Precision(direct=True, bounded=frozenset("x")),
        "a layer exact": Precision(direct=frozenset(nodes), bounded=frozenset("x")),
        "from outside": FULL,
    }[way]
    _, got = compile_and_run(path, [x], board, cpu, tmp_path, precision=precision)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    due = session.run(None, {"x": x})
    for name, mine, theirs in zip(cases, got, due, strict=True):
        np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(theirs), err_msg=name)
        finite = np.isfinite(theirs)
        np.testing.assert_allclose(mine[finite], theirs[finite], atol=1e-5, err_msg=name)
