"""Sizes that depend on the data, on every instruction set, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, compose

from tests import detectors
from tests.bodies import Body, graph
from tests.onnx_models import Builder
from tests.plan_runner import run_plan
from tests.targets import compile_and_run, every_target, wrong_outputs


def selections() -> onnx.ModelProto:
    """The operators themselves, on data with equal elements."""
    b = Builder()
    b.op("NonZero", "data", outputs=["places"])
    b.op("Compress", "data", "mask", axis=1, outputs=["columns"])
    b.op("Unique", "data", outputs=["values", "first", "inverse", "times"])
    b.op("Unique", "data", sorted=0, outputs=["as they come"])
    b.op("TopK", "data", "k", axis=1, outputs=["best", "where"])
    flat = b.op("Reshape", "data", b.const([-1]))
    above = [
        b.op("Greater", flat, b.const(limit, "float32")) for limit in (-1.0, -0.5, 0.0, 0.5, 1.0)
    ]
    b.op("Concat", *(b.op("Compress", flat, mask) for mask in above), axis=0, outputs=["joined"])
    # torchvision's detectors ask so whether there is any box.
    none, some = Body("none"), Body("some")
    none.op("Identity", none.const(np.zeros(0), "float32"), outputs=["none/z"])
    # Whole numbers: what x86-64 refuses to divide by where there is none.
    share = some.op("Div", some.const(1000), some.op("Size", "joined"))
    below = some.op("Sub", "joined", some.op("ReduceMax", "joined", keepdims=0))
    some.op("Add", below, some.op("Cast", share, to=TensorProto.FLOAT), outputs=["some/z"])
    branches = {
        "then_branch": graph(none, {}, {"none/z": [None]}),
        "else_branch": graph(some, {}, {"some/z": [None]}),
    }
    is_empty = b.op("Equal", b.op("Size", "joined"), b.const(0))
    b.op("If", is_empty, outputs=["below the largest"], **branches)
    integers = ("places", "first", "inverse", "times", "where")
    outputs = ["places", "columns", "values", "first", "inverse", "times"]
    outputs += ["as they come", "best", "where", "joined", "below the largest"]
    return b.model(
        {"data": [5, 13], "mask": [11], "k": [1]},
        {name: [None] for name in outputs},
        {
            "mask": TensorProto.BOOL,
            "k": TensorProto.INT64,
            **dict.fromkeys(integers, TensorProto.INT64),
        },
    )


@every_target
def test_outputs_equal_onnxruntime(board: str, cpu: str, tmp_path: Path) -> None:
    """One model of all kinds, with results, and on this machine without any."""
    path = tmp_path / "model.onnx"
    whole = compose.merge_models(
        compose.add_prefix(detectors.yolo(150, 3, 20), "yolo "),
        compose.add_prefix(detectors.ssd(2, 3, 37, 9), "ssd "),
        [],
    )
    onnx.save(compose.merge_models(whole, selections(), []), path)
    for output in (proto := onnx.load(path)).graph.output:
        output.type.tensor_type.ClearField("shape")
    onnx.save(proto, path)
    random = np.random.default_rng(1)
    images, pairs = list(detectors.yolo_inputs(150, 3)), list(detectors.ssd_inputs(2, 3, 37))
    data = np.round(random.uniform(-1.5, 1.5, (5, 13))).astype("float32")
    many = [images[1], *pairs[1], data, random.uniform(size=11) > 0.5, np.array([7])]
    compiled, got = compile_and_run(path, many, board, cpu, tmp_path)
    assert wrong_outputs(path, many, got) == []
    assert {info.name: info.bounded for info in compiled.outputs if info.shape == (20, 6)} == {
        "yolo rows": (0,)
    }
    if board == "local":
        for equal in (0, -2):  # what is not zero, and what is above a limit
            same = np.full_like(data, equal)
            none = [images[3], *pairs[3], same, np.zeros(11, bool), np.array([0])]
            assert wrong_outputs(path, none, run_plan(compiled.folder, none)) == []


@pytest.mark.slow
@pytest.mark.parametrize("center", [False, True])
def test_many_boxes(center: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(detectors.ssd(2, 4, 1000, 300, center=center), path)
    for number, inputs in enumerate(detectors.ssd_inputs(2, 4, 1000, center=center)):
        work = tmp_path / str(number)
        work.mkdir()
        _, got = compile_and_run(path, inputs, "local", "native", work)
        assert wrong_outputs(path, inputs, got) == []
