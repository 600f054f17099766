"""Operators on bfloat16: each result is rounded, wherever it is; by ml_dtypes, which rounds so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.base.errors import ModelError
from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.flow.reference import run_reference
from edgepack.model import ModelSpec
from edgepack.model.bfloat16 import as_rounded_floats
from edgepack.model.meanings import as_meant
from edgepack.native.toolchain import select
from tests.plan_runner import run_plan

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NARROW, WIDE = TensorProto.BFLOAT16, TensorProto.FLOAT


def rounded(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, "float32").astype(BFLOAT16).astype("float32")


def narrow(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, NARROW, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    shapes: Sequence[Sequence[int]],
    weights: dict[str, np.ndarray] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """From x to y, both of float32; the nodes are between casts, from "b" to "r"."""
    given, made = shapes
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["b"], to=NARROW),
            *nodes,
            helper.make_node("Cast", ["r"], ["y"], to=WIDE),
        ],
        "graph",
        [helper.make_tensor_value_info("x", WIDE, given)],
        [helper.make_tensor_value_info("y", WIDE, made)],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=list(functions))
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, x: np.ndarray, folder: Path) -> np.ndarray:
    """What is compiled, once onnxruntime has been seen to have the same."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    board = get_board("local")
    spec = ModelSpec(path=path)
    made = compile_model(spec, board, select(board, "gnu").toolchain, folder / "out")
    (y,) = run_plan(made.folder, [x])
    (theirs,) = run_reference(as_meant(model), {}, [x])
    np.testing.assert_allclose(theirs, y, rtol=2.0**-7)
    return y


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def test_each_result_is_rounded(tmp_path: Path) -> None:
    """Of a sum, a product, a root and a sum again; in one kernel, with all bits, it is another."""
    constants = {"scale": np.array([1.7], BFLOAT16), "shift": np.array([-0.3], BFLOAT16)}
    model = model_of(
        [
            helper.make_node("Mul", ["b", "scale"], ["p"]),
            helper.make_node("Add", ["p", "shift"], ["q"]),
            helper.make_node("Abs", ["q"], ["a"]),
            helper.make_node("Sqrt", ["a"], ["s"]),
            helper.make_node("Sub", ["s", "p"], ["r"]),
        ],
        [(4, 33), (4, 33)],
        constants,
    )
    x = random(4, 33)
    scale, shift = (value.astype("float32") for value in constants.values())
    p = rounded(rounded(x) * scale)
    due = rounded(rounded(np.sqrt(np.abs(rounded(p + shift)))) - p)
    np.testing.assert_array_equal(run(model, x, tmp_path), due)
    wide = rounded(x) * scale
    assert (rounded(np.sqrt(np.abs(wide + shift)) - wide) != due).any()


def test_what_is_read_in_several_places_and_rounded_again(tmp_path: Path) -> None:
    """Casts that are fused with themselves, and with who reads other elements of one tensor."""
    model = model_of(
        [
            helper.make_node("Cos", ["b"], ["c"]),
            helper.make_node("AffineGrid", ["c", "size"], ["r"], align_corners=1),
        ],
        [(2, 2, 3), (2, 4, 5, 2)],
        {"size": np.array([2, 1, 4, 5], "int64")},
    )
    x = random(2, 2, 3) * 9
    theta = rounded(np.cos(rounded(x).astype("float64")))
    rows, columns = np.meshgrid(np.linspace(-1, 1, 4), np.linspace(-1, 1, 5), indexing="ij")
    places = np.stack([columns, rows, np.ones((4, 5))], -1)
    due = np.einsum("nij,hwj->nhwi", theta, places)
    np.testing.assert_allclose(run(model, x, tmp_path), due, rtol=2.0**-8, atol=1e-6)


