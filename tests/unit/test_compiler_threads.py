"""How evenly two cores share each model's kernels, from the kernels' loops: no clock is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from bench import models
from edgepack.boards import Cluster, get_board
from edgepack.compiler.backend import parallel
from edgepack.compiler.backend.llvm import tvm_target
from edgepack.compiler.backend.schedule.pieces import cut, substitute
from edgepack.compiler.place import lower
from edgepack.frontend import importer
from edgepack.frontend.load import load_model
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CORTEX_A53
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.tiles.partition import even_parts, even_pieces
from edgepack.kernels.tiles.product import Shape, choose_tile
from edgepack.kernels.tiles.product.partition import Partition
from edgepack.model import ModelSpec

CORES = 2
# What `partition.worth_sharing` says of a launch while the other threads are awake.
LAUNCH_CYCLES = 2_000


def work(statement: tirx.Stmt) -> tuple[float, float, int]:
    """Operations in all, of the busiest core, and parallel loops.

    The cores share the turns of a loop evenly, and whole ones: see `share`.
    """
    match statement:
        case tirx.SeqStmt():
            parts = [work(item) for item in statement.seq]
            return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)
        case tirx.For():
            # Where windows are cut at borders: as many as they have elsewhere.
            turns = int(Analyzer().const_int_bound(statement.extent).max_value)
            total, busiest, loops = work(statement.body)
            if statement.kind != tirx.ForKind.PARALLEL:
                return turns * total, turns * busiest, turns * loops
            return turns * total, -(-turns // CORES) * total, 1
        # Of two cases the second one is a smaller last turn.
        case tirx.IfThenElse(then_case=inside) | tirx.AttrStmt(body=inside):
            return work(inside)
        case tirx.BufferStore() | tirx.Bind() | tirx.Evaluate():
            nodes: list[object] = []
            tvm_ffi.structural_walk(statement.value, (tirx.Expr, nodes.append))
            return len(nodes), len(nodes), 0
    return 0, 0, 0


@pytest.mark.parametrize("make", [models.mobilenet_v1, models.mobilenet_v3_small])
def test_two_cores_are_busy(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(make(), path)
    model = load_model(ModelSpec(path=path))
    target = tvm_target(
        replace(get_board("local"), clusters=(Cluster(cpu="haswell", cores=CORES, max_mhz=0),))
    )
    _, fast = lower.lower(importer.import_model(model), target, model)
    alone = together = 0.0
    for layer in fast.reports:
        total, busiest, loops = work(fast.kernels[layer.kernel].function.body)
        alone += layer.cycles
        together += layer.cycles * busiest / total + loops * LAUNCH_CYCLES
    assert alone / together >= 1.85


def test_blocks_that_come_out_uneven_are_cut() -> None:
    def output(channels: int, height: int) -> Blocked:
        return Blocked(
            element=FLOAT32, batch=1, channels=channels, height=height, width=9, block=16
        )

    assert even_parts(output(64, 10), 2) == 1
    assert even_parts(output(144, 56), 2) == 2
    assert even_parts(output(144, 56), 4) == 4
    # Seven rows have no halves.
    assert even_parts(output(16, 7), 2) == 7


def shares(turns: int, tasks: int) -> list[list[int]]:
    """The turns of a loop that each of `tasks` tasks does, by the code made for it."""
    counter, values = tir.var("i"), tir.buffer("values", [turns], "float32")
    loop = tir.loop(
        counter, turns, tir.store(values, tir.number(0.0, "float32"), [counter]), parallel=True
    )
    parts = parallel.in_parts(tir.function([values], loop)).body
    assert parts.kind == tirx.ForKind.PARALLEL
    nested = isinstance(parts.body, tirx.For)

    def number(value: tirx.Expr, part: int, turn: int = 0) -> int:
        at = {parts.loop_var: tir.integer(part)}
        if nested:
            at[parts.body.loop_var] = tir.integer(turn)
        store = tir.store(values, tir.number(0.0, "float32"), [value])
        for variable, known in at.items():
            store = substitute(store, variable, known)
        return int(Analyzer().simplify(store.indices[0]))

    def turns_of(part: int) -> list[int]:
        if not nested:
            return [number(parts.body.indices[0], part)]
        assert int(parts.body.min) == 0
        count = number(parts.body.extent, part)
        return [number(parts.body.body.indices[0], part, turn) for turn in range(count)]

    # As TVM's code does it: each task has the same number of turns, the last ones the rest.
    each = -(-int(parts.extent) // tasks)
    done = []
    for task in range(tasks):
        mine = range(task * each, min((task + 1) * each, int(parts.extent)))
        done.append([turn for part in mine for turn in turns_of(part)])
    return done


@pytest.mark.parametrize("turns", [1, 2, 5, 14, 63, 64, 70, 1000])
@pytest.mark.parametrize("cores", [1, 2, 4, 8])
def test_cores_share_turns_evenly_and_in_order(turns: int, cores: int) -> None:
    # backend.cc, TaskCount
    done = shares(turns, 4 * cores if cores > 1 else 1)
    assert [turn for task in done for turn in task] == list(range(turns))
    each = len(done) // cores
    counts = [sum(map(len, done[core * each : (core + 1) * each])) for core in range(cores)]
    assert max(counts) - min(counts) <= 1


def test_pieces_of_an_image_for_each_core() -> None:
    assert even_pieces(14, 2) == 2
    assert even_pieces(6, 4) is None  # two cores would have two, two others one
    assert even_pieces(8, 4) == 4
    assert even_pieces(7, 2) is None


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize("size", [7, 14, 28, 56])
def test_pieces_of_a_product_are_all_of_its_tiles(cores: int, size: int) -> None:
    cpu = replace(CORTEX_A53, cores=cores)
    image = Blocked(element=FLOAT32, batch=1, channels=64, height=size, width=size, block=4)
    shape = Shape.of(np.zeros((1, 64, 64, 1, 1), "float32"), image, image)
    tile = choose_tile(image, blocks=shape.out_blocks, reduction=shape.reduction, cpu=cpu)
    partition = Partition(cpu=cpu, shape=shape, tile=tile, source=image, target=image)
    assert partition.worth_sharing == (cores > 1)
    rows, run = partition.piece()
    assert size % rows == 0
    assert partition.tiles % run == 0
    # 16 KB of weights are read by each core only where the pixels are more than that.
    assert not partition.by_pixels or 2 * image.nbytes > 64 * 64 * 4


def test_branches_have_loops_of_their_own() -> None:
    """TVM takes no two loops of one variable into what cores share."""
    row, column = tir.var("row"), tir.var("column")
    x, y = (tirx.decl_buffer((64,), "float32", name) for name in "xy")
    value = tirx.if_then_else(row < 3, x[column], x[column + 1])
    branch = cut(tir.loop(column, 32, tirx.BufferStore(y, value, [column])))
    assert isinstance(branch, tirx.IfThenElse)
    assert not branch.then_case.loop_var.same_as(branch.else_case.loop_var)
