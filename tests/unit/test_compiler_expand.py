"""What a model becomes before it is imported computes the same, by onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edgepack.frontend import control
from edgepack.frontend.errors import ImportModelError, UnsupportedOperatorError
from edgepack.frontend.expand import expand
from edgepack.frontend.folding import (
    NEWEST_OPSET,
    fold_by_onnxruntime,
    fold_by_reference,
)
from edgepack.frontend.importer import import_model
from edgepack.frontend.load import load_model
from edgepack.frontend.owners import owner_of
from edgepack.model import ModelSpec, walk_nodes
from tests.bodies import Body, graph
from tests.onnx_models import Builder


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs: list[np.ndarray] = session.run(None, feeds)
    return outputs


def check(proto: onnx.ModelProto, *inputs: np.ndarray) -> onnx.ModelProto:
    """The expanded model, which computes what the model does."""
    expanded = expand(proto)
    feeds = dict(zip((value.name for value in proto.graph.input), inputs, strict=True))
    for mine, theirs in zip(run(expanded, feeds), run(proto, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        assert mine.shape == theirs.shape
    return expanded


def operators(proto: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in walk_nodes(proto.graph)}


X = np.arange(12, dtype="float32").reshape(4, 3)


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_whose_condition_is_known_is_taken(taken: bool) -> None:
    then, other = Body("then"), Body("other")
    then.op("Add", "x", then.const(1.0, "float32"), outputs=["then"])
    other.op("Mul", "x", other.const(3.0, "float32"), outputs=["other"])
    b = Builder()
    # Known, but only by computing it.
    size = b.op("Size", "x")
    condition = b.op("Equal", size, b.const(12 if taken else 11, "int64"))
    b.op(
        "If",
        condition,
        outputs=["y"],
        then_branch=graph(then, {}, {"then": [4, 3]}),
        else_branch=graph(other, {}, {"other": [4, 3]}),
    )
    expanded = check(b.model({"x": [4, 3]}, {"y": [4, 3]}), X)
    assert ("Add" in operators(expanded), "Mul" in operators(expanded)) == (taken, not taken)


def _of_data(outputs: Sequence[int] | None, **other_attributes: object) -> onnx.ModelProto:
    """An If by an input of one element, with an If by another in its first branch."""
    inner, then, other = Body("inner"), Body("then"), Body("other")
    inner.op("Exp", "x", outputs=["inner"])
    outer = Body("outer")
    outer.op("Neg", "x", outputs=["outer"])
    then.op(
        "If",
        "second",
        outputs=["then"],
        then_branch=graph(inner, {}, {"inner": None}),
        else_branch=graph(outer, {}, {"outer": None}),
    )
    other.op("ReduceSum", "x", outputs=["other"], **other_attributes)
    b = Builder()
    b.op(
        "If",
        "first",
        outputs=["y"],
        then_branch=graph(then, {}, {"then": None}),
        else_branch=graph(other, {}, {"other": None}),
    )
    kinds = {"first": TensorProto.BOOL, "second": TensorProto.BOOL}
    return b.model({"x": [1, 1], "first": [1], "second": []}, {"y": outputs}, kinds)


def test_a_branch_that_data_choose_stays() -> None:
    """As two ways of a block of the plan: `tests/functional/test_control_flow.py`."""
    given = (np.full((1, 1), 2, "float32"), np.array([True]), np.array(False))
    assert "If" in operators(check(_of_data([1, 1], keepdims=1), *given))


@pytest.mark.parametrize("depth", [1, 6])
def test_branches_that_ask_for_shapes_that_branches_before_them_make(depth: int) -> None:
    """As torch.jit exports them: an If in an If, on ranks that follow from paddings it computes."""

    def padded(outer: Builder, source: str, level: int) -> str:
        # Widths that onnx's shape inference does not follow: they have to be computed.
        zero = outer.const(0, "int64")
        ones = outer.op("Expand", outer.const([1], "int64"), outer.const([4], "int64"))
        wider = outer.op("Pad", source, outer.op("Mod", ones, outer.const([2], "int64")))
        rows = outer.op("Gather", outer.op("Shape", wider), zero)
        condition = outer.op("Equal", rows, outer.const(4 + 2 * level, "int64"))
        then, other = Body(f"then{level}"), Body(f"other{level}")
        if level < depth:
            then.op("Abs", padded(then, wider, level + 1), outputs=[f"then{level}"])
        else:
            then.op("Neg", wider, outputs=[f"then{level}"])
        other.op("Squeeze", wider, outputs=[f"other{level}"])
        return outer.op(
            "If",
            condition,
            then_branch=graph(then, {}, {f"then{level}": None}),
            else_branch=graph(other, {}, {f"other{level}": None}),
        )

    b = Builder()
    b.op("Identity", padded(b, "x", 1), outputs=["y"])
    size = [4 + 2 * depth, 3 + 2 * depth]
    expanded = check(b.model({"x": [4, 3]}, {"y": size}), X)
    assert not operators(expanded) & {"If", "Squeeze"}


@pytest.mark.parametrize("stops_early", [True, False])
def test_a_loop_of_known_turns_is_written_out(stops_early: bool) -> None:
    body = Body()
    body.op("Add", "state", body.op("Cast", "turn", to=1), outputs=["next"])
    body.op("ReduceSum", "next", keepdims=0, outputs=["row"])
    last = body.const(2 if stops_early else 99, "int64")
    body.op("Less", "turn", last, outputs=["goes"])
    inner = graph(
        body, {"turn": [], "going": [], "state": [4, 3]}, {"goes": [], "next": [4, 3], "row": []}
    )
    b = Builder()
    b.op(
        "Loop",
        b.const(5, "int64"),
        b.const(True, "bool"),
        "x",
        outputs=["y", "rows"],
        body=inner,
    )
    expanded = check(b.model({"x": [4, 3]}, {"y": [4, 3], "rows": [None]}), X)
    assert "Loop" not in operators(expanded)


@pytest.mark.parametrize("missing", ["then_branch", "else_branch"])
def test_a_branch_that_is_missing(missing: str) -> None:
    proto = _of_data([1, 1], keepdims=1)
    (node,) = proto.graph.node
    kept = [item for item in node.attribute if item.name != missing]
    del node.attribute[:]
    node.attribute.extend(kept)
    assert "If" in operators(expand(proto))


def _counting(turns: int) -> onnx.ModelProto:
    body = Body()
    body.op("Neg", "state", outputs=["next"])
    body.op("Identity", "going", outputs=["goes"])
    inner = graph(body, {"turn": [], "going": [], "state": [4, 3]}, {"goes": [], "next": [4, 3]})
    b = Builder()
    b.op("Loop", b.const(turns, "int64"), "", "x", outputs=["y"], body=inner)
    return b.model({"x": [4, 3]}, {"y": [4, 3]})


def test_a_long_loop_stays() -> None:
    assert "Loop" not in operators(check(_counting(control.FEW_NODES // 2), X))
    proto = _counting(control.FEW_NODES)
    assert expand(proto) is proto
    assert "Loop" not in operators(control.straighten(proto, control.MOST_NODES))


def test_a_loop_of_unknown_turns_stays() -> None:
    body = Body()
    body.op("Neg", "state", outputs=["next"])
    body.op("Identity", "going", outputs=["goes"])
    inner = graph(body, {"turn": [], "going": [], "state": [4, 3]}, {"goes": [], "next": [4, 3]})
    b = Builder()
    b.op("Loop", "turn", "", "x", outputs=["y"], body=inner)
    proto = b.model({"turn": [], "x": [4, 3]}, {"y": [4, 3]}, {"turn": TensorProto.INT64})
    assert "Loop" in operators(check(proto, np.array(3), X))


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_is_written_out(backwards: int) -> None:
    body = Body()
    body.op("Add", "state", "item", outputs=["next"])
    body.op("Mul", "next", "item", outputs=["row"])
    inner = graph(body, {"state": [4], "item": [4]}, {"next": [4], "row": [4]})
    b = Builder()
    b.op(
        "Scan",
        b.const(np.zeros(4), "float32"),
        "x",
        outputs=["last", "rows"],
        body=inner,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[backwards],
        scan_output_axes=[1],
        scan_output_directions=[backwards],
    )
    expanded = check(b.model({"x": [4, 3]}, {"last": [4], "rows": [4, 3]}), X)
    assert "Scan" not in operators(expanded)


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_of_opset_8_is_written_out_for_each_image(backwards: int) -> None:
    body = Body()
    body.op("Add", "state", "item", outputs=["next"])
    body.op("Mul", "next", "item", outputs=["row"])
    inner = graph(body, {"state": [3], "item": [3]}, {"next": [3], "row": [3]})
    b = Builder()
    start = b.const(np.ones((2, 3)), "float32")
    names = ["", start, "x"]
    b.op(
        "Scan",
        *names,
        outputs=["last", "rows"],
        body=inner,
        num_scan_inputs=1,
        directions=[backwards],
    )
    proto = b.model({"x": [2, 4, 3]}, {"last": [2, 3], "rows": [2, 4, 3]}, opset=8)
    data = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    assert "Scan" not in operators(check(proto, data))


@pytest.mark.parametrize("pieces", [None, 2, [1, 3]])
def test_the_length_of_a_sequence_is_known(pieces: int | list[int] | None) -> None:
    b = Builder()
    split = () if pieces is None else (b.const(pieces, "int64"),)
    sequence = b.op("SequenceInsert", b.op("SplitToSequence", "x", *split, axis=0), "x")
    b.op("SequenceLength", b.op("SequenceErase", sequence), outputs=["y"])
    proto = b.model({"x": [4, 3]}, {"y": []}, {"y": TensorProto.INT64})
    assert "SequenceLength" not in operators(check(proto, X))


def test_a_definition_with_inputs_left_out() -> None:
    shape = [1, 2, 3, 4]
    node = helper.make_node(
        "Attention", ["q", "k", "v", "", "past", "past"], ["y", "keys", "values"]
    )
    values = {name: helper.make_tensor_value_info(name, 1, shape) for name in "qkv"}
    past = helper.make_tensor_value_info("past", 1, shape)
    results = [helper.make_tensor_value_info(name, 1, None) for name in ("y", "keys", "values")]
    proto = helper.make_model(
        helper.make_graph([node], "test", [*values.values(), past], results),
        opset_imports=[helper.make_opsetid("", 24)],
        ir_version=11,
    )
    random = np.random.default_rng(3)
    data = [random.normal(size=shape).astype("float32") for _ in range(4)]
    assert "Attention" not in operators(check(proto, *data))


def test_constants_are_computed_without_onnxruntime() -> None:
    b = Builder()
    length = b.op("Gather", b.op("Shape", "x"), b.const([1], "int64"))
    b.op("Reshape", "x", b.op("Concat", length, b.const([-1], "int64"), axis=0), outputs=["y"])
    folded = fold_by_reference(b.model({"x": [4, 3]}, {"y": [3, 4]}))
    assert [node.op_type for node in folded.graph.node] == ["Reshape"]
    (due,) = run(folded, {"x": X})
    np.testing.assert_array_equal(due, X.reshape(3, 4))


def test_what_came_after_the_newest_version_needs_no_conversion() -> None:
    """Operators that are new have definitions, and those that changed only got types and attributes
    that are known here: to be looked at again with another onnx."""
    known = {
        "BitShift", "Cast", "Celu", "Compress", "DepthToSpace", "DequantizeLinear", "Einsum", "Mod",
        "OneHot", "Optional", "OptionalGetElement", "OptionalHasElement", "QuantizeLinear", "Range",
        "ReduceLogSum", "ReduceLogSumExp", "ReverseSequence", "SpaceToDepth", "Unique",
    }  # fmt: skip
    newer = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == "" and schema.since_version > NEWEST_OPSET
        if not (schema.has_function or schema.has_context_dependent_function)
    }
    assert newer <= known


def test_a_branch_that_shapes_do_not_suit_is_left_by_a_constant(tmp_path: Path) -> None:
    """Its other branch takes matrices: onnxruntime itself says no."""
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = helper.make_tensor("w", TensorProto.FLOAT, [5, 1], range(5))
    fits = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "fits", [], [result])
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    other = helper.make_graph([product], "other", [], [result], [weights])
    net = Builder()
    net.op("If", "flag", then_branch=fits, else_branch=other, outputs=["out"])
    path = net.save(
        tmp_path / "m.onnx", {"flag": [], "x": [4]}, {"out": [4]}, {"flag": TensorProto.BOOL}
    )
    with pytest.raises(ImportModelError) as caught:
        fold_by_onnxruntime(path, onnx.load(path))
    assert "--set NAME=VALUE" in (caught.value.hint or "")


@pytest.mark.parametrize(("length", "is_right"), [(0, True), (5, True), (-1, False), (9, False)])
def test_lengths_that_are_constant_are_compared_too(
    length: int, is_right: bool, tmp_path: Path
) -> None:
    """As onnxruntime does when it computes the model."""
    b = Builder()
    lengths = b.const([3, length], "int64")
    b.op("Attention", "q", "k", "k", "", "", "", lengths, outputs=["y"])
    shapes = {"q": [2, 2, 3, 8], "k": [2, 2, 5, 8]}
    path = b.save(tmp_path / "m.onnx", shapes, {"y": shapes["q"]}, opset=24)
    feeds = {name: np.ones(shape, "float32") for name, shape in shapes.items()}
    if is_right:
        check(onnx.load(path), *feeds.values())
        import_model(load_model(ModelSpec(path=path)))
        return
    with pytest.raises(Exception, match="nonpad_kv_seqlen"):
        run(onnx.load(path), feeds)
    with pytest.raises(ImportModelError, match=f"'nonpad_kv_seqlen' has {length}, which is"):
        import_model(load_model(ModelSpec(path=path)))


# ---------------------------------------------------------------- what messages name

_FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
g (float[2,3,4] x, int64[2] at) => ({result} y) {{
  a = Relu(x)
  [mine] y = my.outer(a, at)
}}
<domain: "my", opset_import: ["" : 17, "my" : 1]> outer (x, at) => (y) {{
  b = Neg(x)
  y = my.inner(b, at)
}}
<domain: "my", opset_import: ["" : 17]> inner (x, at) => (y) {{ {nodes} }}"""


