"""Which inputs are positions: by tests' list of all operators that are told where to read, whose
bounds onnxruntime has (`test_onnxruntime_has_the_same_positions`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.flow.adversarial import BOUNDS, PAST, odd_cases
from edgepack.flow.positions import position_uses
from edgepack.model import ModelSpec, read_model
from tests.onnx_models import Builder
from tests.run_time_positions import CASES, Positions

WHOLE = [case for case in CASES if case.low is not None]
# Of nothing there is nothing to tell: the least length that is tried.
LENGTHS = ("sequence_lens", "nonpad_kv_seqlen", "K")


@pytest.mark.parametrize("case", WHOLE, ids=[case.name for case in WHOLE])
def test_each_operator_that_is_told_where_to_read_is_known(case: Positions, tmp_path: Path) -> None:
    onnx.save(case.model(), tmp_path / "model.onnx")
    model = read_model(ModelSpec(path=tmp_path / "model.onnx"))
    (use,) = position_uses(model)[str(case.input)]
    assert (use.title, use.known) == (
        f"{case.domain + '::' if case.domain else ''}{case.operator} 'node'",
        case.known,
    )
    given = case.inputs[case.input]
    at = int(np.ravel_multi_index(case.at, given.shape))
    low = max(1, case.low or 0) if case.known in LENGTHS else case.low
    assert use.each(given.size)[at] == (low, case.high)
    cases = odd_cases(model, case.given())
    number = [index for index, item in enumerate(case.inputs) if item.size].index(case.input)
    assert cases[BOUNDS][number][case.at] in (low, case.high)
    assert cases[PAST][number][case.at] in ((low or 0) - 1, case.high + 1)


def test_only_what_may_hold_positions_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes are inferred for it, which takes long for a large model."""
    b = Builder()
    b.op("Gather", "x", b.const([0]), outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": [2, 5]}, {"y": [1, 5]})
    model = read_model(ModelSpec(path=path))
    monkeypatch.delattr("edgepack.flow.positions.infer_shapes")
    assert position_uses(model) == {}