def test_weights_and_what_moves(tmp_path: Path) -> None:
    """A product is rounded once, behind its sums; what is moved stays as it is."""
    weight = (np.arange(-24, 24).reshape(8, 6) / 7).astype(BFLOAT16)
    model = model_of(
        [
            helper.make_node("Transpose", ["b"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["t", "w"], ["m"]),
            helper.make_node("Concat", ["m", "m"], ["c"], axis=1),
            helper.make_node("Slice", ["c", "from", "to", "axis"], ["r"]),
        ],
        [(8, 5), (5, 7)],
        {
            "w": weight,
            **{k: np.array([v], "int64") for k, v in (("from", 3), ("to", 10), ("axis", 1))},
        },
    )
    x = random(8, 5)
    sums = rounded(x).T.astype("float64") @ weight.astype("float64")
    due = np.concatenate([sums, sums], 1)[:, 3:10]
    y = run(model, x, tmp_path)
    np.testing.assert_array_equal(y, rounded(y))
    np.testing.assert_allclose(y, due, rtol=2.0**-8)


def test_a_norm_has_sums_of_float32_inside(tmp_path: Path) -> None:
    ones, zeros = np.ones(64, BFLOAT16), np.zeros(64, BFLOAT16)
    model = model_of(
        [helper.make_node("LayerNormalization", ["b", "ones", "zeros"], ["r"], epsilon=0.0)],
        [(3, 64), (3, 64)],
        {"ones": ones, "zeros": zeros},
    )
    x = random(3, 64) + 5
    wide = rounded(x).astype("float64")
    due = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    np.testing.assert_allclose(run(model, x, tmp_path), due, rtol=2.0**-8, atol=1e-6)


def test_states_of_a_loop_are_rounded(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Mul", ["state", "b"], ["product"]),
            helper.make_node("Add", ["product", "b"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            narrow("state", (9,)),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, ()), narrow("next", (9,))],
    )
    model = model_of(
        [helper.make_node("Loop", ["count", "", "b"], ["r"], body=body)],
        [(9,), (9,)],
        {"count": np.array(3, "int64")},
    )
    x = random(9)
    state = b = rounded(x)
    for _ in range(3):
        state = rounded(rounded(state * b) + b)
    np.testing.assert_array_equal(run(model, x, tmp_path), state)


def test_branches_see_what_is_around_them(tmp_path: Path) -> None:
    branches = {
        word: helper.make_graph(
            [helper.make_node(operator, ["b", "third"], ["made"])], word, [], [narrow("made", (6,))]
        )
        for word, operator in (("then_branch", "Mul"), ("else_branch", "Div"))
    }
    third = np.array([0.334], BFLOAT16)
    model = model_of(
        [
            helper.make_node("Cast", ["b"], ["f"], to=WIDE),
            helper.make_node("ReduceSum", ["f"], ["sum"], keepdims=0),
            helper.make_node("Greater", ["sum", "zero"], ["choice"]),
            helper.make_node("If", ["choice"], ["r"], **branches),
        ],
        [(6,), (6,)],
        {"third": third, "zero": np.array(0, "float32")},
    )
    number = third.astype("float32")
    for sign, due in ((1, np.multiply), (-1, np.divide)):
        x = sign * np.abs(random(6))
        folder = tmp_path / f"{sign}"
        folder.mkdir()
        np.testing.assert_array_equal(run(model, x, folder), rounded(due(rounded(x), number)))


def test_a_function_of_the_model(tmp_path: Path) -> None:
    """Its types are known where it is called only."""
    function = helper.make_function(
        *("own", "Twice", ["a"], ["c"]),
        [
            helper.make_node("Mul", ["a", "a"], ["square"]),
            helper.make_node("Add", ["square", "a"], ["c"]),
        ],
        [helper.make_opsetid("", 22)],
    )
    model = model_of(
        [helper.make_node("Twice", ["b"], ["r"], domain="own")],
        [(40,), (40,)],
        functions=[function],
    )
    x = random(40)
    b = rounded(x)
    np.testing.assert_array_equal(run(model, x, tmp_path), rounded(rounded(b * b) + b))


@pytest.mark.parametrize(
    ("operator", "number"), [("QuantizeLinear", 0.5), ("DequantizeLinear", 0.5), ("BitCast", None)]
)
def test_what_reads_bits_or_steps_is_refused_by_name(
    operator: str, number: float | None, tmp_path: Path
) -> None:
    steps = ["step"] if number else []
    node = helper.make_node(operator, ["b", *steps], ["r"], name="here")
    if operator == "DequantizeLinear":
        node.input[0] = "q"
    if operator == "BitCast":
        node.attribute.append(helper.make_attribute("to", TensorProto.INT16))
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=NARROW),
        helper.make_node("Cast", ["x"], ["q"], to=TensorProto.INT8),
        node,
        helper.make_node("Cast", ["r"], ["y"], to=WIDE),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", WIDE, (3,))],
        [helper.make_tensor_value_info("y", WIDE, (3,))],
        [numpy_helper.from_array(np.array(number, BFLOAT16), "step")] if number else [],
    )
    model = helper.make_model(graph, ir_version=13, opset_imports=[helper.make_opsetid("", 26)])
    onnx.save(model, tmp_path / "model.onnx")
    board = get_board("local")
    with pytest.raises(ModelError, match=rf"{operator} 'here' works on BFLOAT16"):
        compile_model(
            ModelSpec(path=tmp_path / "model.onnx"),
            *(board, select(board, "gnu").toolchain, tmp_path / "out"),
        )


def test_a_model_without_bfloat16_is_the_same() -> None:
    nodes = [helper.make_node("Neg", ["b"], ["r"])]
    model = model_of(nodes, [(2,), (2,)])
    changed = as_rounded_floats(model)
    assert changed != model
    assert as_rounded_floats(changed) == changed
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.graph.node[:]
    plain.graph.node.append(helper.make_node("Neg", ["x"], ["y"]))
    assert as_rounded_floats(plain) is plain
