"""What broken sensors give, and positions at their bounds: made, and compared to the kind.

What a board computes is made up here (by numpy); the reference is onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from edgepack.boards import get_board
from edgepack.flow import adversarial
from edgepack.flow.adversarial import (
    BOUNDS,
    HOT,
    INFINITY,
    LIMITS,
    NAN,
    PAST,
    compare_odd,
    kinds,
    odd_cases,
    other_kind,
)
from edgepack.flow.reference import Reference, golden_inputs
from edgepack.model import LoadedModel, ModelSpec, read_model
from tests.onnx_models import Builder

Array = np.ndarray


def _model(folder: Path, make: Callable[[Builder], object], **inputs: Any) -> LoadedModel:
    b = Builder()
    make(b)
    proto = b.model({"x": [2, 5]}, {"y": None})
    for name, (dtype, shape) in inputs.items():
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, shape))
    onnx.save(proto, folder / "model.onnx")
    return read_model(ModelSpec(path=folder / "model.onnx"))


def _half(b: Builder) -> None:
    b.op("Mul", "x", b.const(0.5, "float32"), outputs=["y"])


def test_one_place_is_odd_and_the_rest_golden(tmp_path: Path) -> None:
    model = _model(tmp_path, _half)
    golden = golden_inputs(model)
    cases = odd_cases(model, golden)
    for case, value in ((NAN, np.nan), (INFINITY, np.inf), (HOT, 65535)):
        (x,) = cases[case]
        differs = x != golden[0]
        assert np.argwhere(differs).tolist() == [[1, 2]]
        np.testing.assert_array_equal(x[1, 2], value)
    (tiny,) = cases["denormal numbers"]
    assert (tiny != 0).all()
    assert (np.abs(tiny) < np.finfo("float32").tiny).all()
    assert len(np.unique(cases["all equal"][0])) == 1
    limits = np.finfo("float32")
    assert cases[LIMITS][0].reshape(-1)[:3].tolist() == [limits.max, limits.min, limits.max]
    assert PAST not in cases


@pytest.mark.parametrize(
    ("make", "due"),
    [
        (lambda b: b.op("Gather", "x", "i", axis=1, outputs=["y"]), (-5, 4)),
        (lambda b: b.op("Gather", "x", "i", outputs=["y"]), (-2, 1)),
        # By way of operators that keep values, and used twice: the narrower range.
        (
            lambda b: b.op(
                "Add",
                b.op("Gather", "x", b.op("Cast", b.op("Identity", "i"), to=6), axis=1),
                b.op("Gather", b.op("Transpose", "x", perm=[1, 0]), "i", axis=1),
                outputs=["y"],
            ),
            (-2, 1),
        ),
        (
            lambda b: b.op("ReverseSequence", "x", "i", batch_axis=0, time_axis=1, outputs=["y"]),
            (1, 5),
        ),
        (lambda b: b.op("Add", "x", b.op("Cast", "i", to=1), outputs=["y"]), None),
        # One for each axis, turned round: what both have.
        (
            lambda b: b.op(
                "GatherND",
                "x",
                b.op("Transpose", b.op("Unsqueeze", "i", b.const([1]))),
                outputs=["y"],
            ),
            (-2, 1),
        ),
    ],
)
def test_positions_are_known_by_their_use(
    make: Callable[[Builder], object], due: tuple[int, int] | None, tmp_path: Path
) -> None:
    model = _model(tmp_path, make, i=(onnx.TensorProto.INT64, [2]))
    cases = odd_cases(model, golden_inputs(model))
    if due is None:
        assert BOUNDS not in cases
        return
    low, high = due
    assert cases[BOUNDS][1].tolist() == [high, low]
    assert cases[PAST][1].tolist() == [high + 1, low - 1]
    # Bytes are pixels, not positions.
    assert cases[LIMITS][1].tolist() == golden_inputs(model)[1].tolist()


def test_each_place_of_a_position_has_its_own_bounds(tmp_path: Path) -> None:
    """`(2, 5)`: rows, and what is in them."""
    model = _model(
        tmp_path,
        lambda b: b.op("GatherND", "x", b.op("Reshape", "i", b.const([3, 2])), outputs=["y"]),
        i=(onnx.TensorProto.INT64, [6]),
    )
    cases = odd_cases(model, golden_inputs(model))
    assert cases[BOUNDS][1].tolist() == [1, -5] * 3
    assert cases[PAST][1].tolist() == [2, -6] * 3


def test_a_position_of_which_only_the_shape_is_asked_for_may_be_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime reads there all the same, and refuses; a compiler knows the shape."""

    def make(b: Builder) -> None:
        shape = b.op("Shape", b.op("Gather", "x", "i", axis=1))
        b.op("Add", b.op("Cast", shape, to=1), b.op("ReduceSum", "x", keepdims=0), outputs=["y"])

    model = _model(tmp_path, make, i=(onnx.TensorProto.INT64, [5]))

    def run(inputs: Sequence[Array]) -> list[Array]:
        with np.errstate(over="ignore"):
            return [np.array([2, 5], "float32") + inputs[0].sum()]

    assert _compare(model, run, monkeypatch)[2] is None


