"""`python -m bench`: see `--help` and docs/performance.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import accuracy, arm, bits, camera, compiling, host, mca, ops
from bench.charts import write_charts
from bench.cycles import measure as cycles
from bench.models import ALL, KINDS, MODELS, WIDE
from bench.ours import SETTINGS
from bench.peers import TITLES
from bench.results import DOCS, write_section
from edgepack.base.errors import EdgepackError
from edgepack.base.paths import set_cache_dir
from edgepack.cli.console import Console

ENGINES = (*SETTINGS, *TITLES)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="bench", description="Measure edgepack beside other runtimes.", allow_abbrev=False
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--arm", action="store_true", help="count instructions under qemu")
    what.add_argument("--cycles", action="store_true", help="estimate cycles and memory traffic")
    what.add_argument("--mca", action="store_true", help="hottest loops under llvm-mca")
    what.add_argument("--ops", action="store_true", help="every operator family by itself")
    what.add_argument("--compile", action="store_true", help="compile time and memory")
    what.add_argument(
        "--accuracy", action="store_true", help="what 8-bit integers lose, beside other quantisers"
    )
    what.add_argument(
        "--bits", action="store_true", help="half precision and 8-bit integers: counts and CPU time"
    )
    what.add_argument("--photos", action="store_true", help="photos of 12 megapixels to tensors")
    what.add_argument("--avx2", action="store_true", help="this machine, every engine held to AVX2")
    what.add_argument("--report", action="store_true", help="only print what was measured")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--wide", action="store_true", help="networks of every kind instead of the nine"
    )
    which.add_argument(
        "--kinds", action="store_true", help="small networks of other kinds instead of the nine"
    )
    which.add_argument("--models", nargs="+", choices=ALL, help="of all three")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--boards",
        nargs="+",
        choices=sorted({*arm.BOARDS, *cycles.BOARDS, *bits.BOARDS}),
        help="default: all that the measurement is made for",
    )
    parser.add_argument("--rounds", type=int, default=5, help="of this machine's measurement")
    parser.add_argument("--docs", action="store_true", help=f"write the tables into {DOCS.name}")
    parser.add_argument("--cache-dir", type=Path)
    parser.add_argument("-v", "--verbose", action="count", default=0)
    return parser


def _measure(args: argparse.Namespace, console: Console) -> None:
    """Whatever the command line asks for."""
    if args.arm:
        arm.measure(args.boards or arm.BOARDS, args.models, args.engines, console)
    elif args.cycles:
        boards = [name for name in args.boards or cycles.BOARDS if name in cycles.BOARDS]
        cycles.measure(boards, args.models, args.engines, console)
    elif args.mca:
        mca.measure(args.boards or mca.BOARDS, args.models, console)
    elif args.ops:
        ops.measure(console, rounds=args.rounds)
    elif args.compile:
        compiling.measure(args.models, console)
    elif args.accuracy:
        accuracy.measure(args.models, console)
    elif args.bits:
        bits.measure(
            args.boards or bits.BOARDS, args.models, args.engines, console, rounds=args.rounds
        )
    elif args.photos:
        boards = [name for name in args.boards or camera.BOARDS if name in camera.BOARDS]
        camera.measure(boards, console, rounds=args.rounds)
    elif not args.report:
        host.measure(args.models, args.engines, console, rounds=args.rounds, held=args.avx2)


def main(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code."""
    args = make_parser().parse_args(argv)
    args.models = args.models or list(WIDE if args.wide else KINDS if args.kinds else MODELS)
    console = Console(verbose=args.verbose)
    if args.cache_dir is not None:
        set_cache_dir(args.cache_dir)
    try:
        _measure(args, console)
    except EdgepackError as error:
        console.error(str(error), error.hint, error.exit_code)
        return error.exit_code
    reports = {
        "lead": cycles.lead,
        "cycles": cycles.report,
        "cores": cycles.numbers,
        "arm": arm.report,
        "mca": mca.report,
        "host": host.report,
        "wide": host.wide_report,
        "kinds": host.kinds_report,
        "ops": ops.report,
        "compile": compiling.report,
        "bits": bits.report,
        "photos": camera.report,
    }
    if args.accuracy:
        # Its tables are in the guide on precision, with what they mean.
        print(accuracy.report())
        return 0
    sections = {name: report() for name, report in reports.items()}
    kinds = ("arm", "cycles", "mca", "ops", "compile", "bits", "photos")
    chosen = [name for name in kinds if getattr(args, name)] or ["host", "wide", "kinds"]
    print("\n\n".join(sections[name] for name in (sections if args.report else chosen)))
    if args.docs:
        for name, text in sections.items():
            write_section(name, text)
        write_charts()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
