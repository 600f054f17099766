"""`compile --html`: what lies where in the arena, and what computes on what."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edgepack.cli import main
from edgepack.cli.pages.memory_map import (
    OUTSIDE,
    SCRATCH,
    STATE,
    TENSOR,
    Held,
    data_flow,
    find_peak,
    held_tensors,
)
from edgepack.compiler.backend.report import LayerReport
from tests import onnx_models
from tests.unit.test_page import Parsed


def graph(*calls: list[int], **more: Any) -> dict[str, Any]:
    """Eight tensors of ten bytes: number n from byte 10 * n on, the last one a parameter."""
    tensors = [
        {"name": f"t{i}", "dtype": "uint8", "shape": [10], "offset": 10 * i, "bytes": 10}
        | {"storage": "params" if i == 7 else "arena"}
        for i in range(8)
    ]
    return {
        "tensors": tensors,
        "calls": [{"kernel": "k", "args": args} for args in calls],
        "inputs": [0],
        "outputs": [6],
        **more,
    }


def layer(result: int) -> LayerReport:
    return LayerReport(
        kernel="k", layer="n", operator="Conv", rule="conv", shape=(10,), dtype="uint8", exact="",
        tile="", macs=0, cycles=0, nbytes=0, result=result,
    )  # fmt: skip


def spans(found: list[Held]) -> dict[str, tuple[str, int, int]]:
    return {one.name: (one.kind, one.first, one.last) for one in found}


def test_what_is_needed_when() -> None:
    calls = [0, 7, 1, 2], [1, 3], [3, 1, 4], [4, 6]
    layers = [layer(2), layer(1), layer(2), layer(1)]
    found = held_tensors(graph(*calls), layers)
    assert spans(found) == {
        "t0": (OUTSIDE, 0, 0),
        "t1": (TENSOR, 0, 2),
        "t2": (SCRATCH, 0, 0),
        "t3": (TENSOR, 1, 2),
        "t4": (TENSOR, 2, 3),
        "t6": (OUTSIDE, 3, 3),
    }
    # Calls 0 and 2 need three tensors of ten bytes; the first is named.
    peak = find_peak(found, len(calls))
    assert (peak.call, peak.nbytes, {one.name for one in peak.held}) == (0, 30, {"t0", "t1", "t2"})


def test_a_loop_needs_what_was_made_before_it_up_to_its_end() -> None:
    calls = [0, 1], [1, 2], [2, 3], [2, 4], [4, 6]
    block = {"first": 1, "end": 4, "condition": 3, "most": 9}
    found = spans(held_tensors(graph(*calls, blocks=[block]), [layer(1)] * 5))
    assert found["t1"] == (TENSOR, 0, 3)
    assert found["t2"] == (TENSOR, 1, 3)
    assert found["t4"] == (TENSOR, 3, 4)


def test_states_stay_and_bytes_count_once() -> None:
    state = {"input": 1, "output": 1}
    plan = graph([0, 1], [1, 2], [2, 6], inputs=[0, 5], outputs=[6, 1], states=[state])
    plan["tensors"][2]["offset"] = 12  # over most of t1
    found = held_tensors(plan, [])
    assert spans(found)["t5"] == (STATE, 0, 2)
    assert spans(found)["t1"] == (STATE, 0, 2)
    # 30 of t0, t1 and t5; 22 of t1, t2 and t5, of which two share eight; those and 10 of t6.
    assert find_peak(found, 3).nbytes == 32
    assert find_peak(found, 3).call == 2


def test_an_output_under_another_name() -> None:
    plan = graph([0, 1], [1, 4])
    plan["tensors"][6]["offset"] = 40
    assert spans(held_tensors(plan, []))["t6"] == (OUTSIDE, 1, 1)


def test_who_reads_what_who_wrote() -> None:
    layers = [layer(1), layer(1), layer(2), layer(1)]
    # A residual: the third call reads what the first two wrote; a parameter comes from none.
    assert data_flow(graph([0, 1], [1, 2], [2, 1, 3], [3, 6]), layers) == [
        (0, 1), (1, 2), (0, 2), (2, 3),
    ]  # fmt: skip
    # A concatenation: two calls write parts of what a third one reads under another name.
    parts = graph([0, 1], [0, 2], [3, 4])
    parts["tensors"][3] |= {"offset": 10, "bytes": 20}
    assert data_flow(parts, [layer(1)] * 3) == [(0, 2), (1, 2)]
    # What was written over is read no more, nor is scratch; what is left of it is.
    over = graph([0, 1], [0, 2, 5], [1, 4], [5, 6])
    over["tensors"][2]["offset"] = 10
    assert data_flow(over, [layer(1)] * 4) == [(1, 2), (1, 3)]
    over["tensors"][2]["offset"] = 15
    assert data_flow(over, [layer(1)] * 4) == [(0, 2), (1, 2), (1, 3)]


@pytest.mark.parametrize(("make", "kind"), [("quantized", "integers"), ("half_image", "float")])
def test_a_real_plan(make: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    getattr(onnx_models, make)(tmp_path / "net.onnx")
    words = ["compile", "net.onnx", "--board", "rasp4b-64", "-o", "out", "--html", "page.html"]
    assert main(words) == 0
    made = Path("page.html").read_text()
    parsed = Parsed(made)
    assert parsed.opened == []
    assert "script" not in parsed.tags
    plan = json.loads(Path("out/graph.json").read_text())
    found = held_tensors(plan, [])
    # Two tensors that are needed at one time do not lie over each other, unless a call makes one
    # of the other in its place.
    for one in found:
        for other in found:
            together = one.first < other.last and other.first < one.last
            over = one.offset < other.end and other.offset < one.end
            assert one is other or not (together and over), (one, other)
    peak = find_peak(found, len(plan["calls"]))
    (call,) = re.findall(r"Peak: call (\d+), ", parsed.said)
    assert int(call) == peak.call + 1
    assert peak.nbytes <= plan["arena_bytes"] < peak.nbytes + 64 * (len(found) + 1)
    assert made.count('<rect class="c') >= len(found) + len(plan["calls"])
    # Every call but those that read the input alone reads what another one wrote.
    drawn = made.partition('<svg class="flow"')[2].partition("</svg>")[0]
    assert drawn.count("<rect") == len(plan["calls"])
    assert drawn.count("<path") >= len(plan["calls"]) - 1
    assert re.search(rf"{kind}\s*\d+ calls?, 100.0% of the multiply-adds", parsed.said)
