"""`./dev fuzz`."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Protocol

from edgepack.base.paths import set_cache_dir
from tests import fuzz, outside, readers


class Mutants(Protocol):
    """Makes mutants and tries them: how many were accepted, and refused."""

    def __call__(self, count: int, *, seed: int) -> tuple[int, int]: ...


def main() -> int:
    """Run all targets for the same time each, and compare the readers of two languages as long, and
    try what only Python reads."""
    if sys.argv[1:2] in (["graphs"], ["types"], ["passes"]):
        from tests.fuzz import graphs, passes, types

        models = {"graphs": graphs.main, "types": types.main, "passes": passes.main}
        return models[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="./dev fuzz", epilog="models: ./dev fuzz graphs --help, also types and passes"
    )
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--keep", action="store_true", help="add what reaches new code")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="only these")
    args = parser.parse_args()
    known = {*fuzz.TARGETS, *readers.PAIRS, *outside.READERS}
    if unknown := set(args.targets) - known:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if cache := os.environ.get("EDGEPACK_CACHE"):
        set_cache_dir(Path(cache))
    # Some are Python alone, and need nothing to be built.
    wanted = set(args.targets or known) - {*outside.READERS}
    programs = fuzz.build(decoders=True) if wanted else {}
    runs = args.targets or [*programs, *readers.PAIRS, *outside.READERS]
    seconds = max(1, args.seconds // len(runs))
    failed = False
    for target in runs:
        if pair := readers.PAIRS.get(target):
            failed = not try_new(target, pair.compare_mutants, seconds, "read by both") or failed
            continue
        if reader := outside.READERS.get(target):
            failed = not try_new(target, reader.try_mutants, seconds, "read or refused") or failed
            continue
        program = programs[target]
        outcome = fuzz.run(target, program, seconds=seconds, keep=args.keep)
        print(
            f"{target:<10} {'FAILED' if outcome.failed else 'clean'}: corpus of {outcome.inputs}, "
            f"{outcome.executions} executions in {seconds} s",
            flush=True,
        )
        if outcome.failed:
            failed = True
            sys.stderr.write(outcome.failed)
    return int(failed)


def try_new(name: str, mutants: Mutants, seconds: int, what: str) -> bool:
    """Give readers in Python new mutants for `seconds`; whether all was as it has to be."""
    end = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        seed = random.SystemRandom().randrange(1 << 32)
        try:
            tried += sum(mutants(1000, seed=seed))
        except AssertionError as error:
            print(f"{name:<10} FAILED with seed {seed}", flush=True)
            sys.stderr.write(f"{error}\n")
            return False
    print(f"{name:<10} clean: {tried} mutants {what} in {seconds} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
