"""Which points of a window lie in a sequence."""

from __future__ import annotations

from itertools import product

from edgepack.kernels.rules.dilated import stretches


def test_stretches_have_the_points_that_lie_in_the_sequence() -> None:
    tried = 0
    pads = (0, 1, 7, 30)
    for width, columns, dilation, before, after in product(
        (1, 2, 5, 16, 33), (1, 2, 3, 5), (1, 2, 7, 20), pads, pads
    ):
        out = before + width + after - (columns - 1) * dilation
        if out < 1:
            continue
        found = stretches(width, out, columns=columns, dilation=dilation, before=before)
        assert [at for one in found for at in range(one.first, one.behind)] == list(range(out))
        for one in found:
            points = list(range(one.point, one.point + one.points))
            for at in range(one.first, one.behind):
                under = (at - before + point * dilation for point in range(columns))
                assert [i for i, column in enumerate(under) if 0 <= column < width] == points
        tried += 1
    assert tried > 500
