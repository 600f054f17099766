"""The algebra of Winograd convolution, and when the cost model takes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from edgepack.kernels.choices import FRESH, Way
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.limits import FREE, LayerLimits
from edgepack.kernels.rules import winograd
from edgepack.kernels.rules.rule import KernelSite, LayerSite
from edgepack.kernels.rules.winograd_plan import TileChunk, WinogradPlan
from edgepack.kernels.tiles import toom_cook
from edgepack.kernels.tiles.cpu import (
    AVX2,
    CORTEX_A9,
    CORTEX_A53,
    CORTEX_A72,
    CORTEX_A76,
    SAPPHIRE_RAPIDS,
    ZEN4,
)
from edgepack.kernels.tiles.element import FLOAT16, FLOAT32
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.value import Value, extent

FORMS = [
    form for forms in (*toom_cook.FORMS.values(), toom_cook.HALF_FORMS) for form in forms.values()
]
each_form = pytest.mark.parametrize("form", FORMS, ids=str)
CPUS = (ZEN4, AVX2, CORTEX_A72, CORTEX_A53, CORTEX_A9)


def apply(transform: toom_cook.Transform, values: np.ndarray) -> np.ndarray:
    """A transform along the first axis, in float64."""
    numbers = list(values[: transform.inputs].astype("float64"))
    for terms in transform.steps:
        numbers.append(sum(coefficient * numbers[index] for coefficient, index in terms))
    return np.array([numbers[index] for index in transform.outputs])


def correlate(image: np.ndarray, weight: np.ndarray, stride: tuple[int, int]) -> np.ndarray:
    """The definition: each result is the sum over a window."""
    windows = np.lib.stride_tricks.sliding_window_view(image, weight.shape)
    windows = windows[:: stride[0], :: stride[1]]
    return np.einsum("ijrs,rs->ij", windows, weight)


def spread(tile: toom_cook.TileForm, weight: np.ndarray) -> np.ndarray:
    """What each product of a tile is multiplied by, for each part: [row, column, part]."""
    rows, columns = (
        np.minimum(np.arange(line.size), line.factors - 1) for line in (tile.down, tile.across)
    )
    weights = tile.weights(weight).reshape(tile.down.factors, tile.across.factors, tile.parts)
    return weights[np.ix_(rows, columns)]


@each_form
@pytest.mark.parametrize("kind", ["square", "row", "column"])
def test_a_part_of_a_tile_needs_only_its_inputs(form: toom_cook.LineForm, kind: str) -> None:
    """The first results, of the inputs that they read and of no others."""
    random = np.random.default_rng(1)
    down, across = (form if kind != other else toom_cook.ONE for other in ("row", "column"))
    weight = random.normal(size=(1, 1, down.taps, across.taps))
    factors = spread(toom_cook.TileForm(down=down, across=across), weight)
    for (rows, high), (columns, wide) in product(lines(down), lines(across)):
        image = random.normal(
            size=(
                down.stride * (rows - 1) + down.taps,
                across.stride * (columns - 1) + across.taps,
            )
        )
        sums = np.zeros((high, wide))
        for number, (i, j) in enumerate(product(range(down.parts), range(across.parts))):
            read = image[i :: down.step, j :: across.step]
            assert read.shape == (down.reach(rows, i), across.reach(columns, j))
            half = apply(across.forth(columns, j, wide), read.T)
            sums += apply(down.forth(rows, i, high), half.T) * factors[:high, :wide, number]
        got = apply(across.back(columns, wide), apply(down.back(rows, high), sums).T).T
        wanted = correlate(image, weight[0, 0], (down.stride, across.stride))
        # The weights were rounded to float32.
        np.testing.assert_allclose(got, wanted, atol=1e-4)


def lines(form: toom_cook.LineForm) -> Iterator[tuple[int, int]]:
    """Each number of results, with all products and with as few as will do."""
    for results in range(1, form.results + 1):
        yield results, form.size
        if form.shortens and form.products(results) < form.size:
            yield results, form.products(results)


@pytest.mark.parametrize("form", [form for form in FORMS if form.parts == 1], ids=str)
def test_weights_are_transformed_as_they_would_be_stored(form: toom_cook.LineForm) -> None:
    weights = np.random.default_rng(4).normal(size=(form.taps, 5))
    transform = form.weighing()
    assert len(transform.outputs) == form.factors
    np.testing.assert_allclose(apply(transform, weights), form.matrix(0) @ weights, atol=1e-12)


@each_form
def test_ones_are_in_every_result(form: toom_cook.LineForm) -> None:
    for results, products in lines(form):
        values = np.array(form.ones()[:products])
        back = form.back(results, products)
        np.testing.assert_allclose(apply(back, values), np.ones(results), rtol=1e-12)


@pytest.mark.parametrize("taps", [3, 5])
def test_a_short_tile_multiplies_no_more_than_it_has_to(taps: int) -> None:
    """F(m, r) takes m + r - 1 multiplications for each m."""
    for form in toom_cook.FORMS[taps, 1].values():
        assert form.shortens
        for results, products in list(lines(form))[1::2]:
            assert products == results + taps - 1


@pytest.mark.parametrize("short_row", [False, True])
@pytest.mark.parametrize("short_column", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (3, 1), (3, 4)], ids=str)
def test_each_product_has_its_tiles_in_one_run(
    size: tuple[int, int], short_column: bool, short_row: bool
) -> None:
    rows, columns = size
    chunk = TileChunk(rows=rows, columns=columns, short_row=short_row, short_column=short_column)
    places = {}
    for row, column in product(range(rows), range(columns)):
        in_row, in_column = short_row and row == rows - 1, short_column and column == columns - 1
        at = chunk.place(row, column, in_row=in_row, in_column=in_column)
        places[at] = in_row, in_column
    assert sorted(places) == list(range(rows * columns))
    for in_row, in_column in product([False, True], repeat=2):
        start, count = chunk.run(in_row=in_row, in_column=in_column)
        wanted = {at for at, (r, c) in places.items() if r <= in_row and c <= in_column}
        assert set(range(start, start + count)) == wanted


@pytest.mark.parametrize("results", toom_cook.HALF_FORMS)
def test_halves_hold_the_coefficients(results: int) -> None:
    form = toom_cook.HALF_FORMS[results]
    for transform in (form.forth(results), form.back(results)):
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
        Value(name=name, shape=tuple(shape))
        for name, shape in (("x", [1, ins, size, size]), ("y", [1, outs, after, after]))
    )
    return Layer(operator=operator, inputs=(source,), output=output)


def plan(
    some: Layer,
    cpu: winograd.CpuModel,
    sizes: Collection[int] = winograd.SIZES,
    limits: LayerLimits = FREE,
) -> WinogradPlan:
    """How a layer is computed without a choice."""
    return winograd.plan(KernelSite(layer=some, cpu=cpu, limits=limits), sizes)


@pytest.mark.parametrize(("results", "products"), [(4, 3 * 6 + 4), (6, 2 * 8 + 4)])
def test_tiles_at_the_edge_are_in_few_products(results: int, products: int) -> None:
    """14 results are tiles of 4, 4, 4 and 2, or of 6, 6 and 2, with two more products each."""
    found = plan(layer(256, 256, 14), CORTEX_A72, [results])
    tiles = found.grid.products(found.form)
    assert sum(count * number for count, number in tiles.items()) == products**2
    assert sum(tiles.values()) == (results + 2) ** 2


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_it_is_taken_where_it_pays(cpu: winograd.CpuModel) -> None:
    assert winograd.RULE.takes(layer(64, 64, 56), cpu)
    assert winograd.RULE.takes(layer(256, 256, 14), cpu)
    # The transforms cost more than one channel or one tile saves.
    assert not winograd.RULE.takes(layer(1, 8, 56), cpu)
    assert not winograd.RULE.takes(layer(64, 64, 1), cpu)
    for other in (
        layer(64, 64, 56, stride=3),
        layer(64, 64, 56, kernel=9),
        layer(64, 64, 56, groups=2),
    ):
        assert not winograd.RULE.takes(other, cpu)


def test_strided_windows_are_taken_where_weights_are_cheap() -> None:
    early, late = layer(64, 128, 56, stride=2), layer(256, 512, 14, stride=2)
    for cpu in (ZEN4, CORTEX_A72):
        assert winograd.RULE.takes(early, cpu)
        assert not winograd.RULE.takes(late, cpu)
    # Little cache of its own, and slow memory.
    assert not winograd.RULE.takes(early, CORTEX_A53)
    # Halves have no such tiles.
    half = replace(early, element=FLOAT16, weights=FLOAT16)
    assert not winograd.rule(always=True).takes(half, CORTEX_A76)
    # Of the 25 products four have one weight, and so have twice four pairs: 16 are stored.
    assert winograd.RULE.forms is not None
    forms = {form.choice: form.more_bytes for form in winograd.RULE.forms(early, ZEN4)}
    two = Way(rule="winograd", results=2)
    assert forms[two] == 4 * 128 * (16 * 64 + 25 - 9 * 64)
    # Transformed in each run they are the window's, and a bias for each product.
    assert forms[replace(two, weights=FRESH)] == 4 * 128 * 25


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_large_windows_of_few_channels_are_taken(cpu: winograd.CpuModel) -> None:
    first = layer(3, 64, 224, kernel=7, stride=2)
    assert winograd.RULE.takes(first, cpu)
    # A window of 49 in parts of 16: 64 products of each for 25 results, at most.
    assert plan(first, cpu).form.down.taps == 7
    assert winograd.RULE.takes(layer(64, 64, 56, kernel=5), cpu)
    # The weights of 64 positions, four parts and one more for each bias, instead of 49.
    assert winograd.RULE.forms is not None
    forms = {form.choice.results: form.more_bytes for form in winograd.RULE.forms(first, ZEN4)}
    assert forms[5] == 4 * 64 * (64 * 4 * 3 + 64 - 49 * 3)


def test_sequences_are_taken_in_their_one_direction() -> None:
    """Of windows of 5 in a row: 8 products for 4 results, and weights 8/5 times as many."""
    some = layer(256, 512, 64, kernel=5)
    operator = some.operator
    assert isinstance(operator, Convolution)
    line = replace(operator, weight=operator.weight[:, :, :1], before=(0, 2))
    source, output = (
        Value(name=name, shape=tuple(shape))
        for name, shape in (("x", [1, 256, 1, 508]), ("y", [1, 512, 1, 508]))
    )
    sequence = replace(some, operator=line, inputs=(source,), output=output)
    for cpu in CPUS:
        assert winograd.RULE.takes(sequence, cpu)
        assert plan(sequence, cpu, [4]).positions == 8
    assert winograd.RULE.forms is not None
    forms = {form.choice: form.more_bytes for form in winograd.RULE.forms(sequence, AVX2)}
    four = Way(rule="winograd", results=4)
    assert forms[four] == 4 * 512 * (8 * 256 + 8 - 5 * 256)


def test_halves_take_the_tiles_that_their_accuracy_allows() -> None:
    cpu = replace(CORTEX_A76, features=frozenset({"fp16"}))
    half = replace(layer(256, 256, 14), element=FLOAT16, weights=FLOAT16)
    assert winograd.RULE.takes(half, cpu)
    assert plan(half, cpu).results == 4
    assert plan(half, cpu, limits=LayerLimits(most_results=2)).results == 2
    assert not winograd.RULE.within(LayerLimits(most_results=0)).takes(half, cpu)
    assert not winograd.rule([6], always=True).takes(half, cpu)
    # Two bytes a weight: 36 positions instead of 9, and biases.
    assert winograd.RULE.forms is not None
    forms = {form.choice.results: form.more_bytes for form in winograd.RULE.forms(half, cpu)}
    assert forms[4] == 2 * 256 * (36 * 257 - 9 * 256)


@pytest.mark.parametrize(("kernel", "stride"), toom_cook.FORMS)
@pytest.mark.parametrize("size", winograd.SIZES)
def test_it_can_be_forced(size: int, kernel: int, stride: int) -> None:
    forced, forms = winograd.rule([size], always=True), toom_cook.FORMS[kernel, stride]
    some = layer(3, 8, 56, kernel=kernel, stride=stride)
    assert forced.takes(some, CORTEX_A9) is (size in forms)
    if forced.takes(some, CORTEX_A9):
        tile = toom_cook.TileForm(down=forms[size], across=forms[size])
        assert plan(some, CORTEX_A9, [size]).form == tile


@pytest.mark.parametrize("channels", [64, 128, 192, 256, 512, 1280])
def test_slower_memory_never_brings_larger_weights(channels: int) -> None:
    """Of the 3x3 layers of ResNet-18 and RepVGG-A0, on Sapphire Rapids and as it was priced before:
    with 16 bytes a cycle from the third cache, as Zen 4 has. What is priced is above what the
    weights alone take to come."""
    some = layer(channels, channels, {64: 56, 128: 28, 192: 14, 256: 14}.get(channels, 7))
    fast = replace(SAPPHIRE_RAPIDS, l3_bandwidth=16, l3_bytes=32 << 20, memory_bandwidth=5)
    sizes = []
    for cpu in (SAPPHIRE_RAPIDS, fast):
        taken = winograd.RULE.takes(some, cpu)
        chosen = plan(some, cpu) if taken else None
        sizes.append(chosen.form.factors if chosen else 9)
        if chosen and not chosen.fresh:
            weights = 4 * channels**2 * chosen.form.factors
            beyond = weights > cpu.l3_bytes / 2
            bandwidth = 2 * cpu.memory_bandwidth if beyond else cpu.l3_bandwidth
            assert weights < cpu.l2_bytes / 2 or chosen.cycles >= weights / bandwidth
    slow_factors, fast_factors = sizes
    assert slow_factors <= fast_factors


@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_scratch_memory_stays_in_the_cache(cpu: winograd.CpuModel) -> None:
    large = layer(64, 64, 320)
    chosen = plan(large, cpu)
    scratch = 4 * chosen.positions * 2 * (64 + cpu.widest(FLOAT32)) * (chosen.grid.tiles + 1)
    assert scratch <= 2 * cpu.l2_bytes or chosen.grid.tiles <= 16
    assert chosen.grid.chunks * chosen.grid.tiles >= chosen.grid.rows * chosen.grid.columns


def scratch_of(some: Layer, cpu: winograd.CpuModel) -> list[tuple[int, ...]]:
    """Shapes of a kernel's scratch tensors but for the tiles between the passes."""
    ins, outs = (extent(value) for value in (some.inputs[0], some.output))
    images = [
        Blocked(
            element=FLOAT32,
            batch=1,
            channels=channels,
            height=height,
            width=width,
            block=cpu.block(channels, FLOAT32),
        )
        for _, channels, height, width in (ins, outs)
    ]
    images[0] = replace(images[0], halo=winograd.RULE.halo(some))
    site = LayerSite(layer=some, inputs=(images[0],), operands=(), output=images[1], cpu=cpu)
    made = winograd.RULE.make(site)
    function = made.function() if callable(made.function) else made.function
    arguments = [tuple(int(size) for size in buffer.shape) for buffer in function.params]
    return arguments[1 + len(made.constants) + 1 : -2]


@pytest.mark.parametrize(
    "cpu", [CORTEX_A72, CORTEX_A9, replace(AVX2, cores=2)], ids=lambda c: c.name
)
def test_sums_lie_where_inputs_were(cpu: winograd.CpuModel) -> None:
    """Where a core does the positions of a chunk one after the other."""
    some = layer(64, 64, 56)
    chosen, lanes = plan(some, cpu), cpu.block(64, FLOAT32)
    planes = cpu.cores * (chosen.positions + 1) * (64 // lanes | 1)
    assert scratch_of(some, cpu) == [(planes, 1, chosen.grid.tiles | 1, lanes)]


def test_sums_have_a_place_of_their_own() -> None:
    """Where cores share each stage, or positions with equal weights follow each other."""
    assert len(scratch_of(layer(512, 512, 7), replace(AVX2, cores=2))) == 2
    assert len(scratch_of(layer(64, 128, 56, stride=2), CORTEX_A72)) == 2
