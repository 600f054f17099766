"""An input that points at nothing: what the app and its server make of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edgepack.base.errors import PositionError
from edgepack.bundle.manifest import APP
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from tests.functional.test_serve import Served, serving
from tests.onnx_models import gather

ROWS = np.arange(24, dtype=np.float32).reshape(4, 6)
WRONG = [4, -5, 2**31, 2**32, 2**63 - 1, -(2**63)]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gather")
    flags = {"model": gather(folder), "board": "local", "verify": False}
    bundle = package_job(make_job(load_project(None, flags)), folder / "bundle")
    return bundle.file(APP)


def said(number: int) -> str:
    return (
        f"Gather 'pick': its input 'indices' ('ids') has {number} at [1], which is not between "
        "-4 and 3"
    )


def test_the_app_says_which_position(app: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    for number in WRONG:
        np.save(tmp_path / "ids.npy", np.array([0, number]))
        words = [app, "--json", "--input", tmp_path / "rows.npy", "--input", tmp_path / "ids.npy"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == PositionError.exit_code == 10
        error = json.loads(done.stdout)["error"]
        assert (error["code"], error["message"]) == (10, said(number))
        assert error["hint"]


def infer(served: Served, ids: list[int]) -> tuple[int, dict[str, object]]:
    inputs = [
        {"name": "rows", "datatype": "FP32", "shape": [4, 6], "data": ROWS.ravel().tolist()},
        {"name": "ids", "datatype": "INT64", "shape": [2], "data": ids},
    ]
    text = json.dumps({"inputs": inputs}).encode()
    headers = {"Content-Type": "application/json"}
    status, _, body = served.ask(f"{served.model}/infer", text, headers)
    return status, json.loads(body)


def test_a_server_goes_on(app: Path) -> None:
    with serving(app) as served:
        for number in WRONG:
            status, answer = infer(served, [0, number])
            assert status == 400
            assert str(answer["error"]).startswith(said(number))
            status, answer = infer(served, [3, -4])
            assert status == 200
            (output,) = answer["outputs"]  # type: ignore[misc]
            assert output["data"] == ROWS[[3, 0]].ravel().tolist()
        assert served.stop() == 0
