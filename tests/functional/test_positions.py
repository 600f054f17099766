"""Positions that come at run time, and point anywhere: nothing is read or written beside a tensor.

Each tensor lies alone between pages that nobody may touch. What is right comes from onnxruntime,
and so does which positions there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.compose
import onnxruntime
import pytest

from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.frontend.operators import supported_operators
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from tests import run_time_positions
from tests.plan_on_arm import build_program, outputs_of, prepare, run_program
from tests.run_time_positions import CASES, Positions
from tests.support import require_tool

Array = np.ndarray[Any, Any]
# A board, and the CPU that qemu plays for it.
TARGETS = [
    pytest.param("local", "", id="x86-64"),
    pytest.param("rasp3b", "max", id="armv7"),
    pytest.param("rk3399", "cortex-a72", id="aarch64"),
]
IDS = [str(target.id) for target in TARGETS]
# Of floats a few in the short form: they take long to compile.
SHORT = [
    case
    for case in CASES
    if case.low is not None
    or case.name
    in (
        "GridSample-linear-zeros-0",
        "GridSample-nearest-border-0",
        "GridSample-linear-reflection-1",
        "RoiAlign-boxes-avg-2-0",
        "RoiAlign-boxes-avg-0-3",
        "MaxRoiPool-boxes-4",
        "DeformConv",
        "DeformConv-turned",
    )
]
OUTSIDE = "IndexError"


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Operators side by side in one model, for a target: a program that runs it with the inputs
    that lie in `work`, and the commands by where a tensor's guard is."""

    cases: Sequence[Positions]
    folder: Path
    work: Path
    commands: dict[str, list[str | Path]]

    def first_input(self, case: Positions) -> int:
        """The number of a case's first input in the model."""
        at = next(i for i, other in enumerate(self.cases) if other is case)
        return sum(len(other.given()) for other in self.cases[:at])

    def given(self) -> list[Array]:
        return [value for case in self.cases for value in case.given()]

    def ends(self, case: Positions, value: Any, guard: str) -> tuple[int, str]:
        """How a run ends in which a position of `case` is `value`: exit code, and what it says."""
        given = [index for index, item in enumerate(case.inputs) if item.size]
        number = self.first_input(case) + given.index(case.input)
        file = self.work / f"in{number}"
        before = file.read_bytes()
        file.write_bytes(case.with_position(value).tobytes())
        try:
            done = run_program(self.commands[guard], self.work, 300)
        finally:
            file.write_bytes(before)
        return done.returncode, done.stderr


def side_by_side(cases: Sequence[Positions]) -> onnx.ModelProto:
    """The operators of one opset as one model, which has them one after the other."""
    models = [case.model(f"{case.name}/") for case in cases]
    graph = onnx.helper.make_graph(
        [node for model in models for node in model.graph.node],
        "positions",
        [value for model in models for value in model.graph.input],
        [value for model in models for value in model.graph.output],
    )
    domains = {item.domain: item for model in models for item in model.opset_import}
    return onnx.helper.make_model(graph, opset_imports=list(domains.values()), ir_version=8)


def groups(cases: Sequence[Positions]) -> list[list[Positions]]:
    """Those of one opset together."""
    opsets = sorted({case.opset for case in cases})
    return [[case for case in cases if case.opset == opset] for opset in opsets]


def compiled(cases: Sequence[Positions], board_name: str, cpu: str, work: Path) -> Compiled:
    board = get_board(board_name)
    work.mkdir(parents=True)
    onnx.save(side_by_side(cases), work / "model.onnx")
    toolchain = select(board, "gnu" if board.is_local else None).toolchain
    made = compile_model(ModelSpec(path=work / "model.onnx"), board, toolchain, work / "out")
    qemu: list[str] = []
    if not board.is_local:
        arch = "aarch64" if board.triple.startswith("aarch64") else "arm"
        tool = require_tool(f"qemu-{arch}-static", f"qemu-{arch}")
        qemu = [tool, "-cpu", cpu, "-L", f"/usr/{board.triple}"]
    compiler = require_tool("gcc" if board.is_local else f"{board.triple}-gcc")
    program = build_program(compiler, work)
    ready = Compiled(
        cases=cases,
        folder=made.folder,
        work=work,
        commands={guard: [*qemu, program, guard] for guard in ("end", "start")},
    )
    prepare(made.folder, ready.given(), work)
    return ready


