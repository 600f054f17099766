"""What the names in a graph stand for."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.model.index import GraphIndex

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def graph() -> GraphIndex:
    nodes = [
        helper.make_node("Constant", [], ["two"], value=helper.make_tensor("", INT64, [1], [2])),
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Split", ["square", ""], ["left", ""], axis=0),
        helper.make_node("Add", ["left", "w"], ["y"]),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [4])],
        [
            helper.make_tensor_value_info("y", FLOAT, [None]),
            helper.make_tensor_value_info("left", FLOAT, [2]),
        ],
        [numpy_helper.from_array(np.ones(2, "float32"), "w")],
        value_info=[
            helper.make_tensor_value_info("y", FLOAT, [2]),
            helper.make_tensor_value_info("left", FLOAT, [None]),
            helper.make_tensor_value_info("square", FLOAT, [4]),
        ],
    )
    return GraphIndex(made)


def test_names_are_found() -> None:
    index = graph()
    assert [*index.inputs] == ["x"]
    assert [*index.outputs] == ["y", "left"]
    assert [*index.constants] == ["w"]
    assert {name: list(tensor.dims) for name, tensor in index.known.items()} == {
        "w": [2],
        "two": [1],
    }
    assert {name: node.op_type for name, node in index.makers.items()} == {
        "two": "Constant",
        "square": "Mul",
        "left": "Split",
        "y": "Add",
    }


def test_a_reader_is_there_as_often_as_it_reads() -> None:
    index = graph()
    assert [node.op_type for node in index.readers["x"]] == ["Mul", "Mul"]
    assert [node.op_type for node in index.readers["square"]] == ["Split"]
    assert not index.readers["nobody"]


@pytest.mark.parametrize("name", ["y", "left"])
def test_of_an_output_that_is_said_twice_the_shape_is_known(name: str) -> None:
    """Shape inference leaves what it finds of an output in `value_info`, where the output says
    nothing."""
    (dim,) = graph().infos[name].type.tensor_type.shape.dim
    assert dim.dim_value == 2


def test_types_are_those_of_weights_too() -> None:
    assert graph().types == dict.fromkeys(("x", "square", "left", "y", "w"), FLOAT)
