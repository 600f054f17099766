"""Axes of resized images, against onnx's own reference implementation."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgepack.kernels.axis import Axis, ResizeAttributes, Run, pad_positions


def resize(kind: str, coordinates: str = "half_pixel", **changes: object) -> ResizeAttributes:
    values: dict[str, object] = {
        "kind": kind,
        "coordinates": coordinates,
        "rounding": "round_prefer_floor",
        "coefficient": -0.75,
        "exclude_outside": False,
    }
    return ResizeAttributes(**{**values, **changes})  # type: ignore[arg-type]


def applied(axis: Axis, x: np.ndarray, outside: float) -> np.ndarray:
    """The axis's results by its tables."""
    y = np.full(axis.size, outside)
    y[axis.first : axis.first + axis.count] = (x[axis.sources] * axis.weights).sum(axis=1)
    return y


def by_onnx(x: np.ndarray, out: int, region: tuple[float, float], **kind: object) -> np.ndarray:
    constants = [
        numpy_helper.from_array(np.array(region, "float32"), "roi"),
        numpy_helper.from_array(np.array([out], "int64"), "sizes"),
    ]
    node = helper.make_node("Resize", ["x", "roi", "", "sizes"], ["y"], **kind)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None]) for n in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return np.asarray(ReferenceEvaluator(model).run(None, {"x": x.astype("float32")})[0])


@pytest.mark.parametrize(
    "coordinates",
    [
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        # tf_half_pixel_for_nn is gone from onnx: tests/functional/test_resize_properties.py
        "tf_crop_and_resize",
    ],
)
@pytest.mark.parametrize("kind", ["nearest", "linear", "cubic"])
def test_positions_and_weights_are_those_of_onnx(kind: str, coordinates: str) -> None:
    random = np.random.default_rng(3)
    for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
        size = int(random.integers(2, 12))
        out = int(random.choice([n for n in range(2, 30) if n != size]))
        region = (float(random.uniform(-0.1, 0.3)), float(random.uniform(0.7, 1.1)))
        x = random.normal(size=size)
        exclude = bool(random.integers(2)) and kind == "cubic"
        of = resize(kind, coordinates, rounding=rounding, exclude_outside=exclude)
        expected = by_onnx(
            x,
            out,
            region,
            mode=kind,
            coordinate_transformation_mode=coordinates,
            nearest_mode=rounding,
            extrapolation_value=2.5,
            exclude_outside=int(exclude),
        )
        got = applied(of.axis(size, out, region), x, 2.5)
        assert np.abs(got - expected).max() < 1e-5, (rounding, size, out, region)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "tf_half_pixel_for_nn"])
def test_ties_are_ties_in_spite_of_float32(coordinates: str, rounding: str) -> None:
    """(9 + 1/2) * 7 / 19 is 3 1/2; in float32 it is a little more."""
    shift, back = {
        "half_pixel": (Fraction(1, 2), Fraction(1, 2)),
        "asymmetric": (Fraction(0), Fraction(0)),
        "tf_half_pixel_for_nn": (Fraction(1, 2), Fraction(0)),
    }[coordinates]
    ties = 0
    for size, out in itertools.product(range(2, 20), range(2, 60)):
        if size == out:
            continue
        got = resize("nearest", coordinates, rounding=rounding).axis(size, out, (0, 1)).sources
        for result in range(out):
            at = (result + shift) * size / out - back
            if (at - Fraction(1, 2)).denominator == 1:
                near = (
                    at - Fraction(1, 2) if rounding == "round_prefer_floor" else at + Fraction(1, 2)
                )
                assert got[result] == min(max(near, 0), size - 1), (size, out, result)
                ties += 1
    assert ties > 100


def test_results_repeat_between_the_borders() -> None:
    axis = resize("linear").axis(28, 56, (0, 1))
    assert axis.runs(48) == [
        Run(first=0, period=1, turns=1, step=0),
        Run(first=1, period=2, turns=27, step=1),
        Run(first=55, period=1, turns=1, step=0),
    ]
    assert resize("nearest", "asymmetric").axis(20, 40, (0, 1)).runs(48) == [
        Run(first=0, period=2, turns=20, step=1)
    ]


def test_runs_hold_all_results() -> None:
    random = np.random.default_rng(5)
    for _ in range(40):
        size, out = (int(v) for v in random.integers(1, 40, size=2))
        axis = resize(str(random.choice(["nearest", "linear", "cubic"]))).axis(size, out, (0, 1))
        runs = axis.runs(out)
        assert runs is not None
        made = [
            (run.first + i, axis.sources[run.first + i] + turn * run.step, turn * run.period)
            for run in runs
            for turn in range(run.turns)
            for i in range(run.period)
        ]
        assert [first + further for first, _, further in made] == list(range(out))
        sources = np.array([s for _, s, _ in made])
        weights = np.array([axis.weights[first] for first, _, _ in made])
        assert (sources == axis.sources).all()
        assert np.abs(weights - axis.weights).max() < 1e-4


def test_too_many_different_results_are_no_runs() -> None:
    assert resize("linear").axis(61, 97, (0, 1)).runs(48) is None


@pytest.mark.parametrize(
    ("mode", "of_numpy"), [("constant", "constant"), ("reflect", "reflect"), ("replicate", "edge")]
)
@pytest.mark.parametrize(("before", "after"), [(0, 0), (3, 0), (2, 4)])
def test_borders_are_those_of_numpy(mode: str, of_numpy: str, before: int, after: int) -> None:
    x = np.arange(1.0, 7.0)
    expected = np.pad(x, (before, after), mode=of_numpy)  # type: ignore[call-overload]
    assert applied(pad_positions(mode, 6, before, after), x, 0.0).tolist() == expected.tolist()
