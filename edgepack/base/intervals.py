"""How sure a difference is: confidence intervals of ratios, each of one a's and one b's time; and
of shares.

`interval` is of their geometric mean, and good for times that scatter evenly. Where some are far
off because something else had the CPU, `median_interval` is narrower: it asks for no distribution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Two-sided 95 % quantiles of Student's t with 1, 2, ... degrees of freedom.
_T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
# That of the normal distribution.
_Z_95 = 1.959964


def interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of b / a of two or more pairs, and its 95 % interval.

    Of more than 21 pairs, the interval is that of 21: a little too wide.
    """
    logs = [math.log(y / x) for x, y in zip(a, b, strict=True)]
    mean = statistics.fmean(logs)
    t = _T_95[min(len(logs) - 1, len(_T_95)) - 1]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def median_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """The median of b / a of six or more pairs, and an interval of 95 % confidence or more.

    The interval ends at ratios that so few others lie beyond that the median is beyond in at most
    2.5 % of all cases: as often as a coin shows so few heads.
    """
    ratios = sorted(y / x for x, y in zip(a, b, strict=True))
    count = len(ratios)
    beyond, cases = 0, 1  # ratios below the interval; cases of up to so many heads, of 2 ** count
    while (cases := cases + math.comb(count, beyond + 1)) <= 0.025 * 2**count:
        beyond += 1
    return statistics.median(ratios), ratios[beyond], ratios[-1 - beyond]


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of which `hits` of `count` cases were seen: Wilson's, without
    correction for continuity. It stays within 0 and 1, and says something of few cases, too.
    """
    if count == 0:
        return 0.0, 1.0
    share, square = hits / count, _Z_95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = (
        _Z_95
        / (1 + square / count)
        * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    )
    return (
        0.0 if hits == 0 else middle - half,
        1.0 if hits == count else middle + half,
    )
