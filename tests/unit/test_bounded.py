"""Sizes that depend on the data, through each operator: the rewritten model computes the same.

onnx's reference evaluator runs the model before, and after with a numpy form of the operators that
have a count. What lies behind the last element in use is cut off as the runtime does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from edgepack.frontend.bound import Bound
from edgepack.frontend.bounded import fix_sizes
from edgepack.frontend.bounded.rules import RULES
from edgepack.frontend.bounded.size import Size, count
from edgepack.frontend.bounded.values import part_of
from edgepack.frontend.errors import DataSizeError
from tests.bodies import Body, graph
from tests.onnx_models import Builder

Case = Callable[[Builder, str], str]


class BoundedNonZero(OpRun):  # type: ignore[misc]
    """Positions, with zeros behind them."""

    op_domain = "edgepack"

    def _run(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.array(np.nonzero(data), "int64")
        made = np.zeros((data.ndim, data.size), "int64")
        made[:, : found.shape[1]] = found
        return made, np.array(found.shape[1])


class BoundedPlaces(OpRun):  # type: ignore[misc]
    """Parts of an axis, one behind the other."""

    op_domain = "edgepack"

    def _run(self, starts: np.ndarray, sizes: np.ndarray, room: int) -> tuple[np.ndarray]:
        places = [np.arange(one, one + size) for one, size in zip(starts, sizes, strict=True)]
        used = np.concatenate(places)
        return (np.concatenate([used, np.zeros(room - len(used), "int64")]),)


class BoundedUnique(OpRun):  # type: ignore[misc]
    """Sorted rows that differ."""

    op_domain = "edgepack"

    def _run(self, data: np.ndarray, valid: np.ndarray, **_: object) -> tuple[np.ndarray, ...]:
        parts = np.unique(data[: int(valid)], True, True, True, axis=0)
        sizes = (len(data),) * 4
        made = [
            np.zeros((n, *part.shape[1:]), part.dtype) for n, part in zip(sizes, parts, strict=True)
        ]
        for room, part in zip(made, parts, strict=True):
            room[: len(part)] = part
        return (*made, np.array(len(parts[0])))


def rewritten(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[Bound, ...]]:
    return fix_sizes(Path("model.onnx"), model)


def run(
    model: onnx.ModelProto, bounds: tuple[Bound, ...], outputs: int, *inputs: np.ndarray
) -> list[np.ndarray]:
    """The outputs of a model, of a rewritten one what is in use of them."""
    names = [value.name for value in model.graph.input]
    session = ReferenceEvaluator(model, new_ops=[BoundedNonZero, BoundedPlaces, BoundedUnique])
    made = session.run(None, dict(zip(names, inputs, strict=True)))
    values = [np.asarray(value) for value in made]
    for bound in bounds:
        used = int(values[outputs + bound.count])
        values[bound.output] = values[bound.output].take(range(used), bound.axis)
    return values[:outputs]


def model_of(case: Case) -> onnx.ModelProto:
    """A case on the rows of x [6, 4] whose first element is positive."""
    b = Builder()
    first = b.op("Gather", "x", b.const(0), axis=1)
    mask = b.op("Greater", first, b.const(0, "float32"))
    rows = b.op("GatherND", "x", b.op("Transpose", b.op("NonZero", mask), perm=[1, 0]))
    b.op("Identity", case(b, rows), outputs=["y"])
    model = b.model({"x": [6, 4]}, {"y": None})
    model.graph.output[0].ClearField("type")
    return onnx.shape_inference.infer_shapes(model)


def ceiled(b: Builder, rows: str) -> str:
    """Windows of 2 at every fifth place of 4: a second one would begin behind them."""
    images = b.op("Unsqueeze", rows, b.const([1]))
    pooled = b.op("AveragePool", images, kernel_shape=[2], strides=[5], ceil_mode=1)
    return b.op("Reshape", pooled, b.const([0, -1]))


def number(b: Builder, rows: str) -> str:
    """How many rows there are, as a tensor of one element."""
    shape = b.op("Shape", rows)
    return b.op("Slice", shape, b.const([0]), b.const([1]))


def selected(b: Builder, rows: str) -> str:
    """Positions among the rows, backwards."""
    order = b.op("Range", b.const(0), b.op("Squeeze", number(b, rows)), b.const(1))
    return b.op("Sub", b.op("Squeeze", number(b, rows)), b.op("Add", order, b.const(1)))


def scattered(b: Builder, rows: str) -> str:
    order = b.op("Unsqueeze", selected(b, rows), b.const([1]))
    return b.op("ScatterND", b.const(np.ones((7, 4)), "float32"), order, rows)


def scattered_elements(b: Builder, rows: str) -> str:
    """Into the rows themselves, from their end."""
    last = b.op("Neg", b.op("Add", selected(b, rows), b.const(1)))
    places = b.op("Expand", b.op("Unsqueeze", last, b.const([1])), b.op("Shape", rows))
    return b.op("ScatterElements", rows, places, b.op("Neg", rows), axis=0)


def of_each_column(b: Builder, rows: str) -> str:
    """Rows whose element of a column is positive, or not: six counts."""
    parts = [rows]
    for column in range(1, 4):
        element = b.op("Gather", rows, b.const(column), axis=1)
        for sign in ("Greater", "Less"):
            mask = b.op(sign, element, b.const(0.0, "float32"))
            parts.append(b.op("Compress", rows, mask, axis=0))
    return b.op("Concat", *parts, axis=0)


def chosen(condition: Case, then: Case, otherwise: Case) -> Case:
    """An If on the rows."""

    def case(b: Builder, rows: str) -> str:
        bodies = {}
        for way, make in (("then", then), ("else", otherwise)):
            body = Body(way)
            body.op("Identity", make(body, rows), outputs=[f"{way}/z"])
            bodies[f"{way}_branch"] = graph(body, {}, {f"{way}/z": None})
        return b.op("If", condition(b, rows), **bodies)

    return case


def has_none(b: Builder, rows: str) -> str:
    """Whether there are no rows, as torch.jit asks."""
    total = b.op("ReduceProd", b.op("Shape", rows), keepdims=0)
    return b.op("Equal", total, b.const(0))


def is_low(b: Builder, _: str) -> str:
    """Something that the sizes have nothing to do with."""
    first = b.op("Gather", "x", b.const([1]), axis=1)
    return b.op("Less", b.op("ReduceSum", first, keepdims=0), b.const(0.0, "float32"))


def moved(axis: int, *, keep: bool = True) -> Case:
    return lambda b, x: b.op(
        "Concat", x, b.op("Neg", x) if keep else b.const(np.ones((2, 4)), "float32"), axis=axis
    )


CASES: dict[str, Case] = {
    "as it is": lambda _, x: x,
    "Add": lambda b, x: b.op("Add", x, b.op("Mul", x, b.const([1.0, 2, 3, 4], "float32"))),
    "ArgMax": lambda b, x: b.op("ArgMax", x, axis=0, keepdims=0),
    "ArgMin": lambda b, x: b.op("ArgMin", b.op("Abs", x), axis=0),
    "Cast": lambda b, x: b.op("Cast", x, to=TensorProto.INT32),
    "Compress": lambda b, x: b.op(
        "Compress",
        x,
        b.op("Less", b.op("Gather", x, b.const(1), axis=1), b.const(0.0, "float32")),
        axis=0,
    ),
    "Compress of columns, constant": lambda b, x: b.op(
        "Compress", x, b.const([False, True, True], "bool"), axis=1
    ),
    "Compress to a column that goes": lambda b, x: b.op(
        "Squeeze", b.op("Compress", x, b.const([0, 0, 0, 1], "bool"), axis=1), b.const([1])
    ),
    "Concat of columns": moved(1),
    "Concat of rows": moved(0),
    "Concat, constant last": moved(0, keep=False),
    "Concat of many": of_each_column,
    "If there are any": chosen(
        has_none,
        lambda b, _: b.const(np.zeros((0, 4)), "float32"),
        lambda b, x: b.op("Add", x, b.op("ReduceMax", x)),
    ),
    "If, of rows or of columns": chosen(
        is_low, lambda b, x: b.op("Transpose", x, perm=[1, 0]), lambda _, x: x
    ),
    "If, of other numbers of rows": chosen(
        is_low,
        lambda b, x: b.op("Concat", x, x, b.op("Neg", x), axis=0),
        lambda b, _: b.op("Slice", "x", b.const([1]), b.const([3]), b.const([0])),
    ),
    "If in an If": chosen(
        is_low,
        chosen(has_none, lambda _, x: x, lambda b, x: b.op("Concat", x, x, axis=0)),
        lambda b, x: b.op("Neg", x),
    ),
    "ConstantOfShape": lambda b, x: b.op(
        "ConstantOfShape", b.op("Concat", number(b, x), b.const([3]), axis=0)
    ),
    "CumSum": lambda b, x: b.op("CumSum", x, b.const(0), reverse=1),
    "Expand": lambda b, x: b.op(
        "Expand", b.const([[5.0, 6]], "float32"), b.op("Concat", number(b, x), b.const([2]), axis=0)
    ),
    "Flatten": lambda b, x: b.op("Flatten", x, axis=0),
    "Gather by position": lambda b, x: b.op("Gather", x, selected(b, x)),
    "Gather from the end": lambda b, x: b.op(
        "Gather", x, b.op("Neg", b.op("Add", selected(b, x), b.const(1)))
    ),
    "Gather of columns": lambda b, x: b.op("Gather", x, b.const([3, -3]), axis=1),
    "GatherElements": lambda b, x: b.op(
        "GatherElements",
        x,
        b.op("Cast", b.op("Mul", b.op("Abs", x), b.const(0.0, "float32")), to=TensorProto.INT64),
        axis=0,
    ),
    "Gemm": lambda b, x: b.op("Gemm", x, b.weight(4, 3), b.weight(3)),
    "LayerNormalization": lambda b, x: b.op("LayerNormalization", x, b.weight(4), b.weight(4)),
    "MatMul": lambda b, x: b.op("MatMul", x, b.weight(4, 5)),
    "MatMul of all pairs": lambda b, x: b.op("MatMul", x, b.op("Transpose", x, perm=[1, 0])),
    "NonZero": lambda b, x: b.op("NonZero", b.op("Greater", x, b.const(0.5, "float32"))),
    "OneHot": lambda b, x: b.op(
        "OneHot", b.op("ArgMax", x, axis=1, keepdims=0), b.const(4), b.const([0.0, 1], "float32")
    ),
    "Pad after": lambda b, x: b.op("Pad", x, b.const([0, 1, 2, 0]), b.const(7.0, "float32")),
    "Pad before": lambda b, x: b.op("Pad", x, b.const([1, 0, 0, 0])),
    "Pad to a size": lambda b, x: b.op(
        "Pad",
        x,
        b.op(
            "Concat", b.const([0, 0]), b.op("Sub", b.const([8]), number(b, x)), b.const([0]), axis=0
        ),
    ),
    "ReduceL2": lambda b, x: b.op("ReduceL2", x, axes=[0]),
    "ReduceMax": lambda b, x: b.op("ReduceMax", b.op("Sub", x, b.const(9.0, "float32"))),
    "ReduceMean": lambda b, x: b.op("ReduceMean", x, axes=[0], keepdims=0),
    "ReduceMean of all": lambda b, x: b.op("ReduceMean", x),
    "ReduceProd": lambda b, x: b.op("ReduceProd", x, axes=[0]),
    "ReduceSum": lambda b, x: b.op("ReduceSum", b.op("Exp", x), b.const([0])),
    "ReduceSum of columns": lambda b, x: b.op("ReduceSum", x, b.const([1]), keepdims=0),
    "Reshape": lambda b, x: b.op("Reshape", x, b.const([-1])),
    "Reshape, split": lambda b, x: b.op("Reshape", x, b.const([1, -1, 2, 2])),
    "Reshape by Shape": lambda b, x: b.op(
        "Reshape", x, b.op("Concat", number(b, x), b.const([2, 2]), axis=0)
    ),
    "ScatterElements": scattered_elements,
    "ScatterND": scattered,
    "ScatterND from the end": lambda b, x: b.op(
        "ScatterND", x, b.const([[-1]]), b.const(np.ones((1, 4)), "float32")
    ),
    "ScatterND of elements": lambda b, x: b.op(
        "ScatterND", x, b.const([[-1, -2], [0, 1]]), b.const([7, 8], "float32")
    ),
    "ScatterElements from the end": lambda b, x: b.op(
        *("ScatterElements", x, b.const([[-1, 0, -1, -1]]), b.const([[5, 6, 7, 8]], "float32")),
        axis=0,
    ),
    "GatherND from the end": lambda b, x: b.op("GatherND", x, b.const([[-1], [0]])),
    "GatherND of elements": lambda b, x: b.op("GatherND", x, b.const([[-1, -2], [0, 1]])),
    "GatherElements from the end": lambda b, x: b.op(
        "GatherElements", x, b.const([[-1, 0, -1, -1]]), axis=0
    ),
    "Pool": ceiled,
    "Shape": lambda b, x: b.op("Add", b.op("Shape", x), b.const([1, 1])),
    "Size": lambda b, x: b.op("Size", x),
    "Slice of rows": lambda b, x: b.op("Slice", x, b.const([0]), b.const([2]), b.const([0])),
    "Slice after": lambda b, x: b.op("Slice", x, b.const([1]), b.const([2**62]), b.const([0])),
    "Slice from the end": lambda b, x: b.op("Slice", x, b.const([0]), b.const([-1]), b.const([0])),
    "Slice of columns": lambda b, x: b.op(
        "Slice", x, b.const([3]), b.const([0]), b.const([1]), b.const([-2])
    ),
    "Slice by a count": lambda b, x: b.op("Slice", "x", b.const([0]), number(b, x), b.const([0])),
    "Softmax": lambda b, x: b.op("Softmax", x, axis=0),
    "Softmax of columns": lambda b, x: b.op("Softmax", x, axis=1),
    "Split": lambda b, x: b.op("Split", x, b.const([1, 3]), axis=1, outputs=["part", "rest"]),
    "Squeeze": lambda b, x: b.op("Squeeze", b.op("Unsqueeze", x, b.const([0, 3])), b.const([3])),
    "Tile": lambda b, x: b.op("Tile", x, b.const([1, 2])),
    "TopK of so many": lambda b, x: b.op(
        "TopK", x, b.op("Min", number(b, x), b.const([3])), axis=0, outputs=["top", "at"]
    ),
    "TopK of columns": lambda b, x: b.op("TopK", x, b.const([2]), axis=1, outputs=["top", "at"]),
    "Transpose": lambda b, x: b.op("Transpose", x, perm=[1, 0]),
    "Unique": lambda b, x: b.op("Unique", b.op("Round", x)),
    "Where": lambda b, x: b.op(
        "Where", b.op("Greater", x, b.const(0.0, "float32")), x, b.const(-1.0, "float32")
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_in_use_is_what_it_was(name: str) -> None:
    model = model_of(CASES[name])
    made, bounds = rewritten(model)
    random = np.random.default_rng(3)
    # Some of the rows, all of them, one.
    for positive in ([1, 3, 4], range(6), [2]):
        x = random.normal(size=(6, 4)).astype("float32")
        x[:, 0] = -np.abs(x[:, 0])
        x[list(positive), 0] *= -1
        (due,) = run(model, (), 1, x)
        (got,) = run(made, bounds, 1, x)
        assert (got.shape, got.dtype) == (due.shape, due.dtype)
        np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("If")])
def test_a_branch_for_no_rows(name: str) -> None:
    model = model_of(CASES[name])
    made, bounds = rewritten(model)
    for low in (-1, 1):
        x = np.full((6, 4), low, "float32")
        x[:, 0] = -1
        (due,), (got,) = run(model, (), 1, x), run(made, bounds, 1, x)
        np.testing.assert_array_equal(got, due)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (
            lambda b, x: b.op("Einsum", x, x, equation="ij,ij->j"),
            "Einsum .*size that depends on the data",
        ),
        (
            lambda b, x: b.op("MatMul", b.op("Transpose", x, perm=[1, 0]), x),
            "mixes .* along axis 1",
        ),
        (lambda b, x: b.op("Add", x, b.const(np.ones((6, 4)), "float32")), "need not be equal"),
        (
            lambda b, x: b.op("Reshape", b.op("Transpose", x, perm=[1, 0]), b.const([-1])),
            "cannot be reshaped from",
        ),
        (
            lambda b, x: b.op("Slice", x, b.const([0]), b.const([4]), b.const([0]), b.const([2])),
            "a step along axis 0",
        ),
        (
            chosen(is_low, lambda _, x: x, lambda b, x: b.op("Reshape", x, b.const([-1]))),
            "If .*numbers of axes",
        ),
        (lambda b, x: b.op("Split", x, axis=0, outputs=["one", "other"]), "its parts along axis 0"),
        (lambda b, x: b.op("Tile", x, b.const([2, 1])), "it repeats axis 0"),
        (
            lambda b, x: b.op(
                *("ScatterND", b.op("Transpose", x, perm=[1, 0]), b.const([[0]])),
                b.const(np.ones((1, 6)), "float32"),
            ),
            "of its data and of its updates along axis 1",
        ),
        (
            lambda b, x: b.op("Squeeze", x, b.const([0])),
            "axis 0 of 'v4' is as long as the data says",
        ),
        (
            lambda b, x: b.op("Compress", x, b.const([False, False], "bool"), axis=1),
            "its condition is true nowhere",
        ),
        (lambda b, x: b.op("Squeeze", x), "without axes, and whether axis 0 is 1 long depends"),
        (lambda b, x: b.op("LayerNormalization", x, b.weight(6, 4), axis=0), "mixes the elements"),
    ],
)
def test_what_mixes_rows_is_refused_by_name(case: Case, why: str) -> None:
    with pytest.raises(DataSizeError, match=why) as caught:
        rewritten(model_of(case))
    assert "model.onnx: " in caught.value.message
    assert caught.value.hint


def test_outputs_say_where_their_counts_are() -> None:
    b = Builder()
    places = b.op("NonZero", "x", outputs=["places"])
    b.op("Gather", places, b.const(0), outputs=["rows"])
    b.op("Concat", "rows", "rows", axis=0, outputs=["twice"])
    outputs = dict.fromkeys(("places", "rows", "twice"), TensorProto.INT64)
    model = b.model({"x": [2, 3]}, {"places": [2, None], "rows": [None], "twice": [None]}, outputs)
    made, bounds = rewritten(model)
    assert bounds == (
        Bound(output=0, axis=1, count=0),
        Bound(output=1, axis=0, count=0),
        Bound(output=2, axis=0, count=1),
    )
    assert [value.name for value in made.graph.output][:3] == ["places", "rows", "twice"]
    assert len(made.graph.output) == 5
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in made.graph.output]
    assert shapes == [[2, 6], [6], [12], [], []]


def test_a_model_without_such_sizes_stays_as_it_is() -> None:
    b = Builder()
    b.op("TopK", "x", b.const([2]), outputs=["y", "at"])
    model = b.model({"x": [2, 3]}, {"y": [2, 2]})
    assert rewritten(model) == (model, ())


def test_sizes_are_sums_of_counts() -> None:
    n, m = count("n"), count("m")
    assert n + 2 - n == 2
    assert 10 - n == Size(10, (("n", -1),))
    assert (n + m) * 2 == m * 2 + 2 * n
    assert (4 * n + 8).divided(4) == n + 2
    assert (4 * n + 2).divided(4) is None
    with pytest.raises(TypeError):
        n * m


def test_parts_of_known_numbers_are_those_of_onnx() -> None:
    """From any place to any, also from beyond the ends, forwards and backwards."""
    b = Builder()
    b.op("Slice", "x", "start", "end", "axis", "step", outputs=["y"])
    bounds = {name: [1] for name in ("start", "end", "axis", "step")}
    proto = b.model(
        {"x": [None], **bounds}, {"y": [None]}, dict.fromkeys(bounds, TensorProto.INT64)
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    far = 2**31
    places = (-far, *range(-6, 7), far)
    for size, start, end, step in itertools.product((1, 4), places, places, (-2, -1, 1, 3)):
        x = np.arange(size, dtype="float32")
        given = {"start": start, "end": end, "axis": 0, "step": step}
        (due,) = session.run(None, {"x": x} | {k: np.array([v]) for k, v in given.items()})
        assert x[part_of(size, start, end, step)].tolist() == due.tolist(), (size, given)


def test_every_rule_is_of_an_operator_that_onnx_has() -> None:
    assert [name for name in RULES if not onnx.defs.has(name)] == []
