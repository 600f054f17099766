"""Each pass over kernels keeps what they compute, to the bit. Long form: `./dev fuzz passes`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import tvm
from tvm import tirx

from edgepack.compiler.backend import exact
from tests import tir_interpreter
from tests.fuzz import passes


@pytest.mark.parametrize(
    ("draw", "seeds", "unread", "board"),
    [
        (passes.arithmetic, range(1), 0, "local"),
        (passes.positions, range(4), 0, "local"),
        # Of other vectors, and other instructions for the larger of two.
        (passes.arithmetic, range(1, 2), 0, "pynq"),
        (passes.arithmetic, range(2, 3), 0, "rk3399"),
        *(
            pytest.param(
                draw, seeds, share, board, marks=pytest.mark.slow, id=f"{draw.__name__}-{board}"
            )
            for board in ("local", "pynq", "rk3399")
            # Drawn graphs call functions of C and have kernels that are too large to interpret.
            for draw, seeds, share in (
                (passes.arithmetic, range(3, 20), 0.1),
                (passes.positions, range(4, 100), 0.1),
                (passes.drawn, range(50), 0.7),
            )
        ),
    ],
)
def test_no_pass_changes_a_result(
    draw: passes.Draw, seeds: range, unread: float, board: str, tmp_path: Path
) -> None:
    """`unread` is the most of what passes changed that the interpreter need not read."""
    with passes.watching() as watch:
        for seed in seeds:
            folder = tmp_path / str(seed)
            folder.mkdir()
            passes.compile_watched(draw(seed), watch, board, folder)
    assert not watch.wrong, watch.wrong[0]
    assert draw is passes.drawn or "the model is refused" not in watch.unread
    # Whatever runs is seen: from blocks to what LLVM is given.
    assert watch.ran.keys() >= {"s_tir.LowerInitBlock", "tirx.FlattenBuffer", "tirx.LowerIntrin"}
    assert watch.compared >= 10 * len(seeds)
    seen = watch.compared + watch.unread.total()
    assert watch.unread.total() <= unread * seen, (seen, watch.unread)


def test_a_pass_that_takes_floats_for_numbers_is_seen() -> None:
    """(x + 1e8) - 1e8 is x for TVM's simplifier, where nothing is hidden from it."""
    x, y = (tirx.decl_buffer((60,), "float32", name) for name in "xy")
    at, large = tirx.Var("i", "int32"), tirx.FloatImm("float32", 1e8)
    value = tirx.Sub(tirx.Add(tirx.BufferLoad(x, [at]), large), large)
    store = tirx.BufferStore(y, value, [at])
    function = tirx.PrimFunc([x, y], tirx.For(at, 0, 60, tirx.ForKind.SERIAL, store))
    module = tvm.IRModule({"main": function})
    for hidden in (False, True):
        with passes.watching() as watch:
            given = exact.hide()(module) if hidden else module
            with tvm.transform.PassContext():
                tirx.transform.StmtSimplify()(given)
        assert bool(watch.wrong) is not hidden


Index: TypeAlias = Callable[[tirx.Expr], tirx.Expr]


def flattened(place: Index, turns: int, *, hidden: bool) -> list[float]:
    """Which of 2048 elements are read at the `place` of each turn, once TVM's FlattenBuffer has
    seen the loop."""
    x, y = tirx.decl_buffer((2048,), "float32", "x"), tirx.decl_buffer((turns,), "float32", "y")
    at = tirx.Var("i", "int64")
    store = tirx.BufferStore(y, tirx.BufferLoad(x, [place(at)]), [at])
    function = tirx.PrimFunc([x, y], tirx.For(at, 0, turns, tirx.ForKind.SERIAL, store))
    passes_ = [tirx.transform.FlattenBuffer()]
    if hidden:
        passes_ = [exact.hide_remainders(), *passes_, exact.show_remainders()]
    flat = tvm.transform.Sequential(passes_)(tvm.IRModule({"main": function}))["main"]
    given = [np.arange(2048, dtype="float32"), np.zeros(turns, "float32")]
    found: list[float] = tir_interpreter.run(flat, given)[1].tolist()
    return found


def test_places_that_fall_with_a_counter_are_kept() -> None:
    """TVM forgets the 8 of (8 - 2 i) % 6; hidden from it, the remainder stays."""
    six = tirx.IntImm("int64", 6)
    assert flattened(lambda i: tirx.FloorMod(8 - i * 2, six), 5, hidden=True) == [2, 0, 4, 2, 0]


@dataclass(frozen=True, kw_only=True)
class Division:
    """What is left of something and a constant."""

    added: int
    divisor: int
    is_quotient: bool

    def of(self, value: Any) -> Any:
        if isinstance(value, int):
            return divmod(value + self.added, self.divisor)[not self.is_quotient]
        kind = tirx.FloorDiv if self.is_quotient else tirx.FloorMod
        return kind(value + self.added, tirx.IntImm("int64", self.divisor))


@dataclass(frozen=True, kw_only=True)
class Place:
    """A sum of multiples of quotients and remainders of a counter, and of those in turn."""

    terms: Sequence[tuple[Sequence[Division], int]]

    @classmethod
    def drawn(cls, rng: random.Random) -> Place:
        def division() -> Division:
            return Division(
                added=rng.choice((0, 0, 0, 1, 2, 3, 4, 8)),
                divisor=rng.choice((2, 3, 4, 5, 6, 8, 10, 12)),
                is_quotient=rng.random() < 0.4,
            )

        return cls(
            terms=[
                ([division() for _ in range(rng.randint(1, 3))], rng.choice((1, 4, 6, 24)))
                for _ in range(rng.randint(1, 3))
            ]
        )

    def __call__(self, counter: Any) -> Any:
        return sum(reduce(lambda v, d: d.of(v), steps, counter) * by for steps, by in self.terms)


def test_places_of_shifted_counters_are_kept() -> None:
    """TVM makes (i + 2) % 40 // 8 of i // 8 where (i + 2) % 4 is near: both have the shift then."""
    rng = random.Random(5)
    wrong = dict.fromkeys((False, True), 0)
    for _ in range(200):
        place, turns = Place.drawn(rng), rng.choice((8, 12, 20, 40))
        due = [float(place(i)) for i in range(turns)]
        for hidden in wrong:
            wrong[hidden] += flattened(place, turns, hidden=hidden) != due
    assert wrong[True] == 0
    assert wrong[False] > 0, "TVM does it right by now: nothing need be hidden"
