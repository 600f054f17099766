"""Groups of four pixels that windows are read from."""

from __future__ import annotations

import itertools

import pytest

from edgepack.kernels.tiles.taps import FOUR, groups, products_and_loads


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 3), (1, 5)])
def test_each_point_is_read_once_and_nothing_behind_the_row(stride: int, dilation: int) -> None:
    for results, columns in itertools.product((1, 2, 3, 7, 8), (1, 2, 3, 5, 7)):
        reach = (results - 1) * stride + (columns - 1) * dilation + 1
        for room in range(reach, reach + 5):
            found = groups(results, columns, stride=stride, dilation=dilation, room=room)
            read = []
            for group in found:
                assert group.start + FOUR <= room
                # A row has four columns at least, so some of them lie before the first.
                assert group.start >= min(0, room - FOUR)
                for result, lanes in group.uses:
                    for lane, point in enumerate(lanes):
                        if point is not None:
                            read.append((result, point))
                            assert group.start + lane == result * stride + point * dilation
            assert sorted(read) == [*itertools.product(range(results), range(columns))]


def test_neighbours_share_loads() -> None:
    # Two results of three points each lie within four pixels; of five points none does.
    three = groups(8, 3, stride=1, dilation=1, room=64)
    assert [len(group.uses) for group in three] == [2, 2, 2, 2]
    five = groups(8, 5, stride=1, dilation=1, room=64)
    assert len(five) == 3
    assert products_and_loads(five) == 3 * 3 + 16
