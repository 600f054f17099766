"""The algebra of Winograd convolution, and when the cost model takes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from edgepack.compiler.layers.layer import Convolution, Layer
from edgepack.compiler.rules import winograd
from edgepack.compiler.tiles import toom_cook
from edgepack.compiler.tiles.cpu import (
    AVX2,
    CORTEX_A9,
    CORTEX_A53,
    CORTEX_A72,
    CORTEX_A76,
    ZEN4,
)
from edgepack.compiler.tiles.element import FLOAT16, FLOAT32

each_points = pytest.mark.parametrize(
    "points", [*toom_cook.POINTS.values(), toom_cook.HALF_POINTS[4]], ids=str
)
CPUS = (ZEN4, AVX2, CORTEX_A72, CORTEX_A53, CORTEX_A9)


def apply(transform: toom_cook.Transform, values: np.ndarray) -> np.ndarray:
    """A transform along the first axis, in float64."""
    numbers = list(values[: transform.inputs].astype("float64"))
    for terms in transform.steps:
        numbers.append(sum(coefficient * numbers[index] for coefficient, index in terms))
    return np.array([numbers[index] for index in transform.outputs])


def correlate(image: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The definition: each result is the sum over a 3x3 window."""
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3))
    return np.einsum("ijrs,rs->ij", windows, weight)


@each_points
def test_a_tile_is_the_correlation(points: toom_cook.Points) -> None:
    size = len(points) + 1
    random = np.random.default_rng(size)
    image = random.normal(size=(size, size))
    weight = random.normal(size=(1, 1, 3, 3))
    forth = toom_cook.input_transform(points, size)
    back = toom_cook.output_transform(points, size - 2)
    transformed = apply(forth, apply(forth, image).T).T
    product = transformed * toom_cook.transform_weights(weight, points).reshape(size, size)
    got = apply(back, apply(back, product).T).T
    # The weights were rounded to float32.
    np.testing.assert_allclose(got, correlate(image, weight[0, 0]), atol=1e-4)


@each_points
def test_parts_of_a_transform_are_parts_of_the_whole(points: toom_cook.Points) -> None:
    random = np.random.default_rng(1)
    size = len(points) + 1
    values = random.normal(size=(size, 5))
    for given in range(3, size):
        padded = np.where(np.arange(size)[:, None] < given, values, 0.0)
        np.testing.assert_allclose(
            apply(toom_cook.input_transform(points, given), values),
            apply(toom_cook.input_transform(points, size), padded),
        )
    whole = apply(toom_cook.output_transform(points, size - 2), values)
    for wanted in range(1, size - 2):
        part = apply(toom_cook.output_transform(points, wanted), values)
        np.testing.assert_allclose(part, whole[:wanted])


@each_points
def test_ones_are_in_every_result(points: toom_cook.Points) -> None:
    results = len(points) - 1
    back = toom_cook.output_transform(points, results)
    values = np.array(toom_cook.ones(points))
    np.testing.assert_allclose(apply(back, values), np.ones(results), rtol=1e-12)


@pytest.mark.parametrize("results", toom_cook.HALF_POINTS)
def test_halves_hold_the_coefficients(results: int) -> None:
    points = toom_cook.HALF_POINTS[results]
    transforms = (
        toom_cook.input_transform(points, results + 2),
        toom_cook.output_transform(points, results),
    )
    for transform in transforms:
        coefficients = np.array(transform.coefficients)
        np.testing.assert_array_equal(coefficients.astype("float16"), coefficients)


def layer(
    ins: int, outs: int, size: int, *, kernel: int = 3, stride: int = 1, groups: int = 1
) -> Layer:
    """A padded convolution of square images."""
    operator = Convolution(
        weight=np.zeros((outs, ins // groups, kernel, kernel), "float32"),
        bias=None,
        stride=(stride, stride),
        before=(1, 1),
        dilation=(1, 1),
        groups=groups,
    )
    after = (size + 2 - kernel) // stride + 1
    source, output = (
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (("x", [1, ins, size, size]), ("y", [1, outs, after, after]))
    )
    return Layer(operator=operator, inputs=(source,), output=output)


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_it_is_taken_where_it_pays(cpu: winograd.CpuModel) -> None:
    assert winograd.RULE.takes(layer(64, 64, 56), cpu)
    assert winograd.RULE.takes(layer(256, 256, 14), cpu)
    # The transforms cost more than three channels or one tile save.
    assert not winograd.RULE.takes(layer(3, 8, 56), cpu)
    assert not winograd.RULE.takes(layer(64, 64, 1), cpu)
    for other in (
        layer(64, 64, 56, stride=2),
        layer(64, 64, 56, kernel=5),
        layer(64, 64, 56, groups=2),
    ):
        assert not winograd.RULE.takes(other, cpu)


def test_halves_take_the_tiles_that_their_accuracy_allows() -> None:
    cpu = replace(CORTEX_A76, features=frozenset({"fp16"}))
    half = replace(layer(256, 256, 14), element=FLOAT16, weights=FLOAT16)
    assert winograd.RULE.takes(half, cpu)
    assert winograd.plan(half, cpu).results == 4
    assert winograd.plan(replace(half, most_results=2), cpu).results == 2
    assert not winograd.RULE.takes(replace(half, most_results=0), cpu)
    assert not winograd.rule([6], always=True).takes(half, cpu)
    # Two bytes a weight: 36 positions instead of 9, and biases.
    assert winograd.RULE.forms is not None
    forms = {form.choice.results: form.more_bytes for form in winograd.RULE.forms(half, cpu)}
    assert forms[4] == 2 * 256 * (36 * 257 - 9 * 256)


@pytest.mark.parametrize("size", toom_cook.POINTS)
def test_it_can_be_forced(size: int) -> None:
    forced = winograd.rule([size], always=True)
    assert forced.takes(layer(3, 8, 56), CORTEX_A9)
    assert not forced.takes(layer(3, 8, 56, stride=2), CORTEX_A9)
    assert winograd.plan(layer(3, 8, 56), CORTEX_A9, [size]).results == size


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_scratch_memory_stays_in_the_cache(cpu: winograd.CpuModel) -> None:
    large = layer(64, 64, 320)
    chosen = winograd.plan(large, cpu)
    scratch = 4 * chosen.positions * 2 * (64 + cpu.widest(FLOAT32)) * (chosen.grid.tiles + 1)
    assert scratch <= 2 * cpu.l2_bytes or chosen.grid.tiles <= 16
    assert chosen.grid.chunks * chosen.grid.tiles >= chosen.grid.rows * chosen.grid.columns
