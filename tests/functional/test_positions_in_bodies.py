"""Positions that come at run time, read inside of branches and loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.flow.adversarial import BOUNDS, PAST, odd_cases
from edgepack.flow.positions import position_ranges, position_uses
from edgepack.model import ModelSpec, read_model
from edgepack.native.toolchain import select
from tests.bodies import Body
from tests.functional.test_positions import IDS, OUTSIDE, TARGETS, due
from tests.onnx_models import Builder
from tests.plan_on_arm import build_program, outputs_of, prepare, run_program
from tests.run_time_positions import CASES, Positions
from tests.support import require_tool

Array = np.ndarray[Any, Any]
# A TopK's K is no size that a body may have, Attention is refused in one, and onnxruntime has no
# kernel for TensorScatter and RotaryEmbedding beside which to look.
KINDS = ("If", "Loop", "Scan")
ABLE = [
    case
    for case in CASES
    if case.low is not None
    and case.operator not in ("Attention", "TopK", "TensorScatter", "RotaryEmbedding")
]
SHORT = [
    case
    for case in ABLE
    if case.name in ("GatherElements", "ScatterND-add", "ReverseSequence", "RoiAlign-images-2")
]


def _info(name: str, value: Array, lead: Sequence[int] = ()) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, [*lead, *value.shape])


@dataclass(frozen=True, kw_only=True)
class Inside:
    """A case inside of a body, with inputs that are right."""

    case: Positions
    model: onnx.ModelProto
    given: dict[str, Array]

    @property
    def position_input(self) -> str:
        return f"x{self.case.input}"

    def with_position(self, value: Any) -> Array:
        """The input of positions; a Scan's second turn has the wrong one."""
        changed = self.case.with_position(value)
        good = self.given[self.position_input]
        return changed if good.shape == changed.shape else np.stack([good[0], changed])


def inside(case: Positions, kind: str, alone: Sequence[Array]) -> Inside:
    """The case in a body: `alone` is what it makes outside of one."""
    names = [f"x{i}" if value.size else "" for i, value in enumerate(case.inputs)]
    given = {name: value for name, value in zip(names, case.inputs, strict=True) if name}
    made = [f"made{i}" for i in range(len(alone))]
    ends = [f"y{i}" for i in range(len(alone))]
    zeros = [numpy_helper.from_array(np.zeros_like(v), f"zero{i}") for i, v in enumerate(alone)]
    results = [_info(name, value) for name, value in zip(made, alone, strict=True)]
    lead: tuple[int, ...] = ()
    if kind == "Scan":
        at = case.input
        lead, names[at] = (2,), "position"
        given[f"x{at}"] = np.stack([case.inputs[at]] * 2)
    inner = helper.make_node(
        case.operator, names, made, "inner", domain=case.domain, **case.attributes
    )
    if kind == "If":
        given["flag"] = np.array(True)
        other = [helper.make_node("Identity", [zero.name], [f"{zero.name}/out"]) for zero in zeros]
        empty = [_info(f"zero{i}/out", value) for i, value in enumerate(alone)]
        bodies = {
            "then_branch": helper.make_graph([inner], "then", [], results),
            "else_branch": helper.make_graph(other, "else", [], empty),
        }
        node = helper.make_node("If", ["flag"], ends, **bodies)
    elif kind == "Loop":
        given["turns"] = np.array(2)
        goes = helper.make_tensor_value_info("goes", TensorProto.BOOL, [])
        keep = helper.make_tensor_value_info("keep", TensorProto.BOOL, [])
        turn = helper.make_tensor_value_info("turn", TensorProto.INT64, [])
        states = [_info(f"state{i}", value) for i, value in enumerate(alone)]
        nodes = [helper.make_node("Identity", ["goes"], ["keep"]), inner]
        body = helper.make_graph(nodes, "body", [turn, goes, *states], [keep, *results])
        node = helper.make_node("Loop", ["turns", "", *(z.name for z in zeros)], ends, body=body)
    else:
        taken = _info("position", case.inputs[case.input])
        body = helper.make_graph([inner], "body", [taken], results)
        node = helper.make_node("Scan", [f"x{case.input}"], ends, body=body, num_scan_inputs=1)
    graph = helper.make_graph(
        [node],
        "bodies",
        [_info(name, value) for name, value in given.items()],
        [_info(name, value, lead) for name, value in zip(ends, alone, strict=True)],
        zeros if kind != "Scan" else [],
    )
    domains = [helper.make_opsetid("", max(case.opset, 10))]
    if case.domain:
        domains.append(helper.make_opsetid(case.domain, 1))
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    return Inside(case=case, model=model, given=given)