def test_kinds() -> None:
    values = np.array([1, np.nan, np.inf, -np.inf, -0.0], "float32")
    assert kinds(values).tolist() == [0, 1, 2, -2, 0]
    assert other_kind(values, values) is None
    found = other_kind(np.nan_to_num(values, nan=0), values)
    assert found is not None
    assert found.startswith("3 values are of another kind, at (1,) 0.0 instead of nan")
    assert other_kind(-values, values) is not None


def _compare(
    model: LoadedModel,
    run: Callable[[Sequence[Array]], list[Array] | str],
    monkeypatch: pytest.MonkeyPatch,
    rules: Mapping[str, str] = MappingProxyType({}),  # by the tensors that layers make
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, str] | None]:
    def run_all(_board: object, _built: object, cases: Sequence[Sequence[Array]]) -> list[Any]:
        return [run(inputs) for inputs in cases]

    monkeypatch.setattr(adversarial, "run_all", run_all)
    layers = [
        SimpleNamespace(rule=rule, dtype="float32", value=value) for value, rule in rules.items()
    ]
    built: Any = SimpleNamespace(floats=(), layers=layers, outputs=model.outputs)
    cases = odd_cases(model, golden_inputs(model))
    return compare_odd(model, get_board("local"), built, cases, 1e-4)


def test_what_is_of_the_references_kind_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(tmp_path, _half)
    told, choices, wrong = _compare(model, lambda inputs: [inputs[0] / 2], monkeypatch)
    assert wrong is None
    assert choices == ()
    assert told == tuple(odd_cases(model, golden_inputs(model)))


