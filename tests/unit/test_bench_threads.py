"""The simulation of cores of different speed, beside sums done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import threads
from bench.threads import PIECE_CYCLES, Launch, Work, launch_cycles, pieces
from edgepack.boards import get_board
from edgepack.frontend.load import load_model
from edgepack.kernels.tiles.partition import LAUNCH_CYCLES
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import save_cases


@pytest.mark.parametrize("turns", [1, 5, 14, 63, 64, 70, 128, 1000])
@pytest.mark.parametrize("tasks", [1, 8, 16, 64])
def test_all_turns_are_somebodys(turns: int, tasks: int) -> None:
    assert len(pieces(turns, tasks)) == tasks
    assert sum(pieces(turns, tasks)) == turns


def test_tasks_are_those_of_the_runtime() -> None:
    # backend.cc, TaskCount
    assert [threads.task_count(n) for n in (1, 2, 3, 4, 6, 8, 16, 32)] == [
        *(1, 8, 16, 16, 32, 32, 64, 64)
    ]


def test_equal_cores_share_evenly() -> None:
    launch = Launch(turns=64, cycles=6400)
    each = 100 + PIECE_CYCLES / 4  # four turns a piece
    assert launch_cycles(launch, 16, [1.0] * 4) == LAUNCH_CYCLES + 16 * each
    assert launch_cycles(launch, 16, [1.0]) == LAUNCH_CYCLES + 64 * each


def test_a_fast_core_helps_a_slow_one() -> None:
    # Two turns each. While the slow core does its first one, the other one does the rest.
    launch, speeds = Launch(turns=4, cycles=400), [1.0, 0.25]
    assert launch_cycles(launch, 4, speeds) == LAUNCH_CYCLES + 4 * (100 + PIECE_CYCLES)


def test_the_least_has_all_cores_busy() -> None:
    work = [Work(serial=100, launches=(Launch(turns=4, cycles=300),))]
    assert threads.least(work, [1.0, 0.5]) == 100 + 300 / 1.5
    assert threads.time(work, [1.0], 1) == 100 + LAUNCH_CYCLES + 300 + 4 * PIECE_CYCLES / 4


def test_no_stage_of_winograd_waits_for_a_slow_core(tmp_path: Path) -> None:
    net = Builder()
    path = save_cases(
        tmp_path / "model.onnx", net, {"x": (1, 128, 28, 28)}, {"y": net.conv("x", 128, 128)}
    )
    board = threads.of_cores(get_board("local"), "haswell", 3)
    work = threads.works(load_model(ModelSpec(path=path)), board)
    speeds = [1.0, 1.0, 0.5]
    taken = threads.time(work, speeds, threads.task_count(3))
    launches = sum(len(item.launches) for item in work) * LAUNCH_CYCLES
    # A third each would be 2.5 / 1.5 of the least.
    assert taken - launches < 1.2 * threads.least(work, speeds)
