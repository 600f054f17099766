"""SHA-256 of what the compiler makes of each benchmark model on each board.

A refactoring that is none keeps them all: store the hashes before, compare after. Each model is
compiled in a process of its own, so nothing is left over from the one before. `--plans` makes no
machine code, but hashes the kernels that it would be made of, which takes a fraction of the time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.models import ALL, MODELS, WIDE, get_model
from edgepack.boards import get_board, load_boards
from edgepack.compiler import compile_model, plan_model
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select

FILES = ("model.so", "graph.json", "params.bin")


def plan_hashes(model: str, board_name: str) -> dict[str, str]:
    """The hash of graph.json, of params.bin, and of all kernels' digests."""
    checked = load_model(ModelSpec(path=get_model(model).path))
    plan, kernels, layers, _ = plan_model(checked, get_board(board_name))
    digests = sorted((name, kernel.facts.digest) for name, kernel in kernels.items())
    contents = {
        "kernels": repr(digests).encode(),
        "graph.json": plan.to_json(layers).encode(),
        "params.bin": plan.params,
    }
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def hashes(model: str, board_name: str) -> dict[str, str]:
    """The hash of each of `FILES`."""
    board = get_board(board_name)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        out = Path(folder) / "out"
        spec = ModelSpec(path=get_model(model).path)
        compile_model(spec, board, select(board).toolchain, out)
        return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in FILES}


def all_hashes(
    models: Sequence[str], boards: Sequence[str], jobs: int, *, plans: bool = False
) -> dict[str, dict[str, str]]:
    """By "model board"."""
    found: dict[str, dict[str, str]] = {}
    with ProcessPoolExecutor(jobs, max_tasks_per_child=1) as pool:
        tasks = {
            f"{model} {board}": pool.submit(plan_hashes if plans else hashes, model, board)
            for board in boards
            for model in models
        }
        for name, task in tasks.items():
            found[name] = task.result()
            print(name, *(digest[:12] for digest in found[name].values()), flush=True)
    return found


def differing(before: Mapping[str, dict[str, str]], now: Mapping[str, dict[str, str]]) -> list[str]:
    """What is in both and not equal, as "model board file"."""
    return [
        f"{name} {file}"
        for name, files in now.items()
        for file in files
        if name in before and before[name][file] != files[file]
    ]


def main() -> int:
    """Prints hashes; with --before, what has changed: exit code 8 if anything has."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.artifacts")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(ALL))
    parser.add_argument("--wide", action="store_true", help="all models, not just the nine")
    parser.add_argument("--plans", action="store_true", help="no machine code")
    parser.add_argument("--boards", nargs="+", default=sorted(load_boards()))
    parser.add_argument("--store", type=Path, help="write the hashes here, as JSON")
    parser.add_argument("--before", type=Path, help="compare with hashes stored earlier")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    options = parser.parse_args()
    models = [*MODELS, *WIDE] if options.wide else options.models
    found = all_hashes(models, options.boards, options.jobs, plans=options.plans)
    if options.store:
        options.store.write_text(json.dumps(found, indent=1))
    if not options.before:
        return 0
    before = json.loads(options.before.read_text())
    changed = differing(before, found)
    print(f"{len(found.keys() & before.keys())} compared, {len(changed)} files differ", *changed)
    return 8 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