def check(case: Positions, kind: str, board_name: str, cpu: str, work: Path, wrong: int) -> None:
    """Right positions have onnxruntime's values; `wrong` others end with an error that names it."""
    alone = due(case)
    assert alone is not None
    made = inside(case, kind, alone)
    board = get_board(board_name)
    work.mkdir(parents=True)
    path = work / "model.onnx"
    onnx.save(made.model, path)
    toolchain = select(board, "gnu" if board.is_local else None).toolchain
    compiled = compile_model(ModelSpec(path=path), board, toolchain, work / "out")
    qemu: list[str] = []
    if not board.is_local:
        arch = "aarch64" if board.triple.startswith("aarch64") else "arm"
        qemu = [require_tool(f"qemu-{arch}-static"), "-cpu", cpu, "-L", f"/usr/{board.triple}"]
    program = build_program(require_tool("gcc" if board.is_local else f"{board.triple}-gcc"), work)
    prepare(compiled.folder, list(made.given.values()), work)
    for guard in ("end", "start"):
        done = run_program([*qemu, program, guard], work)
        assert done.returncode == 0, (guard, done.stderr)
    expected = onnxruntime.InferenceSession(path).run(None, made.given)
    for mine, theirs in zip(outputs_of(compiled.folder, work), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5, rtol=1e-4)
    file = work / f"in{list(made.given).index(made.position_input)}"
    for value in case.wrong()[:wrong]:
        file.write_bytes(made.with_position(value).tobytes())
        done = run_program([*qemu, program, "end"], work)
        said = f"{OUTSIDE}: {case.operator} "
        assert done.returncode == 1, (value, done.stderr)
        assert said in done.stderr, (value, done.stderr)
        assert f"its input '{case.known}'|" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_positions_inside_of_a_body(kind: str, tmp_path: Path) -> None:
    for case in SHORT:
        check(case, kind, "local", "", tmp_path / case.name, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ABLE, ids=[case.name for case in ABLE])
def test_odd_inputs_are_at_the_positions_of_bodies(
    case: Positions, kind: str, tmp_path: Path
) -> None:
    """Those that `package` tries: at the bounds and one past them, which are those outside of a
    body; a Scan's are told of all elements alike."""
    alone = due(case)
    assert alone is not None
    made = inside(case, kind, alone)
    onnx.save(made.model, tmp_path / "model.onnx")
    model = read_model(ModelSpec(path=tmp_path / "model.onnx"))
    uses = position_uses(model)
    if case.operator == "MaxRoiPool" and kind == "Scan":
        assert uses == {}  # the first of five numbers, the others of which are any
        return
    (use,) = uses[made.position_input]
    assert (use.known, use.is_needed, use.changes) == (case.known, True, False)
    values = made.given[made.position_input]
    at = int(np.ravel_multi_index(case.at, case.inputs[case.input].shape))
    low, high = use.each(values.size)[at] or (0, 0)
    least = max(1, case.low or 0) if case.known == "sequence_lens" else case.low
    if kind == "Scan" and len(use.limits) == 1:
        # Of axes that are shorter than this one, no more.
        assert (least or 0) <= low <= high <= case.high
    else:
        assert (low, high) == (least, case.high)
    cases = odd_cases(model, list(made.given.values()))
    number = list(made.given).index(made.position_input)
    for name, past in ((BOUNDS, 0), (PAST, 1)):
        assert cases[name][number].reshape(-1)[at] in (low - past, high + past)


@pytest.mark.parametrize("counts", [False, True])
def test_a_state_of_a_loop_is_a_position_in_its_first_turn(counts: bool, tmp_path: Path) -> None:
    """Where turns count on from it, a number that is drawn for it may be no position later."""
    body = Body()
    body.op("Identity", "going", outputs=["goes"])
    body.op("Gather", "table", "at", axis=0, outputs=["row"])
    body.op(
        *(("Add", "at", body.const([1], "int64")) if counts else ("Identity", "at")),
        outputs=["next"],
    )
    inner = body.model(
        {"turn": [], "going": [], "at": [1]},
        {"goes": [], "next": [1], "row": [1, 3]},
        dict.fromkeys(("turn", "at", "next"), TensorProto.INT64)
        | dict.fromkeys(("going", "goes"), TensorProto.BOOL),
    ).graph
    b = Builder()
    b.weights.append(numpy_helper.from_array(np.arange(21, dtype="float32").reshape(7, 3), "table"))
    kept = b.op("Reshape", "first", b.const([1], "int64"))
    b.op("Loop", b.const(2, "int64"), "", kept, outputs=["last", "rows"], body=inner)
    whole = {"first": TensorProto.INT64, "last": TensorProto.INT64}
    onnx.save(
        b.model({"first": []}, {"last": [1], "rows": [2, 1, 3]}, whole), tmp_path / "model.onnx"
    )
    model = read_model(ModelSpec(path=tmp_path / "model.onnx"))
    (use,) = position_uses(model)["first"]
    assert (use.limits, use.is_needed, use.changes) == (((-7, 6),), True, counts)
    assert position_ranges(model) == ({} if counts else {"first": (-7, 6)})
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    odd = odd_cases(model, [np.array(0)])
    with pytest.raises(Exception, match=r"out of|bounds|index"):
        session.run(None, {"first": odd[PAST][0]})
    if not counts:
        session.run(None, {"first": odd[BOUNDS][0]})


@pytest.mark.slow
@pytest.mark.parametrize(("board", "cpu"), TARGETS, ids=IDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ABLE, ids=[case.name for case in ABLE])
def test_every_position_inside_of_a_body(
    case: Positions, kind: str, board: str, cpu: str, tmp_path: Path
) -> None:
    check(case, kind, board, cpu, tmp_path / "run", 3)