@pytest.mark.parametrize(
    ("run", "case", "why"),
    [
        # x86's max with its operands the other way round, and a sensor's gap that becomes a 0.
        (lambda x: np.nan_to_num(x / 2, nan=0, posinf=np.inf), NAN, "of another kind, at (1, 2)"),
        (lambda x: np.minimum(x / 2, 1e38), INFINITY, "of another kind"),
        (lambda x: np.where(np.isfinite(x), np.minimum(x / 2, 1e4), x), HOT, "off by 2.3e+04"),
        (lambda x: (x / 2)[:1], NAN, "is (1, 5) where the reference is (2, 5)"),
    ],
)
def test_what_is_not_is_named(
    run: Callable[[Array], Array],
    case: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _model(tmp_path, _half)
    wrong = _compare(model, lambda inputs: [run(inputs[0])], monkeypatch)[2]
    assert wrong is not None
    assert wrong[0] == case
    assert why in wrong[1]


def test_what_differs_by_choice_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile of Winograd's is NaN all over."""
    model = _model(tmp_path, _half)

    def run(inputs: Sequence[Array]) -> list[Array]:
        x = inputs[0].copy()
        return [np.full_like(x, np.nan) if not np.isfinite(x).all() else x / 2]

    _, choices, wrong = _compare(model, run, monkeypatch, {"y": "winograd"})
    assert wrong is None
    assert [choice.split(":")[0] for choice in choices] == [NAN, INFINITY]
    wrong = _compare(model, run, monkeypatch, {"y": "conv"})[2]
    assert wrong is not None


def test_a_nan_that_the_table_of_choices_has_a_row_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(
        tmp_path, lambda b: b.op("TopK", "x", b.const([5], "int64"), axis=1, outputs=["y", "i"])
    )

    def smallest_last(inputs: Sequence[Array]) -> list[Array]:
        return [-np.sort(-inputs[0], axis=1)]  # numpy has NaN last

    _, choices, wrong = _compare(model, smallest_last, monkeypatch)
    assert wrong is None
    assert choices == (f"{NAN}: TopK, a NaN among the elements: NaN comes last",)


def _read(folder: Path, b: Builder, **outputs: int) -> LoadedModel:
    """A model of x [2, 5] with outputs of these types."""
    shapes = dict.fromkeys(outputs)
    file = b.save(folder / "model.onnx", {"x": [2, 5]}, shapes, outputs)
    return read_model(ModelSpec(path=file))


BOOL, FLOAT, INT32, INT64 = (
    onnx.TensorProto.BOOL,
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.INT32,
    onnx.TensorProto.INT64,
)


def test_a_truth_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By IEEE 754 NaN is not less than 0, so that the opposite is true; numpy's is, too."""
    b = Builder()
    b.op("Not", b.op("Less", "x", b.const(0.0, "float32")), outputs=["y"])
    model = _read(tmp_path, b, y=BOOL)
    assert _compare(model, lambda inputs: [~(inputs[0] < 0)], monkeypatch)[2] is None
    wrong = _compare(model, lambda inputs: [inputs[0] >= 0], monkeypatch)[2]
    assert wrong == (NAN, "output 'y': 1 values are others, at (1, 2) False instead of True")


def test_integers_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.arange(10, 15)
    b = Builder()
    b.op("Mul", "x", b.const(0.5, "float32"), outputs=["y"])
    b.op("Gather", b.const(table), "i", outputs=["z"])
    file, inputs = tmp_path / "model.onnx", {"x": [2, 5], "i": [2]}
    b.save(file, inputs, {"y": [2, 5], "z": [2]}, {"i": INT64, "z": INT64})
    model = read_model(ModelSpec(path=file))

    def gather(inputs: Sequence[Array]) -> list[Array] | str:
        x, i = inputs
        return [x / 2, table[i]] if (i >= -5).all() and (i <= 4).all() else ""

    def of_the_last(inputs: Sequence[Array]) -> list[Array] | str:
        x, i = inputs
        return gather(inputs) and [x / 2, table[np.where(i < 0, -1, i)]]

    assert _compare(model, gather, monkeypatch)[2] is None
    wrong = _compare(model, of_the_last, monkeypatch)[2]
    assert wrong == (BOUNDS, "output 'z': 1 values are others, at (1,) 14 instead of 10")


def test_integers_that_hang_on_last_bits_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equal values the largest is any of them, as soon as they were rounded."""
    b = Builder()
    b.op("ArgMax", "x", axis=1, outputs=["y"])
    model = _read(tmp_path, b, y=INT64)

    def last_of_equals(inputs: Sequence[Array]) -> list[Array]:
        (x,) = inputs
        # As onnxruntime, which finds no NaN behind the first element.
        found = np.where(np.isnan(x), -np.inf, x).argmax(axis=1, keepdims=True)
        return [np.full_like(found, 4) if (x == x[0, 0]).all() else found]

    told, choices, wrong = _compare(model, last_of_equals, monkeypatch)
    assert wrong is None
    assert "all equal" not in told
    assert not choices


def test_a_choice_excuses_what_follows_from_it_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Builder()
    b.op("Mul", "x", b.const(0.5, "float32"), outputs=["y"])
    largest = b.op("ReduceMax", "x", axes=[1], keepdims=1)
    b.op("Neg", largest, outputs=["z"])
    model = _read(tmp_path, b, y=FLOAT, z=FLOAT)

    def ignores_nan(in_y: bool) -> Callable[[Sequence[Array]], list[Array]]:
        def run(inputs: Sequence[Array]) -> list[Array]:
            y = inputs[0] / 2
            z = -np.fmax.reduce(inputs[0], axis=1, keepdims=True)
            return [np.where(np.isnan(y), 0, y) if in_y else y, z]

        return run

    def gives_nan(inputs: Sequence[Array]) -> list[Array]:
        return [inputs[0] / 2, -np.max(inputs[0], axis=1, keepdims=True)]

    for run in (gives_nan, ignores_nan(in_y=False)):
        _, choices, wrong = _compare(model, run, monkeypatch)
        assert wrong is None
        assert all(choice.startswith(f"{NAN}: ReduceMax") for choice in choices)
    for rules in ({}, {"z": "winograd"}):
        wrong = _compare(model, ignores_nan(in_y=True), monkeypatch, rules)[2]
        assert wrong is not None
        assert wrong[0] == NAN
        assert wrong[1].startswith("output 'y': 1 values are of another kind")
    # A layer that nobody knows the result of may be before all of them.
    for rules in ({"y": "winograd"}, {"": "winograd"}):
        assert _compare(model, ignores_nan(in_y=True), monkeypatch, rules)[2] is None


@pytest.mark.parametrize(("mode", "is_choice"), [("linear", True), ("nearest", False)])
def test_a_resize_by_a_product_spreads_what_is_no_number(
    mode: str, is_choice: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Builder()
    scales = b.const([1.0, 2.0], "float32")
    b.op("Resize", "x", "", scales, mode=mode, outputs=["y"])
    model = _read(tmp_path, b, y=FLOAT)
    right = Reference(model.proto)

    def by_a_product(inputs: Sequence[Array]) -> list[Array]:
        (y,) = right.run(inputs)
        lost = ~np.isfinite(inputs[0]).all(axis=1)
        y[lost] = np.nan
        return [y]

    _, choices, wrong = _compare(model, by_a_product, monkeypatch)
    assert (wrong is None) == is_choice
    assert is_choice == any(choice.startswith(f"{NAN}: Resize, Upsample") for choice in choices)


def test_what_no_integer_is_is_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has the least integer for what is too large, another one the largest."""
    b = Builder()
    b.op("Cast", b.op("Mul", "x", b.const(1e5, "float32")), to=INT32, outputs=["y"])
    b.op("Cast", "x", to=BOOL, outputs=["z"])
    model = _read(tmp_path, b, y=INT32, z=BOOL)

    def nearest(inputs: Sequence[Array]) -> list[Array]:
        x = np.nan_to_num(inputs[0].astype("float64") * np.float32(1e5), nan=7)
        return [np.clip(x, -(2**31), 2**31 - 1).astype("int32"), inputs[0].astype(bool)]

    _, choices, wrong = _compare(model, nearest, monkeypatch)
    assert wrong is None
    assert {choice.split(":")[0] for choice in choices} == {NAN, INFINITY, HOT, LIMITS}
    assert all("Cast, CastLike, floats beyond the integer type's range" in it for it in choices)

    def never(inputs: Sequence[Array]) -> list[Array]:
        return [*nearest(inputs)[:1], np.nan_to_num(inputs[0], nan=0).astype(bool)]

    wrong = _compare(model, never, monkeypatch)[2]
    assert wrong == (NAN, "output 'z': 1 values are others, at (1, 2) False instead of True")


def test_boxes_may_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of boxes from an image that has no number; onnxruntime makes something of them."""
    b = Builder()
    boxes = b.op("Concat", b.op("Slice", "x", *map(b.const, ([0], [4], [1]))), axis=1)
    image = b.weight(1, 1, 8, 8)
    b.op("RoiAlign", image, boxes, b.const([0, 0]), outputs=["y"])
    model = _read(tmp_path, b, y=FLOAT)
    right = Reference(model.proto)

    def run(inputs: Sequence[Array]) -> list[Array] | str:
        (x,) = inputs
        return right.run(inputs) if np.abs(x).max() < 1e3 else ""

    _, choices, wrong = _compare(model, run, monkeypatch)
    assert wrong is None
    assert f"{LIMITS}: boxes that are no number, or far beside their image, are refused" in choices
    assert _compare(model, lambda _: "it crashes (SIGSEGV)", monkeypatch)[2] is not None


def test_a_position_from_outside_is_refused_by_both_or_by_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(
        tmp_path,
        lambda b: b.op("Gather", "x", "i", axis=1, outputs=["y"]),
        i=(onnx.TensorProto.INT64, [2]),
    )

    def gather(inputs: Sequence[Array]) -> list[Array] | str:
        try:
            return [np.take(*inputs, axis=1)]
        except IndexError:
            return ""

    told, _, wrong = _compare(model, gather, monkeypatch)
    assert wrong is None
    assert {BOUNDS, PAST} <= set(told)

    def clips(inputs: Sequence[Array]) -> list[Array]:
        return [np.take(*inputs, axis=1, mode="wrap" if inputs[1].max() < 5 else "clip")]

    wrong = _compare(model, clips, monkeypatch)[2]
    assert wrong == (
        PAST,
        "Gather 'Gather_0': its input 'indices' has 5, which is not between -5 and 4: the "
        "reference refuses it, and here it has a result",
    )
    for answer in ("", "it crashes (SIGSEGV)"):
        wrong = _compare(model, lambda _, it=answer: it, monkeypatch)[2]  # type: ignore[misc]
        assert wrong is not None
        assert wrong[0] == BOUNDS  # the first of them

    def crashes_past(inputs: Sequence[Array]) -> list[Array] | str:
        return gather(inputs) or "it crashes (SIGSEGV)"

    wrong = _compare(model, crashes_past, monkeypatch)[2]
    assert wrong == (PAST, "it crashes (SIGSEGV)")
