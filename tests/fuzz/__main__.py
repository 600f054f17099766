"""`./dev fuzz`."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

from edgepack.base.paths import set_cache_dir
from tests import fuzz, readers


def main() -> int:
    """Run all targets for the same time each, and compare the readers of two languages as long."""
    parser = argparse.ArgumentParser(prog="./dev fuzz")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--keep", action="store_true", help="add what reaches new code")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="only these")
    args = parser.parse_args()
    known = {*fuzz.TARGETS, *readers.PAIRS}
    if unknown := set(args.targets) - known:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if cache := os.environ.get("EDGEPACK_CACHE"):
        set_cache_dir(Path(cache))
    programs = fuzz.build(decoders=True)
    runs = args.targets or [*programs, *readers.PAIRS]
    seconds = max(1, args.seconds // len(runs))
    failed = False
    for target in runs:
        if pair := readers.PAIRS.get(target):
            failed = not compare(target, pair, seconds) or failed
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


def compare(name: str, pair: readers.Readers, seconds: int) -> bool:
    """Give two readers new mutants for `seconds`; whether they said the same of all."""
    end = time.monotonic() + seconds
    compared = 0
    while time.monotonic() < end:
        seed = random.SystemRandom().randrange(1 << 32)
        try:
            compared += sum(pair.compare_mutants(2000, seed=seed))
        except AssertionError as error:
            print(f"{name:<10} FAILED with seed {seed}", flush=True)
            sys.stderr.write(f"{error}\n")
            return False
    print(f"{name:<10} clean: {compared} mutants read by both in {seconds} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
