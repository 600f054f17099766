"""The CPU model's figures, fitted to what was measured.

A fit is judged by a network that it was not made for: by how many pairs of ways to make a kernel,
one of which was faster by more than the noise, the model has in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from edgepack.flow.records import RecordsError, Trial
from edgepack.kernels.choices import Tunable, Way

Figures = Mapping[str, float]
Survey = Sequence[Tunable]
# The surveys of a network with each of some figures, beside the figures in use.
Surveyor = Callable[[Sequence[Figures]], tuple[dict[str, float], Sequence[Survey]]]

_FACTORS = (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class WaysInOrder:
    """How many pairs of ways the model has in the order that was measured."""

    right: float
    pairs: int

    @property
    def share(self) -> float:
        """As a share of all."""
        return self.right / self.pairs if self.pairs else 0.0


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Figures in use, and those that order the fitted networks best. `before` and `after` are the
    order of the network that was not fitted."""

    in_use: Figures
    fitted: Figures
    fitted_before: WaysInOrder
    fitted_after: WaysInOrder
    before: WaysInOrder
    after: WaysInOrder

    @property
    def is_proposed(self) -> bool:
        """Whether they order what they were not fitted to better than before."""
        return self.after.right > self.before.right

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "figures": [
                {"name": name, "in_use": value, "fitted": self.fitted[name]}
                for name, value in self.in_use.items()
            ],
            "fitted_pairs": self.fitted_before.pairs,
            "fitted_before": self.fitted_before.share,
            "fitted_after": self.fitted_after.share,
            "pairs": self.before.pairs,
            "before": self.before.share,
            "after": self.after.share,
            "proposed": self.is_proposed,
        }


def order_trials(trials: Sequence[Trial], base: Survey, survey: Survey) -> WaysInOrder:
    """How a survey has the ways that were tried. `base` is that with the figures in use: its first
    way of each kernel is what the trials were compared with."""
    defaults = {one.signature: one.default.choice for one in base}
    cycles = {
        (one.signature, way.choice): way.cycles
        for one in survey
        for way in (one.default, *one.others)
    }
    right, pairs = 0.0, 0
    for kernel, default in defaults.items():
        measured = [
            (default, 1.0, 1.0),
            *(
                (one.choice, one.low, one.high)
                for one in trials
                if one.kernel == kernel and one.right and one.choice != default
            ),
        ]
        for first, second in _told_apart(measured):
            # A way that is not looked at any more is taken for the slowest.
            a, b = (cycles.get((kernel, way), float("inf")) for way in (first, second))
            right += 1 if a < b else 0.5 if a == b else 0
            pairs += 1
    return WaysInOrder(right=right, pairs=pairs)


def _told_apart(measured: Sequence[tuple[Way, float, float]]) -> Iterator[tuple[Way, Way]]:
    """Pairs of which the first was faster by more than the noise."""
    for a, b in combinations(measured, 2):
        for (one, _, high), (other, low, _) in ((a, b), (b, a)):
            if high < low:
                yield one, other


def fit(trials: Sequence[Trial], fitted: Sequence[Surveyor], judge: Surveyor) -> Fit:
    """Fit to the networks of `fitted`, and judge by another one.

    Each figure is tried with some factors by itself; what gains most of each is tried together.
    Raises `RecordsError` if the trials tell no ways of either apart.
    """
    in_use, (base,) = judge([{}])
    single = [{name: value * f} for name, value in in_use.items() for f in _FACTORS]
    orders = _orders(trials, fitted, [{}, *single])
    before, *found = orders
    best: dict[str, tuple[float, float]] = {}
    for figures, order in zip(single, found, strict=True):
        ((name, value),) = figures.items()
        gain = order.right - before.right
        if gain > max(0.0, best.get(name, (0.0, 0.0))[0]):
            best[name] = (gain, value)
    names = sorted(best, key=lambda name: -best[name][0])
    together = [
        {name: best[name][1] for name in chosen}
        for count in range(1, len(names) + 1)
        for chosen in combinations(names, count)
    ]
    winner: dict[str, float] = {}
    after = before
    if together:
        for figures, order in zip(together, _orders(trials, fitted, together), strict=True):
            if order.right > after.right:
                winner, after = figures, order
    _, (judged,) = judge([winner])
    result = Fit(
        in_use=in_use,
        fitted={**in_use, **winner},
        fitted_before=before,
        fitted_after=after,
        before=order_trials(trials, base, base),
        after=order_trials(trials, base, judged),
    )
    for order, what in ((before, "of those to fit"), (result.before, "of that to judge by")):
        if not order.pairs:
            raise RecordsError(
                f"no records of this CPU and compiler tell two ways of a kernel {what} apart",
                hint="tune the models first, into the files of --records",
            )
    return result


def _orders(
    trials: Sequence[Trial], networks: Sequence[Surveyor], figures: Sequence[Figures]
) -> list[WaysInOrder]:
    """With each of some figures, over all networks."""
    sums = [(0.0, 0) for _ in figures]
    for network in networks:
        _, (base, *surveys) = network([{}, *figures])
        for index, survey in enumerate(surveys):
            order = order_trials(trials, base, survey)
            right, pairs = sums[index]
            sums[index] = right + order.right, pairs + order.pairs
    return [WaysInOrder(right=right, pairs=pairs) for right, pairs in sums]
