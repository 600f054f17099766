"""How onnx's own tests are judged and counted; the tests themselves run by `./dev conformance`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests import conformance
from tests.conformance import Case, Verdict

ONE = np.array([1.0, 2.0, np.nan], "float32")


@pytest.mark.parametrize(
    ("mine", "due", "wrong"),
    [
        (ONE, ONE, ""),
        (ONE, ONE + np.float32(3e-6), ""),
        (ONE, ONE + np.float32(1e-2), "2 of 3"),
        (ONE, np.array([1.0, 2.0, 3.0], "float32"), "1 of 3"),
        (ONE, ONE.astype("float64"), "float32"),
        (ONE, ONE.reshape(3, 1), r"\(3, 1\)"),
        (np.array([7, 8]), np.array([7, 9]), "1 of 2"),
        (ONE.astype("float16"), (ONE + np.float32(1e-3)).astype("float16"), ""),
        (ONE.astype("float16"), (ONE + np.float32(1e-1)).astype("float16"), "2 of 3"),
        (np.array([np.inf]), np.array([np.inf]), ""),
        (np.array([np.inf]), np.array([-np.inf]), "1 of 1"),
    ],
)
def test_difference(mine: np.ndarray, due: np.ndarray, wrong: str) -> None:
    said = conformance.difference(mine, due, rtol=1e-3, atol=1e-7)
    assert bool(said) == bool(wrong)
    assert re.search(wrong, said)


def test_the_table_counts_by_operator() -> None:
    verdicts = [
        Verdict(name="test_conv_1", operator="Conv", verdict="pass"),
        Verdict(name="test_conv_2", operator="Conv", verdict="wrong", why="output 0: 1 differs"),
        Verdict(name="test_det", operator="Det", verdict="refused", why="first\nlast"),
    ]
    page = conformance.document(verdicts, {"test_random": "its result is random"})
    assert "| all | 1 | 1 | 1 |  | 3 |" in page
    assert "| convolutional networks | 1 |  | 1 |  | 2 |" in page
    assert "| `Conv` | 1 |  | 1 |  | 2 |" in page
    assert "- `test_det`: refused: last" in page
    assert "its result is random (1): `test_random`" in page


def test_the_page_adds_up() -> None:
    """docs/operators.md names every test that does not pass, and every operator."""
    page = conformance.DOCUMENT.read_text()
    rows = re.findall(r"^\| (all|`[\w.:]+`) \|([^\n]*)\|$", page, re.MULTILINE)
    counts = {
        name: [int(cell) if cell.strip() else 0 for cell in row.split("|")] for name, row in rows
    }
    total = counts.pop("all")
    assert [sum(column) for column in zip(*counts.values(), strict=True)] == total
    passed, *others, every = total
    assert passed + sum(others) == every
    assert len(re.findall(r"^- `test_\w+`: (?:refused|wrong|untyped)", page, re.MULTILINE)) == sum(
        others
    )


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "verdicts"
    assert conformance._kept(file, []) == []
    done = Verdict(name="test_conv_1", operator="Conv", verdict="refused", why="a\nb")
    other = Verdict(name="test_det", operator="Det", verdict="pass")
    file.write_text("".join(json.dumps(vars(made)) + "\n" for made in (done, other)))
    case = Case(name="test_conv_1", operator="Conv", model=b"", data=[], rtol=0, atol=0)
    assert conformance._kept(file, [case]) == [done]


def test_parameters_become_constants() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", None]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "g", values, [out]))

    class Test:
        name, rtol, atol = "test_reshape", 1e-3, 1e-7

    x = np.arange(6, dtype="float32").reshape(2, 3)
    data = [([x, np.array([3, 2])], [x.reshape(3, 2)])]
    case = conformance._fixed(Test, model, data, conformance._parameters(model))
    assert isinstance(case, Case)
    assert case.operator == "Reshape"
    ((given, _),) = case.data
    assert len(given) == 1
