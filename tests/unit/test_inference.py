"""onnx's inference of types, behind operators that it does not know."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from edgepack.model import infer_shapes
from edgepack.model.index import GraphIndex

FOREIGN = "org.example"


def model_of(nodes: Sequence[onnx.NodeProto], opset: int = 22, ml: int = 5) -> onnx.ModelProto:
    """Of what is made of x, [2, 3] float32."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = {"": opset, "ai.onnx.ml": ml, FOREIGN: 1}
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]),
        opset_imports=[helper.make_opsetid(*item) for item in opsets.items()],
        ir_version=8,
    )


def foreign(name: str) -> onnx.NodeProto:
    return helper.make_node("Other", ["x"], [name], domain=FOREIGN)


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Each operator of each opset, with attributes and without, of what has no type."""
    kinds = onnx.defs.OpSchema.AttrType
    values: dict[Any, Any] = {
        kinds.INT: 1,
        kinds.INTS: [0, 1],
        kinds.FLOAT: 1.0,
        kinds.FLOATS: [1.0, 1.0],
        kinds.STRING: "linear",
        kinds.STRINGS: ["a"],
        kinds.TENSOR: helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0]),
    }
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain not in ("", "ai.onnx.ml"):
            continue
        names = [f"t{number}" for number in range(min(schema.max_input, max(1, schema.min_input)))]
        for optional in (False, True):
            given = {
                name: values[item.type]
                for name, item in schema.attributes.items()
                if item.type in values and (optional or item.required)
            }
            node = helper.make_node(schema.name, names, ["y"], domain=schema.domain, **given)
            nodes = [*map(foreign, names), node]
            version = schema.since_version
            opsets = (18, version) if schema.domain else (version, 3)
            yield f"{schema.name}-{version}", model_of(nodes, *opsets)


def try_all() -> None:
    """Says of which model it is about to infer the types."""
    for name, model in models():
        print(name, flush=True)
        infer_shapes(model)


def test_no_operator_ends_the_process() -> None:
    code = f"import {__name__} as module; module.try_all()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout.split()
    assert done.returncode == 0, f"at {said[-1:]}: {done.stderr[-500:]}"
    assert {"EyeLike-22", "LabelEncoder-1", "Relu-14", "TreeEnsemble-5"} <= set(said)


def eye(of: str, to: str) -> onnx.NodeProto:
    return helper.make_node("EyeLike", [of], [to], dtype=TensorProto.UINT32)


@pytest.mark.parametrize(
    ("nodes", "types"),
    [
        ([eye("x", "y")], {"y": TensorProto.UINT32}),
        ([foreign("t"), eye("t", "y")], {"y": TensorProto.UNDEFINED}),
        ([eye("x", "t"), eye("t", "y")], {"t": TensorProto.UINT32, "y": TensorProto.UINT32}),
        (
            [foreign("t"), eye("t", "u"), helper.make_node("Cast", ["u"], ["y"], to=1)],
            {"y": TensorProto.FLOAT},
        ),
        (
            [
                helper.make_node("Constant", [], ["t"], value_float=1.0),
                helper.make_node(
                    "LabelEncoder", ["t"], ["y"], domain="ai.onnx.ml",
                    keys_floats=[1.0], values_int64s=[4],
                ),
            ],
            {"y": TensorProto.INT64},
        ),
    ],
)  # fmt: skip
def test_what_is_known_is_inferred(nodes: Sequence[onnx.NodeProto], types: dict[str, int]) -> None:
    model = model_of(nodes, ml=4)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.Clear()
    made = infer_shapes(model)
    known = GraphIndex(made.graph).types
    assert {name: known.get(name, 0) for name in types} == types
    assert list(made.graph.node) == list(model.graph.node)
    assert list(made.opset_import) == list(model.opset_import)


def test_graphs_inside_and_functions_are_seen() -> None:
    """A branch's input may be made around it; of a function's nobody knows the type."""
    inner = helper.make_graph(
        [foreign("i"), eye("i", "j"), eye("x", "k")],
        "branch",
        [],
        [helper.make_tensor_value_info("k", TensorProto.UINT32, [2, 3])],
    )
    condition = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True])
    )
    branches = helper.make_node("If", ["c"], ["b"], then_branch=inner, else_branch=inner)
    call = helper.make_node("Mine", ["x"], ["y"], domain="mine")
    model = model_of([condition, branches, call])
    body = [foreign("t"), eye("t", "y")]
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid(FOREIGN, 1)]
    model.functions.append(helper.make_function("mine", "Mine", ["x"], ["y"], body, opsets))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    made = infer_shapes(model)
    assert GraphIndex(made.graph).types["b"] == TensorProto.UINT32
    assert list(made.functions) == list(model.functions)
