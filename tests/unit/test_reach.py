"""What `./dev check` leaves out, by files of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reach import DEAR_S, Reach

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


@pytest.mark.parametrize(
    ("changed", "file", "left_out"),
    [
        ([], "test_docs.py", True),
        (["edgepack/fleet/state.py"], "test_docs.py", True),
        (["docs/guides/gpu.md"], "test_docs.py", False),
        (["README.md"], "test_docs.py", False),
        (["tests/unit/test_docs.py"], "test_docs.py", False),
        (["edgepack/kernels/rules/dense.py"], "test_hostile_answers.py", True),
        (["edgepack/bundle/bundle.py"], "test_bundle.py", False),
        (["boards.toml"], "test_boards.py", False),
        (None, "test_docs.py", False),
    ],
)
def test_dear_tests_run_where_their_file_names_what_was_changed(
    changed: list[str] | None, file: str, left_out: bool
) -> None:
    costs = {"dear": DEAR_S, "cheap": DEAR_S / 2}
    reach = Reach(changed, costs)
    assert reach.leaves_out("dear", UNIT / file) == left_out
    assert not reach.leaves_out("cheap", UNIT / file)
    assert not reach.leaves_out("not known", UNIT / file)
