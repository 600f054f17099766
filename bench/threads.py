"""How evenly cores of different speed share the kernels of the benchmark's models, by simulation.

No clock is read: the parallel loops are taken from the kernels themselves, their work from the cost
model, and the rules by which threads take pieces of them from the runtime's (`thread_pool.cc`,
`backend.cc`, `compiler/backend/parallel.py`). The time is set against the least that the same cores
could take: serial parts on the first one, the rest with all of them busy to the end.

Kernels are those for AVX2: what ARM's do is in assembly, which does not show how much it is.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from bench.models import MODELS, get_model
from edgepack.boards import Board, Cluster, get_board
from edgepack.compiler import plan_model
from edgepack.compiler.backend.parallel import PARTS
from edgepack.frontend.load import CheckedModel, load_model
from edgepack.frontend.precision import Precision
from edgepack.kernels.tiles.partition import LAUNCH_CYCLES
from edgepack.model import ModelSpec

# What one piece costs whoever takes it: a compare-and-swap on a line that another core may have
# written, and a call. A guess.
PIECE_CYCLES = 200


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A loop of `turns` equal turns that cores share; `cycles` is the work of all of them."""

    turns: int
    cycles: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a kernel does, in cycles of the fastest core."""

    serial: float
    launches: tuple[Launch, ...]


def pieces(turns: int, tasks: int) -> list[int]:
    """The turns of a loop that each of `tasks` tasks does, as kernels and TVM's code cut it."""
    counts = (
        [turns * (part + 1) // PARTS - turns * part // PARTS for part in range(PARTS)]
        if turns % PARTS
        else [1] * turns
    )
    each = -(-len(counts) // tasks)
    return [sum(counts[task * each : (task + 1) * each]) for task in range(tasks)]


def task_count(threads: int, most: int = 64, each: int = 4) -> int:
    """`TaskCount` of backend.cc."""
    tasks = 1
    while tasks < min(most, each * threads if threads > 1 else 1):
        tasks *= 2
    return tasks


def launch_cycles(launch: Launch, tasks: int, speeds: Sequence[float]) -> float:
    """How long threads of these speeds (1: the fastest core's) take for a launch.

    Each has an equal share of neighbouring tasks; whoever is through takes the last ones of the
    others', of the next thread first.
    """
    threads = len(speeds)
    sizes = pieces(launch.turns, tasks)
    each = launch.cycles / launch.turns
    starts = [-(-tasks * thread // threads) for thread in range(threads + 1)]
    shares = [list(range(starts[t], starts[t + 1])) for t in range(threads)]
    free = [(0.0, thread) for thread in range(threads)]
    heapq.heapify(free)
    end = 0.0
    while free:
        now, thread = heapq.heappop(free)
        if shares[thread]:
            task = shares[thread].pop(0)
        else:
            others = (shares[(thread + i) % threads] for i in range(1, threads))
            other = next((share for share in others if share), None)
            if other is None:
                continue
            task = other.pop()
        done = now + (sizes[task] * each + PIECE_CYCLES) / speeds[thread]
        end = max(end, done)
        heapq.heappush(free, (done, thread))
    return LAUNCH_CYCLES + end


def time(work: Sequence[Work], speeds: Sequence[float], tasks: int) -> float:
    """Cycles of the fastest core for kernels one after the other."""
    return sum(
        item.serial / speeds[0]
        + sum(launch_cycles(launch, tasks, speeds) for launch in item.launches)
        for item in work
    )


def least(work: Sequence[Work], speeds: Sequence[float]) -> float:
    """The same if launches cost nothing, and all cores were busy to their end."""
    return sum(
        item.serial / speeds[0] + sum(launch.cycles for launch in item.launches) / sum(speeds)
        for item in work
    )


def operations(statement: tirx.Stmt) -> tuple[float, list[tuple[int, float]]]:
    """Arithmetic outside of parallel loops, and turns and arithmetic of each such loop."""
    match statement:
        case tirx.SeqStmt():
            parts = [operations(item) for item in statement.seq]
            return sum(p[0] for p in parts), [loop for p in parts for loop in p[1]]
        case tirx.For():
            # Where windows are cut at borders: as many as they have elsewhere.
            turns = int(Analyzer().const_int_bound(statement.extent).max_value)
            own, loops = operations(statement.body)
            if statement.kind != tirx.ForKind.PARALLEL:
                return turns * own, loops * turns
            return 0.0, [(turns, turns * (own + sum(work for _, work in loops)))]
        # Of two cases the second one is a smaller last turn.
        case tirx.IfThenElse(then_case=inside) | tirx.AttrStmt(body=inside):
            return operations(inside)
        case tirx.BufferStore() | tirx.Bind() | tirx.Evaluate():
            nodes: list[object] = []
            tvm_ffi.structural_walk(statement.value, (tirx.Expr, nodes.append))
            return len(nodes), []
    return 0.0, []


def works(model: CheckedModel, board: Board) -> list[Work]:
    """The kernels of a model that have a cost."""
    # Pixels, as their preprocessing makes them.
    precision = Precision(bounded=frozenset(info.name for info in model.inputs))
    _, kernels, layers, _ = plan_model(model, board, precision=precision)
    found = []
    for layer in layers:
        if not layer.cycles:
            continue
        serial, loops = operations(kernels[layer.kernel].function.body)
        scale = layer.cycles / (serial + sum(work for _, work in loops))
        launches = tuple(Launch(turns=turns, cycles=work * scale) for turns, work in loops)
        found.append(Work(serial=serial * scale, launches=launches))
    return found


def of_cores(board: Board, cpu: str, cores: int) -> Board:
    """The board with kernels made for so many cores of one kind."""
    return replace(board, cpu=cpu, clusters=(Cluster(cpu=cpu, cores=cores, max_mhz=0),))


def relative_speed(model: CheckedModel, board: Board) -> float:
    """How fast a core of the last cluster is, by the cost model and the clock, beside the first."""
    first, last = board.clusters[0], board.clusters[-1]
    cycles = [
        sum(layer.cycles for layer in plan_model(model, of_cores(board, cluster.cpu, 1))[2])
        for cluster in (first, last)
    ]
    return cycles[0] / cycles[1] * last.max_mhz / first.max_mhz


# Cores of the first and of the last cluster.
CASES = ((2, 0), (2, 1), (2, 2), (2, 4))


def row(name: str, board: Board) -> list[str]:
    """A model's line: the speed of a small core, and what each of `CASES` takes."""
    model = load_model(ModelSpec(path=get_model(name).path))
    small = relative_speed(model, board)
    work = works(model, of_cores(get_board("local"), "haswell", board.cores))
    cells, first = [f"{small:.2f}"], 0.0
    for fast, slow in CASES:
        speeds = [1.0] * fast + [small] * slow
        taken = time(work, speeds, task_count(len(speeds)))
        first = first or taken
        cells += [f"{taken / least(work, speeds):.2f}", f"{taken / first:.2f}"]
    return [name, *cells]


def main(argv: Sequence[str]) -> int:
    """Prints the table of a board."""
    parser = argparse.ArgumentParser(prog="bench.threads", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--board", default="rk3399")
    args = parser.parse_args(argv)
    head = ["model", "small core"]
    for fast, slow in CASES:
        head += [f"{fast}+{slow} over the least", f"over {CASES[0][0]}+{CASES[0][1]}"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for name in args.models:
        print(f"| {' | '.join(row(name, get_board(args.board)))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
