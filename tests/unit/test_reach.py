"""What `./dev check` leaves out, by files of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reach import Reach

UNIT = Path(__file__).parent


@pytest.mark.parametrize(
    ("changed", "file", "left_out"),
    [
        ([], "test_known_kernels.py", True),
        (["edgepack/fleet/state.py", "docs/guides/gpu.md"], "test_known_kernels.py", True),
        (["edgepack/fleet/state.py"], "test_fleet_rollout.py", False),
        (["edgepack/kernels/rules/dense.py"], "test_known_kernels.py", False),
        (["tests/unit/test_known_kernels.py"], "test_known_kernels.py", False),
        (["tests/onnx_models.py"], "test_known_kernels.py", False),
        (["requirements.lock"], "test_known_kernels.py", False),
        (None, "test_known_kernels.py", False),
    ],
)
def test_what_compiles_runs_where_it_is_reached(
    changed: list[str] | None, file: str, left_out: bool
) -> None:
    assert bool(Reach(changed).pytest_ignore_collect(UNIT / file)) == left_out
