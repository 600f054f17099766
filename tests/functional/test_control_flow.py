"""Loops and branches that data decide, on every instruction set, against onnxruntime."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.boards import get_board
from edgepack.cli import main
from edgepack.compiler import plan_model
from edgepack.flow.inspection import inspect_for
from edgepack.frontend.errors import ImportModelError, UnsupportedOperatorError
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from edgepack.native.emulate import run_emulated
from tests import control_flow
from tests.boards import own_boards
from tests.bodies import Body, graph
from tests.onnx_models import Builder
from tests.plan_runner import run_plan
from tests.targets import compile_and_run, wrong_outputs

WAYS = [(3, True, True), (0, False, False), (1, True, False), (6, False, True)]
"""Turns, whether a loop begins, and a branch's condition."""


@pytest.mark.parametrize("kind", control_flow.KINDS.values(), ids=control_flow.KINDS.keys())
def test_outputs_equal_onnxruntime(kind: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto := kind(), path)
    folder: Path | None = None
    for turns, first, flag in WAYS:
        inputs = control_flow.inputs_of(proto, turns, first=first, flag=flag)
        if folder is None:
            compiled, got = compile_and_run(path, inputs, "local", "native", tmp_path)
            folder = compiled.folder
            assert json.loads(compiled.graph.read_text())["blocks"]
        else:
            got = run_plan(folder, inputs)
        assert wrong_outputs(path, inputs, got) == [], (turns, first, flag)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))]
)
def test_random_programs(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto := control_flow.Random(seed).model(), path)
    folder: Path | None = None
    for turns, first, flag in WAYS:
        inputs = control_flow.inputs_of(proto, turns, first=first, flag=flag)
        if folder is None:
            compiled, got = compile_and_run(path, inputs, "local", "native", tmp_path)
            folder = compiled.folder
        else:
            got = run_plan(folder, inputs)
        assert wrong_outputs(path, inputs, got, 1e-3) == [], (turns, flag)


@pytest.fixture
def everything(tmp_path: Path) -> tuple[Path, list[list[np.ndarray]]]:
    """A model with all of them, and inputs for each way."""
    path = tmp_path / "model.onnx"
    onnx.save(proto := control_flow.together(), path)
    return path, [
        control_flow.inputs_of(proto, turns, first=first, flag=flag) for turns, first, flag in WAYS
    ]


@pytest.mark.parametrize(("board", "cpu"), [("pynq", "cortex-a9")])
def test_all_of_them_on_a_board(
    board: str, cpu: str, everything: tuple[Path, list[list[np.ndarray]]], tmp_path: Path
) -> None:
    path, cases = everything
    compiled, got = compile_and_run(path, cases[0], board, cpu, tmp_path)
    assert wrong_outputs(path, cases[0], got) == []
    for inputs, made in zip(
        cases, run_emulated(compiled.folder, get_board(board), cases), strict=True
    ):
        assert wrong_outputs(path, inputs, made) == []


def test_all_of_them_in_the_app(
    everything: tuple[Path, list[list[np.ndarray]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, cases = everything
    where = ("--board", "local", "--device", "local", "--root", str(tmp_path / "root"))
    with own_boards():
        assert main(["deploy", str(path), *where]) == 0
        assert main(["compare", str(path), *where, "--all"]) == 0
    assert "no layer diverges" in capsys.readouterr().out
    app = tmp_path / "root" / "current" / "bin" / "edgepack-run"
    outputs = [value.name for value in onnx.load(path).graph.output]

    def run(number: int, inputs: list[np.ndarray], *options: str | Path) -> str:
        words = [app, "--json", *options]
        for index, array in enumerate(inputs):
            np.save(tmp_path / f"in{number}.{index}.npy", array)
            words += ["--input", tmp_path / f"in{number}.{index}.npy"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode else ""

    for number, inputs in enumerate(cases):
        files = [tmp_path / f"out{number}.{index}.npy" for index in range(len(outputs))]
        written = [word for file in files for word in ("--output", file)]
        assert run(number, inputs, "--bench", "2", "--profile", *written) == ""
        assert wrong_outputs(path, inputs, [np.load(file) for file in files]) == []
    names = [value.name for value in onnx.load(path).graph.input]
    endless = list(cases[0])
    endless[names.index("doubling x")] = np.zeros(3, "float32")
    refusal = json.loads(run(len(cases), endless))["error"]
    assert refusal["code"] == 3
    assert "a loop goes on after 65536 turns" in refusal["message"]


def _growing() -> onnx.ModelProto:
    """Its state is longer after each turn."""
    body = Body()
    body.op("Concat", "state", "x", axis=0, outputs=["next"])
    body.op("Identity", "going", outputs=["goes"])
    inner = graph(body, {"turn": [], "going": [], "state": [None]}, {"goes": [], "next": None})
    b = Builder()
    b.op("Loop", "n", "", "x", outputs=["y"], body=inner)
    return b.model({"n": [], "x": [3]}, {"y": None}, control_flow.SCALARS)


def _collecting() -> onnx.ModelProto:
    """Rows, and nobody knows how many."""
    proto = control_flow.limited()
    nodes = [node for node in proto.graph.node if node.op_type == "Loop"]
    nodes[0].input[0] = "n"
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def _choosing() -> onnx.ModelProto:
    """Branches of different numbers of axes."""
    bodies = {}
    for way, shape in (("then", [6]), ("else", [3, 2])):
        body = Body(way)
        body.op("Reshape", "x", body.const(shape), outputs=[f"{way}/z"])
        bodies[f"{way}_branch"] = graph(body, {}, {f"{way}/z": None})
    b = Builder()
    b.op("If", "flag", outputs=["y"], **bodies)
    return b.model({"flag": [], "x": [2, 3]}, {"y": None}, control_flow.SCALARS)


@pytest.mark.parametrize(
    ("make", "why", "instead"),
    [
        (_growing, "Loop: 'state' changes its shape or type from turn to turn", "fixed shapes"),
        (_collecting, "the most turns that it may take are not known", "limit it by a Min"),
        (_choosing, "its branches give results of different types or", "--set INPUT=VALUE"),
    ],
)
def test_what_can_be_no_block(
    make: Callable[[], onnx.ModelProto], why: str, instead: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(make(), path)
    with pytest.raises((ImportModelError, UnsupportedOperatorError)) as caught:
        plan_model(load_model(ModelSpec(path=path)), get_board("local"))
    assert why in caught.value.message
    assert instead in (caught.value.hint or "")


def test_a_loop_that_does_not_end(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto := control_flow.doubling(), path)
    inputs = [np.array(True), np.array(np.inf, "float32"), np.zeros(3, "float32")]
    assert [value.name for value in proto.graph.input] == ["first", "limit", "x"]
    with pytest.raises(RuntimeError, match="goes on after 65536 turns"):
        compile_and_run(path, inputs, "local", "native", tmp_path)


def test_inspect_shows_blocks(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(control_flow.branches(), path)
    found = inspect_for(ModelSpec(path=path), get_board("local"))
    assert found.estimate is not None
    blocks = [(block.operator, block.most_turns) for block in found.estimate.blocks]
    assert blocks.count(("If", 1)) == 6
    assert blocks.count(("Loop", 65536)) == 2
    assert all(block.kernels for block in found.estimate.blocks)
