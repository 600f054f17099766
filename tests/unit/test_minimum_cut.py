"""The cheapest parting of things in two, against all there are."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from edgepack.base.minimum_cut import MinimumCut


def paid(costs: dict[tuple[str, str], float], first: set[str]) -> float:
    return sum(much for (one, other), much in costs.items() if one in first and other not in first)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_parting_costs_less(seed: int) -> None:
    random = np.random.default_rng(seed)
    things = [f"t{i}" for i in range(7)]
    everything = [MinimumCut.FIRST, *things, MinimumCut.SECOND]
    costs, parting = {}, MinimumCut()
    for one, other in itertools.permutations(everything, 2):
        if other != MinimumCut.FIRST and one != MinimumCut.SECOND and random.random() < 0.4:
            is_bound = random.random() < 0.1 and {one, other} <= set(things)
            much = math.inf if is_bound else float(random.integers(1, 100))
            costs[one, other] = much
            if is_bound:
                parting.never(one, other)
            else:
                parting.cost(one, other, much)
    found = {str(thing) for thing in parting.first()}
    assert MinimumCut.FIRST in found
    assert MinimumCut.SECOND not in found
    least = min(
        paid(costs, {MinimumCut.FIRST, *some})
        for count in range(len(things) + 1)
        for some in itertools.combinations(things, count)
    )
    assert paid(costs, found) == pytest.approx(least)


def test_costs_of_equal_pairs_add_up() -> None:
    parting = MinimumCut()
    parting.cost(MinimumCut.FIRST, "a", 3)
    parting.cost("a", MinimumCut.SECOND, 2)
    assert "a" in parting.first()
    parting.cost("a", MinimumCut.SECOND, 2)
    assert "a" not in parting.first()
