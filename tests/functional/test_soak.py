"""The short form of `./dev soak`: a light board, and each of its events once."""

from __future__ import annotations

from itertools import islice

from tests.soak.__main__ import SEED, plan, soak
from tests.soak.events import events
from tests.soak.life import KINDS


def test_a_life_in_the_field() -> None:
    names = sorted(events("light"))
    said: list[str] = []
    table = soak("light", names, seed=SEED, say=said.append)
    assert len(said) == 1 + len(names)
    assert f"{len(names)} events" in table
    assert "the newest, and answers" in table


def test_everything_happens_before_anything_happens_again() -> None:
    for kind in KINDS:
        others = set(events(kind)) - {"lost link"}
        begun = list(islice(plan(kind, SEED), 2 * len(others)))
        assert begun[::2] == ["lost link"] * len(others)
        assert set(begun[1::2]) == others
        assert begun == list(islice(plan(kind, SEED), len(begun)))
        assert begun != list(islice(plan(kind, SEED + 1), len(begun)))