@pytest.fixture(scope="module", params=[target.values for target in TARGETS], ids=IDS)
def short(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Compiled]:
    board, cpu = request.param
    folder = tmp_path_factory.mktemp(board)
    return [
        compiled(cases, board, cpu, folder / str(number))
        for number, cases in enumerate(groups(SHORT))
    ]


def due(case: Positions, changed: Array | None = None) -> list[Array] | None:
    """What onnxruntime makes of a case; None if it refuses it, or does not know it."""
    inputs = list(case.inputs)
    if changed is not None:
        inputs[case.input] = changed
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(case.model().SerializeToString(), options)
        names = [item.name for item in session.get_inputs()]
        given = [value for value in inputs if value.size]
        return list(session.run(None, dict(zip(names, given, strict=True))))
    except Exception:  # its errors share no base
        return None


def check_right(ready: Compiled) -> None:
    """Positions that there are have the values that onnxruntime gives."""
    for guard, command in ready.commands.items():
        done = run_program(command, ready.work)
        assert done.returncode == 0, (guard, done.stderr)
    outputs: Iterator[Array] = iter(outputs_of(ready.folder, ready.work))
    for case in ready.cases:
        mine = [next(outputs) for _ in case.outputs]
        wanted = due(case)
        if wanted is not None:
            for one, other in zip(mine, wanted, strict=True):
                np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-4, err_msg=case.name)


def check_wrong(ready: Compiled, count: int, guards: Sequence[str]) -> None:
    """`count` of the positions of each case that there are not."""
    for case in ready.cases:
        for value in case.wrong()[:count]:
            for guard in guards:
                code, said = ready.ends(case, value, guard)
                if case.low is None:
                    assert code == 0 or OUTSIDE in said, (case.name, value, code, said)
                    continue
                assert code == 1, (case.name, value, code, said)
                wanted = f"{OUTSIDE}: {case.operator} '{case.name}/node': its input '{case.known}'|"
                assert wanted in said, (case.name, value, said)


def test_right_positions(short: list[Compiled]) -> None:
    for ready in short:
        check_right(ready)
        for case in ready.cases:
            if case.low is not None:
                for value in (case.low, case.high):
                    assert ready.ends(case, value, "end") == (0, ""), (case.name, value)


def test_wrong_positions(short: list[Compiled]) -> None:
    here = "local" in str(short[0].folder)
    for ready in short:
        check_wrong(ready, 9 if here else 3, ("end", "start") if here else ("end",))


def test_onnxruntime_has_the_same_positions() -> None:
    """What is refused here is refused there, and what is not has a value there."""
    for case in CASES:
        if case.low is None or due(case) is None:
            continue
        for value in case.wrong():
            if case.operator == "TopK" and value == 2**32:
                continue  # of which it takes 32 bits
            assert due(case, case.with_position(value)) is None, (case.name, value)
        for value in (case.low, case.high):
            assert due(case, case.with_position(value)) is not None, (case.name, value)


@pytest.mark.slow
@pytest.mark.parametrize(("board", "cpu"), TARGETS)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_position(case: Positions, board: str, cpu: str, tmp_path: Path) -> None:
    ready = compiled([case], board, cpu, tmp_path / "run")
    check_right(ready)
    check_wrong(ready, 9, ("end", "start"))


def test_no_operator_is_forgotten() -> None:
    """Each input of whole numbers, by ONNX's schemas, of each operator that compiles, or that is
    replaced by its definition."""
    found: dict[str, set[str]] = {}
    for schema in onnx.defs.get_all_schemas():
        name = f"{schema.domain}::{schema.name}" if schema.domain else schema.name
        defined = schema.has_function or schema.has_context_dependent_function
        if name not in supported_operators() and not defined:
            continue
        kinds = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}
        for given in schema.inputs:
            types = kinds.get(given.type_str, [given.type_str])
            if all(kind.startswith(("tensor(int", "tensor(uint")) for kind in types):
                found.setdefault(name, set()).add(given.name)
    assert found == {name: set(inputs) for name, inputs in run_time_positions.KINDS.items()}
    tested = {(case.operator, case.known) for case in CASES if case.low is not None}
    for name, inputs in run_time_positions.KINDS.items():
        for given, kind in inputs.items():
            if kind == "position":
                assert (name.rpartition(":")[2], given) in tested
