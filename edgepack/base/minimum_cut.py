"""The cheapest way to part things in two."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping


class MinimumCut:
    """Things that come to the first or the second side, at a cost.

    `fix(thing, side)` puts one there; `cost(one, other, much)` has to be paid if `one` is on the
    first side and `other` on the second. `FIRST` and `SECOND` are on their sides from the start.
    """

    FIRST, SECOND = "first", "second"

    def __init__(self) -> None:
        self._room: dict[Hashable, dict[Hashable, float]] = defaultdict(dict)

    def cost(self, one: Hashable, other: Hashable, much: float) -> None:
        """What it costs to part these two, in this order; costs of equal pairs add up."""
        self._room[one][other] = self._room[one].get(other, 0.0) + much
        self._room[other].setdefault(one, 0.0)

    def never(self, one: Hashable, other: Hashable) -> None:
        """If `one` is on the first side, `other` is, too."""
        self.cost(one, other, math.inf)

    def first(self) -> set[Hashable]:
        """All on the first side where the sum of the costs is least.

        The largest flow from one side to the other fills just what has to be cut.
        """
        room = {one: dict(others) for one, others in self._room.items()}
        while True:
            before = _reached(room, self.FIRST)
            if self.SECOND not in before:
                return set(before)
            path, at = [], self.SECOND
            while at != self.FIRST:
                path.append((before[at], at))
                at = before[at]  # type: ignore[assignment]
            flow = min(room[one][other] for one, other in path)
            for one, other in path:
                room[one][other] -= flow
                room[other][one] += flow


def _reached(
    room: Mapping[Hashable, Mapping[Hashable, float]], start: Hashable
) -> dict[Hashable, Hashable]:
    """All that flow can still come to, and from where on the shortest way."""
    before: dict[Hashable, Hashable] = {start: start}
    waiting = deque([start])
    while waiting:
        one = waiting.popleft()
        for other, left in room.get(one, {}).items():
            if left > _NOTHING and other not in before:
                before[other] = one
                waiting.append(other)
    return before


# Cycles that rounding leaves.
_NOTHING = 1e-6
