"""Figures of the CPU's model, fitted to records: networks whose cycles follow from two figures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgepack.flow.records import RecordsError, Trial
from edgepack.kernels.choices import Ranked, Tunable, Way
from edgepack.tuning.fit import Figures, Surveyor, fit

IN_USE = {"memory_bandwidth": 2.0, "loads_per_cycle": 1.0}


def cycles(kernel: int, pixels: int, figures: Figures) -> float:
    """More pixels: more loads, fewer bytes."""
    return pixels * 10 / figures["loads_per_cycle"] + kernel * 90 / (
        pixels * figures["memory_bandwidth"]
    )


def way(pixels: int) -> Way:
    return Way(rule="conv", pixels=pixels)


def network(kernels: Sequence[int]) -> Surveyor:
    def survey(figures: Figures) -> list[Tunable]:
        found = []
        for kernel in kernels:
            ways = [
                Ranked(choice=way(pixels), cycles=cycles(kernel, pixels, {**IN_USE, **figures}))
                for pixels in range(1, 7)
            ]
            ways.sort(key=lambda one: one.cycles)
            found.append(
                Tunable(
                    signature=f"conv {kernel}",
                    layers=("a",),
                    default=ways[0],
                    others=tuple(ways[1:]),
                )
            )
        return found

    return lambda figures: (dict(IN_USE), [survey(one) for one in figures])


def trials(kernels: Sequence[int], real: Figures) -> list[Trial]:
    """What a CPU of `real` figures would be measured with."""
    found = []
    for kernel in kernels:
        _, ((tunable,),) = network([kernel])([{}])
        default = cycles(kernel, tunable.default.choice.pixels, real)
        for other in tunable.others:
            ratio = cycles(kernel, other.choice.pixels, real) / default
            found.append(
                Trial(
                    cpu="a",
                    compiler="b",
                    kernel=f"conv {kernel}",
                    choice=other.choice,
                    ms=ratio,
                    default_ms=1.0,
                    ratio=ratio,
                    low=ratio * 0.999,
                    high=ratio * 1.001,
                    blocks=16,
                )
            )
    return found


def test_figures_of_another_cpu_are_found_and_proposed() -> None:
    # A quarter of the bandwidth: fewer bytes are worth more loads.
    real = {**IN_USE, "memory_bandwidth": 0.5}
    found = fit(trials([1, 2, 3, 4, 5], real), [network([1, 2]), network([3])], network([4, 5]))
    assert found.fitted == real
    assert found.in_use == IN_USE
    assert found.fitted_before.share < found.fitted_after.share == 1.0
    assert found.before.share < found.after.share == 1.0
    assert found.is_proposed


def test_figures_that_do_not_help_another_network_are_not_proposed() -> None:
    real = {**IN_USE, "memory_bandwidth": 0.5}
    # The kernels to judge by were measured as the figures in use say.
    measured = [*trials([1, 2, 3], real), *trials([4, 5], IN_USE)]
    found = fit(measured, [network([1, 2, 3])], network([4, 5]))
    assert found.fitted == real
    assert found.before.share == 1.0 > found.after.share
    assert not found.is_proposed


def test_the_figures_in_use_stay_where_nothing_is_better() -> None:
    found = fit(trials([1, 2, 3], IN_USE), [network([1, 2])], network([3]))
    assert found.fitted == found.in_use
    assert not found.is_proposed
    assert found.to_dict()["after"] == 1.0


def test_ways_that_differ_by_noise_say_nothing() -> None:
    noisy = [
        Trial(**{**vars(one), "low": one.ratio * 0.1, "high": one.ratio * 10})
        for one in trials([1, 2], IN_USE)
    ]
    with pytest.raises(RecordsError, match="no records of this CPU"):
        fit(noisy, [network([1])], network([2]))
