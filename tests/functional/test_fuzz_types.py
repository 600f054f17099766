"""The short form of `./dev fuzz types`: one type and opset of each of these operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.fuzz import graphs, types

# Of each family that is converted in a way of its own; the long form has all.
OPERATORS = (
    *("Abs", "Add", "And", "ArgMax", "BitShift", "BitwiseNot", "Clip", "Compress"),
    *("Concat", "CumSum", "DepthToSpace", "Div", "Dropout", "Equal", "Expand"),
    *("Gather", "GatherND", "Gemm", "IsNaN", "MatMul", "Max", "Mod", "Neg", "NonZero"),
    *("Pad", "Pow", "PRelu", "ReduceMax", "ReduceSum", "Reshape", "ScatterElements"),
    *("Sign", "Slice", "Softmax", "Split", "Tile", "TopK", "Transpose", "Where"),
)


def test_a_type_and_opset_of_each_operator(tmp_path: Path) -> None:
    tasks = list(types.some(OPERATORS, seed=1))
    assert {task.name.partition("/")[0] for task in tasks} == {*OPERATORS}
    counts: Counter[str] = Counter()
    for number, task in enumerate(tasks):
        case = types.draw(task)
        if case is None:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        made = graphs.judge(case, folder)
        assert made.verdict not in graphs.BUGS, f"{made.name}: {made.why}"
        counts[made.verdict] += 1
    assert counts["same"] >= 0.8 * len(OPERATORS), counts
