"""Pools that round up: of all that count their results, none counts one that is not there."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edgepack.model import ModelSpec, read_model, tensor_info

OPSETS = {"AveragePool": 12, "LpPool": 18, "MaxPool": 12}


def model_of(node: onnx.NodeProto, image: Sequence[int | str], opset: int) -> onnx.ModelProto:
    """A pool twice, and a tensor whose shape is the result's."""
    again = onnx.NodeProto()
    again.CopyFrom(node)
    again.input[0], again.output[0] = node.output[0], "again"
    nodes = [
        node,
        again,
        helper.make_node("Shape", ["again"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pools",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("again", "zeros")],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def results(model: onnx.ModelProto, image: np.ndarray) -> list[Any]:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": image})


def drawn(rng: random.Random, operator: str) -> tuple[dict[str, Any], list[int]]:
    """The attributes of a pool and an image whose sizes it and its like may have."""
    kernel = [rng.randint(1, 3) for _ in range(2)]
    pads = [rng.randint(0, (count - 1) // 2) for count in kernel]
    attributes = {
        "kernel_shape": kernel,
        "strides": [rng.randint(1, 4) for _ in range(2)],
        "ceil_mode": 1,
    }
    if rng.random() < 0.5:
        attributes["pads"] = pads * 2
    elif rng.random() < 0.2:
        attributes["auto_pad"] = "VALID"
    if operator == "AveragePool":
        attributes["count_include_pad"] = rng.randint(0, 1)
    return attributes, [1, 2, rng.randint(9, 16), rng.randint(9, 16)]


@pytest.mark.parametrize("operator", OPSETS)
def test_results_are_counted_as_in_the_newest_opset(operator: str, tmp_path: Path) -> None:
    """Where onnx's own inference counts them right: what follows has the pool's shape then."""
    rng, changed = random.Random(4), 0
    for number in range(60):
        attributes, image = drawn(rng, operator)
        node = helper.make_node(operator, ["x"], ["y"], **attributes)
        x = np.random.default_rng(number).standard_normal(image).astype(np.float32)
        newest, older = (model_of(node, image, version) for version in (22, OPSETS[operator]))
        # As a file has them that onnx's inference went over.
        older = onnx.shape_inference.infer_shapes(older, data_prop=True)
        path = tmp_path / "pools.onnx"
        onnx.save(older, path)
        loaded = read_model(ModelSpec(path=path))
        due, found = results(newest, x), results(loaded.proto, x)
        changed += any(map(is_written_out, loaded.proto.graph.node[:2]))
        counts = attributes.get("count_include_pad") and any(attributes.get("pads", ()))
        if counts and not all(map(is_written_out, loaded.proto.graph.node[:2])):
            continue  # the one that cannot be written otherwise
        assert [value.shape for value in found] == [value.shape for value in due], attributes
        np.testing.assert_allclose(found[0], due[0], rtol=1e-6, atol=1e-6, err_msg=str(attributes))
        assert [output.shape for output in loaded.outputs] == [due[0].shape] * 2
    assert changed >= 10


def is_written_out(pool: onnx.NodeProto) -> bool:
    """Whether it rounds down."""
    return all(item.name != "ceil_mode" for item in pool.attribute)


@pytest.mark.parametrize(
    ("attributes", "image"),
    [
        ({"kernel_shape": [2, 2], "strides": [2, 2]}, [1, 2, 5, 5]),
        ({"kernel_shape": [1, 1], "strides": [3, 3]}, [1, 2, "rows", 4]),
    ],
    ids=["all its windows are there", "a size is not known"],
)
def test_others_are_left_as_they_are(
    attributes: Mapping[str, Any], image: Sequence[int | str], tmp_path: Path
) -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], ceil_mode=1, **attributes)
    path = tmp_path / "pools.onnx"
    onnx.save(model_of(node, image, 12), path)
    loaded = read_model(ModelSpec(path=path))
    assert tensor_info(loaded.proto.graph.input[0]).shape == tuple(image)
    assert loaded.proto.graph.node[0] == node


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"kernel_shape": 2},
        {"kernel_shape": [2]},
        {"kernel_shape": [2, 2], "strides": [0, 2]},
        {"kernel_shape": [2, 2], "strides": [2]},
        {"kernel_shape": [1, 1], "strides": [3, 3], "dilations": [-1, 1]},
        {"kernel_shape": [1, 1], "strides": [3, 3], "pads": [1, 1]},
        {"kernel_shape": [1.0, 1.0], "strides": [3.5, 3.5]},
        {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": 1},
    ],
    ids=str,
)
def test_what_is_no_window_is_not_touched(attributes: Mapping[str, Any], tmp_path: Path) -> None:
    """A stranger's file: whoever compiles it says what is wrong."""
    node = helper.make_node("MaxPool", ["x"], ["y"], ceil_mode=1, **attributes)
    path = tmp_path / "pools.onnx"
    onnx.save(model_of(node, [1, 2, 5, 5], 12), path)
    assert read_model(ModelSpec(path=path)).proto.graph.node[0] == node
