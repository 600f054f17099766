"""Which axes of a model's outputs hold fewer elements than their shapes say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Axis `axis` of output number `output` holds as many elements, the first ones, as count
    number `count` says. The counts are int64 scalars, which come behind the model's outputs."""

    output: int
    axis: int
    count: int
