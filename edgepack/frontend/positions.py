"""Positions along axes that come at run time: compared with them before anything is read there.

An operator whose positions may come from outside calls this first, so that an error names the
position as it was given. What reads with them is bounded all the same (`compiler.backend.inside`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from edgepack.kernels import outside
from edgepack.kernels.tiles import tir
from edgepack.kernels.whole import kernel


@dataclass(frozen=True)
class Reach:
    """Which positions there are: `low` to `high`, both included, of which those below zero count
    from `end`."""

    low: int
    high: int
    end: int = 0

    @classmethod
    def of_axis(cls, extent: int) -> Reach:
        """Those of an axis, from either end."""
        return cls(-extent, extent - 1, extent)


def compare_positions(
    shape: Sequence[int], kind: str, limits: Sequence[Reach], what: str
) -> tirx.PrimFunc:
    """A kernel that fails at a position outside of its limits: those of its place in the last axis,
    or the only ones.

    Arguments: positions `shape` of the type `kind`, which people know as `what`; the same,
    none below zero. Where it fails, the first of these says which one it was.
    """
    given, counted = (tir.buffer(part, shape, kind) for part in ("given", "counted"))
    first = [0] * len(shape)

    def one(at: Sequence[tir.Expr], limit: Reach) -> tir.Stmt:
        value = tir.load(given, at)
        low, high, end, zero = (
            tirx.const(number, kind) for number in (limit.low, limit.high, limit.end, 0)
        )
        good = tirx.And(tirx.GE(value, low), tirx.LE(value, high))
        number = tir.integer(0)
        for index, extent in zip(at, shape, strict=True):
            number = number * extent + tir.expr(index)
        found = tirx.Select(value < zero, value + end, value) if limit.end else value
        return tir.sequence(
            # Not by the opposite of `good`, which is none of what is no number.
            tir.store(
                counted,
                tirx.Select(good, tir.load(counted, first), tir.cast(number, kind)),
                first,
            ),
            outside.fail_unless(
                good, outside.Outside(what, limit.low, limit.high, source=0, where=1)
            ),
            tir.store(counted, found, at),
        )

    def nest(at: Sequence[tir.Expr]) -> tir.Stmt:
        if len(at) == len(shape):
            return one(at, limits[0])
        if len(at) == len(shape) - 1 and len(limits) > 1:
            return tir.sequence(*(one([*at, i], limit) for i, limit in enumerate(limits)))
        return tir.loop_of(f"i{len(at)}", shape[len(at)], lambda i: nest([*at, i]))

    return kernel([given], [counted], nest([]))
