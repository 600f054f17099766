"""The algebra of Winograd convolution, and when the cost model takes it."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from edgepack.compiler.layers.layer import Convolution, Layer
from edgepack.compiler.rules import winograd
from edgepack.compiler.tiles import toom_cook
from edgepack.compiler.tiles.cpu import AVX2, CORTEX_A9, CORTEX_A53, CORTEX_A72, ZEN4
from edgepack.compiler.tiles.element import FLOAT32

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


@pytest.mark.parametrize("results", toom_cook.POINTS)
def test_a_tile_is_the_correlation(results: int) -> None:
    random = np.random.default_rng(results)
    size = results + 2
    image = random.normal(size=(size, size))
    weight = random.normal(size=(1, 1, 3, 3))
    forth = toom_cook.input_transform(results, size)
    back = toom_cook.output_transform(results, results)
    transformed = apply(forth, apply(forth, image).T).T
    product = transformed * toom_cook.transform_weights(weight, results).reshape(size, size)
    got = apply(back, apply(back, product).T).T
    # The weights were rounded to float32.
    np.testing.assert_allclose(got, correlate(image, weight[0, 0]), atol=1e-4)


@pytest.mark.parametrize("results", toom_cook.POINTS)
def test_parts_of_a_transform_are_parts_of_the_whole(results: int) -> None:
    random = np.random.default_rng(1)
    size = results + 2
    values = random.normal(size=(size, 5))
    for given in range(3, size):
        padded = np.where(np.arange(size)[:, None] < given, values, 0.0)
        np.testing.assert_allclose(
            apply(toom_cook.input_transform(results, given), values),
            apply(toom_cook.input_transform(results, size), padded),
        )
    whole = apply(toom_cook.output_transform(results, results), values)
    for wanted in range(1, results):
        part = apply(toom_cook.output_transform(results, wanted), values)
        np.testing.assert_allclose(part, whole[:wanted])


@pytest.mark.parametrize("results", toom_cook.POINTS)
def test_a_sum_at_the_point_one_is_in_every_result(results: int) -> None:
    values = np.zeros(results + 2)
    values[toom_cook.ONE] = 1.0
    back = toom_cook.output_transform(results, results)
    np.testing.assert_array_equal(apply(back, values), np.ones(results))


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
