"""What is stored beyond a model's weights, and which layers it is spent on."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import partial

import pytest

from edgepack.compiler.place import budget
from edgepack.compiler.place.budget import cheapest
from edgepack.kernels.choices import FRESH, Ranked, Way
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.limits import LimitsByValue
from edgepack.kernels.rules import winograd
from edgepack.kernels.rules.table import RULES
from edgepack.kernels.tiles.cpu import CORTEX_A53, CORTEX_A72, ZEN4
from tests.unit.test_compiler_winograd import layer

forms_within = partial(budget.forms_within, limits=LimitsByValue())


def form(cycles: float, more_bytes: int, results: int = 0) -> Ranked:
    return Ranked(
        choice=Way(rule="winograd" if results else "conv", results=results),
        cycles=cycles,
        more_bytes=more_bytes,
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_other_forms_of_as_many_bytes_save_more(seed: int) -> None:
    rng = random.Random(seed)
    items = [
        [form(100.0, 0), *(form(rng.uniform(20, 120), rng.randrange(1, 60), m) for m in (2, 4, 6))]
        for _ in range(5)
    ]
    spare = rng.randrange(0, 120)
    chosen = cheapest(items, spare)
    assert sum(one.more_bytes for one in chosen) <= spare
    best = min(
        sum(one.cycles for one in forms)
        for forms in itertools.product(*items)
        if sum(one.more_bytes for one in forms) <= spare
    )
    assert sum(one.cycles for one in chosen) == pytest.approx(best)


def network() -> list[Layer]:
    """3x3 convolutions as in a ResNet, whose images shrink as their channels grow."""
    sizes = ((64, 56), (128, 28), (256, 14), (512, 7))
    return [layer(channels, channels, size) for channels, size in sizes]


def stored(item: Layer, results: int) -> int:
    operator = item.operator
    assert isinstance(operator, Convolution)
    weights = operator.weight.nbytes
    return weights * (results + 2) ** 2 // 9 if results else weights


@pytest.mark.parametrize("cpu", [ZEN4, CORTEX_A72, CORTEX_A53], ids=lambda cpu: cpu.name)
def test_small_weights_of_large_images_come_first(cpu: winograd.CpuModel) -> None:
    layers = network()
    plain = sum(stored(item, 0) for item in layers)
    choices = forms_within(layers, cpu, RULES, plain / 2, {})
    results = [way.results for way in choices.values()]
    assert results[0] >= 4
    assert results[-1] == 0
    assert sum(map(stored, layers, results)) <= 1.5 * plain
    assert not forms_within(layers, cpu, RULES, 8 * plain, {}, frugal=False)


@pytest.mark.parametrize(("cycles", "results"), [(97.0, 4), (99.0, 0)])
def test_bytes_are_to_be_worth_it(cycles: float, results: int) -> None:
    """Twice the weights' bytes for 3 % of the time, or for 1 %."""
    item = layer(16, 16, 8)
    forms = [form(100.0, 0), form(cycles, stored(item, 0), 4)]
    rule = replace(winograd.RULE, takes=lambda *_: True, forms=lambda *_: forms, limited=None)
    chosen = forms_within([item], ZEN4, [rule], 1e9, {})
    # What is the fastest way is not said.
    assert [way.results for way in chosen.values()] == ([] if results else [0])
    assert not forms_within([item], ZEN4, [rule], 1e9, {}, frugal=False)


@pytest.mark.parametrize("cpu", [ZEN4, CORTEX_A72, CORTEX_A53], ids=lambda cpu: cpu.name)
def test_weights_are_transformed_in_each_run_where_there_is_memory(
    cpu: winograd.CpuModel,
) -> None:
    """Of large images, without more bytes than the plain form has, but for a bias per product."""
    layers, spare = network(), 20_000
    assert not any(way.results for way in forms_within(layers, cpu, RULES, spare, {}).values())
    first, *_ = forms_within(layers, cpu, RULES, spare, {}, room=lambda _: 8 << 20).values()
    assert (first.rule, first.weights) == ("winograd", FRESH)
    # F(2x2) of 64 channels takes 256 kB.
    for room in (0, 256 << 10):
        fewer = forms_within(layers[:1], cpu, RULES, spare, {}, room=lambda _, room=room: room)
        assert not any(way.weights for way in fewer.values())


def test_a_way_that_was_found_by_tuning_is_kept_and_paid_for() -> None:
    layers = network()
    plain = sum(stored(item, 0) for item in layers)
    free = forms_within(layers, ZEN4, RULES, plain / 2, {})
    (*_, last) = free
    tuned = forms_within(layers, ZEN4, RULES, plain / 2, {last: Way(rule="winograd", results=2)})
    assert last not in tuned
    # Two thirds of the bytes are its own.
    results = [way.results for way in tuned.values()]
    assert sum(map(stored, layers, [*results, 2])) <= 1.5 * plain or results == [0, 0, 0]


def test_what_no_rule_has_forms_of_is_left_alone() -> None:
    strided = layer(8, 8, 8, stride=2)
    assert not forms_within([strided], ZEN4, RULES, 0, {})
