"""`edgepack cache`: what was kept to be quick the next time, and making room."""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

from edgepack.base import cache
from edgepack.base.errors import UsageError
from edgepack.base.paths import cache_dir
from edgepack.base.text import megabytes
from edgepack.cli.console import Console, table
from edgepack.cli.options import count

UNUSED_DAYS = 30


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("show", "prune"),
        default="show",
        help="show the cache's folders, or prune them (default: show)",
    )
    parser.add_argument(
        "--unused-days",
        type=count,
        metavar="N",
        help=f"prune files that were not used for N days (default: {UNUSED_DAYS})",
    )
    parser.add_argument(
        "--max-mb",
        type=count,
        metavar="N",
        help="prune the files unused for longest until at most N MB remain (10^6 bytes)",
    )
    parser.add_argument(
        "-n",
        "--dry-run",
        action="store_true",
        help="print what would be removed, and remove nothing",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Show what is there by kind, or remove some of it."""
    found = cache.entries(cache_dir())
    if args.action == "prune":
        return _prune(args, found, console)
    if args.dry_run or (args.unused_days, args.max_mb) != (None, None):
        raise UsageError("only `cache prune` takes options", hint="edgepack cache prune --dry-run")
    kinds: dict[str, list[cache.CachedItem]] = defaultdict(list)
    for entry in found:
        kinds[entry.kind].append(entry)
    now = time.time()
    rows = [
        {
            "kind": kind,
            "entries": len(of_kind),
            "size_bytes": sum(entry.size_bytes for entry in of_kind),
            "last_used_days": _days(of_kind[-1], now),
            "longest_unused_days": _days(of_kind[0], now),
        }
        for kind, of_kind in sorted(kinds.items())
    ]
    total = sum(entry.size_bytes for entry in found)
    lines = [
        (
            row["kind"],
            row["entries"],
            megabytes(sum(entry.size_bytes for entry in kinds[str(row["kind"])])),
            row["last_used_days"],
            row["longest_unused_days"],
        )
        for row in rows
    ]
    console.data(
        {"folder": str(cache_dir()), "size_bytes": total, "kinds": rows},
        f"{cache_dir()}: {megabytes(total)}\n\n"
        + table(lines, ("KIND", "ENTRIES", "SIZE", "LAST USED, DAYS", "LONGEST UNUSED, DAYS")),
    )
    return 0


def _prune(args: argparse.Namespace, found: list[cache.CachedItem], console: Console) -> int:
    by_age = args.unused_days is not None or args.max_mb is None
    days = (args.unused_days if args.unused_days is not None else UNUSED_DAYS) if by_age else None
    chosen = cache.choose(
        found,
        now=time.time(),
        unused_s=float("inf") if days is None else days * cache.DAY_S,
        max_bytes=None if args.max_mb is None else args.max_mb * 10**6,
        keep=_in_use(),
    )
    now = time.time()
    removed: list[cache.CachedItem] = []
    busy: list[cache.CachedItem] = []
    for entry in chosen:
        gone = args.dry_run or cache.remove(entry)
        (removed if gone else busy).append(entry)
    freed = sum(entry.size_bytes for entry in removed)
    left = sum(entry.size_bytes for entry in found) - freed
    verb = "would remove" if args.dry_run else "removed"
    lines = [
        f"{verb} {_name(entry):<56} {megabytes(entry.size_bytes):>10}, "
        f"unused for {_days(entry, now)} days"
        for entry in removed
    ]
    lines += [f"in use: {_name(entry)}" for entry in busy]
    lines.append(f"{verb} {megabytes(freed)} of {len(removed)} entries; {megabytes(left)} left")
    console.data(
        {
            "dry_run": args.dry_run,
            "removed": [
                {
                    "kind": entry.kind,
                    "path": str(entry.path),
                    "size_bytes": entry.size_bytes,
                    "unused_days": _days(entry, now),
                }
                for entry in removed
            ],
            "in_use": [str(entry.path) for entry in busy],
            "freed_bytes": freed,
            "left_bytes": left,
        },
        "\n".join(lines),
    )
    return 0


def _name(entry: cache.CachedItem) -> str:
    return str(entry.path.relative_to(cache_dir()))


def _days(entry: cache.CachedItem, now: float) -> int:
    return max(int((now - entry.used_at) / cache.DAY_S), 0)


def _in_use() -> list[Path]:
    """This Python's environment, and what running virtual boards stand on."""
    used = [Path(sys.prefix)]
    if (cache_dir() / "virtual").exists():
        from edgepack.virtual import list_running

        boards = list_running()
        used += [board.base for board in boards]
        used += [cache_dir() / "kernel"] if boards else []
    return used
