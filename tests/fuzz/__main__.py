"""`./dev fuzz`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from edgepack.base.paths import set_cache_dir
from tests import fuzz


def main() -> int:
    """Run all targets for the same time each."""
    parser = argparse.ArgumentParser(prog="./dev fuzz")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--keep", action="store_true", help="add what reaches new code")
    args = parser.parse_args()
    if cache := os.environ.get("EDGEPACK_CACHE"):
        set_cache_dir(Path(cache))
    programs = fuzz.build()
    failed = False
    for target, program in programs.items():
        seconds = max(1, args.seconds // len(programs))
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


if __name__ == "__main__":
    sys.exit(main())
