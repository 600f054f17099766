"""What `bench.rounding` measures against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from bench import rounding
from edgepack.kernels.tiles import toom_cook
from tests.onnx_models import Builder


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (1, {}),
        (1, {"pads": [1, 2, 3, 0], "strides": [2, 1], "dilations": [1, 2]}),
        (4, {"pads": [1, 1, 1, 1], "strides": [2, 3]}),
        (2, {"dilations": [2, 1]}),
    ],
)
def test_its_convolution_is_onnxs(groups: int, words: dict[str, list[int]]) -> None:
    random = np.random.default_rng(0)
    weight, bias = random.standard_normal((8, 4 // groups, 3, 2)), random.standard_normal(8)
    node = onnx.helper.make_node("Conv", ["x", "w", "b"], ["y"], group=groups, **words)
    double = onnx.TensorProto.DOUBLE
    graph = onnx.helper.make_graph(
        [node],
        "conv",
        [
            onnx.helper.make_tensor_value_info(name, double, shape)
            for name, shape in (("x", [2, 4, 9, 8]), ("w", weight.shape), ("b", bias.shape))
        ],
        [onnx.helper.make_tensor_value_info("y", double, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    given = {"x": random.standard_normal((2, 4, 9, 8)), "w": weight, "b": bias}
    (due,) = ReferenceEvaluator(model).run(None, given)
    (got,) = ReferenceEvaluator(model, new_ops=[rounding.Conv]).run(None, given)
    np.testing.assert_allclose(got, due, rtol=1e-12, atol=1e-12)


def test_what_products_read_is_compared_in_float64(tmp_path: Path) -> None:
    b = Builder()
    wide = b.const(np.full((3, 3), 0.1), "float32")
    first = b.op("Relu", b.op("MatMul", "x", wide))
    b.op("MatMul", first, wide, outputs=["y"])
    model = onnx.load(b.save(tmp_path / "m.onnx", {"x": (1, 3)}, {"y": (1, 3)}))
    names = rounding.inner(model.graph)
    assert names == [first, "y"]
    exact = rounding.in_float64(rounding.with_outputs(model, names))
    outputs = ReferenceEvaluator(exact).run(names, {"x": np.ones((1, 3))})
    tenth = float(np.float32(0.1))
    assert [out.dtype for out in outputs] == [np.float64] * 2
    np.testing.assert_allclose(outputs[1], [[9 * tenth**2] * 3], rtol=1e-15)


@pytest.mark.parametrize("points", toom_cook.POINTS.values(), ids=len)
def test_a_tile_is_off_by_more_than_its_sums_are(points: toom_cook.Points) -> None:
    """And by little: it computes the convolution."""
    row = rounding.tile_row(points, channels=8, count=4)
    assert row.results == len(points) - 1
    assert 0 < row.exact_sums < row.rounded < 100
