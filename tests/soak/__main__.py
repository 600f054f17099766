"""`./dev soak`."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from edgepack.base.paths import set_cache_dir
from tests.soak.events import events
from tests.soak.life import KINDS, SoakError, in_the_field

SEED = 20261122


def plan(kind: str, seed: int) -> Iterator[str]:
    """Events without an end: by turns a lost link and another one, each of which comes before any
    comes again."""
    rng = random.Random(seed)
    names = sorted(set(events(kind)) - {"lost link"})
    while True:
        rng.shuffle(names)
        for name in names:
            yield from ("lost link", name)


def for_minutes(names: Iterable[str], minutes: float) -> Iterator[str]:
    """Those of `names` that begin before `minutes` are over."""
    end = time.monotonic() + minutes * 60
    return itertools.takewhile(lambda _: time.monotonic() < end, names)


def soak(kind: str, names: Iterable[str], *, seed: int, say: Callable[[str], None] = print) -> str:
    """Have the events `names` happen to a new board: a table of what happened and was checked.

    Raises SoakError, with what it was that the board did not survive.
    """
    began = time.monotonic()
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as name,
        in_the_field(kind, random.Random(seed), Path(name)) as life,
    ):
        say(f"the service runs, after {time.monotonic() - began:.0f} s")
        for number, event in enumerate(names, 1):
            at = time.monotonic()
            try:
                events(kind)[event](life)
                life.settle()
            except Exception as error:
                raise SoakError(f"event {number}, {event}: {error}") from error
            counts[event] += 1
            seconds[event] += time.monotonic() - at
            say(f"{number:4} {event}, {time.monotonic() - at:.0f} s")
        checked = life.end()
    lines = [f"{'':24}{'times':>6}{'s each':>8}"]
    lines += [f"{event:24}{n:6}{seconds[event] / n:8.1f}" for event, n in counts.most_common()]
    total = f"{sum(counts.values())} events in {(time.monotonic() - began) / 60:.0f} min"
    return "\n".join([*lines, total, *checked])


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./dev soak")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kind", choices=KINDS, default="systemd")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    if cache := os.environ.get("EDGEPACK_CACHE"):
        set_cache_dir(Path(cache))

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        names = for_minutes(plan(args.kind, args.seed), args.minutes)
        print(soak(args.kind, names, seed=args.seed, say=say))
    except SoakError as error:
        print(f"FAILED with --kind {args.kind} --seed {args.seed}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