def _of_function(nodes: str, folder: Path, result: str = "float[2,3,4]") -> ModelSpec:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(_FUNCTION.format(nodes=nodes, result=result)), path)
    return ModelSpec(path=path)


def test_a_node_of_a_function_that_cannot_be_compiled_is_named_with_the_users(
    tmp_path: Path,
) -> None:
    nodes = "yes = Constant<value = bool {1}>() half = Constant<value_float = 0.5>() "
    spec = _of_function(nodes + "y, mask = Dropout(x, half, yes)", tmp_path)
    with pytest.raises(UnsupportedOperatorError, match=r"in my::outer 'mine'") as caught:
        load_model(spec)
    assert [(node.operator, node.inside) for node in caught.value.nodes] == [
        ("Dropout", "my::outer 'mine'")
    ]


def test_so_is_one_of_onnx_s_definition(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  [mine] b = Bernoulli(a)  y = Neg(b) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(UnsupportedOperatorError) as caught:
        load_model(ModelSpec(path=path))
    assert [node.inside for node in caught.value.nodes] == ["Bernoulli 'mine'"]
    first, *inner, last = expand(onnx.load(path)).graph.node
    assert {owner_of(node) for node in inner} == {"Bernoulli 'mine'"}
    assert [(node.op_type, owner_of(node)) for node in (first, last)] == [("Relu", ""), ("Neg", "")]


def test_so_is_one_whose_size_depends_on_the_data(tmp_path: Path) -> None:
    nodes = "z = NonZero(x) row = Constant<value_ints = [-1]>() y = Reshape(z, row)"
    spec = _of_function(nodes, tmp_path, "int64[n]")
    with pytest.raises(ImportModelError, match=r"Reshape 'y', in my::outer 'mine' cannot be"):
        import_model(load_model(spec))


def test_so_is_one_with_a_position_of_another_one_s(tmp_path: Path) -> None:
    """What it says at run time stands in its kernel; the model's own nodes are in nothing."""
    spec = _of_function("y = Gather<axis = 1>(x, at)", tmp_path, "float[2,2,4]")
    text = import_model(load_model(spec)).script()
    assert "Gather 'y', in my::outer 'mine'" in text
    assert "Relu" not in {
        node.op_type for node in load_model(spec).expanded.graph.node if owner_of(node)
    }
