"""How evenly two cores share each model's kernels, from the kernels' loops: no clock is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import tvm_ffi
from tvm import tirx

from bench import models
from edgepack.boards import Cluster, get_board
from edgepack.compiler import importer, lower
from edgepack.compiler.kernels.layout import Blocked
from edgepack.compiler.kernels.rule import even_parts
from edgepack.compiler.llvm import tvm_target
from edgepack.model import ModelSpec, load_model

CORES = 2
# backend.cc, TaskCount: the pieces that a parallel loop is cut into, if it has as many turns.
PIECES = 64
# What `rule.worth_sharing` says of a launch while the other threads are awake.
LAUNCH_CYCLES = 2_000


def work(statement: tirx.Stmt) -> tuple[float, float, int]:
    """Operations in all, of the busiest core, and parallel loops.

    Whoever is free takes the next piece, so of equal ones the busiest core has the mean, rounded up
    to whole pieces.
    """
    match statement:
        case tirx.SeqStmt():
            parts = [work(item) for item in statement.seq]
            return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)
        case tirx.For():
            turns = int(statement.extent)
            total, busiest, loops = work(statement.body)
            if statement.kind != tirx.ForKind.PARALLEL:
                return turns * total, turns * busiest, turns * loops
            piece = -(-turns // PIECES)
            most = -(-turns // (piece * CORES)) * piece
            return turns * total, min(turns, most) * total, 1
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
        total, busiest, loops = work(fast.kernels[layer.kernel].body)
        alone += layer.cycles
        together += layer.cycles * busiest / total + loops * LAUNCH_CYCLES
    assert alone / together >= 1.85


def test_blocks_that_come_out_uneven_are_cut() -> None:
    def output(channels: int, height: int) -> Blocked:
        return Blocked(batch=1, channels=channels, height=height, width=9, block=16)

    assert even_parts(output(64, 10), 2) == 1
    assert even_parts(output(144, 56), 2) == 2
    assert even_parts(output(144, 56), 4) == 4
    # Seven rows have no halves.
    assert even_parts(output(16, 7), 2) == 7
