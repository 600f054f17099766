"""edgepack/kernels/tiles/expression.py: steps that are one function."""

from __future__ import annotations

import pytest

from edgepack.kernels.tiles.expression import (
    Argument,
    Expression,
    Operation,
    PerChannel,
    Scalar,
    Step,
    with_gelus,
)

ROOT = Scalar(value=1.41421354)  # as float32
SHARE = Scalar(value=0.707106769)
ONE, HALF = Scalar(value=1.0), Scalar(value=0.5)


def steps(*operations: tuple[str, *tuple[int | Argument, ...]]) -> Expression:
    return tuple(
        Operation(
            name=name,
            arguments=tuple(Step(index=x) if isinstance(x, int) else x for x in arguments),
        )
        for name, *arguments in operations
    )


@pytest.mark.parametrize(
    ("given", "made"),
    [
        # as PyTorch writes it
        (
            steps(
                ("divide", 0, ROOT),
                ("erf", 1),
                ("add", 2, ONE),
                ("multiply", 0, 3),
                ("multiply", 4, HALF),
            ),
            steps(("gelu", 0)),
        ),
        # another order, of a sum, which something follows
        (
            steps(
                ("add", 0, PerChannel(index=0)),
                ("multiply", HALF, 1),
                ("multiply", 1, SHARE),
                ("erf", 3),
                ("add", ONE, 4),
                ("multiply", 5, 2),
                ("add", 6, 1),
            ),
            steps(("add", 0, PerChannel(index=0)), ("gelu", 1), ("add", 2, 1)),
        ),
        # of what was scaled before
        (
            steps(
                ("multiply", 0, Scalar(value=0.25)),
                ("multiply", 1, SHARE),
                ("erf", 2),
                ("add", 3, ONE),
                ("multiply", 4, HALF),
                ("multiply", 5, 1),
            ),
            steps(("multiply", 0, Scalar(value=0.25)), ("gelu", 1)),
        ),
    ],
)
def test_gelu_is_one_step(given: Expression, made: Expression) -> None:
    assert with_gelus(given) == made


@pytest.mark.parametrize(
    "given",
    [
        (),
        steps(("maximum", 0, ONE)),
        # erf of something else, a factor too many, and twice as much
        steps(("erf", 0), ("add", 1, ONE), ("multiply", 0, 2), ("multiply", 3, HALF)),
        steps(
            ("multiply", 0, SHARE),
            ("erf", 1),
            ("add", 2, ONE),
            ("multiply", 0, 3),
            ("multiply", 0, 4),
            ("multiply", 5, HALF),
        ),
        steps(("divide", 0, ROOT), ("erf", 1), ("add", 2, ONE), ("multiply", 0, 3)),
        # there is no step of which it would be
        steps(
            ("multiply", 0, Scalar(value=0.25)),
            ("erf", 1),
            ("add", 2, ONE),
            ("multiply", 3, 0),
            ("multiply", 4, Scalar(value=0.5 * 0.25 * 2**0.5)),
        ),
        # squares of squares
        steps(*(("multiply", i, i) for i in range(40))),
    ],
)
def test_what_is_no_gelu_stays(given: Expression) -> None:
    assert with_gelus(given) == given
